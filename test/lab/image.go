package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/test/images"
)

// Image is what a node boots from: folders that are laid over each other, the
// topmost first. Nodes only read them.
type Image struct{ Folders []string }

// With returns the image with one more folder on top: a file in it hides the
// one that the image has at the same path.
func (i Image) With(folder string) Image {
	return Image{append([]string{folder}, i.Folders...)}
}

// Checkout returns the image of a minor, "1.37", that this checkout makes.
func Checkout(t testing.TB, minor string) Image {
	t.Helper()
	if err := Check(); err != nil {
		t.Skip(err)
	}
	img, err := Prepare(t.Context(), images.Make(t, minor).Layout)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// kept is how many images stay laid out, the last used ones.
const kept = 4

// Prepare lays out the image for this machine's architecture that an OCI layout
// holds: owners, modes, times and extended attributes as in its layers. An image
// that was laid out before is taken as it is.
func Prepare(ctx context.Context, layout string) (Image, error) {
	img, err := prepare(ctx, layout)
	if err != nil {
		return img, fmt.Errorf("lay out the image in %s: %w", layout, err)
	}
	return img, nil
}

func prepare(ctx context.Context, layout string) (img Image, err error) {
	src, err := publish.OpenLayout(layout)
	if err != nil {
		return img, err
	}
	defer src.Close()
	digest, layers, err := open(src)
	if err != nil {
		return img, err
	}
	base, err := folder("images")
	if err != nil {
		return img, err
	}
	unlock, err := lockFile(filepath.Join(base, ".lock"))
	if err != nil {
		return img, err
	}
	defer unlock()

	dir := filepath.Join(base, strings.TrimPrefix(digest, "sha256:"))
	if now := time.Now(); os.Chtimes(dir, now, now) == nil { // it exists, and was used now
		return Image{[]string{dir}}, nil
	}
	if err := prune(base); err != nil {
		return img, err
	}
	fsys, err := layerfs.New(ctx, layers)
	if err != nil {
		return img, err
	}
	unfinished := dir + ".new"
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		return img, err
	}
	if err := layOut(ctx, fsys, unfinished); err != nil {
		return img, errors.Join(err, os.RemoveAll(unfinished))
	}
	return Image{[]string{dir}}, os.Rename(unfinished, dir)
}

