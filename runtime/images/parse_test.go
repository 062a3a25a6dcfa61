package images

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestParseLockReadsWhatTheBuildWrites(t *testing.T) {
	var want []Image
	for _, ref := range references {
		p := pack(ref, []byte(ref))
		want = append(want, p.listed(p.bytes()))
	}
	got, err := ParseLock([]byte(lockText(want)))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("got %v, expected %v", got, want)
	}
}

func TestParseLockIsStrict(t *testing.T) {
	p := pack(pause, nil)
	img := p.listed(p.bytes())
	sound := lockText([]Image{img})
	changed := func(old, new string) string {
		if !strings.Contains(sound, old) {
			t.Fatalf("%q is not in the list", old)
		}
		return strings.Replace(sound, old, new, 1)
	}
	hex := strings.Repeat("a", 64)
	for name, text := range map[string]string{
		"no YAML":                "\t",
		"other version":          changed("/v1", "/v2"),
		"other kind":             changed("ImagesLock", "Lock"),
		"unknown key":            changed("platform:", "unknown: x\nplatform:"),
		"unknown key of image":   changed("    digest:", "    unknown: x\n    digest:"),
		"key twice":              changed("platform:", "kind: ImagesLock\nplatform:"),
		"two documents":          sound + "---\n" + sound,
		"no image":               sound[:strings.Index(sound, "  - ")],
		"reference twice":        sound + strings.Replace(sound[strings.Index(sound, "  - "):], "pause.tar", "other.tar", 1),
		"archive twice":          sound + strings.Replace(sound[strings.Index(sound, "  - "):], "pause:", "other:", 1),
		"no reference":           changed(pause, `""`),
		"reference with space":   changed(pause, `"registry.k8s.io/pause:3 x"`),
		"reference with quote":   changed(pause, `'registry.k8s.io/pause:3"'`),
		"reference with line":    changed(pause, `"registry.k8s.io/pause:3\n"`),
		"reference by digest":    changed(pause, "registry.k8s.io/pause@sha256:"+hex),
		"reference without tag":  changed(pause, "registry.k8s.io/pause"),
		"short reference":        changed(pause, "pause:3.10.2"),
		"long reference":         changed(pause, "registry.k8s.io/"+strings.Repeat("a", 255)+":1"),
		"path for an archive":    changed("pause.tar", "../pause.tar"),
		"absolute archive":       changed("pause.tar", "/pause.tar"),
		"hidden archive":         changed("pause.tar", ".tar"),
		"list as archive":        changed("pause.tar", "images.lock"),
		"option for an archive":  changed("pause.tar", "-pause.tar"),
		"digest of another kind": changed("digest: sha256:", "digest: sha512:"),
		"bare digest":            changed("digest: sha256:", "digest: "),
		"sha256 with its kind":   changed("    sha256: ", "    sha256: sha256:"),
		"short sha256":           changed(img.SHA256, hex[1:]),
		"upper-case sha256":      changed(img.SHA256, strings.ToUpper(hex)),
		"no size":                changed("    size: ", "    size: 0 #"),
		"negative size":          changed("    size: ", "    size: -"),
		"size in words":          changed("    size: ", "    size: x"),
	} {
		if got, err := ParseLock([]byte(text)); err == nil {
			t.Errorf("%s: read as %v", name, got)
		}
	}
}

func TestParseLockReportsAllFindings(t *testing.T) {
	p := pack(pause, nil)
	text := strings.Replace(lockText([]Image{p.listed(p.bytes()), {"x", "y", "z", 0, ""}}), "ImagesLock", "Lock", 1)
	if _, err := ParseLock([]byte(text)); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("got %v: expected two findings", err)
	}
}

func FuzzParseLock(f *testing.F) {
	p := pack(pause, nil)
	f.Add([]byte(lockText([]Image{p.listed(p.bytes())})))
	f.Add([]byte("apiVersion: provider-kubernetes.kairos.io/v1\nkind: ImagesLock\nimages: [{reference: a/b:c, archive: a.tar}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseLock(text)
		if err != nil {
			return
		}
		// What was read can be written and is read as the same.
		again, err := ParseLock([]byte(lockText(list)))
		if err != nil || len(again) != len(list) || len(list) == 0 {
			t.Fatalf("%v and %v: %v", list, again, err)
		}
		for i, img := range list {
			if again[i] != img || strings.ContainsAny(img.Reference+img.Archive, " \"'\n") || strings.Contains(img.Archive, "/") {
				t.Errorf("%+v became %+v", img, again[i])
			}
		}
	})
}

func FuzzVerify(f *testing.F) {
	p := pack(pause, []byte("program"))
	sound := p.bytes()
	img := p.listed(sound)
	f.Add(sound)
	f.Add(sound[:len(sound)/2])
	f.Add(bytes.Replace(sound, []byte("ustar\x0000"), []byte("ustar  \x00"), 1))
	f.Fuzz(func(t *testing.T, archive []byte) {
		err := img.verify(bytes.NewReader(archive))
		if (err == nil) != bytes.Equal(archive, sound) {
			t.Fatalf("%d bytes: %v", len(archive), err)
		}
		if err == nil {
			return
		}
		switch reasonOf(err) {
		case badTar, badManifest, badConfig:
		default:
			t.Fatalf("reason %s: %v", reasonOf(err), err)
		}
		// Should the list agree with the file, the image in it is the listed one all the same.
		listed := img
		listed.SHA256 = sum(archive)
		if listed.verify(bytes.NewReader(archive)) == nil && (!bytes.Contains(archive, p.manifest) || !bytes.Contains(archive, p.layer) || !bytes.Contains(archive, p.config)) {
			t.Error("an archive without the image was accepted")
		}
	})
}

func FuzzParseNames(f *testing.F) {
	list := []Image{{Reference: pause}, {Reference: references[0]}}
	f.Add([]byte(pause + "\n" + references[0] + "\n"))
	f.Add([]byte(pause + "\n" + pause + "\n"))
	f.Add([]byte(pause))
	f.Fuzz(func(t *testing.T, out []byte) {
		names, err := parseNames(out, list)
		if err != nil {
			return
		}
		size := 0
		for name := range names {
			if name != pause && name != references[0] {
				t.Errorf("%q was not asked for", name)
			}
			size += len(name) + 1
		}
		if size != len(out) {
			t.Errorf("%q was read as %v", out, names)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	content := make([]byte, 32<<20) // as large as an image of Kubernetes
	_, err := rand.NewChaCha8([32]byte{}).Read(content)
	must(err)
	p := pack(pause, content)
	archive := p.bytes()
	img := p.listed(archive)
	b.SetBytes(img.Size)
	b.ReportAllocs()
	for b.Loop() {
		if err := img.verify(bytes.NewReader(archive)); err != nil {
			b.Fatal(err)
		}
	}
}
