// Package rootfs turns lists of files into image layers. The bytes of a layer
// depend only on what is asked for: never on the build host's umask, clock,
// time zone, user or number of cores, nor on the order of the list. Every layer
// is written in one pass, in which the contents are checked against their
// digests, the tar is hashed, compressed once and hashed again on its way into
// the store; memory use does not grow with the size of the files.
package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"runtime"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Compression says how a layer is stored. Contents that are compressed already
// belong into a layer of their own with None.
type Compression int

// The ways to store a layer.
const (
	Gzip Compression = iota
	Zstd
	None
)

// MediaType returns the OCI media type of a layer with this compression.
func (c Compression) MediaType() string {
	return "application/vnd.oci.image.layer.v1.tar" + [...]string{"+gzip", "+zstd", ""}[c]
}

// The parameters that decide about a layer's bytes. Whoever changes one of
// them, or the way a tar header is filled, raises format, so that no layer of
// the old form is reused.
const (
	format    = 1
	gzipLevel = pgzip.BestSpeed // twice the speed of the default, 4 % larger
	gzipBlock = 1 << 20
	zstdLevel = zstd.SpeedFastest
	// zstd compresses sections of four windows side by side.
	zstdWindow = 1 << 20
)

// Layer is a named list of files, in any order. Directories that a file needs
// and that are not listed are added with mode 0755.
type Layer struct {
	Name        string
	Files       []File
	Compression Compression
}

// Built is a layer in the store.
type Built struct {
	Name         string
	Descriptor   store.Descriptor // of the blob as stored
	MediaType    string
	DiffID       string // digest of the uncompressed tar
	Uncompressed int64  // size of the uncompressed tar
	Reused       bool   `json:"-"` // found in the store, nothing was compressed
}

// Writer writes layers into a store.
type Writer struct {
	Store *store.Store
	// Epoch is the modification time of every entry, in whole seconds. A path
	// that Kairos persists is synchronised by size and time alone, so a changed
	// file of the same size would be missed there under a constant Epoch: no
	// versioned file belongs under such a path.
	Epoch time.Time
	Jobs  int // cores to use; 0 means all
}

// Write is WriteAll for one layer.
func (w *Writer) Write(ctx context.Context, l Layer) (Built, error) {
	b, err := w.WriteAll(ctx, []Layer{l})
	if err != nil {
		return Built{}, err
	}
	return b[0], nil
}

