package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// errNotBundled says that the OS image has no bundle.
var errNotBundled = errors.New("/" + overlay.BundleDir + " is not there: this OS image bundles no image")

// bundle is the folder that holds the list and the archives. Its anchor is the
// provider binary: what lies on the same mount, and is guarded as it is, came
// with the same OS image.
type bundle struct {
	owner    uint32 // user who alone may change the bundle
	anchor   host.Stat
	readOnly bool
	dir      *host.Dir
	images   []Image
	unlisted int
}

// openBundle opens the bundle below root and reads its list. It fails with
// errNotBundled or a refusal; what is known by then is returned either way.
func openBundle(root *host.Root, owner uint32) (*bundle, error) {
	b := &bundle{owner: owner}
	var err error
	if b.dir, err = b.walk(root, overlay.BundleDir); errors.Is(err, fs.ErrNotExist) {
		return b, errNotBundled
	} else if err != nil {
		return b, refuse(dirUnsafe, "%w", err)
	}
	if err := b.readAnchor(root); err != nil {
		return b, refuse(anchorUnsafe, "%w", err)
	}
	if err := b.sameMount(b.dir.Self()); err != nil {
		return b, err
	}
	return b, b.readList()
}

func (b *bundle) close() {
	if b.dir != nil {
		_ = b.dir.Close()
	}
}

// walk opens the folder at a path and requires that each folder from the root
// to it is guarded.
func (b *bundle) walk(root *host.Root, to string) (*host.Dir, error) {
	if err := b.guarded(root.Self()); err != nil {
		return nil, fmt.Errorf("/ %w", err)
	}
	at := &root.Dir
	for part := range strings.SplitSeq(to, "/") {
		next, err := at.OpenDir(part)
		if at != &root.Dir {
			_ = at.Close()
		}
		if err != nil {
			return nil, err
		}
		at = next
		if err := b.guarded(at.Self()); err != nil {
			_ = at.Close()
			return nil, fmt.Errorf("%s %w", at.Path(), err)
		}
	}
	return at, nil
}

func (b *bundle) readAnchor(root *host.Root) error {
	dir, err := b.walk(root, path.Dir(overlay.Provider))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	f, s, err := b.open(dir, path.Base(overlay.Provider))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var mount unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &mount); err != nil {
		return fmt.Errorf("statfs /%s: %w", overlay.Provider, err)
	}
	b.anchor, b.readOnly = s, mount.Flags&unix.ST_RDONLY != 0
	return nil
}

func (b *bundle) readList() error {
	names, err := b.dir.Names()
	if err != nil {
		return refuse(dirUnsafe, "%w", err)
	}
	f, s, err := b.open(b.dir, LockName)
	if err != nil {
		if reasonOf(err) == missing {
			return refuse(lockMissing, "%w", err)
		}
		return err
	}
	defer func() { _ = f.Close() }()
	if err := b.sameMount(s); err != nil {
		return fmt.Errorf("%s: %w", LockName, err)
	}
	if s.Size == 0 || s.Size > lockLimit {
		return refuse(badSize, "%s has %d bytes: expected 1 to %d", LockName, s.Size, lockLimit)
	}
	text, err := io.ReadAll(io.LimitReader(f, lockLimit))
	if err != nil {
		return refuse(lockInvalid, "%w", err)
	}
	if b.images, err = ParseLock(text); err != nil {
		return refuse(lockInvalid, "%w", err)
	}
	listed := func(name string) bool {
		return name == LockName || slices.ContainsFunc(b.images, func(img Image) bool { return img.Archive == name })
	}
	b.unlisted = len(slices.DeleteFunc(names, listed))
	return nil
}

// archive opens img's archive after everything but its content was checked.
func (b *bundle) archive(img Image) (*os.File, error) {
	f, s, err := b.open(b.dir, img.Archive)
	if err != nil {
		return nil, err
	}
	if err = b.sameMount(s); err == nil && s.Size != img.Size {
		err = refuse(badSize, "has %d bytes: expected %d", s.Size, img.Size)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// verified opens img's archive and verifies its content. Whoever reads the
// descriptor from its start gets the bytes that were verified, whatever happens
// to the name: nobody but the owner can write to the file itself.
func (b *bundle) verified(ctx context.Context, img Image) (*os.File, error) {
	f, err := b.archive(img)
	if err != nil {
		return nil, err
	}
	err = img.verify(contextReader{ctx, f})
	if ctx.Err() != nil {
		err = refuse(deadline, "verified in part: %w", ctx.Err())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// open opens a file that must be regular and guarded.
func (b *bundle) open(dir *host.Dir, name string) (*os.File, host.Stat, error) {
	f, err := dir.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, host.Stat{}, refuse(missing, "%w", err)
	case errors.Is(err, unix.ELOOP):
		return nil, host.Stat{}, refuse(symlink, "%s/%s is a link", dir.Path(), name)
	case err != nil:
		return nil, host.Stat{}, refuse(notRegular, "%w", err)
	}
	s, err := host.StatFile(f)
	if err == nil && !s.Mode.IsRegular() {
		err = refuse(notRegular, "%s/%s is %s: expected a regular file", dir.Path(), name, s.Mode)
	}
	if err == nil {
		if err = b.guarded(s); err != nil {
			err = fmt.Errorf("%s/%s %w", dir.Path(), name, err)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, host.Stat{}, err
	}
	return f, s, nil
}

// guarded returns why somebody else than the owner could change a file.
func (b *bundle) guarded(s host.Stat) error {
	switch {
	case s.UID != b.owner:
		return refuse(badOwner, "belongs to user %d: expected %d", s.UID, b.owner)
	case s.Mode.Perm()&0o022 != 0:
		return refuse(badMode, "has mode %s: expected it to be writable by its owner only", s.Mode)
	}
	return nil
}

// sameMount returns why a file did not come with the provider binary. A bind
// mount from the same file system shows in the mount alone.
func (b *bundle) sameMount(s host.Stat) error {
	if s.Dev != b.anchor.Dev || s.MountID != b.anchor.MountID {
		return refuse(badDevice, "is on device %d, mount %d: expected %d and %d, where /%s is",
			s.Dev, s.MountID, b.anchor.Dev, b.anchor.MountID, overlay.Provider)
	}
	return nil
}

// contextReader is a file that ends when its context does.
type contextReader struct {
	ctx context.Context
	f   *os.File
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.f.Read(p)
}
