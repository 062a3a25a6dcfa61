package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

func TestImageIsFetchedWholeAndOnlyOnce(t *testing.T) {
	docker := standin.Image(t, "linux/amd64", 3)
	oci := mutate.ConfigMediaType(mutate.MediaType(standin.Image(t, "linux/amd64", 3), types.OCIManifestSchema1), types.OCIConfigJSON)
	for name, tt := range map[string]struct {
		img v1.Image
		top remote.Taggable
	}{
		"docker manifest": {docker, docker},
		"oci manifest":    {oci, oci},
		"oci index":       {oci, standin.Index(standin.Entry(t, oci, "linux/amd64"))},
		"docker list":     {docker, mutate.IndexMediaType(standin.Index(standin.Entry(t, docker, "linux/amd64")), types.DockerManifestList)},
	} {
		t.Run(name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{})
			ref := reg.Push(etcd, tt.top)
			c, _ := newClient(t, reg.Routes(k8s))
			img, err := c.Image(t.Context(), ref, amd64)
			if err != nil {
				t.Fatal(err)
			}
			if img.Reference != ref || img.Repository.Name() != "registry.k8s.io/etcd" {
				t.Errorf("image is %s in %s", img.Reference, img.Repository)
			}
			if etcd+"@"+img.Top.Digest != ref || describe(img.TopBytes) != img.Top {
				t.Errorf("top is %v", img.Top)
			}
			if describe(img.ManifestBytes) != img.Manifest || img.Manifest.Digest != must(tt.img.Digest()).String() ||
				img.ManifestMediaType != string(must(tt.img.MediaType())) {
				t.Errorf("manifest is %v %s", img.Manifest, img.ManifestMediaType)
			}
			if !reflect.DeepEqual(img.ConfigFile, must(tt.img.ConfigFile())) {
				t.Errorf("config is %+v", img.ConfigFile)
			}
			for i, l := range must(tt.img.Layers()) {
				want := Layer{store.Descriptor{Digest: must(l.Digest()).String(), Size: must(l.Size())}, string(must(l.MediaType())), must(l.DiffID()).String()}
				if img.Layers[i] != want || !c.Store.Has(want.Descriptor) {
					t.Errorf("layer %d is %+v, expected %+v in the store", i, img.Layers[i], want)
				}
			}
			if n, want := reg.Count("GET", "/blobs/"), 4; n != want {
				t.Errorf("%d blob requests, expected %d", n, want)
			}
			cold := len(reg.Requests())
			again, err := (&Client{Store: c.Store, Routes: c.Routes}).Image(t.Context(), ref, amd64)
			if err != nil || !reflect.DeepEqual(again, img) {
				t.Errorf("warm: %+v, %v", again, err)
			}
			if warm := len(reg.Requests()) - cold; warm != 0 {
				t.Errorf("%d requests when all is in the store", warm)
			}
			blobs(t, c)
		})
	}
}

func TestImageIsNotFetchedByTag(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	reg.Push(etcd, standin.Image(t, "linux/amd64", 1))
	c, _ := newClient(t, reg.Routes(k8s))
	for _, ref := range []string{etcd, k8s + "/etcd", etcd + "@sha256:abc", "", etcd + "@sha512:" + strings.Repeat("a", 128)} {
		if _, err := c.Image(t.Context(), ref, amd64); err == nil {
			t.Errorf("%q was accepted", ref)
		}
	}
	if n := reg.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestManifestsComeBeforeAnyBlob(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Index(standin.Entry(t, standin.Image(t, "linux/amd64", 2), "linux/amd64")))
	c, _ := newClient(t, reg.Routes(k8s))
	img, err := c.ImageManifest(t.Context(), ref, amd64)
	if err != nil {
		t.Fatal(err)
	}
	if n := reg.Count("", "/blobs/"); n != 0 || len(img.Layers) != 2 || img.ConfigFile != nil {
		t.Errorf("%d blob requests for %+v", n, img)
	}
	if err := c.FetchBlobs(t.Context(), img); err != nil || img.Layers[1].DiffID == "" || img.ConfigFile == nil {
		t.Errorf("got %+v, %v", img, err)
	}
}

