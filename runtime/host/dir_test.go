package host

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// tree makes entries below a temporary folder and opens it. A name that ends in
// a slash is a folder, content that begins with "-> " a link, "|" a FIFO.
func tree(t *testing.T, entries map[string]string) (*Root, string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range entries {
		path := filepath.Join(dir, name)
		var err error
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		case content == "|":
			err = syscall.Mkfifo(path, 0o644)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, dir
}

func openDir(t *testing.T, r *Root, path string) *Dir {
	t.Helper()
	d, err := r.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestAWalkNeverFollowsALinkAndNamesTheComponent(t *testing.T) {
	r, dir := tree(t, map[string]string{
		"a/b/c/file": "x", "real/c/": "", "a/link": "-> ../real", "abs": "-> /", "loop": "-> loop", "a/fifo": "|", "dangling": "-> nowhere",
	})
	for path, want := range map[string]WalkUnsafe{
		"a/link":        {"/a/link", "/a/link", "a link"},
		"a/link/c":      {"/a/link/c", "/a/link", "a link"},
		"/abs/etc":      {"/abs/etc", "/abs", "a link"},
		"loop":          {"/loop", "/loop", "a link"},
		"dangling/x":    {"/dangling/x", "/dangling", "a link"},
		"a/b/c/file":    {"/a/b/c/file", "/a/b/c/file", "no directory"},
		"a/b/c/file/d":  {"/a/b/c/file/d", "/a/b/c/file", "no directory"},
		"a/fifo/d/e/f/": {},
		"a/fifo/d":      {"/a/fifo/d", "/a/fifo", "no directory"},
	} {
		_, err := r.OpenDir(path)
		var got *WalkUnsafe
		if errors.As(err, &got) != (want != WalkUnsafe{}) || got != nil && *got != want {
			t.Errorf("%s: error is %v, expected %+v", path, err, want)
		}
	}
	if _, err := r.OpenDir("a/none/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	for _, path := range []string{"", "..", "a/../b", "a//b", "./a", "//a", "a/b/"} {
		if _, err := r.OpenDir(path); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
	}

	if d := openDir(t, r, "/"); d.Self() != r.Self() || d.Path() != "/" {
		t.Errorf("opened %s, %+v", d.Path(), d.Self())
	}
	d := openDir(t, r, "/a/b/c")
	fi, err := os.Stat(filepath.Join(dir, "a/b/c"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Path() != "/a/b/c" || d.Self().Ino != fi.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("opened %s, inode %d", d.Path(), d.Self().Ino)
	}
}

func TestAFolderStaysTheSameWhenItsPathIsExchanged(t *testing.T) {
	r, dir := tree(t, map[string]string{"d/file": "old", "evil/file": "new"})
	d := openDir(t, r, "d")
	if err := errors.Join(os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "moved")), os.Symlink("evil", filepath.Join(dir, "d"))); err != nil {
		t.Fatal(err)
	}
	f, err := d.Open("file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "old" {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestStatTellsWhatAnEntryIs(t *testing.T) {
	r, dir := tree(t, map[string]string{"f": "12345", "l": "-> f", "d/": "", "p": "|"})
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "f2")), os.Chmod(filepath.Join(dir, "f"), 0o640|fs.ModeSetuid),
		os.Chmod(filepath.Join(dir, "d"), 0o777|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "l", "d", "p", "s"} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sys := fi.Sys().(*syscall.Stat_t)
		want := Stat{
			Dev: sys.Dev, Ino: sys.Ino, MountID: r.Self().MountID, Mode: fi.Mode(), UID: sys.Uid, GID: sys.Gid,
			Links: uint32(sys.Nlink), Size: fi.Size(),
		}
		got, err := r.Stat(name)
		if got.Changed.UnixNano() != sys.Ctim.Nano() {
			t.Errorf("%s changed at %v", name, got.Changed)
		}
		want.Changed = got.Changed
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, expected %+v", name, got, err, want)
		}
	}
	if _, err := r.Stat("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if target, err := r.Readlink("l"); target != "f" || err != nil {
		t.Errorf("link to %q, %v", target, err)
	}
	if _, err := r.Readlink("f"); err == nil {
		t.Error("a file was read as a link")
	}
}

func TestOpenTakesNoLinkAndDoesNotWaitForAWriter(t *testing.T) {
	r, _ := tree(t, map[string]string{"f": "x", "l": "-> f", "p": "|"})
	if _, err := r.Open("l"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("link: %v", err)
	}
	f, err := r.Open("p")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s, err := StatFile(f); err != nil || s.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("%+v, %v", s, err)
	}
	if b, err := io.ReadAll(f); len(b) != 0 || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	g, err := r.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	seen, _ := r.Stat("f")
	if s, err := StatFile(g); err != nil || s != seen {
		t.Errorf("%+v, %v, expected %+v", s, err, seen)
	}
}

func TestANameIsOneComponent(t *testing.T) {
	r, _ := tree(t, map[string]string{"a/b": "x"})
	for _, name := range []string{"", ".", "..", "a/b", "/a", "a/", "../x"} {
		_, open := r.Open(name)
		_, stat := r.Stat(name)
		_, link := r.Readlink(name)
		for _, err := range []error{open, stat, link, r.Unlink(name), r.Mkdir(name, 0o755)} {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}

func TestUnlinkRemovesOneNameAndNoFolder(t *testing.T) {
	r, dir := tree(t, map[string]string{"f": "x", "l": "-> f", "d/": ""})
	if err := r.Unlink("l"); err != nil {
		t.Error(err)
	}
	if err := r.Unlink("d"); err == nil {
		t.Error("a folder was removed")
	}
	if names, err := r.Names(); err != nil || !slices.Equal(names, []string{"d", "f"}) {
		t.Errorf("left over: %v, %v", names, err)
	}
	if err := os.Remove(filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	if names, err := r.Names(); err != nil || !slices.Equal(names, []string{"d"}) {
		t.Errorf("a second time: %v, %v", names, err)
	}
}

func TestMkdirSetsTheModeWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	r, dir := tree(t, nil)
	if err := r.Mkdir("d", 0o770); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, "d")); err != nil || fi.Mode() != fs.ModeDir|0o770 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if err := r.Mkdir("d", 0o755); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
}
