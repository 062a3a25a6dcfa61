package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files lists what a store holds, without its folders.
func files(t *testing.T, s *Store) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(s.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, rerr := filepath.Rel(s.Dir(), path)
			found, err = append(found, rel), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantNothing(t *testing.T, s *Store) {
	t.Helper()
	if left := files(t, s); len(left) > 0 {
		t.Errorf("the store holds %v, expected nothing", left)
	}
}

var hello = Descriptor{Digest: Digest([]byte("hello")), Size: 5}

func TestABlobIsFoundByItsDigest(t *testing.T) {
	s := open(t)
	if s.Has(hello) {
		t.Error("an empty store has it")
	}
	if _, err := s.Open(hello.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty store opens it: %v", err)
	}
	old := syscall.Umask(0o077)
	got, err := s.Put(t.Context(), strings.NewReader("hello"), hello)
	syscall.Umask(old)
	if err != nil || got != hello || !s.Has(hello) {
		t.Fatalf("put %v: %v", got, err)
	}
	again, err := s.PutBytes([]byte("hello"))
	if err != nil || again != hello {
		t.Errorf("put again: %v, %v", again, err)
	}
	if got := files(t, s); len(got) != 1 || got[0] != "blobs/sha256/"+strings.TrimPrefix(hello.Digest, "sha256:") {
		t.Errorf("the store holds %v", got)
	}
	path, err := s.Path(hello.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o644 {
		t.Errorf("blob has mode %v, %v; expected 0644 whatever the umask", fi.Mode(), err)
	}
	if b, err := s.ReadAll(hello.Digest, 5); err != nil || string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := s.ReadAll(hello.Digest, 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("read beyond the limit: %v", err)
	}
	if s.Has(Descriptor{hello.Digest, 6}) {
		t.Error("it is there with another size")
	}
}

func TestContentThatIsNotWhatWasPromisedIsNotKept(t *testing.T) {
	s := open(t)
	for _, want := range []Descriptor{{hello.Digest, 6}, {Digest([]byte("other")), 5}, {hello.Digest, 0}, {"sha256:none", 5}} {
		_, err := s.Put(t.Context(), strings.NewReader("hello"), want)
		m, ok := errors.AsType[*DigestMismatch](err)
		if !ok || m.Want != want || m.Got != hello {
			t.Errorf("put as %v: %v", want, err)
		}
		for _, say := range []string{hello.Digest, "5 bytes", want.Digest} {
			if err == nil || !strings.Contains(err.Error(), say) {
				t.Errorf("error does not say %q: %v", say, err)
			}
		}
		wantNothing(t, s)
	}
}

func TestWhatEndsEarlyLeavesNothing(t *testing.T) {
	s := open(t)
	broken := errors.New("broken")
	if _, err := s.Put(t.Context(), io.MultiReader(strings.NewReader("hel"), failing{broken}), Descriptor{}); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
	wantNothing(t, s)

	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.Put(ctx, io.MultiReader(strings.NewReader("hel"), calling(cancel), strings.NewReader("lo")), Descriptor{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in the middle: %v", err)
	}
	wantNothing(t, s)

	w, err := s.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	wantNothing(t, s)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// calling is an empty reader that calls a function when it is reached.
func calling(f func()) io.Reader { return callingReader(f) }

type callingReader func()

func (f callingReader) Read([]byte) (int, error) { f(); return 0, io.EOF }

func TestAbortAfterCommitKeepsTheBlob(t *testing.T) {
	s := open(t)
	w, err := s.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if s.Has(hello) {
		t.Error("the blob has its name before it is whole")
	}
	if got, err := w.Commit(hello); err != nil || got != hello {
		t.Errorf("commit: %v, %v", got, err)
	}
	w.Abort()
	if !s.Has(hello) {
		t.Error("the blob is gone")
	}
}

func TestManyWritersOfOneBlob(t *testing.T) {
	dir := t.TempDir()
	content := bytes.Repeat([]byte("content "), 10_000)
	want := Descriptor{Digest(content), int64(len(content))}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := Open(dir) // as another process would
			if err != nil {
				t.Error(err)
				return
			}
			for range 5 {
				if got, err := s.Put(t.Context(), bytes.NewReader(content), want); err != nil || got != want {
					t.Errorf("put: %v, %v", got, err)
				}
				if _, err := s.ReadAll(want.Digest, want.Size); err != nil {
					t.Error(err)
				}
				if err := s.Record("kind", "key", want); err != nil {
					t.Error(err)
				}
				var back Descriptor
				if !s.Lookup("kind", "key", &back) || back != want {
					t.Errorf("record is %v", back)
				}
			}
		})
	}
	wg.Wait()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, s); len(got) != 2 {
		t.Errorf("the store holds %v, expected a blob and a record", got)
	}
}