func TestPlatformIsPickedFromTheIndex(t *testing.T) {
	image := func(p string) v1.Image { return standin.Image(t, p, 1) }
	x86, arm, armv6, armv7 := image("linux/amd64"), image("linux/arm64"), image("linux/arm/v6"), image("linux/arm/v7")
	entry := func(img v1.Image, p string) mutate.IndexAddendum { return standin.Entry(t, img, p) }
	twoArms := []mutate.IndexAddendum{entry(armv6, "linux/arm/v6"), entry(armv7, "linux/arm/v7")}
	for _, tt := range []struct {
		name    string
		entries []mutate.IndexAddendum
		ask     string
		want    v1.Image
		offered []string
	}{
		{name: "arm64/v8 of arm64", entries: []mutate.IndexAddendum{entry(x86, "linux/amd64"), entry(arm, "linux/arm64")}, ask: "linux/arm64/v8", want: arm},
		{name: "arm64 of arm64/v8", entries: []mutate.IndexAddendum{entry(arm, "linux/arm64/v8")}, ask: "linux/arm64", want: arm},
		{name: "arm/v6", entries: twoArms, ask: "linux/arm/v6", want: armv6},
		{name: "arm/v7", entries: twoArms, ask: "linux/arm/v7", want: armv7},
		{name: "arm/v7 of arm/v6", entries: twoArms[:1], ask: "linux/arm/v7", offered: []string{"linux/arm/v6"}},
		{name: "other", entries: []mutate.IndexAddendum{entry(x86, "linux/amd64"), entry(arm, "linux/arm64")}, ask: "linux/s390x", offered: []string{"linux/amd64", "linux/arm64"}},
		{name: "beside attestations", entries: []mutate.IndexAddendum{standin.Attestation(t, x86), entry(x86, "linux/amd64"), entry(arm, "linux/arm64"), standin.Attestation(t, arm)}, ask: "linux/amd64", want: x86},
		{name: "attestations only", entries: []mutate.IndexAddendum{standin.Attestation(t, x86), standin.Attestation(t, arm)}, ask: "linux/amd64"},
		{name: "not even for unknown", entries: []mutate.IndexAddendum{standin.Attestation(t, x86)}, ask: "unknown/unknown"},
		{name: "empty", ask: "linux/amd64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{})
			ref := reg.Push(etcd, standin.Index(tt.entries...))
			c, _ := newClient(t, reg.Routes(k8s))
			p := must(ParsePlatform(tt.ask))
			img, err := c.Image(t.Context(), ref, p)
			if tt.want == nil {
				none, ok := errors.AsType[*NoPlatform](err)
				if !ok || none.Reference != ref || none.Want != p || !slices.Equal(none.Offered, tt.offered) {
					t.Fatalf("got %v, expected the offer %q", err, tt.offered)
				}
				for _, o := range append(tt.offered, tt.ask) {
					if !strings.Contains(err.Error(), o) {
						t.Errorf("error %q doesn't name %s", err, o)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if img.Manifest.Digest != must(tt.want.Digest()).String() || etcd+"@"+img.Top.Digest != ref {
				t.Errorf("got manifest %s of %s", img.Manifest.Digest, img.Top.Digest)
			}
			if n := reg.Count("", "/manifests/"); n != 2 {
				t.Errorf("%d manifest requests, expected the index and one entry", n)
			}
		})
	}
}

func TestManifestWithoutIndexMustBeOfThePlatform(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Image(t, "linux/arm64", 2))
	c, _ := newClient(t, reg.Routes(k8s))
	_, err := c.Image(t.Context(), ref, amd64)
	if none, ok := errors.AsType[*NoPlatform](err); !ok || !slices.Equal(none.Offered, []string{"linux/arm64"}) {
		t.Errorf("got %v", err)
	}
	if n := reg.Count("", "/blobs/"); n != 1 {
		t.Errorf("%d blob requests, expected the config only", n)
	}
	if _, err := c.Image(t.Context(), ref, Platform{"linux", "arm64", "v8"}); err != nil {
		t.Error(err)
	}
}

func TestBlobFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault standin.Fault
		ok    bool
	}{
		{"rate limit", standin.Fault{Times: 1, Status: 429, Header: map[string]string{"Retry-After": "2"}}, true},
		{"cut off twice", standin.Fault{Times: 2, Cut: 200}, true},
		{"always 503", standin.Fault{Status: 503}, false},
		{"one byte changed", standin.Fault{Flip: true}, false},
		{"gone", standin.Fault{Status: 404}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{})
			image := standin.Image(t, "linux/amd64", 2)
			ref := reg.Push(etcd, image)
			layer := must(must(image.Layers())[0].Digest()).String()
			tt.fault.Path = "/blobs/" + layer
			reg.Fail(tt.fault)
			c, _ := newClient(t, reg.Routes(k8s))
			img, err := c.Image(t.Context(), ref, amd64)
			if tt.ok {
				if err != nil || !slices.Contains(blobs(t, c), layer) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err == nil || img != nil || !strings.Contains(err.Error(), "https://registry.k8s.io/v2/etcd/blobs/"+layer) {
				t.Errorf("got %v, %v", img, err)
			}
			if slices.Contains(blobs(t, c), layer) {
				t.Error("the layer is in the store")
			}
			if n := reg.Count("", layer); n > 5 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestChangedManifestIsRefused(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Image(t, "linux/amd64", 1))
	reg.Fail(standin.Fault{Path: "/manifests/", Flip: true})
	c, _ := newClient(t, reg.Routes(k8s))
	_, err := c.Image(t.Context(), ref, amd64)
	if _, ok := errors.AsType[*store.DigestMismatch](err); !ok || reg.Count("", "/manifests/") != 2 {
		t.Errorf("got %v", err)
	}
	if got := blobs(t, c); len(got) > 0 {
		t.Errorf("store holds %v", got)
	}
}

func TestDamagedManifestInTheStoreIsFetchedAgain(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Image(t, "linux/amd64", 1))
	c, _ := newClient(t, reg.Routes(k8s))
	img := must(c.Image(t.Context(), ref, amd64))
	path := must(c.Store.Path(img.Manifest.Digest))
	if err := os.WriteFile(path, make([]byte, img.Manifest.Size), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := c.Image(t.Context(), ref, amd64)
	if err != nil || !reflect.DeepEqual(again, img) {
		t.Errorf("got %v", err)
	}
	blobs(t, c)
}

func TestBlobIsFetchedOnceForAllWhoWantIt(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	base := standin.Image(t, "linux/amd64", 2)
	twice, err := mutate.AppendLayers(base, must(base.Layers())...)
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.Push(etcd, twice)
	c, _ := newClient(t, reg.Routes(k8s))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := c.Image(t.Context(), ref, amd64); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if manifests, blobs := reg.Count("", "/manifests/"), reg.Count("", "/blobs/"); manifests != 1 || blobs != 3 {
		t.Errorf("%d manifest and %d blob requests, expected 1 and 3", manifests, blobs)
	}
}

func TestTokenStaysWithItsRegistry(t *testing.T) {
	cdn := standin.NewRegistry(t, standin.Options{})
	reg := standin.NewRegistry(t, standin.Options{Token: true})
	image := standin.Image(t, "linux/amd64", 2)
	cdn.Push("cdn.example/etcd:1", image)
	ref := reg.Push(reg.Host()+"/etcd:1", image)
	// As registry.k8s.io does: it keeps nothing itself.
	reg.Fail(standin.Fault{Path: "/etcd/", Redirect: cdn.URL, Header: map[string]string{"Docker-Distribution-Api-Version": "registry/2.0"}})
	c, _ := newClient(t, nil)
	if _, err := c.Image(t.Context(), ref, amd64); err != nil {
		t.Fatal(err)
	}
	with := 0
	for _, r := range reg.Requests() {
		if r.Header.Get("Authorization") == "Bearer "+standin.Token {
			with++
		}
	}
	if with != 4 {
		t.Errorf("%d requests with a token, expected manifest, config and two layers", with)
	}
	if n := cdn.Count("GET", "/etcd/"); n != 4 {
		t.Errorf("%d requests reached the other host", n)
	}
	for _, r := range cdn.Requests() {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("%s %s on the other host got %q", r.Method, r.Path, got)
		}
	}
}

