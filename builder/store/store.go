// Package store keeps every byte the builder has verified or made, named by its
// sha256 digest, in one folder on the build host. A blob is either absent or
// whole: it is written to a temporary file, hashed on the way, synced and then
// renamed. Two builders may share a store at the same time.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Descriptor names a blob: its digest ("sha256:<64 hex>") and size in bytes.
type Descriptor struct {
	Digest string `json:"digest" yaml:"digest"`
	Size   int64  `json:"size" yaml:"size"`
}

// DigestMismatch reports content that is not what its name promised.
type DigestMismatch struct {
	Want, Got Descriptor
}

func (e *DigestMismatch) Error() string {
	return fmt.Sprintf("content has digest %s and %d bytes, expected %s and %d bytes",
		e.Got.Digest, e.Got.Size, e.Want.Digest, e.Want.Size)
}

// Store is a content-addressed folder.
type Store struct {
	dir string
}

// abandoned is the age from which a temporary file belongs to a builder that
// died: no build takes that long.
const abandoned = 24 * time.Hour

// Open returns the store at dir, making it when missing, and removes what
// builders that died left in its tmp folder.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"blobs/sha256", "records", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	tmp := filepath.Join(dir, "tmp")
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > abandoned {
			_ = os.RemoveAll(filepath.Join(tmp, e.Name())) // another builder may be at it too
		}
	}
	return &Store{dir: dir}, nil
}

// Dir returns the folder of the store.
func (s *Store) Dir() string { return s.dir }

// Path returns where the blob with this digest is or would be. It is an error
// when the digest is not of the form sha256:<64 lower-case hex digits>.
func (s *Store) Path(digest string) (string, error) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(h) != sha256.Size*2 || strings.Trim(h, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q is not of the form sha256:<64 hex>", digest)
	}
	return filepath.Join(s.dir, "blobs", "sha256", h), nil
}

// Has tells whether the blob is present with the size that d gives.
func (s *Store) Has(d Descriptor) bool {
	p, err := s.Path(d.Digest)
	if err != nil {
		return false
	}
	fi, err := os.Lstat(p)
	return err == nil && fi.Mode().IsRegular() && fi.Size() == d.Size
}

// Open opens a blob for reading. A missing blob is fs.ErrNotExist.
func (s *Store) Open(digest string) (*os.File, error) {
	p, err := s.Path(digest)
	if err != nil {
		return nil, err
	}
	return os.Open(p)
}

// OpenVerified opens a blob whose Read fails with DigestMismatch at the end
// when the bytes on disk no longer are what the digest says.
func (s *Store) OpenVerified(d Descriptor) (io.ReadCloser, error) {
	f, err := s.Open(d.Digest)
	if err != nil {
		return nil, err
	}
	return Verify(f, d), nil
}

// Verify returns a reader of r whose Read fails with *DigestMismatch at the end
// when what was read is not what d says. Close closes r.
func Verify(r io.ReadCloser, d Descriptor) io.ReadCloser {
	return &verifyingReader{ReadCloser: r, h: sha256.New(), want: d}
}

// ReadAll returns a whole small blob after checking its digest. More than limit
// bytes is an error.
func (s *Store) ReadAll(digest string, limit int64) ([]byte, error) {
	f, err := s.Open(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("blob %s has more than %d bytes", digest, limit)
	}
	if got := Digest(b); got != digest {
		return nil, &DigestMismatch{Want: Descriptor{digest, int64(len(b))}, Got: Descriptor{got, int64(len(b))}}
	}
	return b, nil
}

// Digest returns "sha256:<hex>" of b.
func Digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// PutBytes stores b and returns its descriptor.
func (s *Store) PutBytes(b []byte) (Descriptor, error) {
	w, err := s.Writer()
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	if _, err := w.Write(b); err != nil {
		return Descriptor{}, err
	}
	return w.Commit(Descriptor{})
}

