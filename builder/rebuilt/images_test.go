package rebuilt

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kairos-io/provider-kubernetes/builder/debian"
	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// workshop is a supply with a store of its own and two programs in it.
func workshop(t *testing.T) (*Supply, map[string]store.Descriptor) {
	t.Helper()
	up, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	s := &Supply{Source: checkout, Row: m.Rows[0], Stack: m.Stack, Epoch: m.Epoch, Platform: fetch.Platform{OS: "linux", Architecture: "amd64"}, Upstream: up}
	bins := map[string]store.Descriptor{}
	for _, name := range []string{"one", "two"} {
		if bins[name], err = up.PutBytes([]byte("program " + name)); err != nil {
			t.Fatal(err)
		}
	}
	return s, bins
}

func simple() recipe {
	return recipe{name: "simple", reference: "registry.k8s.io/simple:v1", files: map[string]string{"usr/bin/one": "one"}, entrypoint: []string{"/usr/bin/one"}, labels: map[string]string{"a": "b"}}
}

func TestAnImageIsMadeAgainWhenAnythingInItChanges(t *testing.T) {
	type change struct {
		supply *Supply
		recipe recipe
		bins   map[string]store.Descriptor
	}
	fresh := func() change {
		s, bins := workshop(t)
		return change{s, simple(), bins}
	}
	digest := func(c change) string {
		t.Helper()
		m, err := c.supply.image(t.Context(), c.recipe, nil, c.bins)
		if err != nil {
			t.Fatal(err)
		}
		if !c.supply.whole(m.manifest) || !c.supply.Upstream.Has(m.index) {
			t.Errorf("not all of %v is in the store", m)
		}
		return m.index.Digest
	}
	first := digest(fresh())
	if again := digest(fresh()); again != first {
		t.Errorf("another store gives %s, expected %s", again, first)
	}
	seen := map[string]string{first: "nothing"}
	shared := fresh() // one store for all: whatever is found there must be told apart
	for name, change := range map[string]func(*change){
		"the platform":         func(c *change) { c.supply.Platform.Architecture = "arm64" },
		"the variant":          func(c *change) { c.supply.Platform.Variant = "v3" },
		"the time":             func(c *change) { c.supply.Epoch = c.supply.Epoch.Add(time.Second) },
		"the entrypoint":       func(c *change) { c.recipe.entrypoint = []string{"/usr/bin/one", "-v"} },
		"a label":              func(c *change) { c.recipe.labels = map[string]string{"a": "c"} },
		"a program":            func(c *change) { c.bins = map[string]store.Descriptor{"one": c.bins["two"]} },
		"a path":               func(c *change) { c.recipe.files = map[string]string{"usr/bin/two": "one"} },
		"one more file":        func(c *change) { c.recipe.files = map[string]string{"usr/bin/one": "one", "usr/bin/two": "two"} },
		"the programs swapped": func(c *change) { c.recipe.files = map[string]string{"usr/bin/one": "two", "usr/bin/two": "one"} },
	} {
		c := fresh()
		c.supply.Upstream = shared.supply.Upstream
		change(&c)
		got := digest(c)
		if was := seen[got]; was != "" {
			t.Errorf("with %s changed the image is the one with %s changed", name, was)
		}
		seen[got] = name
	}
}

