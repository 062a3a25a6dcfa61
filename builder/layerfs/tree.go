package layerfs

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// maxLinks is how many symlinks one look-up follows, as in containerd.
const maxLinks = 255

// tree is the merged view of the layers that were applied so far.
type tree struct {
	root dirent
}

// dirent binds a name in a directory to an inode. It knows the layer that bound
// it, since whiteouts work on names, not on the files behind them.
type dirent struct {
	*inode // nil when the name is missing
	layer  int
}

// inode is one file of the image. Hard links share it.
type inode struct {
	meta
	typ      Type
	size     int64
	target   string            // of a Symlink
	layer, n int               // content is behind the n-th header of this layer
	children map[string]dirent // of a Dir
	cleared  int               // of a Dir: the last layer that hid all older entries below it
}

type meta struct {
	mode     fs.FileMode
	uid, gid int
	mtime    time.Time
	xattrs   map[string]string
}

// newDir returns a directory as it is when no layer has an entry for it.
func newDir() *inode {
	return &inode{typ: Dir, meta: impliedDir(), children: map[string]dirent{}}
}

func impliedDir() meta { return meta{mode: 0o755, mtime: time.Unix(0, 0).UTC()} }

func (e dirent) isDir() bool { return e.inode != nil && e.typ == Dir }

func (e dirent) entry(name string) Entry {
	return Entry{Path: name, Type: e.typ, Mode: e.mode, UID: e.uid, GID: e.gid, Size: e.size, Target: e.target,
		ModTime: e.mtime, Layer: e.layer, Xattrs: e.xattrs}
}

// each calls fn for all below the directory e, whose path is prefix, in order
// of the path's bytes. As "a-b" comes between "a" and "a/b", each directory is
// sorted in twice: as itself and, with a slash, as what is below it.
func (e dirent) each(prefix string, fn func(string, dirent) error) error {
	keys := make([]string, 0, len(e.children))
	for name, child := range e.children {
		keys = append(keys, name)
		if child.isDir() {
			keys = append(keys, name+"/")
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		name, below := strings.CutSuffix(key, "/")
		var err error
		if below {
			err = e.children[name].each(prefix+key, fn)
		} else {
			err = fn(prefix+name, e.children[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trail is the way from the root to a name, without any links. The first step
// is the root; those that do not exist have no inode.
type trail []step

type step struct {
	name string
	dirent
}

func (t trail) last() dirent { return t[len(t)-1].dirent }

func (t trail) String() string {
	names := make([]string, len(t)-1)
	for i, s := range t[1:] {
		names[i] = s.name
	}
	return strings.Join(names, "/")
}

// lookup finds name as the kernel would for a process whose root is the image.
func (t *tree) lookup(name string, follow bool) (dirent, error) {
	way, links, err := t.walk(name, follow, false)
	if err == nil && way.last().inode == nil {
		err = fmt.Errorf("%q: %w in the image%s", name, fs.ErrNotExist, followed(links))
	}
	if err != nil {
		return dirent{}, err
	}
	return way.last(), nil
}

// walk follows name from the root, and answers the links on the way as well.
// With create, steps may be missing or no directories, and ".." just takes back
// the step before.
func (t *tree) walk(name string, follow, create bool) (trail, []string, error) {
	way := trail{{"", t.root}}
	var links []string
	for rest := name; rest != ""; {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		if elem == "" {
			continue
		}
		here := way.last()
		if !create && !here.isDir() {
			what := "missing"
			if here.inode != nil {
				what = "a " + here.typ.String()
			}
			return nil, nil, fmt.Errorf("%q: %w in the image: its parent %q is %s%s", name, fs.ErrNotExist, way, what, followed(links))
		}
		switch elem {
		case ".":
			continue
		case "..":
			way = way[:max(1, len(way)-1)]
			continue
		}
		var next dirent
		if here.inode != nil {
			next = here.children[elem]
		}
		way = append(way, step{elem, next})
		if next.inode == nil || next.typ != Symlink || (rest == "" && !follow) {
			continue
		}
		if len(links) == maxLinks {
			return nil, nil, &LinkLoop{Path: name, Links: links}
		}
		links = append(links, fmt.Sprintf("%q -> %q", way, next.target))
		way = way[:len(way)-1]
		if strings.HasPrefix(next.target, "/") {
			way = way[:1]
		}
		rest = next.target + "/" + rest
	}
	return way, links, nil
}

// rooted cleans a name that is asked for.
func rooted(name string) string {
	if name = path.Clean("/" + name)[1:]; name == "" {
		return "."
	}
	return name
}

// followed lists links for the end of a message, up to where they repeat.
func followed(links []string) string {
	if len(links) == 0 {
		return ""
	}
	const most = 8
	n := 0
	for n < min(len(links), most) && !slices.Contains(links[:n], links[n]) {
		n++
	}
	list := strings.Join(links[:n], ", ")
	if n < len(links) {
		list += ", ..."
	}
	return " (links followed: " + list + ")"
}