// Put copies r into the store. When want has a digest, content with another
// digest or size is a *DigestMismatch and nothing is kept.
func (s *Store) Put(ctx context.Context, r io.Reader, want Descriptor) (Descriptor, error) {
	w, err := s.Writer()
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	if _, err := io.Copy(w, Until(ctx, r)); err != nil {
		return Descriptor{}, err
	}
	return w.Commit(want)
}

// Writer starts a new blob. Call Commit to keep it; Abort after Commit does
// nothing, so `defer w.Abort()` is always right.
func (s *Store) Writer() (*Writer, error) {
	f, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "blob-*")
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return &Writer{s: s, f: f, h: sha256.New()}, nil
}

// Writer is one blob in the making.
type Writer struct {
	s    *Store
	f    *os.File
	h    hash.Hash
	n    int64
	done bool
}

func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.h.Write(p[:n])
	w.n += int64(n)
	return n, err
}

// Commit checks the content against want (when want has a digest), makes it
// durable and gives it its name.
func (w *Writer) Commit(want Descriptor) (Descriptor, error) {
	got := Descriptor{Digest: "sha256:" + hex.EncodeToString(w.h.Sum(nil)), Size: w.n}
	if want.Digest != "" && want != got {
		w.Abort()
		return Descriptor{}, &DigestMismatch{Want: want, Got: got}
	}
	p, err := w.s.Path(got.Digest)
	if err != nil {
		return Descriptor{}, err
	}
	if err := errors.Join(w.f.Chmod(0o644), w.f.Sync(), w.f.Close()); err != nil {
		w.Abort()
		return Descriptor{}, fmt.Errorf("store %s: %w", got.Digest, err)
	}
	if err := os.Rename(w.f.Name(), p); err != nil {
		w.Abort()
		return Descriptor{}, fmt.Errorf("store %s: %w", got.Digest, err)
	}
	w.done = true
	return got, syncDir(filepath.Dir(p))
}

// Abort drops what was written. It does nothing after Commit or Abort.
func (w *Writer) Abort() {
	if w.done {
		return
	}
	w.done = true
	_ = w.f.Close()
	_ = os.Remove(w.f.Name())
}

// Record remembers v under key (any string) in the named kind ("layers",
// "builds", ...), replacing what was there. A record is an index entry that
// can be lost without harm: what it points at is checked when it is used.
func (s *Store) Record(kind, key string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(s.recordPath(kind, key), append(b, '\n'), 0o644)
}

// Lookup reads a record into v. It answers false when there is none or when it
// can't be read, which then counts as none.
func (s *Store) Lookup(kind, key string, v any) bool {
	b, err := os.ReadFile(s.recordPath(kind, key))
	return err == nil && json.Unmarshal(b, v) == nil
}

func (s *Store) recordPath(kind, key string) string {
	h := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, "records", kind, hex.EncodeToString(h[:])+".json")
}

// WriteFile replaces path with b durably: temporary file in the same folder
// (made when missing), fsync, rename, fsync of the folder.
func WriteFile(path string, b []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	_, werr := f.Write(b)
	if err := errors.Join(werr, f.Chmod(perm), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type verifyingReader struct {
	io.ReadCloser
	h    hash.Hash
	n    int64
	want Descriptor
}

func (r *verifyingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.h.Write(p[:n])
	r.n += int64(n)
	if errors.Is(err, io.EOF) {
		got := Descriptor{Digest: "sha256:" + hex.EncodeToString(r.h.Sum(nil)), Size: r.n}
		if got != r.want {
			return n, &DigestMismatch{Want: r.want, Got: got}
		}
	}
	return n, err
}

// Until returns a reader of r that fails with ctx's error once ctx has ended.
func Until(ctx context.Context, r io.Reader) io.Reader { return untilReader{ctx, r} }

type untilReader struct {
	ctx context.Context
	r   io.Reader
}

func (u untilReader) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