// WriteAll writes the layers side by side and returns them in the given order.
// A layer that was written before with the same content, Epoch and compression
// is taken from the store. Nothing is written when any file of any layer is
// wrong; the error then lists every finding.
func (w *Writer) WriteAll(ctx context.Context, layers []Layer) ([]Built, error) {
	if w.Epoch.Unix() < 0 {
		return nil, fmt.Errorf("layer time %s is before 1970", w.Epoch.UTC().Format(time.RFC3339))
	}
	plans := make([][]File, len(layers))
	var findings []error
	for i, l := range layers {
		files, errs := plan(l)
		for _, f := range files {
			if f.Type == Regular && f.Data == nil && f.Open == nil && !w.Store.Has(f.Content) {
				errs = append(errs, fmt.Errorf("%s: content %s of %d bytes is not in the store", f.Path, f.Content.Digest, f.Content.Size))
			}
		}
		if err := errors.Join(errs...); err != nil {
			findings = append(findings, fmt.Errorf("layer %s:\n%w", l.Name, err))
		}
		plans[i] = files
	}
	if err := errors.Join(findings...); err != nil {
		return nil, err
	}

	jobs := w.Jobs
	if jobs <= 0 {
		jobs = runtime.GOMAXPROCS(0)
	}
	built := make([]Built, len(layers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(jobs, 2)) // each holds some MB per compressing goroutine: 20 with zstd
	for i, l := range layers {
		g.Go(func() (err error) {
			if built[i], err = w.write(ctx, plans[i], l.Compression, min(jobs, 8)); err != nil {
				return fmt.Errorf("layer %s: %w", l.Name, err)
			}
			built[i].Name = l.Name
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return built, nil
}

func (w *Writer) write(ctx context.Context, files []File, c Compression, jobs int) (Built, error) {
	key, err := json.Marshal(struct {
		Format      int
		Compression Compression
		Epoch       int64
		Files       []File
	}{format, c, w.Epoch.Unix(), files})
	if err != nil {
		return Built{}, err
	}
	var b Built
	if w.Store.Lookup("layers", string(key), &b) && w.Store.Has(b.Descriptor) {
		b.Reused = true
		return b, nil
	}
	if b, err = w.build(ctx, files, c, jobs); err != nil {
		return Built{}, err
	}
	return b, w.Store.Record("layers", string(key), b)
}

func (w *Writer) build(ctx context.Context, files []File, c Compression, jobs int) (Built, error) {
	blob, err := w.Store.Writer()
	if err != nil {
		return Built{}, err
	}
	defer blob.Abort()
	z, err := compressor(blob, c, jobs)
	if err != nil {
		return Built{}, err
	}
	defer z.Close() // ends its goroutines also when a file can't be read

	plain := &meter{w: z}
	if c != None { // else the blob's digest is the tar's
		plain.h = sha256.New()
	}
	if err := w.tar(ctx, plain, files); err != nil {
		return Built{}, err
	}
	if err := z.Close(); err != nil {
		return Built{}, err
	}
	d, err := blob.Commit(store.Descriptor{})
	if err != nil {
		return Built{}, err
	}
	b := Built{Descriptor: d, MediaType: c.MediaType(), DiffID: d.Digest, Uncompressed: plain.n}
	if plain.h != nil {
		b.DiffID = "sha256:" + hex.EncodeToString(plain.h.Sum(nil))
	}
	return b, nil
}

func (w *Writer) tar(ctx context.Context, out io.Writer, files []File) error {
	tw := tar.NewWriter(out)
	mtime := time.Unix(w.Epoch.Unix(), 0).UTC()
	buf := make([]byte, 256<<10)
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Mode: int64(f.Mode.Perm()), ModTime: mtime, Format: tar.FormatPAX}
		if f.Mode&fs.ModeSetuid != 0 {
			h.Mode |= 0o4000
		}
		if f.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		switch f.Type {
		case Dir:
			h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
		case Symlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		default:
			h.Typeflag, h.Size = tar.TypeReg, f.Content.Size
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if f.Type != Regular {
			continue
		}
		if err := w.copy(ctx, tw, f, buf); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return tw.Close()
}

// copy writes one file's content and fails when it is not what f promises.
func (w *Writer) copy(ctx context.Context, tw io.Writer, f File, buf []byte) error {
	r, err := w.open(f)
	if err != nil {
		return err
	}
	defer r.Close()
	// Only Read and Write are passed on, so that buf is used.
	_, err = io.CopyBuffer(struct{ io.Writer }{tw}, store.Until(ctx, r), buf)
	return err
}

// open reads a file's content; reading ends with an error when it is not what
// Content says.
func (w *Writer) open(f File) (io.ReadCloser, error) {
	switch {
	case f.Data != nil:
		return io.NopCloser(bytes.NewReader(f.Data)), nil
	case f.Open != nil:
		r, err := f.Open()
		return store.Verify(r, f.Content), err
	}
	return w.Store.OpenVerified(f.Content)
}

// compressor returns a writer whose output depends on the input alone: the
// block sizes are fixed and jobs only says how many blocks are in work at once.
func compressor(out io.Writer, c Compression, jobs int) (io.WriteCloser, error) {
	switch c {
	case Gzip:
		z, err := pgzip.NewWriterLevel(out, gzipLevel)
		if err != nil {
			return nil, err
		}
		z.ModTime = time.Unix(0, 0) // written as 0, which means none; the zero Time is not
		return z, z.SetConcurrency(gzipBlock, jobs)
	case Zstd:
		// With a single goroutine the encoder would not cut sections, and its
		// output would differ. More than four would take too much memory.
		return zstd.NewWriter(out, zstd.WithEncoderLevel(zstdLevel), zstd.WithWindowSize(zstdWindow),
			zstd.WithConcurrentBlocks(true), zstd.WithEncoderConcurrency(min(max(jobs, 2), 4)))
	default:
		return nopCloser{out}, nil
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// meter counts and, with h set, hashes what goes through.
type meter struct {
	w io.Writer
	h hash.Hash
	n int64
}

func (m *meter) Write(p []byte) (int, error) {
	if m.h != nil {
		m.h.Write(p)
	}
	m.n += int64(len(p))
	return m.w.Write(p)
}