func TestAnImageThatIsThereIsNotMadeAgain(t *testing.T) {
	s, bins := workshop(t)
	first, err := s.image(t.Context(), simple(), nil, bins)
	if err != nil {
		t.Fatal(err)
	}
	program, err := s.Upstream.Path(bins["one"].Digest)
	if err == nil {
		err = os.Remove(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.image(t.Context(), simple(), nil, bins); err != nil || again.index != first.index || again.manifest != first.manifest {
		t.Errorf("got %v, %v, expected %v", again, err, first)
	}
	manifest, err := s.Upstream.Path(first.manifest.Digest)
	if err == nil {
		err = os.WriteFile(manifest, []byte("{}"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.image(t.Context(), simple(), nil, bins); err == nil {
		t.Errorf("a damaged image was taken: %v", m)
	}
}

func TestAProgramThatWasNotBuiltIsNamed(t *testing.T) {
	s, _ := workshop(t)
	if _, err := s.image(t.Context(), simple(), nil, nil); err == nil || !strings.Contains(err.Error(), "program one was not built") {
		t.Errorf("got %v", err)
	}
}

func TestImagesAreServedSignedUnderTheNamesThatKubeadmLooksUp(t *testing.T) {
	s, bins := workshop(t)
	r := simple()
	r.reference = "registry.k8s.io/coredns/coredns:v1.14.6"
	m, err := s.image(t.Context(), r, nil, bins)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := signing.OpenAuthority(t.TempDir(), Identity, Issuer)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := serve(s.Upstream)
	if err != nil {
		t.Fatal(err)
	}
	s.server = srv
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := srv.publish(t.Context(), m, authority); err != nil {
		t.Fatal(err)
	}

	into, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := &fetch.Client{Store: into, Routes: map[string]string{matrix.Registry: srv.url}}
	top, err := client.Resolve(t.Context(), m.reference)
	if err != nil || top.Descriptor != m.index {
		t.Fatalf("the tag names %v, %v; expected %v", top, err, m.index)
	}
	img, err := client.Image(t.Context(), m.reference+"@"+top.Digest, s.Platform)
	if err != nil {
		t.Fatal(err)
	}
	if img.Manifest != m.manifest || !slices.Equal(img.ConfigFile.Config.Entrypoint, r.entrypoint) || img.ConfigFile.Config.Labels["a"] != "b" {
		t.Errorf("got manifest %v and config %+v", img.Manifest, img.ConfigFile.Config)
	}

	policy, err := os.ReadFile(filepath.Join(checkout, "signing", "policies", "rebuilt.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := authority.TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := signing.OpenAuthority(t.TempDir(), Identity, Issuer)
	if err != nil {
		t.Fatal(err)
	}
	strangers, err := stranger.TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	for want, root := range map[signing.Outcome][]byte{signing.Verified: trust, signing.WrongSigner: strangers} {
		v := &signing.Verifier{Transport: client.RoundTripper()}
		if v.Policy, err = signing.ParsePolicy(policy); err != nil {
			t.Fatal(err)
		}
		if v.Trust, err = signing.ParseTrustedRoot(root); err != nil {
			t.Fatal(err)
		}
		ref, err := name.NewTag(m.reference)
		if err != nil {
			t.Fatal(err)
		}
		res, err := v.Verify(t.Context(), signing.Subject{Reference: m.reference, Repository: ref.Repository, Digest: top.Digest, Platform: img.Manifest.Digest})
		if err != nil || res.Outcome != want {
			t.Errorf("%+v, %v; expected %s", res, err, want)
		}
	}

	// A blob that is not what its name says counts as absent.
	layer, err := s.Upstream.Path(img.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(layer, b, 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&fetch.Client{Store: other, Routes: client.Routes}).Image(t.Context(), m.reference+"@"+top.Digest, s.Platform)
	if gone, ok := errors.AsType[*fetch.NotFound](err); !ok || !strings.Contains(gone.URL, img.Layers[0].Digest) {
		t.Errorf("a changed layer: %v", err)
	}
}

func tree(t *testing.T, content map[string]string) *debian.Tree {
	t.Helper()
	tree, err := debian.NewTree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if err := tree.File(name, 0o644, strings.NewReader(content[name])); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

var packaged = map[string]string{
	"usr/share/base-passwd/passwd.master":         "root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534::/:/usr/sbin/nologin\n",
	"usr/share/base-passwd/group.master":          "root:*:0:\nadm:*:4:\n",
	"usr/share/libc-bin/nsswitch.conf":            "passwd: files\n",
	"usr/lib/os-release":                          "ID=debian\n",
	"usr/share/ca-certificates/mozilla/b.crt":     "certificate b\n",
	"usr/share/ca-certificates/mozilla/a.crt":     "certificate a\n",
	"usr/share/ca-certificates/mozilla/notes.txt": "no certificate\n",
}

func TestTheBaseIsArrangedAsMaintainerScriptsWould(t *testing.T) {
	tree := tree(t, packaged)
	if err := arrangeBase(tree); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/passwd":                        packaged["usr/share/base-passwd/passwd.master"],
		"etc/group":                         packaged["usr/share/base-passwd/group.master"],
		"etc/shadow":                        "root:*:1::::::\nnobody:*:1::::::\n",
		"etc/gshadow":                       "root:*::\nadm:*::\n",
		"etc/nsswitch.conf":                 "passwd: files\n",
		"etc/machine-id":                    "",
		"etc/ssl/certs/ca-certificates.crt": "certificate a\ncertificate b\n",
		"usr/lib/os-release":                "ID=debian\nVARIANT=\"provider-kubernetes test base, not a Kairos OS\"\nVARIANT_ID=not-kairos\n",
	} {
		e, ok := tree.Lookup(name)
		if !ok {
			t.Errorf("%s is missing", name)
			continue
		}
		if b, err := io.ReadAll(tree.Open(e)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v; expected %q", name, b, err, want)
		}
	}
	for name, want := range map[string]fs.FileMode{
		"etc/shadow": 0o640, "etc/gshadow": 0o640, "etc/machine-id": 0o444, "etc/passwd": 0o644,
		"root": fs.ModeDir | 0o700, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "proc": fs.ModeDir | 0o555, "usr/local": fs.ModeDir | 0o755,
	} {
		if e, _ := tree.Lookup(name); e.Mode != want {
			t.Errorf("%s has mode %v, expected %v", name, e.Mode, want)
		}
	}
	for name, want := range map[string]string{
		"bin": "usr/bin", "etc/os-release": "../usr/lib/os-release", "usr/bin/awk": "mawk", "var/run": "/run",
		"usr/sbin/iptables": "xtables-nft-multi", "usr/sbin/ip6tables-restore": "xtables-nft-multi", "usr/sbin/ebtables": "xtables-nft-multi",
	} {
		if e, _ := tree.Lookup(name); e.Mode&fs.ModeSymlink == 0 || e.Target != want {
			t.Errorf("%s is %v to %q, expected a link to %q", name, e.Mode, e.Target, want)
		}
	}
}

func TestABaseThatLacksWhatItIsArrangedFromIsRefused(t *testing.T) {
	for _, name := range []string{"usr/share/base-passwd/passwd.master", "usr/share/base-passwd/group.master", "usr/share/libc-bin/nsswitch.conf", "usr/lib/os-release"} {
		content := maps.Clone(packaged)
		delete(content, name)
		if err := arrangeBase(tree(t, content)); err == nil || !strings.Contains(err.Error(), "/"+name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestATreeBecomesALayerOfRoot(t *testing.T) {
	tree := tree(t, map[string]string{"usr/bin/write": "w"})
	if err := tree.File("usr/bin/su", 0o755|fs.ModeSetuid|fs.ModeSetgid, strings.NewReader("su")); err != nil {
		t.Fatal(err)
	}
	tree.Dir("var/mail", 0o775|fs.ModeSetgid)
	byPath := map[string]rootfs.File{}
	for _, f := range files(tree) {
		byPath[f.Path] = f
	}
	for path, want := range map[string]fs.FileMode{"usr/bin/su": 0o755 | fs.ModeSetuid, "usr/bin/write": 0o644, "var/mail": 0o775} {
		if got := byPath[path].Mode; got != want {
			t.Errorf("%s has mode %v, expected %v: a group is root's here", path, got, want)
		}
	}
	if f := byPath["bin"]; f.Type != rootfs.Symlink || f.Target != "usr/bin" {
		t.Errorf("bin is %+v", f)
	}
	st, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&rootfs.Writer{Store: st, Epoch: time.Unix(1, 0)}).Write(t.Context(), rootfs.Layer{Name: "tree", Files: files(tree)}); err != nil {
		t.Error(err)
	}
}

func TestLicencesStayAndManualsGo(t *testing.T) {
	for path, want := range map[string]bool{
		"usr/bin/bash": true, "usr/share/doc/bash/copyright": true, "usr/share/man": true, "usr/share/mandatory": true,
		"usr/share/doc/bash/README": false, "usr/share/man/man1/bash.1": false, "usr/share/locale/de/x.mo": false,
	} {
		if keep(path) != want {
			t.Errorf("%s is kept: %v", path, !want)
		}
	}
}
