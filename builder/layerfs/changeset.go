package layerfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Names of the image specification (layer.md, "Whiteouts").
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..opq" // after the prefix
	xattrPrefix    = "SCHILY.xattr."
)

// maxPath is the longest path and link target in bytes, as on Linux.
const maxPath = 4096

// limits is how much an image may still put into memory.
type limits struct {
	entries int // with directories that are only implied
	bytes   int // of names, link targets and extended attributes
}

// maxima is far more than an image has and far less than a build host.
var maxima = limits{entries: 2_000_000, bytes: 512 << 20}

// changeset applies the entries of one layer after the other to a tree.
type changeset struct {
	*tree
	layer int
	left  limits
}

// apply applies the n-th header of the layer.
func (c *changeset) apply(n int, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, ok := inRoot(h.Name)
	if !ok {
		return &Escape{Name: h.Name}
	}
	if len(h.Name) > maxPath || len(h.Linkname) > maxPath {
		return fmt.Errorf("name or link target has more than %d bytes", maxPath)
	}
	dir, base := path.Split(name)
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return c.whiteout(dir, hidden)
	}
	node, err := c.node(n, h)
	if err != nil {
		return err
	}
	if name == "." {
		// As in containerd, nothing can take the root's place.
		if node.typ == Dir {
			c.root.meta, c.root.layer = node.meta, c.layer
		}
		return nil
	}
	parent, err := c.parent(dir, base)
	if err != nil {
		return err
	}
	if old := parent.children[base]; node.typ == Dir && old.isDir() {
		old.meta = node.meta
		node = old.inode
	}
	parent.children[base] = dirent{node, c.layer}
	return nil
}

// node returns the inode that a header describes: an existing one for a hard
// link, else a new one.
func (c *changeset) node(n int, h *tar.Header) (*inode, error) {
	m := meta{
		mode:  h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky),
		uid:   h.Uid,
		gid:   h.Gid,
		mtime: h.ModTime,
	}
	size := len(h.Name) + len(h.Linkname)
	for k, v := range h.PAXRecords {
		if attr, ok := strings.CutPrefix(k, xattrPrefix); ok {
			if m.xattrs == nil {
				m.xattrs = map[string]string{}
			}
			m.xattrs[attr] = v
			size += len(attr) + len(v)
		}
	}
	if err := c.spend(size); err != nil {
		return nil, err
	}
	node := &inode{meta: m, layer: c.layer, n: n}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		node.typ, node.size = Regular, h.Size
	case tar.TypeDir:
		node.typ, node.children = Dir, map[string]dirent{}
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return nil, errors.New("symlink has no target")
		}
		node.typ, node.target = Symlink, h.Linkname
	case tar.TypeChar:
		node.typ = Char
	case tar.TypeBlock:
		node.typ = Block
	case tar.TypeFifo:
		node.typ = Fifo
	case tar.TypeLink:
		return c.linked(h, m)
	default:
		return nil, fmt.Errorf("type %q is not one of a layer's", h.Typeflag)
	}
	return node, nil
}

// linked returns what a hard link binds to, with the metadata of the link.
func (c *changeset) linked(h *tar.Header, m meta) (*inode, error) {
	target, ok := inRoot(h.Linkname)
	if !ok {
		return nil, &Escape{Name: h.Name, Target: h.Linkname}
	}
	ent, err := c.lookup(target, false)
	if err != nil {
		return nil, fmt.Errorf("hard-link target: %w", err)
	}
	if ent.typ == Dir {
		return nil, fmt.Errorf("hard-link target %q is a directory", target)
	}
	if m.mode != 0 {
		if ent.typ == Symlink {
			m.mode = ent.mode
		}
		if m.xattrs == nil {
			m.xattrs = ent.xattrs
		}
		ent.meta = m
	}
	return ent.inode, nil
}

// parent returns the directory at dir, to take the entry base. What is missing
// of it is made.
func (c *changeset) parent(dir, base string) (*inode, error) {
	way, _, err := c.walk(dir, true, true)
	if err != nil {
		return nil, err
	}
	if p := way.String(); len(p)+len("/")+len(base) > maxPath {
		return nil, fmt.Errorf("path with links resolved has more than %d bytes", maxPath)
	}
	for i := range way {
		switch s := way[i]; {
		case s.isDir():
			continue
		case s.inode != nil && s.dirent.layer == c.layer:
			return nil, fmt.Errorf("its parent %q is a %s of the same layer", way[:i+1], s.typ)
		}
		if err := c.spend(len(way[i].name)); err != nil {
			return nil, err
		}
		way[i].dirent = dirent{newDir(), c.layer}
		way[i-1].children[way[i].name] = way[i].dirent
	}
	return way.last().inode, nil
}

// whiteout hides one name in dir, or all of them, as far as older layers have
// put them there.
func (c *changeset) whiteout(dir, name string) error {
	if name == "" || name == "." || name == ".." {
		return errors.New("whiteout names no file")
	}
	ent, err := c.lookup(dir, true)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !ent.isDir():
		return nil
	}
	if name == opaqueMarker {
		c.clear(ent.inode)
	} else {
		c.hide(ent.inode, name)
	}
	return nil
}

// clear hides what older layers have put below dir.
func (c *changeset) clear(dir *inode) {
	if dir.cleared == c.layer {
		return
	}
	dir.cleared = c.layer
	for name := range dir.children {
		c.hide(dir, name)
	}
}

// hide hides what older layers have put at name in dir, and below it.
func (c *changeset) hide(dir *inode, name string) {
	ent := dir.children[name]
	if ent.isDir() {
		c.clear(ent.inode)
	}
	switch {
	case ent.inode == nil || ent.layer == c.layer:
	case len(ent.children) == 0:
		delete(dir.children, name)
	default:
		// Only this layer's entries below it still need it.
		ent.meta = impliedDir()
		dir.children[name] = dirent{ent.inode, c.layer}
	}
}

// spend takes one entry with this many bytes of strings from the limits.
func (c *changeset) spend(bytes int) error {
	c.left.entries--
	c.left.bytes -= bytes
	if c.left.entries < 0 {
		return fmt.Errorf("image has more than %d entries and directories", maxima.entries)
	}
	if c.left.bytes < 0 {
		return fmt.Errorf("image has more than %d bytes of names, link targets and extended attributes", maxima.bytes)
	}
	return nil
}

// inRoot cleans a name of a layer. It is false when the name leaves the root.
func inRoot(name string) (string, bool) {
	name = path.Clean(strings.TrimLeft(name, "/"))
	return name, name != ".." && !strings.HasPrefix(name, "../")
}