func TestADamagedBlobIsNoticedWhenItIsRead(t *testing.T) {
	s := open(t)
	if _, err := s.PutBytes([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	path, err := s.Path(hello.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{"hellO", "hell", "hello!"} {
		if err := os.WriteFile(path, []byte(damaged), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := s.OpenVerified(hello)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !isMismatch(err) {
			t.Errorf("%q reads with %v", damaged, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.ReadAll(hello.Digest, 10); !isMismatch(err) {
			t.Errorf("%q reads at once with %v", damaged, err)
		}
	}
	if _, err := s.PutBytes([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAll(hello.Digest, 10); err != nil {
		t.Errorf("put again: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err == nil && s.Has(Descriptor{hello.Digest, fi.Size()}) {
		t.Error("a link counts as a blob")
	}
}

func isMismatch(err error) bool {
	_, ok := errors.AsType[*DigestMismatch](err)
	return ok
}

func TestOnlyADigestNamesABlob(t *testing.T) {
	s := open(t)
	hex := strings.TrimPrefix(hello.Digest, "sha256:")
	for _, digest := range []string{"", hex, "sha256:", "sha512:" + hex, "sha256:" + hex[1:], "sha256:" + strings.ToUpper(hex), "sha256:../../" + hex[6:], "sha256:" + hex + "/"} {
		if path, err := s.Path(digest); err == nil {
			t.Errorf("%q is at %s", digest, path)
		}
		if _, err := s.Open(digest); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q opens with %v", digest, err)
		}
	}
}

func TestARecordThatCanNotBeReadIsNone(t *testing.T) {
	s := open(t)
	var got Descriptor
	if s.Lookup("kind", "key", &got) {
		t.Error("there is a record in an empty store")
	}
	if err := s.Record("kind", "key", hello); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"other", "key ", "../key"} {
		if s.Lookup("kind", key, &got) {
			t.Errorf("%q finds the record of another key", key)
		}
	}
	if s.Lookup("other", "key", &got) {
		t.Error("another kind has the record")
	}
	path := filepath.Join(s.Dir(), files(t, s)[0])
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) - 1 { // the last byte is a newline
		if err := os.WriteFile(path, whole[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		if s.Lookup("kind", "key", &got) {
			t.Fatalf("a record torn after %d bytes reads as %v", n, got)
		}
	}
	if err := os.WriteFile(path, []byte(`["another shape"]`), 0o644); err != nil {
		t.Fatal(err)
	}
	if s.Lookup("kind", "key", &got) {
		t.Errorf("a record of another shape reads as %v", got)
	}
	if err := s.Record("kind", "key", hello); err != nil {
		t.Fatal(err)
	}
	if got = (Descriptor{}); !s.Lookup("kind", "key", &got) || got != hello {
		t.Errorf("a record that was written again reads as %v", got)
	}
}

func TestWriteFileReplacesAsAWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	path := filepath.Join(dir, "file")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	if err := WriteFile(path, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := WriteFile(path, []byte("second, and longer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(before); err != nil || string(b) != "first" {
		t.Errorf("who had it open now reads %q, %v", b, err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode() != 0o755 {
		t.Errorf("mode %v, %v; expected 0755 whatever the umask", fi.Mode(), err)
	}
	if err := WriteFile(dir, []byte("x"), 0o644); err == nil {
		t.Error("a folder was replaced by a file")
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if left, err := os.ReadDir(d); err != nil || len(left) != 1 {
			t.Errorf("%s holds %v, %v; expected one entry", d, left, err)
		}
	}
}

func TestOpenRemovesWhatDeadBuildersLeft(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	old, young := filepath.Join(dir, "tmp", "build-1"), filepath.Join(dir, "tmp", "blob-2")
	if err := os.MkdirAll(filepath.Join(old, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(young, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was left two days ago is still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another builder may be writing is gone: %v", err)
	}
}
