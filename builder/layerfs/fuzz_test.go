package layerfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// FuzzNew reads any bytes as a layer over a small image.
func FuzzNew(f *testing.F) {
	seeds := [][]byte{
		tarOf(f, dir("d"), file("d/f", "f"), symlink("l", "../../d"), hardlink("h", "l"), gone("base/f"), opaque("base")),
		tarOf(f, file("../x", "x")),
		tarOf(f, symlink("s", "/.."), file("s/../x", "x"), hardlink("h", "s/../../etc/passwd")),
		tarOf(f, special("c", tar.TypeChar), file("base/link/f", "f")),
		append(header("sparse", 'S', 0, func(b []byte) { octal(b[483:], 12, 1<<30) }), make([]byte, 1024)...),
		{}, []byte("\x1f\x8b"), []byte("\x28\xb5\x2f\xfd"),
	}
	for _, b := range seeds {
		for _, encode := range codecs {
			f.Add(encode(f, b))
		}
	}
	base := plain(f, []member{dir("base"), file("base/f", "base"), symlink("base/link", "../../out")})
	f.Fuzz(func(t *testing.T, blob []byte) {
		// Right checksums and a right diff_id let the bytes get as far as they can.
		for at := 0; at+512 <= len(blob); at += 512 {
			if b := blob[at : at+512]; string(b[257:262]) == "ustar" {
				blob = slices.Concat(blob[:at], summed(b), blob[at+512:])
			}
		}
		l := layer(blob, nil)
		body := newHashing(nil)
		if plain, _, err := decompress(strings.NewReader(string(blob))); err == nil {
			if _, err := io.Copy(body.h, io.LimitReader(plain, 64<<20)); err != nil {
				t.Skip()
			}
			plain.Close()
		}
		l.DiffID = body.descriptor().Digest
		img, err := New(t.Context(), append(base[:1:1], l))
		if err != nil {
			if is[*store.DigestMismatch](err) && !strings.Contains(err.Error(), "diff_id") {
				t.Errorf("a blob under its own digest: %v", err)
			}
			return
		}
		small := func(e Entry) bool { return e.Size < 1<<20 && fits(e.Path) }
		last := ""
		err = img.Walk(func(e Entry) error {
			if e.Path <= last || !filepath.IsLocal(e.Path) || path.Clean(e.Path) != e.Path || e.Path == "." {
				t.Errorf("path %q after %q", e.Path, last)
			}
			last = e.Path
			if got, err := img.Lstat(e.Path); err != nil || got.Path != e.Path || got.Type != e.Type {
				t.Errorf("Lstat %q: got %+v, %v, want %+v", e.Path, got, err, e)
			}
			if _, err := img.Stat(e.Path); err != nil && !notExist(err) && !is[*LinkLoop](err) {
				t.Errorf("Stat %q: %v", e.Path, err)
			}
			if e.Type == Regular && small(e) {
				if b, err := img.ReadFile(t.Context(), e.Path, 1<<20); err != nil || int64(len(b)) != e.Size {
					t.Errorf("ReadFile %q: got %d bytes, %v", e.Path, len(b), err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		box := t.TempDir()
		if err := os.Mkdir(filepath.Join(box, "root"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := img.Extract(t.Context(), openRoot(t, filepath.Join(box, "root")), small); err != nil {
			t.Errorf("Extract: %v", err)
		}
		if names, err := os.ReadDir(box); err != nil || len(names) != 1 {
			t.Errorf("beside the root: %v, %v", names, err)
		}
	})
}

// fits tells whether a file system takes every name in the path.
func fits(name string) bool {
	return !strings.ContainsRune(name, 0) && !slices.ContainsFunc(strings.Split(name, "/"), func(s string) bool { return len(s) > 255 })
}

// FuzzChangesets applies random layers, and compares the image with a model
// that keeps whole paths in a flat map.
func FuzzChangesets(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x01\x00\x06\x00\x00\x03\x00\x00"))
	f.Add([]byte("\x01\x03\x00\x00\x05\x00\x06\x00\x00\x04\x03\x00\x00\x06\x00"))
	f.Add([]byte("\x03\x00\x02\x00\x04\x00\x06\x00\x00\x05\x00\x00\x02\x02\x04"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		names := []string{"a", "b", "c", "a/a", "a/b", "b/a", "b/c", "a/b/c", "c/a", "a/a/a"}
		targets := append([]string{"/a", "../a", "..", "a/../b", "/c/../../b", "x"}, names...)
		layers := [][]member{nil}
		for i := 0; i+2 < len(ops) && i < 150; i += 3 {
			name, target := names[int(ops[i+1])%len(names)], targets[int(ops[i+2])%len(targets)]
			var m member
			switch ops[i] % 7 {
			case 0:
				m = file(name, fmt.Sprint("content ", i))
			case 1:
				m = dir(name)
			case 2:
				m = hardlink(name, names[int(ops[i+2])%len(names)])
			case 3:
				m = symlink(name, target)
			case 4:
				m = gone(name)
			case 5:
				m = opaque(name)
			case 6:
				layers = append(layers, nil)
				continue
			}
			layers[len(layers)-1] = append(layers[len(layers)-1], m)
		}

		want := model{}
		var refused error
		for i, members := range layers {
			for _, m := range members {
				if refused == nil {
					refused = want.apply(i, m)
				}
			}
		}
		img, err := New(t.Context(), plain(t, layers...))
		if (err != nil) != (refused != nil) {
			t.Fatalf("got %v, the model says %v", err, refused)
		}
		if err != nil {
			return
		}
		if got := view(t, img); got != want.String() {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		for _, name := range names {
			p, err := want.resolve(name, true, maxLinks)
			e, serr := img.Stat(name)
			if file := want[p]; err != nil || file.kind == 0 && p != "" {
				if serr == nil {
					t.Errorf("Stat %q: got %+v, the model has none", name, e)
				}
			} else if serr != nil || p != "" && string(file.kind) != string(kinds[e.Type]) {
				t.Errorf("Stat %q: got %+v, %v, the model has %q", name, e, serr, p)
			}
		}
	})
}

const kinds = "fdl" // by Type

// model maps the path of everything in an image to what it is.
type model map[string]modelFile

type modelFile struct {
	kind  byte // one of kinds; 0: none
	text  string
	layer int
}

func (m model) String() string {
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, p+map[byte]string{'f': ": ", 'd': "/", 'l': " -> "}[m[p].kind]+m[p].text)
	}
	return strings.Join(lines, "\n")
}

func (m model) isDir(p string) bool { return p == "" || m[p].kind == 'd' }

// resolve follows the links in p. When strict, all but the end must be there.
func (m model) resolve(p string, strict bool, links int) (string, error) {
	at := ""
	todo := strings.Split(p, "/")
	for len(todo) > 0 {
		elem := todo[0]
		todo = todo[1:]
		if elem == "" {
			continue
		}
		if strict && !m.isDir(at) {
			return "", errors.New("no directory: " + at)
		}
		if elem == ".." {
			at = strings.TrimPrefix(path.Dir("/"+at), "/")
			continue
		}
		next := path.Join(at, elem)
		if m[next].kind != 'l' {
			at = next
			continue
		}
		if links--; links < 0 {
			return "", errors.New("loop: " + p)
		}
		target := m[next].text
		if target[0] == '/' {
			at = ""
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}

func (m model) remove(p string) {
	maps.DeleteFunc(m, func(name string, _ modelFile) bool { return name == p || strings.HasPrefix(name, p+"/") })
}

// hide removes what is older than layer among the names, but not the
// directories that newer names need.
func (m model) hide(layer int, names func(string) bool) {
	needed := map[string]bool{}
	for name, file := range m {
		if file.layer == layer {
			for p := name; p != "."; p = path.Dir(p) {
				needed[p] = true
			}
		}
	}
	for name, file := range m {
		if file.layer == layer || !names(name) {
			continue
		}
		if needed[name] {
			file.layer = layer
			m[name] = file
		} else {
			delete(m, name)
		}
	}
}

func (m model) apply(layer int, e member) error {
	dir, base := path.Split(e.Name)
	if base, ok := strings.CutPrefix(base, ".wh."); ok {
		parent, err := m.resolve(dir, true, maxLinks)
		if err != nil {
			if strings.HasPrefix(err.Error(), "loop") {
				return err
			}
			return nil
		}
		if !m.isDir(parent) {
			return nil
		}
		below := func(p string) func(string) bool {
			return func(name string) bool { return p == "" || strings.HasPrefix(name, p+"/") }
		}
		if base == ".wh..opq" {
			m.hide(layer, below(parent))
			return nil
		}
		p := path.Join(parent, base)
		m.hide(layer, func(name string) bool { return name == p || below(p)(name) })
		return nil
	}
	file := modelFile{layer: layer}
	switch e.Typeflag {
	case tar.TypeReg:
		file.kind, file.text = 'f', e.body
	case tar.TypeDir:
		file.kind = 'd'
	case tar.TypeSymlink:
		file.kind, file.text = 'l', e.Linkname
	case tar.TypeLink:
		tdir, tbase := path.Split(e.Linkname)
		tdir, err := m.resolve(tdir, true, maxLinks)
		if err != nil {
			return err
		}
		target := m[path.Join(tdir, tbase)]
		if target.kind == 0 || target.kind == 'd' {
			return errors.New("no file to link: " + e.Linkname)
		}
		file.kind, file.text = target.kind, target.text
	}
	parent, err := m.resolve(dir, false, maxLinks)
	if err != nil {
		return err
	}
	if parent != "" {
		sofar := ""
		for elem := range strings.SplitSeq(parent, "/") {
			sofar = path.Join(sofar, elem)
			if m.isDir(sofar) {
				continue
			}
			if old := m[sofar]; old.kind != 0 && old.layer == layer {
				return errors.New("no directory: " + sofar)
			}
			m[sofar] = modelFile{kind: 'd', layer: layer}
		}
	}
	p := path.Join(parent, base)
	if file.kind != 'd' || m[p].kind != 'd' {
		m.remove(p)
	}
	m[p] = file
	return nil
}
