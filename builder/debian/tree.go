package debian

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Entry is one path of a tree. Mode carries the type (regular, directory or
// symlink) and the permission, setuid, setgid and sticky bits.
type Entry struct {
	Path    string // clean, without leading slash
	Mode    fs.FileMode
	Target  string           // of a symlink
	Content store.Descriptor // of a regular file
	offset  int64
}

// Tree is the merged content of packages. File contents lie in one spool file,
// so that a tree of thousands of files costs neither memory nor inodes.
type Tree struct {
	entries map[string]Entry
	spool   *os.File
	end     int64
}

// NewTree returns an empty tree with the top-level links of a merged /usr. Its
// spool file is made in dir and has no name.
func NewTree(dir string) (*Tree, error) {
	f, err := os.CreateTemp(dir, "tree-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t := &Tree{entries: map[string]Entry{}, spool: f}
	for _, d := range merged {
		t.Symlink(d, "usr/"+d)
	}
	return t, nil
}

// merged are the folders that Debian's merged-/usr layout turns into links.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// Close drops the tree's contents.
func (t *Tree) Close() error { return t.spool.Close() }

// Add lays the files of one package over the tree. Paths for which keep is
// false are left out.
func (t *Tree) Add(ctx context.Context, deb string, keep func(path string) bool) error {
	tool, err := run.Look("dpkg-deb")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run.Cmd{Path: tool, Args: []string{"--fsys-tarfile", deb}, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: pw}.Run(ctx)
		pw.CloseWithError(err)
		done <- err
	}()
	err = t.read(tar.NewReader(pr), keep)
	if err == nil {
		_, err = io.Copy(io.Discard, pr)
	}
	pr.CloseWithError(err)
	if err != nil {
		cancel()
	}
	ended := <-done
	if err == nil { // else it says what ended the program, too
		err = ended
	}
	return err
}

func (t *Tree) read(tr *tar.Reader, keep func(string) bool) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := clean(h.Name)
		if err != nil {
			return err
		}
		if name == "" || !keep(name) || slices.Contains(merged, name) {
			continue
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			t.entries[name] = Entry{Path: name, Mode: mode}
		case tar.TypeSymlink:
			t.Symlink(name, h.Linkname)
		case tar.TypeLink:
			target, err := clean(h.Linkname)
			if err != nil {
				return err
			}
			e, ok := t.entries[target]
			if !ok {
				return fmt.Errorf("%s is a hard link to %s, which is not there", name, target)
			}
			e.Path = name
			t.entries[name] = e
		case tar.TypeReg:
			if err := t.File(name, mode, tr); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s has tar type %q: expected a file, folder or link", name, h.Typeflag)
		}
	}
}

// clean returns the path below a merged /usr.
func clean(name string) (string, error) {
	p := path.Clean("/" + name)[1:]
	if strings.Contains("/"+name+"/", "/../") {
		return "", fmt.Errorf("entry %q leaves the root", name)
	}
	for _, d := range merged {
		if strings.HasPrefix(p, d+"/") {
			return "usr/" + p, nil
		}
	}
	return p, nil
}

// File puts a regular file into the tree, replacing what was at that path.
func (t *Tree) File(name string, mode fs.FileMode, r io.Reader) error {
	h := sha256.New()
	w := io.NewOffsetWriter(t.spool, t.end)
	n, err := io.Copy(io.MultiWriter(w, h), r)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.entries[name] = Entry{Path: name, Mode: mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky),
		Content: store.Descriptor{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: n}, offset: t.end}
	t.end += n
	return nil
}

// Symlink puts a link into the tree, replacing what was at that path.
func (t *Tree) Symlink(name, target string) {
	t.entries[name] = Entry{Path: name, Mode: fs.ModeSymlink | 0o777, Target: target}
}

// Dir puts a folder into the tree.
func (t *Tree) Dir(name string, mode fs.FileMode) {
	t.entries[name] = Entry{Path: name, Mode: fs.ModeDir | mode}
}

// Remove takes a path and all below it out of the tree.
func (t *Tree) Remove(name string) {
	for p := range t.entries {
		if p == name || strings.HasPrefix(p, name+"/") {
			delete(t.entries, p)
		}
	}
}

// Entries returns all paths, sorted.
func (t *Tree) Entries() []Entry {
	out := make([]Entry, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Lookup returns the entry at a path; links are not followed.
func (t *Tree) Lookup(name string) (Entry, bool) {
	e, ok := t.entries[name]
	return e, ok
}

// Open reads the content of a regular file's entry.
func (t *Tree) Open(e Entry) io.Reader { return io.NewSectionReader(t.spool, e.offset, e.Content.Size) }
