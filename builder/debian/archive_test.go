package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

var hash = strings.Repeat("ab", 32)

func TestParseURIs(t *testing.T) {
	line := func(file, size, sum string) string {
		return "'http://archive.example.com/pool/" + file + "' " + file + " " + size + " " + sum + "\n"
	}
	for _, tt := range []struct {
		name, out string
		want      []Package
		say       []string
	}{
		{
			name: "lines among remarks, sorted by file",
			out:  "Reading package lists...\n" + line("b_1%3a2_all.deb", "20", "SHA256:"+hash) + "The following NEW packages\n" + line("a_1_amd64.deb", "10", "SHA256:"+hash),
			want: []Package{
				{store.Descriptor{Digest: "sha256:" + hash, Size: 10}, "a_1_amd64.deb", "http://archive.example.com/pool/a_1_amd64.deb"},
				{store.Descriptor{Digest: "sha256:" + hash, Size: 20}, "b_1%3a2_all.deb", "http://archive.example.com/pool/b_1%3a2_all.deb"},
			},
		},
		{name: "after a remark of any length", out: strings.Repeat("x", 1<<20) + "\n" + line("a.deb", "1", "SHA256:"+hash), want: []Package{
			{store.Descriptor{Digest: "sha256:" + hash, Size: 1}, "a.deb", "http://archive.example.com/pool/a.deb"},
		}},
		{name: "no package", out: "Reading package lists...\n", say: []string{"no package to download"}},
		{name: "all that is wrong", out: line("a.deb", "1", "MD5Sum:"+hash[:32]) + line("b.deb", "0", "SHA256:"+hash) + line("c.deb", "1", "SHA256:"+hash[1:]) +
			line("d.deb", "1", "SHA256:"+strings.ToUpper(hash)) + "'http://x' ../e.deb 1 SHA256:" + hash + "\n'http://x' f.deb 1\n" + line("g.deb", "99999999999999999999", "SHA256:"+hash),
			say: []string{"a.deb", "b.deb", "c.deb", "d.deb", "e.deb", "f.deb", "g.deb"}},
	} {
		got, err := ParseURIs([]byte(tt.out))
		if (err == nil) != (tt.say == nil) || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v, %v", tt.name, got, err)
		}
		for _, s := range tt.say {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%s: error does not say %q: %v", tt.name, s, err)
			}
		}
	}
}

func FuzzParseURIs(f *testing.F) {
	f.Add([]byte("'http://x/a.deb' a.deb 1 SHA256:" + hash + "\n"))
	f.Add([]byte("Reading\n'' . 1 SHA256:" + hash))
	f.Fuzz(func(t *testing.T, b []byte) {
		pkgs, err := ParseURIs(b)
		if err == nil && len(pkgs) == 0 {
			t.Error("neither a package nor an error")
		}
		for _, p := range pkgs {
			if _, err := new(store.Store).Path(p.Digest); err != nil || p.Size <= 0 || strings.Contains(p.File, "/") {
				t.Errorf("accepted %+v: %v", p, err)
			}
		}
	})
}

// archive is a Debian archive on disk and the apt state of a build host that is
// configured for nothing else.
type archive struct {
	t     *testing.T
	dir   string
	index string
}

func newArchive(t *testing.T) (*archive, Archive) {
	t.Helper()
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := run.Look(tool); err != nil {
			t.Skip(err)
		}
	}
	a := &archive{t: t, dir: t.TempDir()}
	state := t.TempDir()
	a.write(filepath.Join(state, "sources.list"), "deb [trusted=yes] file:"+a.dir+" ./\n")
	a.write(filepath.Join(state, "apt.conf"), fmt.Sprintf("Dir::Etc::SourceList %q;\nDir::Etc::SourceParts \"-\";\n", filepath.Join(state, "sources.list")))
	st, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a, Archive{Dir: filepath.Join(state, "apt"), Arch: runtime.GOARCH, Store: st, Fetch: local{st}, Env: []string{"APT_CONFIG=" + filepath.Join(state, "apt.conf")}}
}

func (a *archive) write(name, text string) {
	a.t.Helper()
	if err := store.WriteFile(name, []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
}

// put publishes one version of a package. Fields are further lines of its entry.
func (a *archive) put(name, version, fields string) {
	a.t.Helper()
	file := name + "_" + version + "_all.deb"
	content := "content of " + file
	a.write(filepath.Join(a.dir, file), content)
	a.index += fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: nobody\n%sFilename: ./%s\nSize: %d\nSHA256: %s\nDescription: test\n\n",
		name, version, fields, file, len(content), strings.TrimPrefix(store.Digest([]byte(content)), "sha256:"))
	a.write(filepath.Join(a.dir, "Packages"), a.index)
}

