package overlay

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var params = Params{Pause: "registry.k8s.io/pause:3.10.2"}

func overlayFiles(t *testing.T) map[string]File {
	t.Helper()
	list, err := Files(params)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]File{}
	for i, f := range list {
		if i > 0 && list[i-1].Path >= f.Path {
			t.Errorf("%s comes after %s", f.Path, list[i-1].Path)
		}
		m[f.Path] = f
	}
	return m
}

func TestEveryFileUnderRootfsIsInTheImageByteForByte(t *testing.T) {
	files := overlayFiles(t)
	err := filepath.WalkDir("rootfs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		want, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		want = bytes.ReplaceAll(want, []byte("@PAUSE@"), []byte(params.Pause))
		f, ok := files[strings.TrimPrefix(filepath.ToSlash(name), "rootfs/")]
		if !ok || !bytes.Equal(f.Content, want) || f.Mode != 0o644 {
			t.Errorf("%s: in the image %v with mode %v and content\n%s", name, ok, f.Mode, f.Content)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEntriesAreFoldersFilesAndLinksWithTheirParents(t *testing.T) {
	files := overlayFiles(t)
	for name, f := range files {
		if !fs.ValidPath(name) || name == "." {
			t.Errorf("%q is not a clean relative path", name)
		}
		if dir := path.Dir(name); dir != "." && files[dir].Mode != fs.ModeDir|0o755 {
			t.Errorf("%s: its folder has mode %v", name, files[dir].Mode)
		}
		switch f.Mode {
		case fs.ModeDir | 0o755, 0o644, fs.ModeSymlink | 0o777:
		default:
			t.Errorf("%s has mode %v", name, f.Mode)
		}
	}
	for _, dir := range emptyDirs {
		if files[dir].Mode != fs.ModeDir|0o755 {
			t.Errorf("%s is missing", dir)
		}
	}
}

func TestUnitsAreEnabledByRelativeLinksUnderUsrLibOnly(t *testing.T) {
	files := overlayFiles(t)
	var units, links []string
	for name, f := range files {
		switch {
		case path.Dir(name) == UnitDir && path.Ext(name) == ".service":
			units = append(units, path.Base(name))
		case f.Mode&fs.ModeSymlink != 0:
			links = append(links, name)
			if want := "../" + path.Base(name); path.Dir(name) != WantsDir || f.Target != want {
				t.Errorf("link %s -> %s", name, f.Target)
			}
		}
		if bytes.Contains(f.Content, []byte("[Install]")) {
			t.Errorf("%s has an [Install] section", name)
		}
	}
	if len(units) != len(Units) || len(links) != len(Units) {
		t.Errorf("fragments %v, links %v, expected one of each for %v", units, links, Units)
	}
	for _, u := range Units {
		if !slices.Contains(units, u) {
			t.Errorf("%s has no fragment", u)
		}
	}
}

func TestNoFileIsShippedUnderAFolderThatKairosKeeps(t *testing.T) {
	for name, f := range overlayFiles(t) {
		for _, dir := range PersistentDirs {
			if strings.HasPrefix(name, dir+"/") && !f.Mode.IsDir() {
				t.Errorf("%s is under %s", name, dir)
			}
		}
	}
}

func TestParamsThatAreMissingOrMalformedAreRefused(t *testing.T) {
	for _, pause := range []string{"", "pause", "registry.k8s.io/pause", "registry.k8s.io/pause:3.10'\nx", "registry:5000/pause", " a/pause:1"} {
		if _, err := Files(Params{Pause: pause}); err == nil {
			t.Errorf("%q was taken", pause)
		}
	}
	for _, pause := range []string{"registry.k8s.io/pause:3.10.2", "registry:5000/k8s/pause:3.10", "pause:3"} {
		if _, err := Files(Params{Pause: pause}); err != nil {
			t.Error(err)
		}
	}
}

func TestAPlaceholderWithoutAValueIsAnError(t *testing.T) {
	values := map[string]string{"@A@": "x"}
	if got, err := fill([]byte("a=@A@ mail@host @ b"), values); err != nil || string(got) != "a=x mail@host @ b" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := fill([]byte("a=@A@@B_C@"), values); err == nil || !strings.Contains(err.Error(), "@B_C@") {
		t.Errorf("error is %v", err)
	}
}

func TestTheFrozenHistoryNeverChanges(t *testing.T) {
	want := []Shipped{
		{"containerd.service", 485, "b47a1e62d00497a7363f987f2c2a6ecd8e41778de7cd81696e431f28c4d7bbb5"},
		{"kubelet.service", 599, "3e5647fb9b90d1fbe10fc23e5f17eaa890c27630c910c6ebafc8aa85519fbb52"},
		{"kubelet.service.d/10-kubeadm.conf", 659, "47f61bc9b23acfcb56f35f547a6f0e8bdc2cfb729dfd7dbf1fa49d7534d5aff3"},
		{"provider-kubernetes-image-import.service", 1127, "b9f1aa66fe9ca2653a9a16b691f4a7327a9f885b134833e7d4b136f133e4a15c"},
		{"provider-kubernetes-image-import.service", 1630, "fcf2b3a936107385efb66c8699a2a6417221512d97ea3573a5124aae8dcf5d65"},
	}
	if !slices.Equal(History, want) {
		t.Errorf("history is %v", History)
	}
}