// hand makes manifests by hand, as no library would.
type hand map[string]any

func desc(mediaType types.MediaType, b []byte) hand {
	return hand{"mediaType": mediaType, "digest": store.Digest(b), "size": len(b)}
}

func (h hand) with(key string, v any) hand {
	c := hand{key: v}
	for k, v := range h {
		if k != key {
			c[k] = v
		}
	}
	return c
}

func (h hand) json() []byte { return must(json.Marshal(h)) }

func TestMalformedManifestsAreRefused(t *testing.T) {
	config, layer := []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}`), pattern(100)
	good := hand{
		"schemaVersion": 2,
		"mediaType":     types.OCIManifestSchema1,
		"config":        desc(types.OCIConfigJSON, config),
		"layers":        []hand{desc(types.OCILayer, layer)},
	}
	for _, tt := range []struct {
		name string
		m    hand
		want []string
	}{
		{"null", nil, []string{"schemaVersion is 0", "config is missing"}},
		{"schema 1", hand{"schemaVersion": 1, "mediaType": types.DockerManifestSchema1Signed}, []string{"schemaVersion is 1", "neither an image manifest nor an index"}},
		{"both kinds", good.with("manifests", []hand{}), []string{"has manifests"}},
		{"index with layers", good.with("mediaType", types.OCIImageIndex), []string{"has config or layers"}},
		{"no config", good.with("config", nil), []string{"config is missing"}},
		{"huge config", good.with("config", desc(types.OCIConfigJSON, config).with("size", maxConfig+1)), []string{"config has 8388609 bytes"}},
		{"foreign layer", good.with("layers", []hand{desc(types.DockerForeignLayer, layer)}), []string{"layers[0]: foreign"}},
		{"layer with urls", good.with("layers", []hand{desc(types.OCILayer, layer).with("urls", []string{"https://evil.example/x"})}), []string{"layers[0]: foreign", "evil.example"}},
		{"strange layer", good.with("layers", []hand{desc("application/x-tar", layer)}), []string{`layers[0]: media type "application/x-tar"`}},
		{"artifact", good.with("config", desc(types.OCIEmptyJSON, config)), []string{"config: media type"}},
		{"all at once", good.with("schemaVersion", 3).with("layers", []hand{
			desc(types.OCILayer, layer).with("digest", "sha256:../../../etc/passwd"),
			desc(types.OCILayer, layer).with("size", -1),
			desc(types.OCILayer, layer).with("digest", "sha512:"+strings.Repeat("a", 128)),
		}), []string{"schemaVersion is 3", "layers[0]: digest", "layers[1]: size -1", "layers[2]: digest"}},
		{"size is no number", good.with("layers", []hand{desc(types.OCILayer, layer).with("size", 1e30)}), []string{"malformed manifest"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{})
			ref := reg.PushManifest(k8s+"/etcd", tt.m.json())
			c, _ := newClient(t, reg.Routes(k8s))
			_, err := c.Image(t.Context(), ref, amd64)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(tt.want, ref) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if n := reg.Count("", "/blobs/"); n != 0 {
				t.Errorf("%d blob requests", n)
			}
		})
	}
}

func TestDescriptorsThatLie(t *testing.T) {
	config := []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + store.Digest(nil) + `"]}}`)
	layer := pattern(100)
	manifest := hand{
		"schemaVersion": 2,
		"config":        desc(types.OCIConfigJSON, config),
		"layers":        []hand{desc(types.OCILayer, layer)},
	}
	entry := desc(types.OCIManifestSchema1, manifest.json()).with("platform", amd64)
	index := func(e hand) hand { return hand{"schemaVersion": 2, "manifests": []hand{e}} }
	for _, tt := range []struct {
		name  string
		m     hand
		want  string // "" is fine
		lying bool   // is a DigestMismatch
	}{
		{"nothing", manifest, "", false},
		{"nothing, through an index", index(entry), "", false},
		{"layer is longer", manifest.with("layers", []hand{desc(types.OCILayer, layer).with("size", 99)}), "https://registry.k8s.io/v2/etcd/blobs/", true},
		{"layer is shorter", manifest.with("layers", []hand{desc(types.OCILayer, layer).with("size", 101)}), "https://registry.k8s.io/v2/etcd/blobs/", true},
		{"config is longer", manifest.with("config", desc(types.OCIConfigJSON, config).with("size", 3)), "config", true},
		{"more layers than diff_ids", manifest.with("layers", []hand{desc(types.OCILayer, layer), desc(types.OCILayer, layer)}), "1 diff_ids for 2 layers", false},
		{"entry of another size", index(entry.with("size", len(manifest.json())+1)), "manifest", true},
		{"entry of another type", index(entry.with("mediaType", types.DockerManifestSchema2)), "its index says", false},
		{"entry too big", index(entry.with("size", maxManifest+1)), "at most", false},
		{"entry without a digest", index(entry.with("digest", "latest")), "manifests[0]: digest", false},
		{"entry elsewhere", index(entry.with("urls", []string{"https://evil.example"})), "manifests[0]: foreign", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{})
			reg.PushBlob(k8s+"/etcd", config)
			reg.PushBlob(k8s+"/etcd", layer)
			reg.PushManifest(k8s+"/etcd", manifest.json())
			ref := reg.PushManifest(k8s+"/etcd", tt.m.json())
			c, _ := newClient(t, reg.Routes(k8s))
			_, err := c.Image(t.Context(), ref, amd64)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			_, lying := errors.AsType[*store.DigestMismatch](err)
			if err == nil || !strings.Contains(err.Error(), tt.want) || lying != tt.lying {
				t.Errorf("got %v, expected %q", err, tt.want)
			}
			blobs(t, c)
		})
	}
}

