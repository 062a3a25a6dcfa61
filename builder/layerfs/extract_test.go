package layerfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// onDisk describes what is below dir, in Walk's order.
func onDisk(t testing.TB, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name := strings.TrimPrefix(p, dir+"/")
		fi, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			lines = append(lines, name+" -> "+target)
			return err
		case d.IsDir():
			lines = append(lines, fmt.Sprintf("%s/ %v", name, fi.Mode()))
		default:
			b, err := os.ReadFile(p)
			lines = append(lines, fmt.Sprintf("%s: %s %v %d", name, b, fi.Mode(), fi.Sys().(*syscall.Stat_t).Nlink))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func mode(m int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = m } }

func TestExtractWritesTheMergedView(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	f := image(t,
		[]member{
			dir("d").with(mode(0o555)), file("d/f", "f").with(mode(0o644)), file("old", ""),
			file("suid", "s").with(mode(0o6755)), dir("tmp").with(mode(0o1777)),
			hardlink("l", "d/f").with(mode(0o644)), symlink("abs", "/etc/shadow"), hardlink("abs2", "abs"),
			special("null", tar.TypeChar), special("pipe", tar.TypeFifo), file("p/q/r", "r"),
		},
		[]member{gone("old"), file("d/g", "g").with(mode(0o400)), symlink("up", "../../..")},
	)
	to := t.TempDir()
	if err := f.Extract(t.Context(), openRoot(t, to), nil); err != nil {
		t.Fatal(err)
	}
	want := `abs -> /etc/shadow
abs2 -> /etc/shadow
d/ dr-xr-xr-x
d/f: f -rw-r--r-- 2
d/g: g -r-------- 1
l: f -rw-r--r-- 2
p/ drwxr-xr-x
p/q/ drwxr-xr-x
p/q/r: r -rwxr-xr-x 1
suid: s -rwxr-xr-x 1
tmp/ dtrwxrwxrwx
up -> ../../..`
	if got := onDisk(t, to); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestExtractKeepsTheParentsOfWhatItKeeps(t *testing.T) {
	f := image(t, []member{
		dir("etc").with(mode(0o750)), file("etc/a.conf", "a").with(mode(0o644)), file("etc/b", "b"),
		file("usr/lib/c.conf", "c").with(mode(0o600)), file("var/d", "d"), symlink("e.conf", "usr"),
	})
	to := t.TempDir()
	err := f.Extract(t.Context(), openRoot(t, to), func(e Entry) bool { return strings.HasSuffix(e.Path, ".conf") })
	if err != nil {
		t.Fatal(err)
	}
	want := `e.conf -> usr
etc/ drwxr-x---
etc/a.conf: a -rw-r--r-- 1
usr/ drwxr-xr-x
usr/lib/ drwxr-xr-x
usr/lib/c.conf: c -rw------- 1`
	if got := onDisk(t, to); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestExtractStaysInItsRoot(t *testing.T) {
	outside := t.TempDir()
	f := image(t,
		[]member{symlink("bin", outside), file("bin/etcdctl", "x"), symlink("rel", "../../../../../.."+outside)},
		[]member{file("rel/etcdutl", "y"), hardlink("h", "bin")},
	)
	to := t.TempDir()
	if err := f.Extract(t.Context(), openRoot(t, to), nil); err != nil {
		t.Fatal(err)
	}
	if got := onDisk(t, outside); got != "" {
		t.Errorf("outside of the root: %s", got)
	}
	if b, err := os.ReadFile(filepath.Join(to, outside, "etcdctl")); err != nil || string(b) != "x" {
		t.Errorf("inside of the root: %q, %v", b, err)
	}
}

func TestExtractWritesOverNothing(t *testing.T) {
	outside := t.TempDir()
	f := image(t, []member{file("d/f", "image"), symlink("s", "d")})
	plant := map[string]func(to string) error{
		"file":                 func(to string) error { return os.WriteFile(filepath.Join(to, "d"), nil, 0o644) },
		"link out of the root": func(to string) error { return os.Symlink(outside, filepath.Join(to, "d")) },
		"link in the root": func(to string) error {
			return errors.Join(os.Mkdir(filepath.Join(to, "x"), 0o755), os.Symlink("x", filepath.Join(to, "d")))
		},
		"name of a symlink":      func(to string) error { return os.WriteFile(filepath.Join(to, "s"), nil, 0o644) },
		"directory of that name": func(to string) error { return os.Mkdir(filepath.Join(to, "d"), 0o755) },
	}
	for name, plant := range plant {
		to := t.TempDir()
		if err := plant(to); err != nil {
			t.Fatal(err)
		}
		if err := f.Extract(t.Context(), openRoot(t, to), nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := onDisk(t, outside); got != "" {
		t.Errorf("outside of the root: %s", got)
	}
}

func TestExtractChecksTheLayers(t *testing.T) {
	b := tarOf(t, file("f", "good"))
	l := layer(b, b)
	blob := b
	l.Open = func() (io.ReadCloser, error) { return opener(blob)() }
	f, err := New(t.Context(), []Layer{l})
	if err != nil {
		t.Fatal(err)
	}
	blob = tarOf(t, file("f", "evil"))
	if err := f.Extract(t.Context(), openRoot(t, t.TempDir()), nil); !is[*store.DigestMismatch](err) {
		t.Errorf("got %v", err)
	}
}
