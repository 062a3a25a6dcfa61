package publish

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// tree returns the paths of all files below dir, with their content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// only reports anything in dir but the given names.
func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestLayoutIsValidAndComplete(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	s, r := release(t)
	out := t.TempDir()
	dir := filepath.Join(out, "image")
	if err := Layout(t.Context(), s, dir, r, []string{"v1-k8s1.37", "latest"}); err != nil {
		t.Fatal(err)
	}
	only(t, out, "image")

	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]v1.Descriptor{}
	referrers := 0
	for _, d := range m.Manifests {
		if n := d.Annotations[refNameAnnotation]; n != "" {
			byName[n] = d
		} else if d.ArtifactType == "application/example" {
			referrers++
		}
	}
	tag := strings.Replace(r.Index.Descriptor.Digest, ":", "-", 1)
	if len(byName) != 4 || len(m.Manifests) != 5 || referrers != 1 {
		t.Errorf("index.json is %+v", m.Manifests)
	}
	for name, kind := range map[string]string{"v1-k8s1.37": "index", "latest": "index", tag + ".sig": "sigs"} {
		if byName[name].Annotations["kind"] != kind {
			t.Errorf("%s is %+v", name, byName[name])
		}
	}
	if byName["latest"].Digest.String() != r.Index.Descriptor.Digest {
		t.Errorf("latest is %s", byName["latest"].Digest)
	}
	index, err := root.ImageIndex(byName["latest"].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	fallback, err := root.ImageIndex(byName[tag].Digest)
	if err != nil {
		t.Fatal(err)
	}
	list, err := fallback.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != "application/example" || list.Manifests[0].Annotations["says"] != "bundle" {
		t.Errorf("referrers are %+v, %v", list, err)
	}

	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		want := fs.FileMode(0o644)
		if d.IsDir() {
			want = 0o755
		}
		if err == nil && fi.Mode().Perm() != want {
			t.Errorf("%s has mode %s", path, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	layer := strings.TrimPrefix(r.Images[0].Layers[0].Descriptor.Digest, "sha256:")
	a, _ := os.Stat(filepath.Join(dir, "blobs", "sha256", layer))
	b, _ := os.Stat(filepath.Join(s.Dir(), "blobs", "sha256", layer))
	if !os.SameFile(a, b) {
		t.Error("layer was copied, though a link is possible")
	}
}

func TestLayoutReplacesAnOlderOne(t *testing.T) {
	s, r := release(t)
	out := t.TempDir()
	dir := filepath.Join(out, "image")
	if err := os.Mkdir(dir, 0o755); err != nil { // empty
		t.Fatal(err)
	}
	if err := Layout(t.Context(), s, dir, Release{Index: r.Index, Images: r.Images}, nil); err != nil {
		t.Fatal(err)
	}
	first := tree(t, dir)
	if err := Layout(t.Context(), s, dir, r, []string{"new"}); err != nil {
		t.Fatal(err)
	}
	second := tree(t, dir)
	if first["index.json"] == second["index.json"] || len(second) <= len(first) {
		t.Error("layout was not replaced")
	}
	only(t, out, "image")
}

func TestAnythingButALayoutIsKept(t *testing.T) {
	s, r := release(t)
	out := t.TempDir()
	for name, make := range map[string]func(string) error{
		"folder": func(p string) error { return store.WriteFile(filepath.Join(p, "thesis.tex"), []byte("x"), 0o600) },
		"file":   func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
		"link":   func(p string) error { return os.Symlink("elsewhere", p) },
	} {
		path := filepath.Join(out, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		err := Layout(t.Context(), s, path, r, nil)
		if err == nil || !strings.Contains(err.Error(), "is not an OCI layout") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	only(t, out, "folder", "file", "link")
}

func TestFailedLayoutLeavesTheOldOneAlone(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(context.CancelFunc, *store.Store, *Release)
		is    func(error) bool
	}{
		"cancelled": {
			func(cancel context.CancelFunc, _ *store.Store, _ *Release) { cancel() },
			func(err error) bool { return errors.Is(err, context.Canceled) },
		},
		"layer lost": {
			func(_ context.CancelFunc, s *store.Store, r *Release) {
				p, _ := s.Path(r.Images[0].Layers[0].Descriptor.Digest)
				os.Remove(p)
			},
			func(err error) bool { return errors.Is(err, fs.ErrNotExist) },
		},
		"layer changed": {
			func(_ context.CancelFunc, s *store.Store, r *Release) {
				d := r.Images[0].Layers[0].Descriptor
				p, _ := s.Path(d.Digest)
				os.WriteFile(p, make([]byte, d.Size), 0o644)
			},
			func(err error) bool { var m *store.DigestMismatch; return errors.As(err, &m) },
		},
		"layer cut": {
			func(_ context.CancelFunc, s *store.Store, r *Release) {
				p, _ := s.Path(r.Images[0].Layers[0].Descriptor.Digest)
				os.Truncate(p, 3)
			},
			func(err error) bool { return err != nil && strings.Contains(err.Error(), "has 3 bytes") },
		},
		"parts that don't fit": {
			func(_ context.CancelFunc, _ *store.Store, r *Release) { r.Artifacts[0].Tag = "" },
			func(err error) bool {
				return err != nil && strings.Contains(err.Error(), "neither a tag nor a subject")
			},
		},
	} {
		s, r := release(t)
		out := t.TempDir()
		dir := filepath.Join(out, "image")
		if err := Layout(t.Context(), s, dir, Release{Index: r.Index, Images: r.Images}, nil); err != nil {
			t.Fatal(err)
		}
		before := tree(t, dir)["index.json"]
		ctx, cancel := context.WithCancel(t.Context())
		c.spoil(cancel, s, &r)
		if err := Layout(ctx, s, dir, r, nil); !c.is(err) {
			t.Errorf("%s: got %v", name, err)
		}
		cancel()
		if tree(t, dir)["index.json"] != before {
			t.Errorf("%s: the old layout was changed", name)
		}
		only(t, out, "image")
	}
}

// TestFullAndReadOnlyDisk runs again in mount namespaces of its own, where it
// mounts a file system that is too small, and one that is read-only.
func TestFullAndReadOnlyDisk(t *testing.T) {
	for options, want := range map[string]error{"size=64k": syscall.ENOSPC, "ro": syscall.EROFS} {
		if os.Getenv("PUBLISH_TEST_MOUNT") == options {
			out := t.TempDir()
			if err := errors.Join(
				syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
				syscall.Mount("tmpfs", out, "tmpfs", 0, options),
			); err != nil {
				t.Fatal(err)
			}
			defer syscall.Unmount(out, syscall.MNT_DETACH)
			s, r := release(t)
			r.Artifacts = append(r.Artifacts, statement(t, strings.Repeat("much ", 50_000), r.Artifacts[1].subject(t)))
			if err := Layout(t.Context(), s, filepath.Join(out, "image"), r, nil); !errors.Is(err, want) {
				t.Errorf("got %v, expected %v", err, want)
			}
			only(t, out)
			return
		}
	}
	if os.Getenv("PUBLISH_TEST_MOUNT") != "" {
		return
	}
	for _, options := range []string{"size=64k", "ro"} {
		p, err := os.StartProcess("/proc/self/exe", []string{"test", "-test.run=^TestFullAndReadOnlyDisk$"}, &os.ProcAttr{
			Env:   append(os.Environ(), "PUBLISH_TEST_MOUNT="+options),
			Files: []*os.File{nil, os.Stdout, os.Stderr},
			Sys: &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
			},
		})
		if err != nil {
			t.Skip("no user namespaces here:", err)
		}
		if state, err := p.Wait(); err != nil || !state.Success() {
			t.Errorf("%s: %v %v", options, state, err)
		}
	}
}

func (a Artifact) subject(t *testing.T) *descriptor {
	t.Helper()
	var n node
	if err := json.Unmarshal(a.Manifest, &n); err != nil {
		t.Fatal(err)
	}
	return n.Subject
}

// pack writes a layout as a tar archive.
func pack(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestLayoutAndArchiveAreReadBack(t *testing.T) {
	s, r := release(t)
	dir := filepath.Join(t.TempDir(), "image")
	if err := Layout(t.Context(), s, dir, r, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pack(t, dir)} {
		l, err := OpenLayout(path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if string(l.Index()) != tree(t, dir)["index.json"] {
			t.Errorf("index is %s", l.Index())
		}
		if err := l.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		b, err := l.Blob(r.Index.Descriptor)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if got, err := io.ReadAll(b); err != nil || string(got) != string(r.Index.Bytes) {
			t.Errorf("index is %s, %v", got, err)
		}
		if _, err := l.Blob(describe("", []byte("absent")).Descriptor); err == nil {
			t.Error("a blob that is not there was opened")
		}
		if _, err := l.Blob(store.Descriptor{Digest: "sha256:../../../etc/passwd"}); err == nil {
			t.Error("a digest that is a path was accepted")
		}
	}
}

func TestAllDamageIsReported(t *testing.T) {
	s, r := release(t)
	dir := filepath.Join(t.TempDir(), "image")
	if err := Layout(t.Context(), s, dir, r, nil); err != nil {
		t.Fatal(err)
	}
	spoil := func(digest string, f func(string) error) string {
		path := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
		b, err := os.ReadFile(path)
		if err := errors.Join(err, os.Remove(path), os.WriteFile(path, b, 0o644), f(path)); err != nil {
			t.Fatal(err)
		}
		return digest
	}
	wants := []string{
		spoil(r.Images[0].Layers[0].Descriptor.Digest, os.Remove) + ": ",
		spoil(r.Images[0].Layers[1].Descriptor.Digest, func(p string) error { return os.Truncate(p, 1) }) + " has 1 bytes",
		spoil(r.Images[0].Config.Descriptor.Digest, func(p string) error {
			return os.WriteFile(p, make([]byte, r.Images[0].Config.Descriptor.Size), 0o644)
		}) + ": content has digest",
		spoil(r.Images[1].Manifest.Descriptor.Digest, func(p string) error {
			return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p))
		}) + ": ",
	}
	for _, path := range []string{dir, pack(t, dir)} {
		l, err := OpenLayout(path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		err = l.Verify(t.Context())
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, expected %q", path, err, want)
			}
		}
	}
}

func FuzzOpenArchive(f *testing.F) {
	seed := func(files ...string) {
		var b strings.Builder
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644})
			io.WriteString(w, files[i+1])
		}
		w.Close()
		f.Add(b.String())
	}
	d := describe(finish.MediaTypeManifest, []byte("{}"))
	seed("index.json", `{"manifests":[{"mediaType":"`+d.MediaType+`","digest":"`+d.Digest+`","size":2}]}`, "blobs/sha256/"+d.Digest[7:], "{}")
	seed("./index.json", `{"manifests":[{"digest":"sha256:..","size":-1}]}`)
	seed("index.json", "{}", "index.json", "{}")
	f.Add("no archive")
	f.Fuzz(func(t *testing.T, archive string) {
		l, err := openArchive(memory{strings.NewReader(archive)})
		if err != nil {
			return
		}
		r, size, err := l.open("index.json")
		if err != nil {
			return
		}
		if l.index, err = document(r, size); err != nil {
			return
		}
		if l.Verify(t.Context()) != nil {
			return
		}
		var index node
		if err := json.Unmarshal(l.index, &index); err != nil {
			t.Fatal(err)
		}
		for _, d := range index.children() { // what is verified can be read
			r, err := l.Blob(d.Descriptor)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r)
			if err != nil || store.Digest(b) != d.Digest {
				t.Fatalf("%s: %v", d.Digest, err)
			}
		}
	})
}

type memory struct{ *strings.Reader }

func (memory) Close() error { return nil }