func TestEndlessManifestIsCut(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Image(t, "linux/amd64", 1))
	reg.Fail(standin.Fault{Path: "/manifests/", Append: maxManifest})
	c, _ := newClient(t, reg.Routes(k8s))
	for name, err := range map[string]error{
		"by digest": second(c.Image(t.Context(), ref, amd64)),
		"by tag":    second(c.Resolve(t.Context(), etcd)),
	} {
		if err == nil || !strings.Contains(err.Error(), "longer than 8388608 bytes") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := reg.Count("", "/manifests/"); n != 2 {
		t.Errorf("%d requests, expected one each", n)
	}
	if got := blobs(t, c); len(got) > 0 {
		t.Errorf("store holds %v", got)
	}
}

func second[T any](_ T, err error) error { return err }

func TestPlatformText(t *testing.T) {
	for s, want := range map[string]Platform{
		"linux/amd64":    amd64,
		"linux/arm64/v8": {"linux", "arm64", "v8"},
		"linux/arm/v7":   {"linux", "arm", "v7"},
	} {
		if got, err := ParsePlatform(s); err != nil || got != want || got.String() != s {
			t.Errorf("%q: got %+v %v", s, got, err)
		}
	}
	for _, s := range []string{"", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux//v8", "Linux/amd64", "linux/amd64 ", "linux/../x y"} {
		if got, err := ParsePlatform(s); err == nil {
			t.Errorf("%q was read as %+v", s, got)
		}
	}
}