// clear takes every package out of the archive.
func (a *archive) clear() {
	a.t.Helper()
	found, err := filepath.Glob(filepath.Join(a.dir, "*.deb"))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, f := range found {
		if err := os.Remove(f); err != nil {
			a.t.Fatal(err)
		}
	}
	a.index = ""
}

// local fetches from an archive on disk.
type local struct{ st *store.Store }

func (l local) File(ctx context.Context, url string, want store.Descriptor) (store.Descriptor, error) {
	path, ok := strings.CutPrefix(url, "file:")
	if !ok {
		return want, fmt.Errorf("%s is not in the archive on disk", url)
	}
	f, err := os.Open(path)
	if err != nil {
		return want, err
	}
	defer f.Close()
	return l.st.Put(ctx, f, want)
}

func (a *archive) expect(from Archive, refresh, fresh bool, files ...string) []Package {
	a.t.Helper()
	pkgs, asked, err := from.Resolve(a.t.Context(), []string{"tool"}, refresh)
	var got []string
	for _, p := range pkgs {
		got = append(got, p.File)
		if !from.Store.Has(p.Descriptor) {
			a.t.Errorf("%s is not in the store", p.File)
		}
	}
	if err != nil || !slices.Equal(got, files) || asked != fresh {
		a.t.Errorf("got %v, archive asked %v, %v; expected %v, %v", got, asked, err, files, fresh)
	}
	return pkgs
}

func TestAResolutionIsKeptWhileTheArchiveMovesOn(t *testing.T) {
	a, from := newArchive(t)
	a.put("tool", "1", "Depends: library\nRecommends: extra\n")
	a.put("library", "1", "")
	a.put("extra", "1", "")
	first := a.expect(from, false, true, "library_1_all.deb", "tool_1_all.deb")

	a.clear()
	a.put("tool", "2", "")
	if again := a.expect(from, false, false, "library_1_all.deb", "tool_1_all.deb"); !reflect.DeepEqual(again, first) {
		t.Errorf("got %v, expected %v", again, first)
	}
	a.expect(from, true, true, "tool_2_all.deb")
	a.expect(from, false, false, "tool_2_all.deb")

	// A package that is lost and can't be had any more.
	for _, p := range a.expect(from, false, false, "tool_2_all.deb") {
		path, err := from.Store.Path(p.Digest)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a.clear()
	a.put("tool", "3", "")
	a.expect(from, false, true, "tool_3_all.deb")
}

func TestWhatTheArchiveLacksIsNamed(t *testing.T) {
	a, from := newArchive(t)
	a.put("tool", "1", "Depends: library\n")
	if _, _, err := from.Resolve(t.Context(), []string{"tool"}, false); err == nil || !strings.Contains(err.Error(), "resolve tool") || !strings.Contains(err.Error(), "library") {
		t.Errorf("a dependency that is not there: %v", err)
	}
	if _, _, err := from.Resolve(t.Context(), []string{"other", "more"}, false); err == nil || !strings.Contains(err.Error(), "resolve more other") {
		t.Errorf("a package that is not there: %v", err)
	}
	a.put("library", "1", "")
	a.write(filepath.Join(a.dir, "library_1_all.deb"), "other content of the same size"[:len("content of library_1_all.deb")])
	_, _, err := from.Resolve(t.Context(), []string{"tool"}, false)
	if _, ok := errors.AsType[*store.DigestMismatch](err); !ok || !strings.Contains(err.Error(), "library_1_all.deb") {
		t.Errorf("a changed package: %v", err)
	}
}

func TestAnArchiveWithoutSignatureIsRefused(t *testing.T) {
	a, from := newArchive(t)
	a.put("tool", "1", "")
	a.write(filepath.Join(filepath.Dir(from.Dir), "sources.list"), "deb file:"+a.dir+" ./\n")
	_, _, err := from.Resolve(t.Context(), []string{"tool"}, false)
	if err == nil || !strings.Contains(err.Error(), "refresh the Debian archive's index") || !strings.Contains(err.Error(), "not signed") && !strings.Contains(err.Error(), "Release") {
		t.Errorf("got %v", err)
	}
}
