package layerfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

func TestLayersAreReadInEveryFormThatToolsWrite(t *testing.T) {
	b := tarOf(t, file("f", strings.Repeat("content ", 1000)))
	padded := append(bytes.Clone(b), make([]byte, 20<<10)...)
	trailed := append(bytes.Clone(b), "more, which is no tar"...)
	zstded := codecs["zstd"]
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	skippable := []byte{0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z'}

	tests := map[string]struct{ blob, tar []byte }{
		"tar without the zero blocks at its end": {b[:len(b)-1024], b[:len(b)-1024]},
		"tar with more zero blocks":              {padded, padded},
		"tar with trailing data":                 {trailed, trailed},
		"gzip of a tar with trailing data":       {gzipped(t, trailed), trailed},
		"zstd of a tar with trailing data":       {zstded(t, trailed), trailed},
		"gzip members":                           {join(gzipped(t, b[:700]), gzipped(t, nil), gzipped(t, b[700:])), b},
		"gzip with zero padding":                 {join(gzipped(t, b), make([]byte, 512)), b},
		"gzip with trailing data":                {join(gzipped(t, b), []byte("footer")), b},
		"gzip with one trailing byte":            {join(gzipped(t, b), []byte{0x1f}), b},
		"zstd frames":                            {join(zstded(t, b[:700]), zstded(t, b[700:])), b},
		"zstd with skippable frames":             {join(skippable, zstded(t, b), skippable), b},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := New(t.Context(), []Layer{layer(tt.blob, tt.tar)})
			if err != nil {
				t.Fatal(err)
			}
			if got := view(t, f); got != "f: "+strings.Repeat("content ", 1000) {
				t.Errorf("got %q", got)
			}
		})
	}

	f, err := New(t.Context(), []Layer{layer(nil, nil)})
	if err != nil || view(t, f) != "" {
		t.Errorf("blob without a byte: got %v", err)
	}
}

