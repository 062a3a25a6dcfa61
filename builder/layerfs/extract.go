package layerfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
)

// Extract writes the entries that keep accepts (nil: all), with their parent
// directories, into root, which should be empty: a name that exists already is
// fs.ErrExist. Hard links stay hard links, symlinks keep their targets, whatever
// those say, and are made last, so that nothing is ever written through one.
// Modes are set without setuid and setgid, as owners are not set, and times
// neither. Devices and FIFOs are left out.
//
// After an error, what was written is not to be used.
func (f *FS) Extract(ctx context.Context, root *os.Root, keep func(Entry) bool) error {
	var (
		dirs, links []Entry
		files       []source
		names       = map[*inode][]string{} // of each regular file
		made        = map[string]bool{".": true}
	)
	var mkdir func(name string) error
	mkdir = func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		if err := mkdir(path.Dir(name)); err != nil {
			return err
		}
		dir, err := f.Lstat(name)
		if err != nil {
			return err
		}
		dirs = append(dirs, dir)
		return root.Mkdir(name, 0o700)
	}
	err := f.tree.root.each("", func(name string, ent dirent) error {
		e := ent.entry(name)
		if keep != nil && !keep(e) {
			return nil
		}
		switch e.Type {
		case Dir:
			return mkdir(name)
		case Symlink:
			links = append(links, e)
		case Regular:
			if names[ent.inode] == nil {
				files = append(files, source{e, ent.inode})
			}
			names[ent.inode] = append(names[ent.inode], name)
		default:
			return nil
		}
		return mkdir(path.Dir(name))
	})
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	err = f.copy(ctx, files, runtime.GOMAXPROCS(0), func(e Entry) (io.WriteCloser, error) {
		file, err := root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return withMode{file, hostMode(e)}, err
	})
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	for _, src := range files {
		for _, name := range names[src.node][1:] {
			if err := root.Link(src.entry.Path, name); err != nil {
				return fmt.Errorf("extract: %w", err)
			}
		}
	}
	for _, e := range links {
		if err := root.Symlink(e.Target, e.Path); err != nil {
			return fmt.Errorf("extract: %w", err)
		}
	}
	// Children first: a directory may end up closed to its owner.
	for _, e := range slices.Backward(dirs) {
		if err := root.Chmod(e.Path, hostMode(e)); err != nil {
			return fmt.Errorf("extract: %w", err)
		}
	}
	return nil
}

func hostMode(e Entry) fs.FileMode { return e.Mode & (fs.ModePerm | fs.ModeSticky) }

// withMode gives a file its mode when it is written, whatever the umask.
type withMode struct {
	*os.File
	mode fs.FileMode
}

func (f withMode) Close() error { return errors.Join(f.Chmod(f.mode), f.File.Close()) }
