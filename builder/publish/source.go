package publish

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// maxDocument bounds index.json, indexes and manifests, in bytes.
const maxDocument = 8 << 20

// LayoutSource reads an OCI image layout. Nothing outside of it is ever opened.
type LayoutSource struct {
	close func() error
	// open returns a file of the layout and its size.
	open  func(name string) (io.ReadCloser, int64, error)
	index []byte
}

// OpenLayout opens an OCI layout: a directory, or a tar archive of one, which is
// read in place. A compressed archive is refused.
func OpenLayout(name string) (*LayoutSource, error) {
	l, err := openLayout(name)
	if err != nil {
		return nil, fmt.Errorf("OCI layout %s: %w", name, err)
	}
	r, size, err := l.open("index.json")
	if err == nil {
		l.index, err = document(r, size)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("OCI layout %s: %w", name, err), l.Close())
	}
	return l, nil
}

func openLayout(name string) (*LayoutSource, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		l, err := openArchive(f)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return l, nil
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &LayoutSource{close: root.Close, open: func(name string) (io.ReadCloser, int64, error) {
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would block
		if err != nil {
			return nil, 0, err
		}
		fi, err := f.Stat()
		if err == nil && !fi.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", name)
		}
		if err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		return f, fi.Size(), nil
	}}, nil
}

// archive is a file that can be read at any place.
type archive interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// openArchive notes where in the tar each file is.
func openArchive(f archive) (*LayoutSource, error) {
	files := map[string]*io.SectionReader{}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("it is neither a directory nor an uncompressed tar archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		// The tar reader never reads ahead: here the content starts.
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		if _, ok := files[name]; ok {
			return nil, fmt.Errorf("archive has two files %q", name)
		}
		files[name] = io.NewSectionReader(f, at, h.Size)
	}
	return &LayoutSource{close: f.Close, open: func(name string) (io.ReadCloser, int64, error) {
		r, ok := files[name]
		if !ok {
			return nil, 0, fmt.Errorf("archive has no file %q", name)
		}
		return io.NopCloser(io.NewSectionReader(r, 0, r.Size())), r.Size(), nil
	}}, nil
}

// Close ends the use of the layout.
func (l *LayoutSource) Close() error { return l.close() }

// Index returns the bytes of index.json.
func (l *LayoutSource) Index() []byte { return l.index }

// Blob opens a blob. Its Read fails with *store.DigestMismatch at the end when
// the bytes are not what d promises; a wrong size is found before.
func (l *LayoutSource) Blob(d store.Descriptor) (io.ReadCloser, error) {
	hexDigest, ok := strings.CutPrefix(d.Digest, "sha256:")
	if _, err := hex.DecodeString(hexDigest); !ok || err != nil || len(hexDigest) != 2*sha256.Size {
		return nil, fmt.Errorf("digest %q is not of the form sha256:<64 hex>", d.Digest)
	}
	r, size, err := l.open("blobs/sha256/" + hexDigest)
	if err != nil {
		return nil, err
	}
	if size != d.Size {
		return nil, errors.Join(fmt.Errorf("blob %s has %d bytes, expected %d", d.Digest, size, d.Size), r.Close())
	}
	return store.Verify(r, d), nil
}

// Verify reads everything that index.json leads to and compares it with its
// digest and size. The error lists all findings.
func (l *LayoutSource) Verify(ctx context.Context) error {
	var index node
	if err := json.Unmarshal(l.index, &index); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	var findings []error
	seen := map[store.Descriptor]bool{}
	var leaves []store.Descriptor
	for todo := index.children(); len(todo) > 0; {
		d := todo[0]
		todo = todo[1:]
		if seen[d.Descriptor] {
			continue
		}
		seen[d.Descriptor] = true
		if mt := types.MediaType(d.MediaType); !mt.IsIndex() && !mt.IsImage() {
			leaves = append(leaves, d.Descriptor)
			continue
		}
		n, err := l.node(d.Descriptor)
		if err != nil {
			findings = append(findings, fmt.Errorf("%s: %w", d.Digest, err))
		}
		todo = append(todo, n.children()...)
	}

	errs := make([]error, len(leaves))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range leaves {
		g.Go(func() error {
			r, err := l.Blob(d)
			if err == nil {
				_, err = io.Copy(io.Discard, store.Until(ctx, r))
				err = errors.Join(err, r.Close())
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", d.Digest, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the findings are in errs
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(append(findings, errs...)...)
}

func (l *LayoutSource) node(d store.Descriptor) (n node, err error) {
	r, err := l.Blob(d)
	if err != nil {
		return n, err
	}
	b, err := document(r, d.Size)
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(b, &n)
}

// document reads and closes r, which has size bytes.
func document(r io.ReadCloser, size int64) ([]byte, error) {
	defer r.Close()
	if size > maxDocument {
		return nil, fmt.Errorf("document has %d bytes, at most %d are read", size, maxDocument)
	}
	return io.ReadAll(r)
}