func TestPlatformsMatchByTheirDefaultVariant(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"linux/arm64", "linux/arm64/v8", true},
		{"linux/amd64", "linux/amd64/v1", true},
		{"linux/arm", "linux/arm/v7", true},
		{"linux/arm/v6", "linux/arm/v7", false},
		{"linux/amd64", "linux/amd64/v3", false},
		{"linux/arm64", "linux/arm64/v9", false},
		{"linux/amd64", "windows/amd64", false},
		{"linux/arm64", "linux/arm", false},
	} {
		a, b := must(ParsePlatform(tt.a)), must(ParsePlatform(tt.b))
		if a.Matches(b) != tt.want || b.Matches(a) != tt.want {
			t.Errorf("%s and %s: expected %v", a, b, tt.want)
		}
	}
}

func FuzzParsePlatform(f *testing.F) {
	for _, s := range []string{"linux/amd64", "linux/arm64/v8", "", "/", "a/b/c/d", "linux/ÄÖ"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePlatform(s)
		if err == nil && (p.String() != s || !p.Matches(p)) {
			t.Errorf("%q became %q", s, p)
		}
	})
}

func FuzzParseDocument(f *testing.F) {
	d := store.Digest(nil)
	for _, s := range []string{
		`{}`, `null`, `[]`, `{"schemaVersion":2,"manifests":[null]}`,
		fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":2},"layers":[{"mediaType":%q,"digest":%q,"size":0}]}`,
			types.DockerManifestSchema2, types.DockerConfigJSON, d, types.DockerLayer, d),
		fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":7,"platform":{"os":"linux","architecture":"arm64","variant":"v8"}}]}`,
			types.OCIManifestSchema1, d),
	} {
		f.Add([]byte(s))
	}
	s, err := store.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parseDocument(b)
		if err != nil {
			return
		}
		follow := doc.Layers
		if doc.isIndex() {
			if doc.Config != nil || doc.Layers != nil {
				t.Fatal("index with config or layers")
			}
			chosen, offered := doc.pick(Platform{"linux", "arm64", ""})
			if chosen == nil && len(offered) > len(doc.Manifests) {
				t.Fatal("offers more than there is")
			}
			if chosen != nil {
				follow = []descriptor{*chosen}
			}
		} else {
			follow = append(follow, *doc.Config)
		}
		for _, d := range follow {
			if _, err := s.Path(d.Digest); err != nil || d.Size < 0 || len(d.URLs) > 0 {
				t.Fatalf("accepted %+v", d)
			}
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"rootfs":{"diff_ids":["`+store.Digest(nil)+`"]}}`), 1)
	f.Add([]byte(`{"rootfs":{"diff_ids":null}}`), 0)
	f.Add([]byte(`null`), 0)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if c, err := parseConfig(b, n); err == nil && len(c.RootFS.DiffIDs) != n {
			t.Fatal("accepted another number of diff_ids")
		}
	})
}
