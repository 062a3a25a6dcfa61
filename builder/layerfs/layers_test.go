package layerfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// member is one entry of a layer under test.
type member struct {
	tar.Header
	body string
}

func file(name, body string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(body))}, body}
}

func dir(name string) member { return special(name, tar.TypeDir) }

func special(name string, typ byte) member {
	return member{tar.Header{Typeflag: typ, Name: name, Mode: 0o755}, ""}
}

func symlink(name, target string) member {
	return member{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) member {
	return member{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o755}, ""}
}

func gone(name string) member {
	i := strings.LastIndex(name, "/") + 1
	return file(name[:i]+".wh."+name[i:], "")
}

func opaque(dir string) member { return file(dir+"/.wh..wh..opq", "") }

// with changes the header of a member.
func (m member) with(change func(*tar.Header)) member {
	change(&m.Header)
	return m
}

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// codecs are the ways to store a layer.
var codecs = map[string]func(testing.TB, []byte) []byte{
	"none": func(_ testing.TB, b []byte) []byte { return b },
	"gzip": gzipped,
	"zstd": func(t testing.TB, b []byte) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(b, nil)
	},
}

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// layer returns the layer that stores a tar as this blob.
func layer(blob, tar []byte) Layer {
	return Layer{
		Descriptor: store.Descriptor{Digest: store.Digest(blob), Size: int64(len(blob))},
		DiffID:     store.Digest(tar),
		Open:       opener(blob),
	}
}

func opener(blob []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob)), nil }
}

// plain returns one uncompressed layer for each list of members.
func plain(t testing.TB, layers ...[]member) []Layer {
	t.Helper()
	var out []Layer
	for _, members := range layers {
		b := tarOf(t, members...)
		out = append(out, layer(b, b))
	}
	return out
}

func image(t testing.TB, layers ...[]member) *FS {
	t.Helper()
	f, err := New(t.Context(), plain(t, layers...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// view describes all of the image, one line per entry: "path: content" for
// files, "path/" for directories, "path -> target" for symlinks.
func view(t testing.TB, f *FS) string {
	t.Helper()
	var lines []string
	err := f.Walk(func(e Entry) error {
		line := fmt.Sprintf("%s (%s)", e.Path, e.Type)
		switch e.Type {
		case Regular:
			b, err := f.ReadFile(t.Context(), e.Path, 1<<20)
			if err != nil {
				return err
			}
			line = e.Path + ": " + string(b)
		case Dir:
			line = e.Path + "/"
		case Symlink:
			line = e.Path + " -> " + e.Target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
