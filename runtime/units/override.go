package units

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// searchDirs are the folders that systemd reads before the image's and in which
// someone, not a generator, may have put something: systemd.unit(5), "Unit File
// Load Path".
var searchDirs = []string{
	"/etc/systemd/system.control",
	"/run/systemd/system.control",
	unitDir,
	"/etc/systemd/system.attached",
	"/run/systemd/system",
	"/run/systemd/system.attached",
	"/usr/local/lib/systemd/system",
}

// overrides returns the paths of all fragments and drop-ins that change a unit
// of the scope and were not kept from removal. A folder that can't be walked
// without following a link stands for what it may hold.
func (m Migration) overrides(entries []entry, kept map[string]bool) ([]string, error) {
	var paths []string
	var errs []error
	// add notes what err, of opening or finding p, says is there.
	add := func(p string, err error) {
		var unsafe *host.WalkUnsafe
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return
		case errors.As(err, &unsafe):
			p = unsafe.Component
		case err != nil:
			errs = append(errs, err)
			return
		}
		if !kept[p] && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	for _, folder := range searchDirs {
		dir, err := m.Root.OpenDir(folder)
		if err != nil {
			add(folder, err)
			continue
		}
		for _, e := range entries {
			if e.kind != fragment {
				continue
			}
			_, err := dir.Stat(e.unit)
			add(path.Join(folder, e.unit), err)
			names, err := dropIns(dir, e.unit)
			if err != nil {
				add(path.Join(folder, e.unit+".d"), err)
			}
			for _, name := range names {
				add(path.Join(folder, e.unit+".d", name), nil)
			}
		}
		_ = dir.Close()
	}
	return paths, errors.Join(errs...)
}

// dropIns returns the names of the drop-ins of a unit in one folder.
func dropIns(dir *host.Dir, unit string) ([]string, error) {
	d, err := dir.OpenDir(unit + ".d")
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	names, err := d.Names()
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".conf") }), err
}
