package host

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the folder at which all walks begin: "/" on a node, a temporary
// folder in tests. Paths below it are printed as if it were "/".
type Root struct{ Dir }

// OpenRoot opens the file system below dir. Links on the way to dir itself are
// followed: it is the caller's choice.
func OpenRoot(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	d, err := newDir(f, "/")
	if err != nil {
		return nil, err
	}
	return &Root{*d}, nil
}

// WriteFile replaces the file at path atomically and durably: a new file beside
// it gets content, owner and exactly these permissions, is synced and renamed
// over what is there, link or file; then the folder is synced. The folder must
// exist; OpenDir's rules hold for it. An owner or group of -1 is left as it is.
func (r *Root) WriteFile(name string, b []byte, mode fs.FileMode, uid, gid int) error {
	dir, err := r.OpenDir(path.Dir("/" + strings.TrimPrefix(name, "/")))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	base := path.Base(name)
	temp := "." + base + ".tmp-" + rand.Text()
	f, err := dir.open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	// The owner first: a change of owner may clear mode bits.
	err = errors.Join(err, f.Chown(uid, gid), f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(dir.fd(), temp, dir.fd(), base)
	}
	if err != nil {
		_ = dir.Unlink(temp)
		return fmt.Errorf("write %s: %w", dir.join(base), err)
	}
	return dir.f.Sync()
}
