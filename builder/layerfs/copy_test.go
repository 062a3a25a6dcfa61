package layerfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// sink is a file that a copy goes to.
type sink struct {
	bytes.Buffer
	closed int
	err    error // of Close
}

func (s *sink) Close() error { s.closed++; return s.err }

func TestCopyAnswersTheEntryUnderTheNameItWasGiven(t *testing.T) {
	f := image(t, []member{file("bin/etcdctl-3.6", "AAA"), symlink("bin/etcdctl", "/bin/etcdctl-3.6")})
	var b bytes.Buffer
	e, err := f.Copy(t.Context(), &b, "/bin/etcdctl")
	if err != nil || b.String() != "AAA" || e.Path != "bin/etcdctl" || e.Type != Regular || e.Mode != 0o755 || e.Size != 3 {
		t.Errorf("got %q, %+v, %v", b.String(), e, err)
	}
}

func TestCopyRefusesWhatIsNoRegularFile(t *testing.T) {
	layers := plain(t, []member{dir("d"), special("fifo", tar.TypeFifo), special("char", tar.TypeChar), special("block", tar.TypeBlock), symlink("l", "fifo")})
	f, err := New(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]Type{"d": Dir, "fifo": Fifo, "char": Char, "block": Block, "l": Fifo, "/": Dir} {
		var b bytes.Buffer
		_, err := f.Copy(t.Context(), &b, name)
		var notRegular *NotRegular
		if !errors.As(err, &notRegular) || notRegular.Type != typ || b.Len() != 0 {
			t.Errorf("%s: got %v", name, err)
		}
		if name != "/" && !strings.Contains(err.Error(), layers[0].Descriptor.Digest) {
			t.Errorf("%s: error %q does not name the layer", name, err)
		}
	}
}

func TestReadFileReadsNoMoreThanItsLimit(t *testing.T) {
	l := plain(t, []member{file("f", "12345")})
	opened := 0
	open := l[0].Open
	l[0].Open = func() (io.ReadCloser, error) { opened++; return open() }
	f, err := New(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := f.ReadFile(t.Context(), "f", 5); err != nil || string(b) != "12345" {
		t.Errorf("at the limit: got %q, %v", b, err)
	}
	if b, err := f.ReadFile(t.Context(), "f", 4); err == nil || b != nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("over the limit: got %q, %v", b, err)
	}
	if opened != 2 {
		t.Errorf("layer was opened %d times, want 2", opened)
	}
}

func TestCopyChecksTheLayerAgain(t *testing.T) {
	for codec, encode := range codecs {
		good, bad := tarOf(t, file("f", "good"), file("g", "")), tarOf(t, file("f", "evil"), file("g", ""))
		l := layer(encode(t, good), good)
		blob := encode(t, good)
		l.Open = func() (io.ReadCloser, error) { return opener(blob)() }
		f, err := New(t.Context(), []Layer{l})
		if err != nil {
			t.Fatal(err)
		}
		for name, changed := range map[string][]byte{
			"other content": encode(t, bad),
			"truncated":     encode(t, good)[:60],
			"longer":        append(encode(t, good), 0),
			"gone":          nil,
		} {
			blob = changed
			if _, err := f.Copy(t.Context(), io.Discard, "f"); !is[*store.DigestMismatch](err) {
				t.Errorf("%s, %s: got %v", codec, name, err)
			}
			if b, err := f.ReadFile(t.Context(), "f", 100); b != nil || !is[*store.DigestMismatch](err) {
				t.Errorf("%s, %s: got %q, %v", codec, name, b, err)
			}
		}
	}
}

func TestCopyAllReadsEachLayerOnce(t *testing.T) {
	opened := []int{0, 0, 0}
	layers := plain(t,
		[]member{file("a", "A"), file("b", "B"), file("z", "Z"), symlink("s", "a")},
		[]member{file("unused", "")},
		[]member{file("c", "C"), file("empty", ""), hardlink("h", "b")},
	)
	for i := range layers {
		open := layers[i].Open
		layers[i].Open = func() (io.ReadCloser, error) { opened[i]++; return open() }
	}
	f, err := New(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	sinks := map[string]*sink{}
	err = f.CopyAll(t.Context(), []string{"h", "c", "/a", "s", "b", "empty"}, func(e Entry) (io.WriteCloser, error) {
		sinks[e.Path] = &sink{}
		return sinks[e.Path], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range sinks {
		if got[name] = s.String(); s.closed != 1 {
			t.Errorf("%s was closed %d times", name, s.closed)
		}
	}
	if want := map[string]string{"h": "B", "c": "C", "a": "A", "s": "A", "b": "B", "empty": ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := []int{2, 1, 2}; !reflect.DeepEqual(opened, want) {
		t.Errorf("layers were opened %v times with New's, want %v", opened, want)
	}
}

func TestCopyAllReportsAllNamesBeforeItOpensAny(t *testing.T) {
	f := image(t, []member{file("bin/etcdctl", "x"), dir("d")})
	err := f.CopyAll(t.Context(), []string{"bin/etcdctl", "bin/etcdutl", "d"}, func(Entry) (io.WriteCloser, error) {
		t.Error("open was called")
		return &sink{}, nil
	})
	if !notExist(err) || !is[*NotRegular](err) || !strings.Contains(err.Error(), `"bin/etcdutl"`) {
		t.Errorf("got %v", err)
	}
}

func TestCopyReportsTheWritersErrors(t *testing.T) {
	full := errors.New("disk full")
	f := image(t, []member{file("f", "f"), file("g", "g")})
	if _, err := f.Copy(t.Context(), failing{full}, "f"); !errors.Is(err, full) {
		t.Errorf("write: got %v", err)
	}
	s := &sink{err: full}
	err := f.CopyAll(t.Context(), []string{"f"}, func(Entry) (io.WriteCloser, error) { return s, nil })
	if !errors.Is(err, full) || s.closed != 1 {
		t.Errorf("close: got %v", err)
	}
	s = &sink{}
	err = f.CopyAll(t.Context(), []string{"f", "./f"}, func(Entry) (io.WriteCloser, error) {
		if s.closed++; s.closed == 2 {
			return nil, full
		}
		s.closed--
		defer func() { s.closed = 1 }()
		return s, nil
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), `"f"`) {
		t.Errorf("open: got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestCopyStopsWhenItsContextEnds(t *testing.T) {
	f := image(t, []member{file("f", strings.Repeat("x", 1<<20)), file("g", "g")})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := f.Copy(ctx, writeFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), "f")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }
