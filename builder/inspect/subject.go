package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/program"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// subject is the image under inspection with what the current rule has found.
type subject struct {
	Image
	Expect
	Tools
	entries  []layerfs.Entry   // everything in the image, sorted by path
	small    map[string][]byte // documents that rules read; what is missing or no file is not in it
	dir      string            // programs, plugins and the trees of units, unpacked on this machine
	findings []Finding
	notes    []string
}

func (s *subject) find(name, found, want, next string) {
	if name != "" {
		name = "/" + name
	}
	if len(found) > 4096 {
		found = strings.ToValidUTF8(found[:4096], "") + "…"
	}
	s.findings = append(s.findings, Finding{Path: name, Found: found, Want: want, Next: next})
}

func (s *subject) note(format string, a ...any) { s.notes = append(s.notes, fmt.Sprintf(format, a...)) }

// lstat describes a path; ok is false when it is missing or leads nowhere,
// which is for the rule about paths to report.
func (s *subject) lstat(name string) (e layerfs.Entry, ok bool) {
	e, err := s.FS.Lstat(name)
	return e, err == nil
}

// unitTrees are the folders that systemd loads units from, and topLinks the
// names that are links on a system with a merged /usr.
var (
	unitTrees = []string{"etc/systemd", "usr/lib/systemd", "lib/systemd", "usr/local/lib/systemd"}
	topLinks  = []string{"bin", "lib", "lib64", "sbin"}
)

// load reads the documents that rules look into, in one pass over the layers.
func (s *subject) load(ctx context.Context) error {
	names := []string{lockPath, osRelease, kairosRelease}
	for _, f := range s.Overlay {
		names = append(names, f.Path)
	}
	s.small = map[string][]byte{}
	names = slices.DeleteFunc(names, func(name string) bool {
		e, err := s.FS.Stat(name)
		if err != nil || e.Type != layerfs.Regular {
			return true
		}
		s.small[name] = nil // and so it stays when it is far too large to be right
		return e.Size > 1<<20
	})
	return s.FS.CopyAll(ctx, names, func(e layerfs.Entry) (io.WriteCloser, error) {
		return &document{name: e.Path, into: s.small}, nil
	})
}

type document struct {
	bytes.Buffer
	name string
	into map[string][]byte
}

func (d *document) Close() error {
	d.into[d.name] = d.Bytes()
	return nil
}

// unpack writes what has to be run, and what systemd has to read, to a
// temporary folder, in one pass over the layers.
func (s *subject) unpack(ctx context.Context) (cleanup func(), err error) {
	keep := map[string]bool{overlay.Provider: true}
	for _, p := range programs {
		keep[p.path] = true
	}
	under := append([]string{overlay.CNIDir}, unitTrees...)
	s.dir, err = os.MkdirTemp(s.TempDir, "inspect-*")
	if err != nil {
		return nil, err
	}
	cleanup = func() { _ = os.RemoveAll(s.dir) }
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		cleanup()
		return nil, err
	}
	defer root.Close()
	err = s.FS.Extract(ctx, root, func(e layerfs.Entry) bool {
		if e.Type == layerfs.Symlink && slices.Contains(topLinks, e.Path) || keep[e.Path] {
			return true
		}
		return slices.ContainsFunc(under, func(dir string) bool {
			return (e.Path == dir || strings.HasPrefix(e.Path, dir+"/")) && e.Type <= layerfs.Symlink
		})
	})
	if err != nil {
		cleanup()
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return cleanup, nil
}

// runs tells whether this machine can run the image's programs.
func (s *subject) runs() bool {
	return s.Platform.OS == runtime.GOOS && program.Runs(s.Platform.Architecture)
}

// output runs a program of this machine, or of the image when it is under dir,
// with a closed environment and a deadline.
func (s *subject) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("gave up after 1m0s"))
	defer cancel()
	return s.Output(ctx, run.Cmd{
		Path: name, Args: args, Dir: s.dir,
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + s.dir, "LC_ALL=C"},
		Limit: 1 << 20,
	})
}

// describe is how findings speak about an entry.
func describe(e layerfs.Entry) string {
	switch {
	case e.Type == layerfs.Symlink:
		return fmt.Sprintf("symlink to %s, owner %d:%d", cmp.Or(e.Target, `""`), e.UID, e.GID)
	default:
		return fmt.Sprintf("%s, mode %s, owner %d:%d", e.Type, octal(e.Mode), e.UID, e.GID)
	}
}

func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, o := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			n |= o
		}
	}
	return fmt.Sprintf("%04o", n)
}

// parents returns the folders above a path, the nearest last.
func parents(name string) []string {
	var dirs []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}
