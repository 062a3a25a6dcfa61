package layerfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

func TestLayersMergeAsARuntimeAppliesThem(t *testing.T) {
	const long = "a-name-that-is-longer-than-the-hundred-bytes-which-the-old-header-has-room-for/" +
		"and-a-second-part-of-it-so-that-both-halves-are-too-long-for-the-prefix-field-of-the-ustar-format-which-is-155-bytes-long-and-no-more-than-that-as-everyone-knows"
	var longDirs string
	longDirs, _, _ = strings.Cut(long, "/")

	type layers = [][]member
	tests := map[string]struct {
		layers layers
		want   []string
	}{
		"newest file wins": {
			layers{{file("f", "old")}, {file("f", "new")}},
			[]string{"f: new"},
		},
		"last of equal names in a layer wins": {
			layers{{file("f", "first"), symlink("f", "x"), file("f", "last")}},
			[]string{"f: last"},
		},
		"whiteout hides an older file": {
			layers{{dir("d"), file("d/a", "a"), file("d/b", "b")}, {gone("d/a")}},
			[]string{"d/", "d/b: b"},
		},
		"whiteout hides an older directory and what is in it": {
			layers{{dir("d"), file("d/a", "a"), file("e", "e")}, {gone("d")}},
			[]string{"e: e"},
		},
		"whiteout spares its own layer when it comes last": {
			layers{{file("f", "old")}, {file("f", "new"), gone("f")}},
			[]string{"f: new"},
		},
		"whiteout spares its own layer when it comes first": {
			layers{{file("f", "old")}, {gone("f"), file("f", "new")}},
			[]string{"f: new"},
		},
		"whiteout after a new directory of that name hides the old children": {
			layers{{dir("d"), file("d/old", "")}, {dir("d"), file("d/new", "n"), gone("d")}},
			[]string{"d/", "d/new: n"},
		},
		"whiteout of nothing": {
			layers{{file("f", "f")}, {gone("x"), gone("no/such/dir/x"), gone("f/x")}},
			[]string{"f: f"},
		},
		"whiteout of a symlink hides the link only": {
			layers{{dir("d"), file("d/f", "f"), symlink("l", "d")}, {gone("l")}},
			[]string{"d/", "d/f: f"},
		},
		"whiteout through a symlinked directory": {
			layers{{dir("d"), file("d/f", "f"), symlink("l", "d")}, {gone("l/f")}},
			[]string{"d/", "l -> d"},
		},
		"whiteout and a later layer": {
			layers{{file("f", "1")}, {gone("f")}, {file("f", "3")}},
			[]string{"f: 3"},
		},
		"opaque marker first": {
			layers{{dir("d"), file("d/old", ""), dir("d/sub"), file("d/sub/old", "")}, {opaque("d"), file("d/new", "n"), file("d/sub/new", "n")}},
			[]string{"d/", "d/new: n", "d/sub/", "d/sub/new: n"},
		},
		"opaque marker last": {
			layers{{dir("d"), file("d/old", ""), dir("d/sub"), file("d/sub/old", "")}, {file("d/new", "n"), file("d/sub/new", "n"), opaque("d")}},
			[]string{"d/", "d/new: n", "d/sub/", "d/sub/new: n"},
		},
		"opaque marker in the root": {
			layers{{file("old", ""), dir("d"), file("d/old", "")}, {file("new", "n"), file(".wh..wh..opq", "")}},
			[]string{"new: n"},
		},
		"opaque directory in place of a link leaves the link's target alone": {
			layers{{dir("d"), file("d/f", "f"), symlink("l", "d")}, {dir("l"), opaque("l"), file("l/g", "g")}},
			[]string{"d/", "d/f: f", "l/", "l/g: g"},
		},
		"two opaque markers in two layers": {
			layers{{file("d/1", "1")}, {opaque("d"), file("d/2", "2")}, {file("d/3", "3"), opaque("d")}},
			[]string{"d/", "d/3: 3"},
		},
		"opaque marker twice in a layer": {
			layers{{file("d/1", "1")}, {opaque("d"), file("d/2", "2"), opaque("d"), gone("d")}},
			[]string{"d/", "d/2: 2"},
		},
		"opaque marker on a file or on nothing": {
			layers{{file("f", "f")}, {opaque("f"), opaque("no")}},
			[]string{"f: f"},
		},
		"hard link in its layer": {
			layers{{file("f", "f"), hardlink("l", "f")}},
			[]string{"f: f", "l: f"},
		},
		"hard link keeps its file when the other name is overwritten": {
			layers{{file("bin/etcdctl-3.6", "AAA"), hardlink("bin/etcdctl", "bin/etcdctl-3.6")}, {file("bin/etcdctl-3.6", "BBB")}},
			[]string{"bin/", "bin/etcdctl: AAA", "bin/etcdctl-3.6: BBB"},
		},
		"hard link keeps its file when the other name is deleted": {
			layers{{file("bin/etcdctl-3.6", "AAA"), hardlink("bin/etcdctl", "bin/etcdctl-3.6")}, {gone("bin/etcdctl-3.6")}},
			[]string{"bin/", "bin/etcdctl: AAA"},
		},
		"hard link binds at its place in the layer": {
			layers{{file("f", "1"), hardlink("one", "f"), file("f", "2"), hardlink("two", "f")}},
			[]string{"f: 2", "one: 1", "two: 2"},
		},
		"hard link to an older layer's file that its layer deletes later": {
			layers{{file("f", "f")}, {hardlink("l", "f"), gone("f")}},
			[]string{"l: f"},
		},
		"hard link to an older layer's file, then overwritten": {
			layers{{file("f", "1")}, {hardlink("l", "f")}, {file("f", "3")}},
			[]string{"f: 3", "l: 1"},
		},
		"hard link to a hard link": {
			layers{{file("f", "f"), hardlink("l", "f")}, {hardlink("m", "l"), gone("f"), gone("l")}},
			[]string{"m: f"},
		},
		"hard link to a symlink is the symlink": {
			layers{{file("f", "f"), symlink("s", "f"), hardlink("l", "s")}},
			[]string{"f: f", "l -> f", "s -> f"},
		},
		"hard link through a symlinked directory": {
			layers{{file("d/f", "f"), symlink("s", "/d"), hardlink("l", "s/f")}},
			[]string{"d/", "d/f: f", "l: f", "s -> /d"},
		},
		"hard link with absolute and dotted targets": {
			layers{{file("d/f", "f"), hardlink("a", "/d/f"), hardlink("b", "./d/../d/f")}},
			[]string{"a: f", "b: f", "d/", "d/f: f"},
		},
		"hard link to itself": {
			layers{{file("f", "f"), hardlink("f", "f")}},
			[]string{"f: f"},
		},
		"several versions side by side": {
			layers{{file("bin/etcdctl-3.4.18", "OLD"), file("bin/etcdctl-3.6.6", "NEW"), hardlink("bin/etcdctl", "bin/etcdctl-3.6.6")}},
			[]string{"bin/", "bin/etcdctl: NEW", "bin/etcdctl-3.4.18: OLD", "bin/etcdctl-3.6.6: NEW"},
		},
		"file in place of a directory hides what is in it": {
			layers{{dir("d"), file("d/f", "f")}, {file("d", "d")}},
			[]string{"d: d"},
		},
		"directory in place of a file": {
			layers{{file("d", "d")}, {dir("d"), file("d/f", "f")}},
			[]string{"d/", "d/f: f"},
		},
		"implied directory in place of an older file": {
			layers{{file("d", "d")}, {file("d/f", "f")}},
			[]string{"d/", "d/f: f"},
		},
		"directory over a directory keeps what is in it": {
			layers{{dir("d"), file("d/f", "f")}, {dir("d")}},
			[]string{"d/", "d/f: f"},
		},
		"directory over a link to a directory is a new directory": {
			layers{{dir("d"), file("d/f", "f"), symlink("l", "d")}, {dir("l")}},
			[]string{"d/", "d/f: f", "l/"},
		},
		"entry below an older layer's link goes to the link's target": {
			layers{{dir("usr/bin"), symlink("bin", "usr/bin")}, {file("bin/f", "f")}},
			[]string{"bin -> usr/bin", "usr/", "usr/bin/", "usr/bin/f: f"},
		},
		"entry below a link out of the root stays in the root": {
			layers{{symlink("usr/local/bin", "../../../../tmp"), file("usr/local/bin/etcdctl", "x")}},
			[]string{"tmp/", "tmp/etcdctl: x", "usr/", "usr/local/", "usr/local/bin -> ../../../../tmp"},
		},
		"entry below a dangling link makes the link's target": {
			layers{{symlink("l", "/a/../b/c"), file("l/f", "f")}},
			[]string{"b/", "b/c/", "b/c/f: f", "l -> /a/../b/c"},
		},
		"implied parents": {
			layers{{file("a/b/c", "c")}},
			[]string{"a/", "a/b/", "a/b/c: c"},
		},
		"leading slash, dot slash and doubled slashes": {
			layers{{dir("./"), dir("./d/"), file("/usr/local/bin/etcdctl", "x"), file("./d//f", "f"), file("d/../e", "e")}},
			[]string{"d/", "d/f: f", "e: e", "usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/etcdctl: x"},
		},
		"nothing takes the place of the root": {
			layers{{file("f", "f")}, {symlink(".", "f"), special("./.", tar.TypeFifo)}},
			[]string{"f: f"},
		},
		"devices": {
			layers{{special("c", tar.TypeChar), special("b", tar.TypeBlock), special("p", tar.TypeFifo)}},
			[]string{"b (block device)", "c (character device)", "p (FIFO)"},
		},
		"PAX long names": {
			layers{{file(long, "f").with(func(h *tar.Header) { h.Format = tar.FormatPAX }), symlink("l", long), hardlink("h", long)}},
			[]string{longDirs + "/", long + ": f", "h: f", "l -> " + long},
		},
		"GNU long names": {
			layers{{
				file(long, "f").with(func(h *tar.Header) { h.Format = tar.FormatGNU }),
				symlink("l", long).with(func(h *tar.Header) { h.Format = tar.FormatGNU }),
			}},
			[]string{longDirs + "/", long + ": f", "l -> " + long},
		},
		"PAX global header": {
			layers{{
				{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"path": "nope", "comment": "c"}}, ""},
				file("f", "f"),
			}},
			[]string{"f: f"},
		},
		"no layers":   {nil, []string{""}},
		"empty layer": {layers{{}, {file("f", "f")}, {}}, []string{"f: f"}},
		"order is that of the path's bytes": {
			layers{{file("a/b", ""), file("a-b", ""), file("a.b/c", ""), file("a0", "")}},
			[]string{"a/", "a-b: ", "a.b/", "a.b/c: ", "a/b: ", "a0: "},
		},
	}
	for name, tt := range tests {
		for codec, encode := range codecs {
			t.Run(name+"/"+codec, func(t *testing.T) {
				var in []Layer
				for _, members := range tt.layers {
					b := tarOf(t, members...)
					in = append(in, layer(encode(t, b), b))
				}
				f, err := New(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := view(t, f), strings.Join(tt.want, "\n"); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func TestNewRefusesLayersThatNoRuntimeCouldApply(t *testing.T) {
	anError := func(err error) bool { return err != nil }
	tests := map[string]struct {
		layers [][]member
		want   func(error) bool
		text   string // in the message
	}{
		"name above the root":                 {[][]member{{file("../../usr/local/bin/etcdctl", "x")}}, is[*Escape], `"../../usr/local/bin/etcdctl"`},
		"absolute name above the root":        {[][]member{{file("/../x", "x")}}, is[*Escape], `"/../x"`},
		"name above the root on a detour":     {[][]member{{file("a/../../x", "x")}}, is[*Escape], `"a/../../x"`},
		"whiteout above the root":             {[][]member{{gone("../x")}}, is[*Escape], `"../.wh.x"`},
		"hard link above the root":            {[][]member{{hardlink("usr/bin/etcdctl", "../../../../etc/shadow")}}, is[*Escape], `"../../../../etc/shadow"`},
		"absolute hard link above the root":   {[][]member{{hardlink("l", "/../etc/shadow")}}, is[*Escape], `"/../etc/shadow"`},
		"hard link to nothing":                {[][]member{{hardlink("l", "/etc/shadow")}}, notExist, `"etc/shadow"`},
		"hard link to what was deleted":       {[][]member{{file("f", "f")}, {gone("f")}, {hardlink("l", "f")}}, notExist, `"l"`},
		"hard link to what comes later":       {[][]member{{hardlink("l", "f"), file("f", "f")}}, notExist, `"l"`},
		"hard link to a directory":            {[][]member{{dir("d"), hardlink("l", "d")}}, anError, `"d" is a directory`},
		"hard link to the root":               {[][]member{{hardlink("l", "")}}, anError, `"." is a directory`},
		"hard link out of a link":             {[][]member{{symlink("s", "../../../etc"), hardlink("l", "s/shadow")}}, notExist, `links followed: "s" -> "../../../etc"`},
		"entry in a file of the same layer":   {[][]member{{file("d", "d"), file("d/f", "f")}}, anError, `parent "d" is a regular file`},
		"entry below a link loop":             {[][]member{{symlink("a", "b"), symlink("b", "a"), file("a/f", "f")}}, is[*LinkLoop], `"a/f"`},
		"whiteout below a link loop":          {[][]member{{symlink("a", "a"), gone("a/f")}}, is[*LinkLoop], `"a/.wh.f"`},
		"whiteout of the parent directory":    {[][]member{{gone("d/..")}}, anError, `"d/.wh..."`},
		"whiteout of the directory":           {[][]member{{gone("d/.")}}, anError, `"d/.wh.."`},
		"whiteout without name":               {[][]member{{gone("d/")}}, anError, `"d/.wh."`},
		"symlink without target":              {[][]member{{symlink("l", "")}}, anError, `"l"`},
		"type that is none of a layer's":      {[][]member{{special("v", 'V')}}, anError, `"v"`},
		"name that is too long":               {[][]member{{file(strings.Repeat("a/", 2048)+"b", "")}}, anError, "4096 bytes"},
		"target that is too long":             {[][]member{{symlink("l", strings.Repeat("a/", 2049))}}, anError, "4096 bytes"},
		"path that links make too long":       {[][]member{{symlink("l", strings.Repeat("a/", 2000)), file("l/"+strings.Repeat("b/", 50)+"c", "")}}, anError, "4096 bytes"},
		"an older layer is named in an error": {[][]member{{file("../x", "")}, {}}, is[*Escape], "sha256:"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := plain(t, tt.layers...)
			f, err := New(t.Context(), in)
			if f != nil || !tt.want(err) {
				t.Fatalf("got %v, %v", f, err)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q does not say %q", err, tt.text)
			}
			named := func(l Layer) bool { return strings.Contains(err.Error(), l.Descriptor.Digest) }
			if !slices.ContainsFunc(in, named) {
				t.Errorf("error %q does not name the layer", err)
			}
		})
	}
}

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func TestLinksAreFollowedInsideTheImage(t *testing.T) {
	f := image(t,
		[]member{
			dir("/"), dir("usr"), dir("usr/bin"), dir("usr/local"),
			symlink("usr/bin/absolute", "/usr/bin/etcdctl-3.6"),
			symlink("usr/bin/relative", "etcdctl-3.6"),
			symlink("usr/bin/up", "../../../../opt/bin/etcdctl"),
			symlink("usr/bin/dots", "./../bin//./etcdctl-3.6"),
			symlink("usr/bin/chain", "relative"),
			symlink("usr/local/bin", "/opt/bin"),
			symlink("usr/bin/loop", "loop"),
			symlink("ping", "pong"), symlink("pong", "/ping"),
			symlink("dangling", "usr/bin/none"),
			symlink("gone", "/missing/../usr/bin/etcdctl-3.6"),
			symlink("notdir", "usr/bin/etcdctl-3.6/../etcdctl-3.6"),
			symlink("top", "../.."),
			symlink("slash", "usr/bin/"),
			symlink("etc", "/etc"),
		},
		[]member{file("opt/bin/etcdctl", "OPT"), file("usr/bin/etcdctl-3.6", "USR")},
	)
	tests := []struct {
		name  string
		lstat Type
		want  string // content, or "directory"
		err   func(error) bool
		text  string
	}{
		{name: "usr/bin/etcdctl-3.6", want: "USR"},
		{name: "/usr/bin/etcdctl-3.6", want: "USR"},
		{name: "./usr//bin/../bin/etcdctl-3.6", want: "USR"},
		{name: "../../usr/bin/etcdctl-3.6", want: "USR"},
		{name: "usr/bin/absolute", lstat: Symlink, want: "USR"},
		{name: "usr/bin/relative", lstat: Symlink, want: "USR"},
		{name: "usr/bin/up", lstat: Symlink, want: "OPT"},
		{name: "usr/bin/dots", lstat: Symlink, want: "USR"},
		{name: "usr/bin/chain", lstat: Symlink, want: "USR"},
		{name: "usr/local/bin/etcdctl", want: "OPT"},
		{name: "usr/local/bin", lstat: Symlink, want: "directory"},
		{name: "slash/relative", lstat: Symlink, want: "USR"},
		{name: "slash", lstat: Symlink, want: "directory"},
		{name: "top/usr/bin/etcdctl-3.6", want: "USR"},
		{name: "top", lstat: Symlink, want: "directory"},
		{name: "", lstat: Dir, want: "directory"},
		{name: "/", lstat: Dir, want: "directory"},
		{name: "usr/bin", lstat: Dir, want: "directory"},
		{name: "usr/bin/loop", lstat: Symlink, err: is[*LinkLoop], text: `(links followed: "usr/bin/loop" -> "loop", ...)`},
		{name: "ping", lstat: Symlink, err: is[*LinkLoop], text: `"ping" -> "pong", "pong" -> "/ping"`},
		{name: "dangling", lstat: Symlink, err: notExist, text: `(links followed: "dangling" -> "usr/bin/none")`},
		{name: "gone", lstat: Symlink, err: notExist, text: `"missing" is missing (links followed: "gone" -> "/missing/../usr/bin/etcdctl-3.6")`},
		{name: "notdir", lstat: Symlink, err: notExist, text: `parent "usr/bin/etcdctl-3.6" is a regular file`},
		{name: "etc", lstat: Symlink, err: is[*LinkLoop], text: `"etc" -> "/etc"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := f.Lstat(tt.name)
			if err != nil || e.Type != tt.lstat {
				t.Errorf("Lstat: got %v, %v, want type %v", e, err, tt.lstat)
			}
			e, err = f.Stat(tt.name)
			switch {
			case tt.err != nil:
				if !tt.err(err) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("Stat: got %v, want an error with %q", err, tt.text)
				}
				_, err := f.ReadFile(t.Context(), tt.name, 100)
				if !tt.err(err) {
					t.Errorf("ReadFile: got %v", err)
				}
			case tt.want == "directory":
				if err != nil || e.Type != Dir {
					t.Errorf("Stat: got %v, %v, want a directory", e, err)
				}
				if _, err := f.ReadFile(t.Context(), tt.name, 100); !is[*NotRegular](err) {
					t.Errorf("ReadFile: got %v", err)
				}
			default:
				if err != nil || e.Type != Regular || e.Size != 3 {
					t.Errorf("Stat: got %v, %v, want a file", e, err)
				}
				b, err := f.ReadFile(t.Context(), tt.name, 100)
				if err != nil || string(b) != tt.want {
					t.Errorf("ReadFile: got %q, %v, want %q", b, err, tt.want)
				}
			}
		})
	}
	for _, name := range []string{"none", "usr/none/x", "usr/bin/etcdctl-3.6/x", "usr/bin/loop2"} {
		if _, err := f.Lstat(name); !notExist(err) {
			t.Errorf("Lstat %q: got %v", name, err)
		}
	}
}

func TestAsManyLinksAreFollowedAsInContainerdAndNoMore(t *testing.T) {
	var members []member
	for i := range maxLinks + 1 {
		members = append(members, symlink(fmt.Sprint("l", i), fmt.Sprint("l", i+1)))
	}
	members = append(members, file(fmt.Sprint("l", maxLinks+1), "end"))
	f := image(t, members)
	if b, err := f.ReadFile(t.Context(), "l1", 100); err != nil || string(b) != "end" {
		t.Errorf("%d links: got %q, %v", maxLinks, b, err)
	}
	_, err := f.Stat("l0")
	if !is[*LinkLoop](err) {
		t.Fatalf("%d links: got %v", maxLinks+1, err)
	}
	if len(err.Error()) > 500 {
		t.Errorf("message has %d bytes", len(err.Error()))
	}
}

func TestEntriesCarryTheMetadataThatTheLayersGive(t *testing.T) {
	at := time.Unix(1700000000, 0)
	meta := func(mode int64, uid int) func(*tar.Header) {
		return func(h *tar.Header) { h.Mode, h.Uid, h.Gid, h.ModTime = mode, uid, uid+1, at }
	}
	f := image(t,
		[]member{
			dir("d").with(meta(0o700, 1)),
			file("suid", "xx").with(meta(0o4755, 2)),
			file("caps", "x").with(func(h *tar.Header) {
				h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x02", "comment": "no"}
			}),
			file("f", "abc").with(meta(0o640, 3)), hardlink("blank", "f").with(meta(0, 9)),
			file("g", "abc").with(meta(0o640, 3)), hardlink("l", "g").with(meta(0o2750, 4)),
			file("implied/f", ""),
			file("hidden/sub/old", ""), dir("hidden/sub").with(meta(0o700, 1)),
		},
		[]member{dir("d").with(meta(0o1777, 5)), file("hidden/sub/new", ""), opaque("hidden"), hardlink("newer", "suid").with(meta(0, 0))},
	)
	want := map[string]Entry{
		"d":          {Type: Dir, Mode: 0o777 | fs.ModeSticky, UID: 5, GID: 6, ModTime: at, Layer: 1},
		"suid":       {Mode: 0o755 | fs.ModeSetuid, UID: 2, GID: 3, Size: 2, ModTime: at},
		"newer":      {Mode: 0o755 | fs.ModeSetuid, UID: 2, GID: 3, Size: 2, ModTime: at, Layer: 1},
		"caps":       {Mode: 0o755, Size: 1, ModTime: time.Unix(0, 0), Xattrs: map[string]string{"security.capability": "\x01\x02"}},
		"f":          {Mode: 0o640, UID: 3, GID: 4, Size: 3, ModTime: at},
		"blank":      {Mode: 0o640, UID: 3, GID: 4, Size: 3, ModTime: at},
		"g":          {Mode: 0o750 | fs.ModeSetgid, UID: 4, GID: 5, Size: 3, ModTime: at},
		"l":          {Mode: 0o750 | fs.ModeSetgid, UID: 4, GID: 5, Size: 3, ModTime: at},
		"implied":    {Type: Dir, Mode: 0o755, ModTime: time.Unix(0, 0)},
		"hidden/sub": {Type: Dir, Mode: 0o755, ModTime: time.Unix(0, 0), Layer: 1},
		".":          {Type: Dir, Mode: 0o755, ModTime: time.Unix(0, 0), Layer: -1},
	}
	for name, w := range want {
		w.Path = name
		got, err := f.Lstat("/" + name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !got.ModTime.Equal(w.ModTime) {
			t.Errorf("%s: modified at %v, want %v", name, got.ModTime, w.ModTime)
		}
		got.ModTime, w.ModTime = time.Time{}, time.Time{}
		if !reflect.DeepEqual(got, w) {
			t.Errorf("got  %+v\nwant %+v", got, w)
		}
	}
}

func TestWalkStopsAtTheFirstError(t *testing.T) {
	f := image(t, []member{file("a/b", ""), file("c", "")})
	stop := errors.New("stop")
	var seen []string
	err := f.Walk(func(e Entry) error {
		if seen = append(seen, e.Path); e.Path == "a/b" {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || !slices.Equal(seen, []string{"a", "a/b"}) {
		t.Errorf("got %v, %v", seen, err)
	}
}

func TestNewBoundsWhatAnImageHoldsInMemory(t *testing.T) {
	layers := plain(t, []member{file("a/b/c", ""), symlink("l", "0123456789")})
	if _, err := index(t.Context(), layers, limits{entries: 4, bytes: 100}); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	for n := range 4 {
		if _, err := index(t.Context(), layers, limits{entries: n, bytes: 100}); err == nil || !strings.Contains(err.Error(), "2000000 entries") {
			t.Errorf("%d entries: got %v", n, err)
		}
	}
	if _, err := index(t.Context(), layers, limits{entries: 4, bytes: 12}); err == nil || !strings.Contains(err.Error(), "bytes of names") {
		t.Errorf("bytes: got %v", err)
	}
}

func TestNewStopsWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, plain(t, []member{file("f", "f")})); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNewTellsTheOldestLayersErrorWhateverIsReadFirst(t *testing.T) {
	for range 20 {
		layers := plain(t, []member{file("f", "")}, []member{hardlink("l", "nothing")}, []member{file("../out", "")}, []member{file("g", "")})
		layers[3].Open = opener([]byte("something else"))
		if _, err := New(t.Context(), layers); err == nil || !strings.Contains(err.Error(), layers[1].Descriptor.Digest) {
			t.Fatalf("got %v, want that of layer %s", err, layers[1].Descriptor.Digest)
		}
		// What the blob is comes before what is in it.
		layers[1].Open = opener([]byte("something else"))
		if _, err := New(t.Context(), layers); !is[*store.DigestMismatch](err) || !strings.Contains(err.Error(), layers[1].Descriptor.Digest) {
			t.Fatalf("got %v, want a mismatch of layer %s", err, layers[1].Descriptor.Digest)
		}
	}
}

func TestALargeLayerWaitsForTheOnesBelow(t *testing.T) {
	var lower, upper []member
	for i := range 3 * maxWaiting / 512 {
		lower = append(lower, file(fmt.Sprintf("d/%d", i), "old"))
		upper = append(upper, gone(fmt.Sprintf("d/%d", i)))
	}
	// The lower one is not read before the upper one is opened.
	layers := plain(t, lower, append(upper, file("d/new", "")), []member{hardlink("l", "d/new")})
	waiting := make(chan struct{})
	first, second := layers[0].Open, layers[1].Open
	if runtime.GOMAXPROCS(0) > 1 {
		layers[0].Open = func() (io.ReadCloser, error) { <-waiting; return first() }
		layers[1].Open = func() (io.ReadCloser, error) { close(waiting); return second() }
	}
	f, err := New(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	if err := f.Walk(func(e Entry) error { seen = append(seen, e.Path); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"d", "d/new", "l"}; !slices.Equal(seen, want) {
		t.Errorf("got %d entries, want %v", len(seen), want)
	}
}
