package finish

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

const dockerGzip = "application/vnd.docker.image.rootfs.diff.tar.gzip"

var created = time.Date(2026, 5, 4, 3, 2, 1, 999, time.FixedZone("far", 3*3600))

// fixture returns an engine and a spec with one base layer and two payload
// layers.
func fixture(t *testing.T) (Append, Spec) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	layer, err := s.PutBytes([]byte("base layer"))
	if err != nil {
		t.Fatal(err)
	}
	diffID := store.Digest([]byte("base tar"))
	w := rootfs.Writer{Store: s, Epoch: created}
	built, err := w.WriteAll(t.Context(), []rootfs.Layer{
		{Name: "overlay", Files: []rootfs.File{{Path: "usr/lib/a", Mode: 0o644, Data: []byte("a")}}},
		{Name: "images", Compression: rootfs.None, Files: []rootfs.File{{Path: "system/b", Mode: 0o644, Data: []byte("b")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return Append{s}, Spec{
		Base: Base{
			Config: []byte(`{
				"architecture": "amd64", "os": "linux", "created": "2020-01-01T00:00:00Z", "author": "base",
				"config": {"Env": ["PATH=/bin"], "Entrypoint": ["/sbin/init"], "ArgsEscaped": true, "Labels": {"kept": "1", "both": "base"}},
				"rootfs": {"type": "layers", "diff_ids": ["` + diffID + `"]},
				"history": [{"created_by": "base step", "unknown": 1}],
				"moby.buildkit.cache.v0": "x"}`),
			Layers: []Layer{{dockerGzip, layer, diffID}},
		},
		Layers:      built,
		Platform:    Platform{OS: "linux", Architecture: "amd64"},
		Created:     created,
		Labels:      map[string]string{"both": "image", "new": "<2>"},
		Annotations: map[string]string{"note": "n"},
		CreatedBy:   "builder",
	}
}

func finish(t *testing.T, a Append, s Spec) Image {
	t.Helper()
	image, err := a.Finish(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestPayloadIsAppendedToTheBase(t *testing.T) {
	a, spec := fixture(t)
	image := finish(t, a, spec)

	m, err := v1.ParseManifest(bytes.NewReader(image.Manifest.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(image.Config.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	if m.SchemaVersion != 2 || m.MediaType != MediaTypeManifest || m.Config.MediaType != MediaTypeConfig || m.Annotations["note"] != "n" {
		t.Errorf("manifest is %+v", m)
	}
	if m.Config.Digest.String() != store.Digest(image.Config.Bytes) || m.Config.Size != int64(len(image.Config.Bytes)) {
		t.Errorf("manifest names config %v", m.Config)
	}
	if image.Manifest.Descriptor.Digest != store.Digest(image.Manifest.Bytes) {
		t.Errorf("manifest has descriptor %v", image.Manifest.Descriptor)
	}

	want := []Layer{{rootfs.Gzip.MediaType(), spec.Base.Layers[0].Descriptor, spec.Base.Layers[0].DiffID}}
	for _, l := range spec.Layers {
		want = append(want, Layer{l.MediaType, l.Descriptor, l.DiffID})
	}
	if !reflect.DeepEqual(image.Layers, want) {
		t.Errorf("image has layers %+v, expected %+v", image.Layers, want)
	}
	if len(m.Layers) != 3 || len(c.RootFS.DiffIDs) != 3 || len(c.History) != 3 {
		t.Fatalf("%d layers, %d diff_ids, %d history entries", len(m.Layers), len(c.RootFS.DiffIDs), len(c.History))
	}
	for i, l := range want {
		if string(m.Layers[i].MediaType) != l.MediaType || m.Layers[i].Digest.String() != l.Descriptor.Digest ||
			m.Layers[i].Size != l.Descriptor.Size || c.RootFS.DiffIDs[i].String() != l.DiffID {
			t.Errorf("layer %d is %+v with diff_id %s", i, m.Layers[i], c.RootFS.DiffIDs[i])
		}
	}

	whole := created.UTC().Truncate(time.Second)
	if c.OS != "linux" || c.Architecture != "amd64" || !c.Created.Equal(whole) || c.Author != "base" {
		t.Errorf("config is %+v", c)
	}
	if !reflect.DeepEqual(c.Config.Env, []string{"PATH=/bin"}) || !reflect.DeepEqual(c.Config.Entrypoint, []string{"/sbin/init"}) ||
		!reflect.DeepEqual(c.Config.Labels, map[string]string{"kept": "1", "both": "image", "new": "<2>"}) {
		t.Errorf("config is %+v", c.Config)
	}
	if h := c.History; h[0].CreatedBy != "base step" || h[1].CreatedBy != "builder" || h[1].Comment != "overlay" || !h[2].Created.Equal(whole) {
		t.Errorf("history is %+v", h)
	}
	for _, unknown := range []string{`"moby.buildkit.cache.v0":"x"`, `"ArgsEscaped":true`, `"unknown":1`} {
		if !bytes.Contains(image.Config.Bytes, []byte(unknown)) {
			t.Errorf("config lost %s", unknown)
		}
	}
}

func TestSameInputsGiveTheSameBytes(t *testing.T) {
	a, spec := fixture(t)
	first := finish(t, a, spec)
	if spec.Base.Layers[0].MediaType != dockerGzip {
		t.Error("the caller's base was changed")
	}
	var spaced bytes.Buffer
	if err := json.Indent(&spaced, spec.Base.Config, "", "\t\t"); err != nil {
		t.Fatal(err)
	}
	spec.Base.Config = spaced.Bytes()
	spec.Created = created.UTC()
	if second := finish(t, a, spec); !reflect.DeepEqual(first, second) {
		t.Errorf("manifest was\n%s\nthen\n%s", first.Manifest.Bytes, second.Manifest.Bytes)
	}
}

func TestBaseWithNextToNothingInItsConfig(t *testing.T) {
	a, spec := fixture(t)
	spec.Base = Base{Config: []byte(`{"architecture":"amd64","os":"linux","config":{"Labels":null}}`)}
	image := finish(t, a, spec)
	if len(image.Layers) != 2 || !bytes.Contains(image.Config.Bytes, []byte(`"type":"layers"`)) {
		t.Errorf("config is %s", image.Config.Bytes)
	}
}

func TestWrongBaseIsRefused(t *testing.T) {
	absent := store.Descriptor{Digest: store.Digest([]byte("absent")), Size: 6}
	for name, c := range map[string]struct {
		change func(*Spec)
		want   []string
	}{
		"no architecture wanted": {func(s *Spec) { s.Platform.Architecture = "" }, []string{"lacks an os or architecture"}},
		"another architecture":   {func(s *Spec) { s.Platform.Architecture = "arm64" }, []string{`base is for platform "linux/amd64", expected "linux/arm64"`}},
		"another os":             {func(s *Spec) { s.Platform.OS = "plan9" }, []string{`expected "plan9/amd64"`}},
		"base without platform":  {func(s *Spec) { s.Base.Config = []byte(`{}`) }, []string{`base is for platform "/"`, "1 layers but 0 diff_ids"}},
		"another variant": {func(s *Spec) {
			s.Platform.Variant = "v3"
			s.Base.Config = bytes.Replace(s.Base.Config, []byte(`"os"`), []byte(`"variant": "v2", "os"`), 1)
		}, []string{`base is for platform "linux/amd64/v2", expected "linux/amd64/v3"`}},
		"layers without diff_ids": {func(s *Spec) { s.Base.Layers = append(s.Base.Layers, s.Base.Layers[0]) }, []string{"2 layers but 1 diff_ids"}},
		"another diff_id":         {func(s *Spec) { s.Base.Layers[0].DiffID = absent.Digest }, []string{"has diff_id " + absent.Digest}},
		"foreign layer": {func(s *Spec) {
			s.Base.Layers[0].MediaType = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
		}, []string{"has media type"}},
		"absent layers": {func(s *Spec) {
			s.Base.Layers[0].Descriptor, s.Layers[1].Descriptor.Size = absent, 1
		}, []string{absent.Digest + " of 6 bytes is not in the store", "of 1 bytes is not in the store"}},
		"no JSON": {func(s *Spec) { s.Base.Config = []byte(`{`) }, []string{"base config: "}},
		"labels that are none": {func(s *Spec) {
			s.Base.Config = bytes.Replace(s.Base.Config, []byte(`"1"`), []byte(`1`), 1)
		}, []string{"base config: "}},
	} {
		a, spec := fixture(t)
		c.change(&spec)
		_, err := a.Finish(t.Context(), spec)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, expected %q", name, err, want)
			}
		}
	}
}

func TestIndexListsOneManifestPerPlatform(t *testing.T) {
	a, spec := fixture(t)
	amd64 := finish(t, a, spec)
	spec.Platform = Platform{"linux", "arm64", "v8"}
	spec.Base.Config = bytes.Replace(spec.Base.Config, []byte("amd64"), []byte("arm64"), 1)
	arm64 := finish(t, a, spec)

	doc, err := Index([]Image{arm64, amd64}, map[string]string{"note": "n"})
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := Index([]Image{amd64, arm64}, map[string]string{"note": "n"})
	if err != nil || !reflect.DeepEqual(doc, swapped) {
		t.Errorf("order of images changes the index: %v", err)
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(doc.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	if idx.MediaType != MediaTypeIndex || idx.Annotations["note"] != "n" || len(idx.Manifests) != 2 {
		t.Fatalf("index is %s", doc.Bytes)
	}
	for i, want := range []Image{amd64, arm64} {
		got := idx.Manifests[i]
		if got.Digest.String() != want.Manifest.Descriptor.Digest || got.Size != want.Manifest.Descriptor.Size ||
			got.MediaType != MediaTypeManifest || got.Platform.String() != want.Platform.String() {
			t.Errorf("index lists %+v, expected %s", got, want.Platform)
		}
	}
	if _, err := Index([]Image{amd64, amd64}, nil); err == nil || !strings.Contains(err.Error(), "two images for platform linux/amd64") {
		t.Errorf("got %v", err)
	}
}
