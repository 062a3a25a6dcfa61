package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

var epoch = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, s *store.Store, b []byte) store.Descriptor {
	t.Helper()
	d, err := s.PutBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// small is a layer with every kind of entry and no content in a store.
func small(c Compression) Layer {
	return Layer{Name: "small", Compression: c, Files: []File{
		{Path: "usr/bin/tool", Mode: 0o755, Data: []byte("#!/bin/sh\nexit 0\n")},
		{Path: "usr/lib/systemd/system/multi-user.target.wants/a.service", Type: Symlink, Target: "../a.service"},
		{Path: "usr/lib/systemd/system/a.service", Mode: 0o644, Data: []byte("[Unit]\n")},
		{Path: "usr/lib/empty", Mode: 0o600},
		{Path: "usr/lib/private", Type: Dir, Mode: 0o700},
		{Path: "usr/lib/private/" + strings.Repeat("long/", 60) + "é", Mode: 0o644, Data: []byte("x")},
	}}
}

func write(t *testing.T, w Writer, l Layer) Built {
	t.Helper()
	b, err := w.Write(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entries reads a layer back from the store and checks its DiffID.
func entries(t *testing.T, s *store.Store, b Built) map[string]*tar.Header {
	t.Helper()
	f, err := s.OpenVerified(b.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	switch b.MediaType {
	case Gzip.MediaType():
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if !z.ModTime.IsZero() || z.Name != "" {
			t.Errorf("gzip header has time %v and name %q", z.ModTime, z.Name)
		}
		r = z
	case Zstd.MediaType():
		z, err := zstd.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := store.Digest(plain); got != b.DiffID || int64(len(plain)) != b.Uncompressed {
		t.Errorf("tar is %s with %d bytes, layer says %s with %d", got, len(plain), b.DiffID, b.Uncompressed)
	}
	found := map[string]*tar.Header{}
	tr := tar.NewReader(bytes.NewReader(plain))
	last := ""
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if name <= last {
			t.Errorf("%q comes after %q", name, last)
		}
		last = name
		found[name] = h
	}
}

func TestLayerHoldsExactlyWhatWasAskedFor(t *testing.T) {
	for _, c := range []Compression{Gzip, Zstd, None} {
		s := openStore(t)
		got := entries(t, s, write(t, Writer{Store: s, Epoch: epoch.Add(time.Millisecond)}, small(c)))
		for path, want := range map[string]tar.Header{
			"usr":                    {Typeflag: tar.TypeDir, Mode: 0o755},
			"usr/bin":                {Typeflag: tar.TypeDir, Mode: 0o755},
			"usr/bin/tool":           {Typeflag: tar.TypeReg, Mode: 0o755, Size: 17},
			"usr/lib/empty":          {Typeflag: tar.TypeReg, Mode: 0o600},
			"usr/lib/private":        {Typeflag: tar.TypeDir, Mode: 0o700},
			"usr/lib/systemd/system": {Typeflag: tar.TypeDir, Mode: 0o755},
			"usr/lib/systemd/system/multi-user.target.wants/a.service": {Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "../a.service"},
		} {
			h := got[path]
			if h == nil {
				t.Errorf("%s is missing", path)
				continue
			}
			if h.Typeflag != want.Typeflag || h.Mode != want.Mode || h.Size != want.Size || h.Linkname != want.Linkname {
				t.Errorf("%s is %c %o %d %q", path, h.Typeflag, h.Mode, h.Size, h.Linkname)
			}
		}
		for path, h := range got {
			if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(epoch) {
				t.Errorf("%s has owner %d:%d %q:%q and time %v", path, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
			}
			for record := range h.PAXRecords {
				if record != "path" {
					t.Errorf("%s carries PAX record %s", path, record)
				}
			}
		}
		// usr, bin and tool; lib, empty, private, 60 × long and é; systemd,
		// system, a.service, the wants folder and its link.
		if len(got) != 3+64+5 {
			t.Errorf("layer has %d entries", len(got))
		}
	}
}

// The pinned digests change only together with the format number.
func TestLayerBytesArePinned(t *testing.T) {
	want := map[Compression]string{
		Gzip: "sha256:33f81969f2ff9db26eaf8f069cf7937ca309b6f99551e4c9a8410ce64b5e968c",
		Zstd: "sha256:9c5bc0fb8fcf0d4e457414eea430d749cc84004175380a4b773c3dea716369ac",
		None: "sha256:ec03c47b1f1e4b80e397daf45c2e4e895cb3fb6f58d7d3350942f33eb3277de5",
	}
	for c, digest := range want {
		s := openStore(t)
		if b := write(t, Writer{Store: s, Epoch: epoch}, small(c)); b.Descriptor.Digest != digest {
			t.Errorf("%s layer is %s, pinned is %s", c.MediaType(), b.Descriptor.Digest, digest)
		}
	}
}

func TestLayerDependsOnNothingOfTheHost(t *testing.T) {
	big := make([]byte, 11<<20) // more blocks than either compressor takes at once
	rnd := rand.New(rand.NewSource(7))
	rnd.Read(big[:3<<20])
	for n := 3 << 20; n < len(big); n += copy(big[n:], big[rnd.Intn(1<<20):][:rnd.Intn(100)]) {
	}
	for _, c := range []Compression{Gzip, Zstd, None} {
		build := func(jobs int, files func([]File)) Built {
			s := openStore(t)
			l := small(c)
			l.Files = append(l.Files, File{Path: "usr/bin/big", Mode: 0o755, Content: put(t, s, big)})
			files(l.Files)
			return write(t, Writer{Store: s, Epoch: epoch, Jobs: jobs}, l)
		}
		first := build(0, func([]File) {})
		check := func(name string, got Built) {
			t.Helper()
			if !reflect.DeepEqual(got, first) {
				t.Errorf("%s: %s: got %+v, first was %+v", c.MediaType(), name, got, first)
			}
		}
		check("reversed", build(0, slices.Reverse[[]File]))
		for _, jobs := range []int{1, 2, 3, 64} {
			check(fmt.Sprint("jobs ", jobs), build(jobs, func([]File) {}))
		}
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			check("one processor", build(0, func([]File) {}))
			runtime.GOMAXPROCS(16)
			check("many processors", build(0, func([]File) {}))
		}()
		func() {
			defer syscall.Umask(syscall.Umask(0o077))
			check("umask", build(0, func([]File) {}))
		}()
		func() {
			defer func(l *time.Location) { time.Local = l }(time.Local)
			time.Local = time.FixedZone("far", 13*3600)
			check("time zone", build(0, func([]File) {}))
		}()
	}
}

func TestSameContentFromStoreOrMemoryIsTheSameLayer(t *testing.T) {
	s := openStore(t)
	w := Writer{Store: s, Epoch: epoch}
	data := []byte("content")
	a := write(t, w, Layer{Name: "a", Files: []File{{Path: "f", Mode: 0o644, Data: data}}})
	b := write(t, w, Layer{Name: "b", Files: []File{{Path: "f", Mode: 0o644, Content: put(t, s, data)}}})
	if a.Descriptor != b.Descriptor || !b.Reused || b.Name != "b" {
		t.Errorf("got %+v and %+v", a, b)
	}
}

func TestContentFromElsewhereIsCheckedToo(t *testing.T) {
	data := []byte("content")
	file := File{Path: "f", Mode: 0o755 | os.ModeSetuid | os.ModeSticky, Content: store.Descriptor{Digest: store.Digest(data), Size: int64(len(data))}}
	for found, good := range map[string]bool{"content": true, "CONTENT": false, "conten": false, "contents": false} {
		s := openStore(t)
		file.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(found)), nil }
		b, err := (&Writer{Store: s, Epoch: epoch}).Write(t.Context(), Layer{Name: "l", Files: []File{file}})
		if (err == nil) != good {
			t.Errorf("%q: got %v", found, err)
		}
		if err == nil {
			if h := entries(t, s, b)["f"]; h.Mode != 0o5755 {
				t.Errorf("mode is %o", h.Mode)
			}
		}
	}
}

func TestUnchangedLayerIsReused(t *testing.T) {
	s := openStore(t)
	w := Writer{Store: s, Epoch: epoch}
	layers := []Layer{small(Gzip), small(Zstd), {Name: "other", Files: []File{{Path: "f", Mode: 0o644, Data: []byte("1")}}}}
	first, err := w.WriteAll(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	blob, _ := s.Path(first[0].Descriptor.Digest)
	before, err := os.Stat(blob) // a new blob would be another file
	if err != nil {
		t.Fatal(err)
	}
	layers[2].Files[0].Data = []byte("2")
	second, err := w.WriteAll(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(blob); err != nil || !os.SameFile(before, after) {
		t.Errorf("blob was written again (%v)", err)
	}
	for i, reused := range []bool{true, true, false} {
		if second[i].Reused != reused || first[i].Reused {
			t.Errorf("layer %d reused: first %v, second %v", i, first[i].Reused, second[i].Reused)
		}
		second[i].Reused = false
		if same := second[i] == first[i]; same != reused {
			t.Errorf("layer %d: first %+v, second %+v", i, first[i], second[i])
		}
	}

	for name, change := range map[string]func(*Writer, *Layer){
		"time":        func(w *Writer, _ *Layer) { w.Epoch = epoch.Add(time.Second) },
		"compression": func(_ *Writer, l *Layer) { l.Compression = None },
		"mode":        func(_ *Writer, l *Layer) { l.Files[0].Mode = 0o700 },
		"target":      func(_ *Writer, l *Layer) { l.Files[1].Target = "../b.service" },
		"path":        func(_ *Writer, l *Layer) { l.Files[0].Path += "2" },
		"a lost blob": func(_ *Writer, _ *Layer) { os.Remove(blob) },
		"a cut blob":  func(_ *Writer, _ *Layer) { os.Truncate(blob, 5) },
	} {
		w, l := w, small(Gzip)
		change(&w, &l)
		if b := write(t, w, l); b.Reused {
			t.Errorf("layer is reused after a change of %s", name)
		} else {
			entries(t, s, b)
		}
	}
}

func TestAllFindingsAreReportedAtOnce(t *testing.T) {
	s := openStore(t)
	missing := store.Descriptor{Digest: store.Digest([]byte("missing")), Size: 7}
	ok := File{Mode: 0o644, Data: []byte("x")}
	with := func(change func(*File)) File { f := ok; change(&f); return f }
	layers := []Layer{
		{Name: "paths", Files: []File{
			with(func(f *File) { f.Path = "/etc/passwd" }),
			with(func(f *File) { f.Path = "../up" }),
			with(func(f *File) { f.Path = "a/./b" }),
			with(func(f *File) { f.Path = "" }),
			with(func(f *File) { f.Path = "." }),
			with(func(f *File) { f.Path = "nul\x00" }),
			with(func(f *File) { f.Path = "latin\xe9" }),
			with(func(f *File) { f.Path = "etc/.wh.passwd" }),
			with(func(f *File) { f.Path = "twice" }),
			with(func(f *File) { f.Path = "twice" }),
		}},
		{Name: "files", Files: []File{
			with(func(f *File) { f.Path, f.Mode = "setgid", 0o755|os.ModeSetgid }),
			with(func(f *File) { f.Path, f.Mode = "modeless", 0 }),
			with(func(f *File) { f.Path, f.Target = "target", "x" }),
			with(func(f *File) { f.Path, f.Type = "socket", 9 }),
			with(func(f *File) { f.Path, f.Content = "both", missing }),
			{Path: "open", Mode: 0o644, Open: func() (io.ReadCloser, error) { return nil, nil }},
			{Path: "link", Type: Symlink},
			{Path: "dir", Type: Dir, Mode: 0o755, Data: []byte("x")},
		}},
		{Name: "tree", Files: []File{
			with(func(f *File) { f.Path = "usr/file" }),
			with(func(f *File) { f.Path = "usr/file/below" }),
		}},
		{Name: "content", Files: []File{{Path: "gone", Mode: 0o644, Content: missing}}},
		{Name: "form", Compression: 7},
	}
	_, err := (&Writer{Store: s, Epoch: epoch}).WriteAll(t.Context(), layers)
	if err == nil {
		t.Fatal("bad layers were written")
	}
	for _, want := range []string{
		`"/etc/passwd" is not a clean path`, `"../up" is not`, `"a/./b" is not`, `"" is not`, `"." is not`,
		`"nul\x00" is not`, `"latin\xe9" is not`, `"etc/.wh.passwd" would delete`, `"twice" is listed twice`,
		`"setgid" has mode g`, `"modeless" has no mode`, `"target" has target "x"`, `"socket" has unknown type 9`,
		`"both" has both`, `"open" can be opened`, `"link" is a symlink to ""`, `"dir" has content`,
		`"usr/file/below" is below "usr/file"`, "gone: content " + missing.Digest, "unknown compression 7",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q", want)
		}
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTimeBefore1970IsRefused(t *testing.T) {
	if _, err := (&Writer{Store: openStore(t)}).Write(t.Context(), small(None)); err == nil {
		t.Error("layer was written without a time")
	}
}

func TestChangedContentIsFoundWhileItIsRead(t *testing.T) {
	for _, c := range []Compression{Gzip, Zstd, None} {
		s := openStore(t)
		d := put(t, s, bytes.Repeat([]byte("good"), 1<<20))
		p, _ := s.Path(d.Digest)
		if err := os.WriteFile(p, bytes.Repeat([]byte("evil"), 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := (&Writer{Store: s, Epoch: epoch}).Write(t.Context(), Layer{
			Name: "l", Compression: c, Files: []File{{Path: "usr/bin/tool", Mode: 0o755, Content: d}}})
		var mismatch *store.DigestMismatch
		if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "usr/bin/tool") {
			t.Errorf("got %v, expected a digest mismatch that names the file", err)
		}
		if left := leftovers(t, s); !reflect.DeepEqual(left, []string{filepath.Base(p)}) {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestCancelledWriteLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := openStore(t)
	_, err := (&Writer{Store: s, Epoch: epoch}).Write(ctx, small(Gzip))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// leftovers returns the names of all files in the store, whole or not.
func leftovers(t *testing.T, s *store.Store) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(s.Dir(), func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, d.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