func TestNewRefusesBlobsThatAreNotWhatTheLayerSays(t *testing.T) {
	for codec, encode := range codecs {
		b := tarOf(t, file("f", strings.Repeat("content ", 1000)), file("../escape", ""))
		blob := encode(t, b)
		good := layer(blob, b)
		other := encode(t, tarOf(t, file("f", strings.Repeat("Content ", 1000))))
		tests := map[string]Layer{
			"nothing":          {good.Descriptor, good.DiffID, opener(nil)},
			"truncated":        {good.Descriptor, good.DiffID, opener(blob[:len(blob)/2])},
			"one byte missing": {good.Descriptor, good.DiffID, opener(blob[:len(blob)-1])},
			"one byte more":    {good.Descriptor, good.DiffID, opener(append(bytes.Clone(blob), 0))},
			"other content":    {good.Descriptor, good.DiffID, opener(other)},
			"no layer":         {good.Descriptor, good.DiffID, opener([]byte("<html>"))},
			"other size":       {store.Descriptor{Digest: good.Descriptor.Digest, Size: good.Descriptor.Size - 1}, good.DiffID, good.Open},
			"no size":          {store.Descriptor{Digest: good.Descriptor.Digest}, good.DiffID, good.Open},
		}
		for name, l := range tests {
			t.Run(name+"/"+codec, func(t *testing.T) {
				// The second entry is refused too, but says nothing about the
				// image as long as the bytes are not the image's.
				_, err := New(t.Context(), []Layer{l})
				if !is[*store.DigestMismatch](err) || is[*Escape](err) || !strings.Contains(err.Error(), good.Descriptor.Digest) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestNewRefusesWhatIsNoLayer(t *testing.T) {
	b := tarOf(t, file("f", strings.Repeat("content ", 1000)))
	var wide bytes.Buffer
	w, err := zstd.NewWriter(&wide, zstd.WithWindowSize(2*maxWindow), zstd.WithSingleSegment(false), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	gz, zs := gzipped(t, b), codecs["zstd"](t, b)
	broken := append(bytes.Clone(gz), gz[:20]...)
	tests := map[string]Layer{
		"tar cut in a file":                layer(b[:3000], b[:3000]),
		"gzip cut":                         layer(gz[:len(gz)-9], b),
		"zstd cut":                         layer(zs[:len(zs)-9], b),
		"second gzip member cut":           layer(broken, b),
		"gzip with a wrong checksum":       layer(append(gz[:len(gz)-8:len(gz)-8], make([]byte, 8)...), b),
		"data after zstd":                  layer(append(slices.Clip(zs), "more"...), b),
		"zstd that asks for a wide window": layer(wide.Bytes(), b),
		"xz":                               layer([]byte("\xfd7zXZ\x00"+strings.Repeat("x", 600)), nil),
	}
	for name, l := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(t.Context(), []Layer{l})
			if err == nil || is[*store.DigestMismatch](err) || !strings.Contains(err.Error(), l.Descriptor.Digest) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestDiffIDCoversTheWholeUncompressedStream(t *testing.T) {
	b := tarOf(t, file("f", "f"))
	for codec, encode := range codecs {
		for name, stream := range map[string][]byte{
			"other content": tarOf(t, file("f", "g")),
			"trailing data": append(bytes.Clone(b), 0),
		} {
			l := layer(encode(t, stream), b)
			_, err := New(t.Context(), []Layer{l})
			var mismatch *store.DigestMismatch
			if !errors.As(err, &mismatch) || mismatch.Want.Digest != l.DiffID || mismatch.Got.Digest != store.Digest(stream) {
				t.Errorf("%s, %s: got %v", codec, name, err)
			}
		}
	}
}

func TestSparseFilesHaveTheirHoles(t *testing.T) {
	// A file of 5000 bytes whose only data are "head" at 0 and "tail" at 4996.
	want := "head" + strings.Repeat("\x00", 4992) + "tail"

	old := header("old", 'S', 8, func(b []byte) {
		copy(b[257:], "ustar  \x00")
		for i, v := range []int64{0, 4, 4996, 4} {
			octal(b[386+12*i:], 12, v)
		}
		octal(b[483:], 12, 5000)
	})
	blocks := [][]byte{old, block("headtail")}

	records := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") +
		paxRecord("GNU.sparse.name", "new") + paxRecord("GNU.sparse.realsize", "5000")
	blocks = append(blocks,
		header("PaxHeaders/new", 'x', len(records), nil), block(records),
		header("GNUSparseFile.0/new", '0', 512+8, nil), block("2\n0\n4\n4996\n4\n"), block("headtail"),
		make([]byte, 1024))

	b := bytes.Join(blocks, nil)
	f, err := New(t.Context(), []Layer{layer(gzipped(t, b), b)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"old", "new"} {
		e, err := f.Stat(name)
		if err != nil || e.Type != Regular || e.Size != 5000 {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
		got, err := f.ReadFile(t.Context(), name, 5000)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
	}
}

// header is a tar header block for what archive/tar does not write.
func header(name string, typ byte, size int, change func([]byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	octal(b[100:], 8, 0o755)
	octal(b[108:], 8, 0)
	octal(b[116:], 8, 0)
	octal(b[124:], 12, int64(size))
	octal(b[136:], 12, 0)
	b[156] = typ
	copy(b[257:], "ustar\x0000")
	if change != nil {
		change(b)
	}
	return summed(b)
}

// summed returns a header block with its checksum set right.
func summed(b []byte) []byte {
	b = bytes.Clone(b)
	copy(b[148:], "        ")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	octal(b[148:], 8, sum)
	return b
}

func octal(b []byte, width int, v int64) {
	copy(b[:width], fmt.Sprintf("%0*o\x00", width-1, v))
}

func block(s string) []byte { return append([]byte(s), make([]byte, 512-len(s))...) }

func paxRecord(k, v string) string {
	size := len(k) + len(v) + len(" =\n")
	size += len(fmt.Sprint(size + 2))
	return fmt.Sprintf("%d %s=%s\n", size, k, v)
}

// zeros is a layer with one file of this many zero bytes, as a stream.
func zeros(t testing.TB, size int64, encode func(io.Writer) io.WriteCloser) Layer {
	t.Helper()
	var blob bytes.Buffer
	zw := encode(&blob)
	body := newHashing(nil)
	w := tar.NewWriter(io.MultiWriter(zw, body.h))
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: size}); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for range size >> 20 {
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	l := layer(blob.Bytes(), nil)
	l.DiffID = body.descriptor().Digest
	return l
}

func TestMemoryDoesNotGrowWithTheLayer(t *testing.T) {
	l := zeros(t, 128<<20, func(w io.Writer) io.WriteCloser {
		zw, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return zw
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := New(t.Context(), []Layer{l})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Copy(t.Context(), io.Discard, "zeros"); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Errorf("a layer of 128 MiB took %d MiB of memory", got>>20)
	}
}

func BenchmarkNew64MiBLayer(b *testing.B) {
	content := make([]byte, 1<<20)
	for i := range content {
		content[i] = byte(i * i >> 7) // neither random nor all the same
	}
	var members []member
	for i := range 64 {
		members = append(members, file(fmt.Sprint("usr/bin/f", i), string(content)))
	}
	plain := tarOf(b, members...)
	for codec, encode := range codecs {
		l := layer(encode(b, plain), plain)
		b.Run(codec, func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := New(b.Context(), []Layer{l}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
