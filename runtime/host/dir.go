// Package host is how the node runtime touches the node: folders are walked
// without ever following a link, files are written atomically and durably, and
// programs are started by absolute path with an environment built from nothing.
// It is the runtime's only importer of os/exec and its only user of raw file
// descriptors. What a file or an output means is for its callers to decide.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is what the file system says of an entry, a link not followed. Two of
// them are equal as long as nothing replaced, wrote or re-owned the entry.
type Stat struct {
	Dev, Ino uint64      // together they identify a file
	MountID  uint64      // the mount through which it was reached
	Mode     fs.FileMode // type and permissions
	UID, GID uint32
	Links    uint32 // names of the file
	Size     int64  // bytes
	Changed  time.Time
}

// WalkUnsafe is a path of which a component is a link or no directory.
type WalkUnsafe struct {
	Path      string // the path that was asked for
	Component string // the path up to the component at fault
	Why       string
}

func (e *WalkUnsafe) Error() string {
	return fmt.Sprintf("open %s: %s is %s, expected a directory", e.Path, e.Component, e.Why)
}

// Dir is an open folder. Its methods take the name of an entry, one component,
// and act on that folder even when its path leads elsewhere by now.
type Dir struct {
	f    *os.File
	path string
	self Stat
}

// OpenDir opens a folder below d, "etc/systemd/system"; a leading slash is
// ignored, and "/" is d itself. It fails with *WalkUnsafe when a component is a link or no
// directory, and with fs.ErrNotExist when one is missing. Mount points are
// crossed.
func (d *Dir) OpenDir(path string) (*Dir, error) {
	rel := strings.TrimPrefix(path, "/")
	if path == "/" {
		rel = "."
	}
	if !fs.ValidPath(rel) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	}
	if rel == "." {
		f, err := d.again()
		if err != nil {
			return nil, err
		}
		return newDir(f, d.path)
	}
	at := d
	for part := range strings.SplitSeq(rel, "/") {
		next, err := at.child(part)
		if at != d {
			_ = at.Close()
		}
		if unsafe := (*WalkUnsafe)(nil); errors.As(err, &unsafe) {
			unsafe.Path = d.join(rel)
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

func (d *Dir) child(name string) (*Dir, error) {
	path := d.join(name)
	f, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, &WalkUnsafe{Component: path, Why: "a link"}
	case errors.Is(err, unix.ENOTDIR):
		return nil, &WalkUnsafe{Component: path, Why: "no directory"}
	case err != nil:
		return nil, err
	}
	return newDir(f, path)
}

func newDir(f *os.File, path string) (*Dir, error) {
	self, err := StatFile(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Dir{f, path, self}, nil
}

// Self returns what the folder was when it was opened.
func (d *Dir) Self() Stat { return d.self }

// Path returns the folder's path as it was walked from the root, which is "/".
func (d *Dir) Path() string { return d.path }

// Close releases the folder.
func (d *Dir) Close() error { return d.f.Close() }

// Stat returns what is at name, a link itself and not its target. A missing
// entry is fs.ErrNotExist.
func (d *Dir) Stat(name string) (Stat, error) {
	if err := d.check("stat", name); err != nil {
		return Stat{}, err
	}
	s, err := statx(d.fd(), name)
	return s, d.fail("stat", name, err)
}

// StatFile returns what an open file is.
func StatFile(f *os.File) (Stat, error) {
	var s Stat
	var err error
	// Fd would make a file that was opened to never wait wait again.
	c, cerr := f.SyscallConn()
	if cerr == nil {
		cerr = c.Control(func(fd uintptr) { s, err = statx(int(fd), "") })
	}
	if err = errors.Join(cerr, err); err != nil {
		return Stat{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return s, nil
}

// Readlink returns the target of the link at name.
func (d *Dir) Readlink(name string) (string, error) {
	if err := d.check("readlink", name); err != nil {
		return "", err
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd(), name, b)
	if err != nil {
		return "", d.fail("readlink", name, err)
	}
	return string(b[:n]), nil
}

// Open opens the file at name for reading. A link is an error. It never waits:
// a FIFO without a writer reads as empty. Callers compare StatFile with Stat.
func (d *Dir) Open(name string) (*os.File, error) {
	return d.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// Unlink removes the entry at name, which must not be a folder.
func (d *Dir) Unlink(name string) error {
	if err := d.check("unlink", name); err != nil {
		return err
	}
	return d.fail("unlink", name, unix.Unlinkat(d.fd(), name, 0))
}

// Mkdir makes a folder with exactly these permissions and makes its name
// durable. An entry that is there already is fs.ErrExist.
func (d *Dir) Mkdir(name string, mode fs.FileMode) error {
	if err := d.check("mkdir", name); err != nil {
		return err
	}
	if err := unix.Mkdirat(d.fd(), name, 0o700); err != nil {
		return d.fail("mkdir", name, err)
	}
	made, err := d.child(name)
	if err != nil {
		return err
	}
	return errors.Join(made.f.Chmod(mode), made.f.Sync(), made.Close(), d.f.Sync())
}

// Names returns the names of all entries, sorted.
func (d *Dir) Names() ([]string, error) {
	f, err := d.again()
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// again opens the folder once more, to read it from its first entry on.
func (d *Dir) again() (*os.File, error) {
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	return os.NewFile(uintptr(fd), d.path), nil
}

// open opens an entry beneath d without following links.
func (d *Dir) open(name string, flags uint64, mode fs.FileMode) (*os.File, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Mode:    uint64(mode.Perm()),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(d.fd(), name, &how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, d.fail("open", name, err)
		}
		return os.NewFile(uintptr(fd), d.join(name)), nil
	}
}

func (d *Dir) fd() int { return int(d.f.Fd()) }

func (d *Dir) join(name string) string {
	if d.path == "/" {
		return "/" + name
	}
	return d.path + "/" + name
}

// check refuses a name that is not one component.
func (d *Dir) check(op, name string) error {
	if name == "." || !fs.ValidPath(name) || strings.Contains(name, "/") {
		return &fs.PathError{Op: op, Path: d.join(name), Err: fs.ErrInvalid}
	}
	return nil
}

func (d *Dir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

func statx(fd int, name string) (Stat, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var x unix.Statx_t
	if err := unix.Statx(fd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &x); err != nil {
		return Stat{}, err
	}
	return Stat{
		Dev: unix.Mkdev(x.Dev_major, x.Dev_minor), Ino: x.Ino, MountID: x.Mnt_id,
		Mode: fileMode(x.Mode), UID: x.Uid, GID: x.Gid, Links: x.Nlink, Size: int64(x.Size),
		Changed: time.Unix(x.Ctime.Sec, int64(x.Ctime.Nsec)),
	}, nil
}

// fileMode translates st_mode as package os does.
func fileMode(m uint16) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	}
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