// open finds the one image in a layout.
func open(src *publish.LayoutSource) (digest string, layers []layerfs.Layer, err error) {
	type entry struct {
		store.Descriptor
		MediaType   string
		Platform    *struct{ OS, Architecture string }
		Annotations map[string]string
	}
	read := func(d store.Descriptor, v any) error {
		r, err := src.Blob(d)
		if err != nil {
			return err
		}
		defer r.Close()
		return json.NewDecoder(io.LimitReader(r, 8<<20)).Decode(v)
	}
	var top, index struct{ Manifests []entry }
	if err := json.Unmarshal(src.Index(), &top); err != nil {
		return "", nil, fmt.Errorf("index.json: %w", err)
	}
	top.Manifests = slices.DeleteFunc(top.Manifests, func(e entry) bool {
		name := e.Annotations["org.opencontainers.image.ref.name"]
		return !strings.HasSuffix(e.MediaType, "image.index.v1+json") || name == "" || strings.HasPrefix(name, "sha256-")
	})
	top.Manifests = slices.CompactFunc(top.Manifests, func(a, b entry) bool { return a.Digest == b.Digest })
	if len(top.Manifests) != 1 {
		return "", nil, fmt.Errorf("the layout names %d images, expected one", len(top.Manifests))
	}
	if err := read(top.Manifests[0].Descriptor, &index); err != nil {
		return "", nil, err
	}
	at := slices.IndexFunc(index.Manifests, func(e entry) bool {
		return e.Platform != nil && e.Platform.OS == "linux" && e.Platform.Architecture == runtime.GOARCH
	})
	if at < 0 {
		return "", nil, fmt.Errorf("image %s has nothing for linux/%s", top.Manifests[0].Digest, runtime.GOARCH)
	}
	var manifest struct {
		Config store.Descriptor
		Layers []store.Descriptor
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := read(index.Manifests[at].Descriptor, &manifest); err != nil {
		return "", nil, err
	}
	if err := read(manifest.Config, &config); err != nil {
		return "", nil, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return "", nil, fmt.Errorf("manifest %s lists %d layers, its config %d", index.Manifests[at].Digest, len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	for i, l := range manifest.Layers {
		layers = append(layers, layerfs.Layer{Descriptor: l, DiffID: config.RootFS.DiffIDs[i], Open: func() (io.ReadCloser, error) { return src.Blob(l) }})
	}
	return index.Manifests[at].Digest, layers, nil
}

// layOut writes an image's files into dir.
func layOut(ctx context.Context, fsys *layerfs.FS, dir string) error {
	var entries []layerfs.Entry
	var names []string
	err := fsys.Walk(func(e layerfs.Entry) error {
		entries = append(entries, e)
		name := filepath.Join(dir, e.Path)
		switch e.Type {
		case layerfs.Dir:
			return os.Mkdir(name, 0o700)
		case layerfs.Symlink:
			return os.Symlink(e.Target, name)
		case layerfs.Regular:
			names = append(names, e.Path)
			return nil
		default:
			return fmt.Errorf("%s is a %s: a node has a /dev of its own", e.Path, e.Type)
		}
	})
	if err != nil {
		return err
	}
	// Every parent above is a folder that was made here, so no path leaves dir.
	err = fsys.CopyAll(ctx, names, func(e layerfs.Entry) (io.WriteCloser, error) {
		return os.OpenFile(filepath.Join(dir, e.Path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	})
	if err != nil {
		return err
	}
	// What is in a folder comes before it, so that its time stays.
	for _, e := range slices.Backward(entries) {
		name := filepath.Join(dir, e.Path)
		err := os.Lchown(name, e.UID, e.GID)
		if err == nil && e.Type != layerfs.Symlink {
			err = os.Chmod(name, e.Mode)
		}
		for key, value := range e.Xattrs {
			err = cmp.Or(err, unix.Lsetxattr(name, key, []byte(value), 0))
		}
		if err == nil {
			at := unix.NsecToTimespec(e.ModTime.UnixNano())
			err = unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
	}
	return nil
}

// prune removes what a process that died left half laid out, and the images
// that were used longest ago, unless a node runs from them.
func prune(base string) error {
	list, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	type image struct {
		dir  string
		used time.Time
	}
	var all []image
	for _, e := range list {
		dir := filepath.Join(base, e.Name())
		switch fi, err := e.Info(); {
		case err != nil || !e.IsDir():
		case filepath.Ext(dir) != "":
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		default:
			all = append(all, image{dir, fi.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b image) int { return a.used.Compare(b.used) })
	excess := len(all) - (kept - 1)
	for _, img := range all {
		if excess <= 0 {
			break
		}
		f, err := hold(img.dir, unix.LOCK_EX)
		if errors.Is(err, errHeld) {
			continue
		} else if err != nil {
			return err
		}
		err = os.Rename(img.dir, img.dir+".old")
		if err == nil {
			err = os.RemoveAll(img.dir + ".old")
		}
		f.Close()
		if err != nil {
			return err
		}
		excess--
	}
	return nil
}

var errHeld = errors.New("in use by another process")

// hold takes a lock on a file or folder without waiting. It lasts until the
// last descriptor of the returned file is closed, here or in a child process.
func hold(name string, how int) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errHeld
		}
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return f, nil
}

// lockFile makes a file if it is not there and waits until no other process has
// it locked.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return func() { f.Close() }, nil
}

// folder returns a folder of this package in the user's cache.
func folder(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "provider-kubernetes", "lab", name)
	return dir, os.MkdirAll(dir, 0o755)
}
