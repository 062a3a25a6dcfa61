package layerfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// maxWindow is the most memory that a zstd frame may ask for; `zstd --long`
// asks for as much.
const maxWindow = 128 << 20

// pass is one reading of a layer.
type pass struct {
	// visit gets the n-th header and its content, and tells whether it wants more.
	visit func(n int, h *tar.Header, content io.Reader) (more bool, err error)
	// end, when set, is called after the last visit, when the blob was found to be
	// what the layer says.
	end func() error
	// diffID says to check the uncompressed tar too, when visit wanted all of it.
	diffID bool
}

// read passes over the layer. The blob is always read to its end and checked,
// and when it is not what the layer says, that is the error, whatever the pass
// made of it.
func (l Layer) read(ctx context.Context, p pass) error {
	wrap := func(err error) error { return fmt.Errorf("layer %s: %w", l.Descriptor.Digest, err) }
	blob, err := l.Open()
	if err != nil {
		return wrap(err)
	}
	defer blob.Close()
	// One byte more than promised is enough to know.
	raw := newHashing(io.LimitReader(store.Until(ctx, blob), l.Descriptor.Size+1))
	tarErr := l.readTar(ctx, raw, p)
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return wrap(err)
	}
	if got := raw.descriptor(); got != l.Descriptor {
		return wrap(&store.DigestMismatch{Want: l.Descriptor, Got: got})
	}
	if p.end != nil {
		if err := p.end(); err != nil {
			return wrap(err)
		}
	}
	if tarErr != nil {
		return wrap(tarErr)
	}
	return nil
}

func (l Layer) readTar(ctx context.Context, raw io.Reader, p pass) error {
	plain, compressed, err := decompress(raw)
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	defer plain.Close()
	var body io.Reader = plain
	var sum *hashing
	if p.diffID && (compressed || l.DiffID != l.Descriptor.Digest) { // else the blob's digest says it
		sum = newHashing(plain)
		body = sum
	}
	tr := tar.NewReader(body)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		// Names are checked where they are used.
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return fmt.Errorf("read tar after %d headers: %w", n, err)
		}
		more, err := p.visit(n, h, store.Until(ctx, tr))
		if err != nil || !more {
			return err
		}
	}
	// The diff_id is of the whole stream, with what follows the archive's end.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return fmt.Errorf("read to the end: %w", err)
	}
	if sum == nil {
		return nil
	}
	if got := sum.descriptor(); got.Digest != l.DiffID {
		want := store.Descriptor{Digest: l.DiffID, Size: got.Size}
		return fmt.Errorf("diff_id of the image config: %w", &store.DigestMismatch{Want: want, Got: got})
	}
	return nil
}

var gzipMagic = []byte{0x1f, 0x8b}

// decompress returns the tar inside a blob, and whether that is another stream
// than the blob. It reads from the calling goroutine only.
func decompress(r io.Reader) (plain io.ReadCloser, compressed bool, err error) {
	src := bufio.NewReaderSize(r, 64<<10)
	magic, err := src.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		zr, err := gzip.NewReader(src)
		if err != nil {
			return nil, false, err
		}
		zr.Multistream(false)
		return &members{src, zr}, true, nil
	case isZstd(magic):
		zr, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, false, err
		}
		return zr.IOReadCloser(), true, nil
	}
	return io.NopCloser(src), false, nil
}

// isZstd knows a frame and a skippable frame (RFC 8878, 3.1).
func isZstd(magic []byte) bool {
	return bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}

// members reads gzip members one after the other up to the first bytes that are
// none. As with gzip(1) those are ignored: the blob's digest covers them.
type members struct {
	src *bufio.Reader
	*gzip.Reader
}

func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.Reader.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
		magic, err := m.src.Peek(len(gzipMagic))
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if !bytes.Equal(magic, gzipMagic) {
			return 0, io.EOF
		}
		if err := m.Reset(m.src); err != nil {
			return 0, err
		}
		m.Multistream(false)
	}
}

// hashing is a reader that knows the descriptor of what was read from it.
type hashing struct {
	r io.Reader
	h hash.Hash
	n int64
}

func newHashing(r io.Reader) *hashing { return &hashing{r: r, h: sha256.New()} }

func (r *hashing) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.h.Write(p[:n])
	r.n += int64(n)
	return n, err
}

func (r *hashing) descriptor() store.Descriptor {
	return store.Descriptor{Digest: "sha256:" + hex.EncodeToString(r.h.Sum(nil)), Size: r.n}
}
