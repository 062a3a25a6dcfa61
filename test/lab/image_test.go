package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// layout writes an OCI layout of an image with one layer.
func layout(t *testing.T, entries ...tar.Header) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	blob := func(mediaType string, v any) object {
		b, ok := v.([]byte)
		if !ok {
			var err error
			if b, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		sum := sha256.Sum256(b)
		if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", hex.EncodeToString(sum[:])), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return object{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + hex.EncodeToString(sum[:]), "size": len(b)}
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, h := range entries {
		content := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l := blob("layer.v1.tar", layer.Bytes())
	config := blob("config.v1+json", object{"os": "linux", "architecture": runtime.GOARCH, "rootfs": object{"type": "layers", "diff_ids": []any{l["digest"]}}})
	manifest := blob("manifest.v1+json", object{"schemaVersion": 2, "config": config, "layers": []any{l}})
	manifest["platform"] = object{"os": "linux", "architecture": runtime.GOARCH}
	index := blob("index.v1+json", object{"schemaVersion": 2, "manifests": []any{manifest}})
	index["annotations"] = object{"org.opencontainers.image.ref.name": "dev"}
	for name, v := range map[string]any{
		"index.json": object{"schemaVersion": 2, "manifests": []any{index}}, "oci-layout": object{"imageLayoutVersion": "1.0.0"},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func ownCache(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("owners are root's to set")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
}

func TestAnImageIsLaidOutAsItsLayersSay(t *testing.T) {
	ownCache(t)
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	from := layout(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755, ModTime: at},
		tar.Header{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o2751, Uid: 1, Gid: 2, ModTime: at},
		tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/su", Mode: 0o4755, Uid: 3, Gid: 4, ModTime: at, Linkname: "content", PAXRecords: map[string]string{"SCHILY.xattr.user.note": "x"}},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/bin/sh", Linkname: "/etc/passwd", Uid: 5, ModTime: at},
		tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/secret", Mode: 0, ModTime: at},
	)
	img, err := Prepare(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		mode     fs.FileMode
		uid, gid uint32
		time     time.Time
	}
	for name, want := range map[string]file{
		"usr/bin":        {fs.ModeDir | fs.ModeSetgid | 0o751, 1, 2, at},
		"usr/bin/su":     {fs.ModeSetuid | 0o755, 3, 4, at},
		"usr/bin/sh":     {fs.ModeSymlink | 0o777, 5, 0, at},
		"usr/bin/secret": {0, 0, 0, at},
	} {
		fi, err := os.Lstat(filepath.Join(img.Folders[0], name))
		if err != nil {
			t.Error(err)
			continue
		}
		st := fi.Sys().(*syscall.Stat_t)
		if got := (file{fi.Mode(), st.Uid, st.Gid, fi.ModTime().UTC()}); got != want {
			t.Errorf("%s is %v, expected %v", name, got, want)
		}
	}
	su := filepath.Join(img.Folders[0], "usr/bin/su")
	value := make([]byte, 8)
	if n, err := unix.Getxattr(su, "user.note", value); err != nil || string(value[:n]) != "x" {
		t.Errorf("extended attribute is %q, %v", value, err)
	}
	if b, err := os.ReadFile(su); err != nil || string(b) != "content" {
		t.Errorf("content is %q, %v", b, err)
	}
	if target, err := os.Readlink(filepath.Join(img.Folders[0], "usr/bin/sh")); err != nil || target != "/etc/passwd" {
		t.Errorf("link leads to %q, %v", target, err)
	}
	again, err := Prepare(t.Context(), from)
	if err != nil || again.Folders[0] != img.Folders[0] {
		t.Errorf("the second time it is %v, %v", again, err)
	}
}

func TestADamagedImageIsNotLaidOut(t *testing.T) {
	ownCache(t)
	from := layout(t, tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Linkname: strings.Repeat("content", 1000)})
	blobs, err := filepath.Glob(filepath.Join(from, "blobs", "sha256", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range blobs {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if damaged := bytes.Replace(b, []byte("contentcontent"), []byte("contenTcontent"), 1); os.WriteFile(name, damaged, 0o644) != nil {
			t.Fatal(err)
		}
	}
	if img, err := Prepare(t.Context(), from); err == nil {
		t.Errorf("it is %v", img)
	}
	base, err := folder("images")
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(base, "[^.]*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestImagesThatWereUsedLongestAgoGo(t *testing.T) {
	ownCache(t)
	var images []Image
	start := time.Now().Add(-time.Hour)
	for i := range kept {
		img, err := Prepare(t.Context(), layout(t, tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Linkname: strings.Repeat("x", i)}))
		if err != nil {
			t.Fatal(err)
		}
		at := start.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(img.Folders[0], at, at); err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	use, err := hold(images[0].Folders[0], unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer use.Close()
	torn := images[0].Folders[0] + "0.new"
	if err := os.Mkdir(torn, 0o755); err != nil {
		t.Fatal(err)
	}
	last, err := Prepare(t.Context(), layout(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{images[0].Folders[0]: true, images[1].Folders[0]: false, images[2].Folders[0]: true, last.Folders[0]: true, torn: false} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s is there: %v, expected %v", filepath.Base(name), err == nil, want)
		}
	}
}
