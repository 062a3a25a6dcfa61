package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

const (
	mediaTypeIndex    = "application/vnd.oci.image.index.v1+json"
	refNameAnnotation = "org.opencontainers.image.ref.name"

	layoutFile = "oci-layout"
	layoutMark = `{"imageLayoutVersion":"1.0.0"}`
)

// Layout writes the release as an OCI image layout to dir, under the given
// reference names. Blobs are linked from the store where the file system allows
// it, else copied. The layout is built beside dir, read back, and only then
// takes dir's place: on an error dir is what it was and nothing else is left.
// A dir that holds anything but an OCI layout is refused.
//
// index.json lists the index once per name, every artifact, and, under the tag
// that the OCI distribution specification's referrers tag schema gives, an index
// of the artifacts that refer to the same subject.
func Layout(ctx context.Context, s *store.Store, dir string, r Release, names []string) error {
	p, err := r.plan()
	if err != nil {
		return fmt.Errorf("layout %s:\n%w", dir, err)
	}
	if err := writeLayout(ctx, s, filepath.Clean(dir), p, names); err != nil {
		return fmt.Errorf("layout %s: %w", dir, err)
	}
	return nil
}

func writeLayout(ctx context.Context, s *store.Store, dir string, p plan, names []string) error {
	if err := replaceable(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	blobs := filepath.Join(tmp, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	path := func(digest string) string {
		return filepath.Join(blobs, strings.TrimPrefix(digest, "sha256:"))
	}

	for _, b := range p.blobs {
		if b.data != nil {
			err = store.WriteFile(path(b.Digest), b.data, 0o644)
		} else {
			err = link(ctx, s, b.Descriptor, path(b.Digest))
		}
		if err != nil {
			return err
		}
	}
	referrers, err := p.referrers()
	if err != nil {
		return err
	}
	for _, m := range slices.Concat(p.images, []manifest{p.index}, p.artifacts, referrers) {
		if err := store.WriteFile(path(m.Digest), m.data, 0o644); err != nil {
			return err
		}
	}
	index, err := json.Marshal(p.entries(referrers, names))
	if err != nil {
		return err
	}
	if err := errors.Join(
		store.WriteFile(filepath.Join(tmp, layoutFile), []byte(layoutMark), 0o644),
		store.WriteFile(filepath.Join(tmp, "index.json"), index, 0o644),
	); err != nil {
		return err
	}
	for _, d := range []string{blobs, filepath.Dir(blobs), tmp} {
		if err := errors.Join(os.Chmod(d, 0o755), syncDir(d)); err != nil { // whatever the umask
			return err
		}
	}

	l, err := OpenLayout(tmp)
	if err != nil {
		return err
	}
	if err := errors.Join(l.Verify(ctx), l.Close()); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return replace(dir, tmp)
}

// referrers returns one index per subject over the artifacts that refer to it.
func (p plan) referrers() ([]manifest, error) {
	bySubject := map[string]*node{}
	for _, a := range p.artifacts {
		if a.node.Subject == nil {
			continue
		}
		subject := a.node.Subject.Digest
		if bySubject[subject] == nil {
			bySubject[subject] = &node{SchemaVersion: 2, MediaType: mediaTypeIndex}
		}
		d := a.descriptor
		d.Annotations = a.node.Annotations
		bySubject[subject].Manifests = append(bySubject[subject].Manifests, d)
	}
	var all []manifest
	for _, subject := range slices.Sorted(maps.Keys(bySubject)) {
		b, err := json.Marshal(bySubject[subject])
		if err != nil {
			return nil, err
		}
		m := manifest{descriptor: describe(mediaTypeIndex, b), data: b}
		m.Annotations = map[string]string{refNameAnnotation: strings.Replace(subject, ":", "-", 1)}
		all = append(all, m)
	}
	return all, nil
}

// entries returns the content of index.json.
func (p plan) entries(referrers []manifest, names []string) node {
	n := node{SchemaVersion: 2, MediaType: mediaTypeIndex}
	add := func(d descriptor, refName string) {
		if refName != "" {
			d.Annotations = maps.Clone(d.Annotations)
			if d.Annotations == nil {
				d.Annotations = map[string]string{}
			}
			d.Annotations[refNameAnnotation] = refName
		}
		n.Manifests = append(n.Manifests, d)
	}
	for _, name := range names {
		add(p.index.descriptor, name)
	}
	if len(names) == 0 {
		add(p.index.descriptor, "")
	}
	for i, a := range p.artifacts {
		add(a.descriptor, p.tags[i])
	}
	for _, r := range referrers {
		add(r.descriptor, "")
	}
	return n
}

// link gives a blob of the store a second name, or copies it. The store's blobs
// are durable already.
func link(ctx context.Context, s *store.Store, d store.Descriptor, to string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	from, err := s.Path(d.Digest)
	if err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, store.Until(ctx, in)); err != nil {
		return err
	}
	return errors.Join(out.Chmod(0o644), out.Sync())
}

// replaceable tells whether dir may be replaced: it is absent, empty, or a
// layout.
func replaceable(dir string) error {
	fi, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(entries) == 0 || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == layoutFile }) {
			return nil
		}
	}
	return fmt.Errorf("it exists and is not an OCI layout: choose another place or remove it")
}

// replace puts tmp in dir's place in one step, after which tmp is what dir was.
// Where the file system can't exchange two names, there is a moment without dir.
func replace(dir, tmp string) error {
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.Rename(tmp, dir)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		old := tmp + ".old"
		if err = os.Rename(dir, old); err != nil {
			break
		}
		if err = os.Rename(tmp, dir); err != nil {
			return errors.Join(err, os.Rename(old, dir))
		}
		err = os.RemoveAll(old)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
