package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/program"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
)

// etcdTools are taken from the very etcd image that the bundle carries, so that
// they match the etcd that this minor's kubeadm deploys.
var etcdTools = []supply.Tool{
	{Target: "usr/bin/etcdctl", Image: "etcd", Path: "usr/local/bin/etcdctl"},
	{Target: "usr/bin/etcdutl", Image: "etcd", Path: "usr/local/bin/etcdutl"},
}

// BadTool is a tool in a verified image or release file that can't be used.
type BadTool struct {
	Path, Input, Digest string // where it should be
	Found, Want         string
}

func (e *BadTool) Error() string {
	return fmt.Sprintf("%s of %s (%s): found %s, expected %s", e.Path, e.Input, e.Digest, e.Found, e.Want)
}

// tools takes every tool out of its verified input and returns them by target.
// What was taken out before is found by the input's digest.
func (m *maker) tools(ctx context.Context, in *supply.Inputs, v *verified) (map[string]store.Descriptor, error) {
	out := map[string]store.Descriptor{}
	wanted := append(slices.Clone(in.Tools), etcdTools...)
	var findings []error
	for _, name := range sources(wanted) {
		img, ok := v.images[name]
		if !ok {
			continue
		}
		var paths []string
		for _, t := range wanted {
			if t.Image == name {
				paths = append(paths, t.Path)
			}
		}
		got, err := m.extract(ctx, name, img, paths)
		if err != nil {
			findings = append(findings, err)
			continue
		}
		for _, t := range wanted {
			if t.Image == name {
				out[t.Target] = got[t.Path]
			}
		}
	}
	for _, t := range wanted {
		f, ok := v.files[t.File]
		if !ok {
			continue
		}
		d := f.Descriptor
		if t.Path != "" {
			var err error
			if d, err = m.member(ctx, f, t.Path); err != nil {
				findings = append(findings, err)
				continue
			}
		}
		out[t.Target] = d
	}
	if err := errors.Join(findings...); err != nil {
		return nil, err
	}
	for _, t := range wanted {
		if _, ok := out[t.Target]; !ok {
			findings = append(findings, fmt.Errorf("nothing provides /%s", t.Target))
		}
	}
	return out, errors.Join(findings...)
}

func sources(tools []supply.Tool) []string {
	var names []string
	for _, t := range tools {
		if t.Image != "" && !slices.Contains(names, t.Image) {
			names = append(names, t.Image)
		}
	}
	slices.Sort(names)
	return names
}

// BadLayers is an image whose layers are the promised bytes and still can't be
// applied.
type BadLayers struct {
	Reference, Digest string
	Err               error
}

func (e *BadLayers) Error() string {
	return fmt.Sprintf("layers of %s (%s): %v", e.Reference, e.Digest, e.Err)
}

func (e *BadLayers) Unwrap() error { return e.Err }

// open reads the layers of an input image.
func (m *maker) open(ctx context.Context, img *fetch.Image) (*layerfs.FS, error) {
	var layers []layerfs.Layer
	for _, l := range img.Layers {
		layers = append(layers, m.layer(l.Descriptor, l.DiffID))
	}
	fsys, err := layerfs.New(ctx, layers)
	if err != nil && ctx.Err() == nil {
		err = &BadLayers{img.Reference, img.Manifest.Digest, err}
	}
	return fsys, err
}

// extract takes regular files out of an image as a container would see them.
func (m *maker) extract(ctx context.Context, name string, img *fetch.Image, paths []string) (map[string]store.Descriptor, error) {
	slices.Sort(paths)
	key := strings.Join(append([]string{"v1", img.Manifest.Digest}, paths...), "\x00")
	got := map[string]store.Descriptor{}
	if m.Store.Lookup("extracted", key, &got) && m.allThere(got, paths) {
		return got, nil
	}
	step := m.Report.Step(fmt.Sprintf("extract %d files of %s", len(paths), img.Reference))
	fsys, err := m.open(ctx, img)
	if err != nil {
		return nil, step.Done(err)
	}
	bad := func(p, found, want string) error {
		return &BadTool{Path: "/" + p, Input: img.Reference, Digest: img.Manifest.Digest, Found: found, Want: want}
	}
	var findings []error
	for _, p := range paths {
		e, err := fsys.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			findings = append(findings, bad(p, "nothing: "+err.Error(), "an executable file"))
		case err != nil:
			findings = append(findings, bad(p, err.Error(), "an executable file"))
		case e.Type != layerfs.Regular || e.Mode&0o111 == 0:
			findings = append(findings, bad(p, fmt.Sprintf("mode %s, %d bytes", e.Mode, e.Size), "an executable file"))
		}
	}
	if err := errors.Join(findings...); err != nil {
		return nil, step.Done(err)
	}
	got = map[string]store.Descriptor{}
	err = fsys.CopyAll(ctx, paths, func(e layerfs.Entry) (io.WriteCloser, error) {
		w, err := m.Store.Writer()
		return &keeping{Writer: w, keep: func(d store.Descriptor) { got[e.Path] = d }}, err
	})
	if err == nil && !m.allThere(got, paths) {
		err = fmt.Errorf("%s: extracted %v, expected %v", name, got, paths)
	}
	if err != nil {
		return nil, step.Done(err)
	}
	return got, step.Done(m.Store.Record("extracted", key, got))
}

