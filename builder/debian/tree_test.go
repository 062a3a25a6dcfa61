package debian

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// deb makes a package whose tree fill lays out.
func deb(t *testing.T, fill func(root string)) string {
	t.Helper()
	tool, err := run.Look("dpkg-deb")
	if err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	control := "Package: test\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: test\n"
	if err := store.WriteFile(filepath.Join(root, "DEBIAN", "control"), []byte(control), 0o644); err != nil {
		t.Fatal(err)
	}
	fill(root)
	out := filepath.Join(t.TempDir(), "test.deb")
	if _, err := (run.Cmd{Path: tool, Args: []string{"--root-owner-group", "--build", root, out}, Env: []string{"PATH=/usr/bin:/bin"}}).Output(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out
}

func newTree(t *testing.T) (*Tree, string) {
	t.Helper()
	dir := t.TempDir()
	tree, err := NewTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree, dir
}

func everything(string) bool { return true }

// list shows a tree as one line for each path: mode, path, and target or content.
func list(t *testing.T, tree *Tree) []string {
	t.Helper()
	var out []string
	for _, e := range tree.Entries() {
		line := e.Mode.String() + " " + e.Path
		switch {
		case e.Mode&fs.ModeSymlink != 0:
			line += " -> " + e.Target
		case e.Mode.IsRegular():
			b, err := io.ReadAll(tree.Open(e))
			if err != nil || store.Digest(b) != e.Content.Digest || int64(len(b)) != e.Content.Size {
				t.Errorf("%s has content %q, expected %v: %v", e.Path, b, e.Content, err)
			}
			line += " = " + string(b)
		}
		out = append(out, line)
	}
	return out
}

var top = []string{
	"Lrwxrwxrwx bin -> usr/bin", "Lrwxrwxrwx lib -> usr/lib", "Lrwxrwxrwx lib64 -> usr/lib64", "Lrwxrwxrwx sbin -> usr/sbin",
}

func wantTree(t *testing.T, tree *Tree, want ...string) {
	t.Helper()
	got := list(t, tree)
	if len(got) < len(top) || !reflect.DeepEqual(got[:len(top)], top) || !reflect.DeepEqual(got[len(top):], append([]string{}, want...)) {
		t.Errorf("tree is\n%s\nexpected, below the links of a merged /usr,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPackagesAreLaidOverEachOtherBelowAMergedUsr(t *testing.T) {
	tree, dir := newTree(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, text string, mode fs.FileMode) {
		t.Helper()
		ok(store.WriteFile(path, []byte(text), mode))
		ok(os.Chmod(path, mode)) // what WriteFile was given can't have more than permissions
	}
	first := deb(t, func(root string) {
		write(filepath.Join(root, "bin", "tool"), "one", 0o755)
		write(filepath.Join(root, "usr", "bin", "su"), "su", 0o755|fs.ModeSetuid)
		write(filepath.Join(root, "usr", "share", "man", "tool.1"), "manual", 0o644)
		ok(os.Link(filepath.Join(root, "bin", "tool"), filepath.Join(root, "bin", "twin")))
		ok(os.Symlink("../bin/tool", filepath.Join(root, "usr", "alias")))
		ok(os.MkdirAll(filepath.Join(root, "var", "tmp"), 0o755))
		ok(os.Chmod(filepath.Join(root, "var", "tmp"), 0o777|fs.ModeSticky))
	})
	second := deb(t, func(root string) {
		write(filepath.Join(root, "usr", "bin", "tool"), "two", 0o644)
		ok(os.MkdirAll(filepath.Join(root, "usr"), 0o755))
		ok(os.Symlink("/etc/shadow", filepath.Join(root, "usr", "secret")))
	})
	ok(tree.Add(t.Context(), first, func(p string) bool { return !strings.HasPrefix(p, "usr/share") }))
	ok(tree.Add(t.Context(), second, everything))
	wantTree(t, tree,
		"drwxr-xr-x usr",
		"Lrwxrwxrwx usr/alias -> ../bin/tool",
		"drwxr-xr-x usr/bin",
		"urwxr-xr-x usr/bin/su = su",
		"-rw-r--r-- usr/bin/tool = two",
		"-rwxr-xr-x usr/bin/twin = one", // a hard link is the file it was made of
		"Lrwxrwxrwx usr/secret -> /etc/shadow",
		"drwxr-xr-x var",
		"dtrwxrwxrwx var/tmp",
	)
	tree.Remove("usr/bin")
	if e, found := tree.Lookup("usr/bin/su"); found {
		t.Errorf("%v is still there", e)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the tree's contents have a name: %v, %v", left, err)
	}
}

func TestAPackageThatIsNoneIsRefused(t *testing.T) {
	if _, err := run.Look("dpkg-deb"); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "bad.deb")
	if err := os.WriteFile(file, []byte("not a package"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, _ := newTree(t)
	err := tree.Add(t.Context(), file, everything)
	if failed, ok := errors.AsType[*run.Error](err); !ok || failed.Exit != 2 || strings.Count(err.Error(), file) < 1 {
		t.Errorf("got %v", err)
	}
	wantTree(t, tree)
}

func TestEntriesThatDoNotBelongInAPackageAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		entry tar.Header
		say   string
	}{
		{"a name that climbs", tar.Header{Name: "./../../etc/cron.d/job", Typeflag: tar.TypeReg}, "leaves the root"},
		{"a name that climbs and comes back", tar.Header{Name: "usr/../../usr/bin/x", Typeflag: tar.TypeReg}, "leaves the root"},
		{"a hard link to what is above", tar.Header{Name: "./usr/bin/x", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}, "leaves the root"},
		{"a hard link to a file of the host", tar.Header{Name: "./usr/bin/x", Typeflag: tar.TypeLink, Linkname: "/etc/hostname"}, "etc/hostname, which is not there"},
		{"a device", tar.Header{Name: "./dev/mem", Typeflag: tar.TypeChar}, "tar type '3'"},
		{"a pipe", tar.Header{Name: "./run/pipe", Typeflag: tar.TypeFifo}, "tar type '6'"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&tt.entry), w.Close()); err != nil {
			t.Fatal(err)
		}
		tree, _ := newTree(t)
		if err := tree.read(tar.NewReader(&b), everything); err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v, expected %q", tt.name, err, tt.say)
		}
		wantTree(t, tree)
	}
}

func TestATopLevelLinkStaysOneWhateverAPackageBrings(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(
		w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}),
		w.WriteHeader(&tar.Header{Name: "./bin/", Typeflag: tar.TypeDir, Mode: 0o755}),
		w.WriteHeader(&tar.Header{Name: "./lib", Typeflag: tar.TypeSymlink, Linkname: "/elsewhere"}),
		w.WriteHeader(&tar.Header{Name: "/sbin/init", Typeflag: tar.TypeReg, Mode: 0o755}),
		w.Close(),
	); err != nil {
		t.Fatal(err)
	}
	tree, _ := newTree(t)
	if err := tree.read(tar.NewReader(&b), everything); err != nil {
		t.Fatal(err)
	}
	wantTree(t, tree, "-rwxr-xr-x usr/sbin/init = ")
}
