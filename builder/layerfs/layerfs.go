// Package layerfs reads files out of an OCI image's layers as a container
// runtime would see them, without unpacking the image.
//
// It takes the layer blobs, oldest first, and applies their changesets to a
// tree that holds metadata only; contents stay in the blobs and are streamed
// when they are asked for. The rules are those of the OCI image specification
// (layer.md, "Applying Changesets") and, where it is silent, of containerd's
// archive.Apply:
//
//   - A whiteout or opaque marker hides entries of older layers only. The
//     other entries of its own layer stay, wherever the marker stands. Where
//     there is nothing to hide it does nothing.
//   - A hard link binds to the file that has the target's name when the link's
//     entry is reached, in this or an older layer, even if that file is a
//     symlink. What happens to the other name later does not matter. As the
//     link is the same file, the mode, owner and time in its header become the
//     file's; a header without permission bits carries none.
//   - A directory entry over a directory sets its metadata and keeps what is in
//     it. Over anything else, a symlink to a directory too, it is a new
//     directory. Any other entry replaces what had its name. The last of
//     several entries with one name wins.
//   - Links in an entry's parent directories are followed inside the image.
//     Parents that are missing, or that an older layer has as a file, become
//     directories root:root 0755.
//   - Entry names and hard-link targets are relative to the image root, with or
//     without a leading "/" or "./". One that leaves the root is an *Escape.
//   - Symlink targets may say anything: they are resolved as in a chroot, so an
//     absolute one starts at the image root and ".." stops there.
//
// Nothing of the host is read or written, except that Extract writes below the
// root that it is given. Blob digest, blob size and diff_id of every layer are
// checked before anything about the image is answered, and the blob digest
// again whenever contents are read.
package layerfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Layer is one layer blob of an image.
type Layer struct {
	Descriptor store.Descriptor              // of the blob as stored, compressed or not
	DiffID     string                        // digest of the uncompressed tar, from the image config
	Open       func() (io.ReadCloser, error) // opens the blob; called once for each pass over it
}

// Type is what kind of file an entry is.
type Type uint8

// The types that a layer can hold. A hard link has its target's type.
const (
	Regular Type = iota
	Dir
	Symlink
	Char
	Block
	Fifo
)

func (t Type) String() string {
	return [...]string{"regular file", "directory", "symlink", "character device", "block device", "FIFO"}[t]
}

// Entry describes one name in the image.
type Entry struct {
	Path    string      // clean, without leading slash; "." is the root. Stat and Copy keep the name they were given
	Type    Type        // never Symlink when links were followed
	Mode    fs.FileMode // permission, setuid, setgid and sticky bits
	UID     int
	GID     int
	Size    int64  // bytes; 0 unless Regular
	Target  string // of a Symlink, as written
	ModTime time.Time
	Layer   int               // index of the layer that has the entry; -1 for a root without one
	Xattrs  map[string]string // nil when there are none
}

// LinkLoop reports a path that leads through too many symlinks.
type LinkLoop struct {
	Path  string
	Links []string // those that were followed, as `"name" -> "target"`
}

func (e *LinkLoop) Error() string {
	return fmt.Sprintf("%q: link loop, gave up after %d links%s", e.Path, len(e.Links), followed(e.Links))
}

// Escape reports a layer entry whose name or hard-link target leaves the image
// root. Target is empty when it is the name.
type Escape struct {
	Name, Target string
}

func (e *Escape) Error() string {
	if e.Target != "" {
		return fmt.Sprintf("hard link %.256q has target %.256q outside of the image root", e.Name, e.Target)
	}
	return fmt.Sprintf("name %.256q is outside of the image root", e.Name)
}

// NotRegular reports a path that is no regular file where one was asked for.
type NotRegular struct {
	Path string
	Type Type
}

func (e *NotRegular) Error() string {
	return fmt.Sprintf("%q is a %s, expected a regular file", e.Path, e.Type)
}

// FS is the merged view of an image's layers. It does not change, so any number
// of goroutines may use it.
type FS struct {
	layers []Layer
	tree   tree
}

// New indexes the layers, oldest first, in one pass over each, several side by
// side. Compression (none, gzip, zstd) is told from the first bytes, whatever the
// media type said.
//
// Errors: *store.DigestMismatch for a blob or an uncompressed tar that is not
// what the layer says, *Escape, *LinkLoop for an entry whose parent directories
// never end, and others for what is no layer, can't be applied (say, a hard link to
// nothing), or is beyond the bounds on entries and names. When several layers are
// wrong it is the oldest one's.
func New(ctx context.Context, layers []Layer) (*FS, error) {
	return index(ctx, layers, maxima)
}

func index(ctx context.Context, layers []Layer, left limits) (*FS, error) {
	f := &FS{layers: slices.Clone(layers), tree: tree{root: dirent{newDir(), -1}}}
	c := &changeset{tree: &f.tree, left: left}
	errs := make([]error, len(layers))
	turn := make(chan struct{})
	close(turn)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, l := range f.layers {
		q := queue{to: c, layer: i, turn: turn}
		next := make(chan struct{})
		turn = next
		g.Go(func() error {
			defer func() {
				<-q.turn // a layer that can't be read keeps its place too
				close(next)
			}()
			errs[i] = l.read(ctx, pass{visit: q.add, end: q.apply, diffID: true})
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Lstat describes name, following links in its parent directories but not name
// itself. A leading slash makes no difference.
//
// Errors: fs.ErrNotExist, telling which links were followed; *LinkLoop.
func (f *FS) Lstat(name string) (Entry, error) { return f.stat(name, false) }

// Stat is like Lstat but follows name too when it is a symlink.
func (f *FS) Stat(name string) (Entry, error) { return f.stat(name, true) }

func (f *FS) stat(name string, follow bool) (Entry, error) {
	name = rooted(name)
	ent, err := f.tree.lookup(name, follow)
	if err != nil {
		return Entry{}, err
	}
	return ent.entry(name), nil
}

// Walk calls fn for every entry below the root, sorted by path bytes, and stops
// at fn's first error, which it returns.
func (f *FS) Walk(fn func(Entry) error) error {
	return f.tree.root.each("", func(name string, ent dirent) error { return fn(ent.entry(name)) })
}