func (m *maker) allThere(got map[string]store.Descriptor, paths []string) bool {
	for _, p := range paths {
		if !m.Store.Has(got[p]) {
			return false
		}
	}
	return true
}

// keeping commits to the store when it is closed.
type keeping struct {
	*store.Writer
	keep func(store.Descriptor)
}

func (k *keeping) Close() error {
	d, err := k.Commit(store.Descriptor{})
	if err == nil {
		k.keep(d)
	}
	return err
}

// member takes one regular file out of a release file that is a gzipped tar.
func (m *maker) member(ctx context.Context, archive supply.File, name string) (d store.Descriptor, err error) {
	defer func() {
		if _, ok := errors.AsType[*BadTool](err); !ok && err != nil {
			err = fmt.Errorf("%s: %w", archive.URL, err)
		}
	}()
	bad := func(found string) error {
		return &BadTool{Path: "/" + name, Input: archive.URL, Digest: archive.Digest, Found: found, Want: "a regular file"}
	}
	key := "v1\x00" + archive.Digest + "\x00" + name
	if m.Store.Lookup("members", key, &d) && m.Store.Has(d) {
		return d, nil
	}
	f, err := m.Store.OpenVerified(archive.Descriptor)
	if err != nil {
		return d, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return d, err
	}
	found := false
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return d, err
		}
		if strings.TrimPrefix(filepath.Clean("/"+h.Name), "/") != name {
			continue
		}
		if h.Typeflag != tar.TypeReg {
			return d, bad(fmt.Sprintf("tar type %q", h.Typeflag))
		}
		if d, err = m.Store.Put(ctx, tr, store.Descriptor{}); err != nil {
			return d, err
		}
		found = true
	}
	// What follows the archive's end is part of what its digest vouches for.
	if _, err := io.Copy(io.Discard, z); err != nil {
		return d, err
	}
	if _, err := io.Copy(io.Discard, f); err != nil {
		return d, err
	}
	if !found {
		return d, bad("nothing")
	}
	return d, m.Store.Record("members", key, d)
}

// checkTools refuses etcd tools that are not static executables for the
// platform or that are of another version than the etcd image's tag says. Programs for another
// architecture are read, not run. img is the etcd image they came from.
func (m *maker) checkTools(ctx context.Context, tools map[string]store.Descriptor, img *fetch.Image) error {
	dir, remove, err := program.Temp(filepath.Join(m.Store.Dir(), "tmp"))
	if err != nil {
		return err
	}
	defer remove()
	var findings []error
	for _, t := range etcdTools {
		file, err := m.place(dir, filepath.Base(t.Target), tools[t.Target])
		if err != nil {
			return err
		}
		bad := func(found, want string) {
			findings = append(findings, &BadTool{Path: "/" + t.Path, Input: img.Reference, Digest: img.Manifest.Digest, Found: found, Want: want})
		}
		if why := program.NotStatic(file, m.Platform.Architecture); why != "" {
			bad(why, "a static executable for "+m.Platform.String())
			continue
		}
		got := program.ModuleVersion(file, "go.etcd.io/etcd/"+filepath.Base(t.Target)+"/v3")
		if program.Runs(m.Platform.Architecture) {
			out, err := program.Output(ctx, file, "version")
			if err != nil {
				bad(err.Error(), "that it reports version "+m.Row.EtcdVersion())
				continue
			}
			got = program.FirstVersion(out)
		}
		if got != m.Row.EtcdVersion() {
			bad(fmt.Sprintf("version %q", got), "version "+m.Row.EtcdVersion())
		}
	}
	return errors.Join(findings...)
}

// place writes a program from the store to a file that can be executed.
func (m *maker) place(dir, name string, d store.Descriptor) (string, error) {
	r, err := m.Store.OpenVerified(d)
	if err != nil {
		return "", err
	}
	defer r.Close()
	file := filepath.Join(dir, name)
	// A process that is started meanwhile would inherit the open file for a
	// moment, in which the file could not be executed (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	w, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(w, r)
	return file, errors.Join(err, w.Close())
}

// kubeadmImages asks the bundled kubeadm which images it wants.
func (m *maker) kubeadmImages(ctx context.Context, kubeadm store.Descriptor) ([]string, error) {
	if !program.Runs(m.Platform.Architecture) {
		m.Report.Note("kubeadm of %s can't be run here: its image list is taken from the matrix", m.Platform)
		var out []string
		for _, i := range m.Row.Images() {
			out = append(out, i.Reference)
		}
		return out, nil
	}
	var known []string
	key := "v1\x00" + kubeadm.Digest + "\x00" + m.Row.Kubernetes.String()
	if m.Store.Lookup("kubeadm-images", key, &known) {
		return known, nil
	}
	dir, remove, err := program.Temp(filepath.Join(m.Store.Dir(), "tmp"))
	if err != nil {
		return nil, err
	}
	defer remove()
	file, err := m.place(dir, "kubeadm", kubeadm)
	if err != nil {
		return nil, err
	}
	out, err := program.Output(ctx, file, "config", "images", "list", "--kubernetes-version", m.Row.Kubernetes.String())
	if err != nil {
		return nil, err
	}
	known = strings.Fields(out)
	return known, m.Store.Record("kubeadm-images", key, known)
}
