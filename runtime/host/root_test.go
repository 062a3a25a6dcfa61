package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func TestWriteFileReplacesWhatIsThere(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	r, dir := tree(t, map[string]string{"d/file": "old", "d/link": "-> ../kept", "kept": "kept"})
	for _, name := range []string{"/d/file", "d/link", "d/new", "top"} {
		if err := r.WriteFile(name, []byte("new"), 0o644, -1, -1); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		fi, _ := os.Lstat(path)
		if err != nil || string(b) != "new" || fi.Mode() != 0o644 {
			t.Errorf("%s: %q, %v, %v", name, b, fi.Mode(), err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "kept")); string(b) != "kept" {
		t.Errorf("the link's target holds %q, %v", b, err)
	}
	if names, _ := openDir(t, r, "d").Names(); !slices.Equal(names, []string{"file", "link", "new"}) {
		t.Errorf("left over: %v", names)
	}
}

func TestWriteFileSetsTheOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	r, _ := tree(t, nil)
	if err := r.WriteFile("f", nil, 0o640, 0, 4); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Stat("f"); err != nil || s.UID != 0 || s.GID != 4 || s.Mode != 0o640 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAWriteThatIsRefusedLeavesNothingBehind(t *testing.T) {
	r, _ := tree(t, map[string]string{"real/": "", "link": "-> real", "d/folder/": ""})
	if err := r.WriteFile("link/f", nil, 0o644, -1, -1); !errors.As(err, new(*WalkUnsafe)) {
		t.Errorf("through a link: %v", err)
	}
	if err := r.WriteFile("none/f", nil, 0o644, -1, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a missing folder: %v", err)
	}
	if err := r.WriteFile("d/folder", nil, 0o644, -1, -1); err == nil {
		t.Error("over a folder: no error")
	}
	for dir, want := range map[string][]string{"real": nil, "d": {"folder"}} {
		if names, err := openDir(t, r, dir).Names(); err != nil || !slices.Equal(names, want) {
			t.Errorf("left over in %s: %v, %v", dir, names, err)
		}
	}
}
