package publish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// release makes a release of an image for two platforms that share a payload
// layer, with a tagged signature and a referrer.
func release(t *testing.T) (*store.Store, Release) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := rootfs.Writer{Store: s, Epoch: time.Unix(1_700_000_000, 0)}
	built, err := w.WriteAll(t.Context(), []rootfs.Layer{
		{Name: "amd64", Files: []rootfs.File{{Path: "usr/bin/a", Mode: 0o755, Data: bytes.Repeat([]byte("amd64"), 1000)}}},
		{Name: "arm64", Files: []rootfs.File{{Path: "usr/bin/a", Mode: 0o755, Data: bytes.Repeat([]byte("arm64"), 1000)}}},
		{Name: "shared", Files: []rootfs.File{{Path: "etc/motd", Mode: 0o644, Data: []byte("hello")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var r Release
	for i, arch := range []string{"amd64", "arm64"} {
		image, err := finish.Append{Store: s}.Finish(t.Context(), finish.Spec{
			Base:     finish.Base{Config: fmt.Appendf(nil, `{"os":"linux","architecture":%q}`, arch)},
			Layers:   []rootfs.Built{built[i], built[2]},
			Platform: finish.Platform{OS: "linux", Architecture: arch},
			Created:  w.Epoch,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Images = append(r.Images, image)
	}
	if r.Index, err = finish.Index(r.Images, nil); err != nil {
		t.Fatal(err)
	}
	r.Annotations = map[string]string{"kind": "index"}
	subject := describe(r.Index.MediaType, r.Index.Bytes)
	legacy := statement(t, "signature", nil)
	legacy.Tag = strings.Replace(subject.Digest, ":", "-", 1) + ".sig"
	legacy.Annotations = map[string]string{"kind": "sigs"}
	r.Artifacts = []Artifact{legacy, statement(t, "bundle", &subject)}
	return s, r
}

// statement is an artifact that holds text.
func statement(t *testing.T, text string, subject *descriptor) Artifact {
	t.Helper()
	config, layer := []byte("{}"), []byte(text)
	c, l := describe("application/vnd.oci.empty.v1+json", config), describe("application/example", layer)
	b, err := json.Marshal(node{
		SchemaVersion: 2, MediaType: finish.MediaTypeManifest, ArtifactType: "application/example", Subject: subject,
		Config: &c, Layers: []descriptor{l}, Annotations: map[string]string{"says": text},
	})
	if err != nil {
		t.Fatal(err)
	}
	return Artifact{MediaType: finish.MediaTypeManifest, Manifest: b, Blobs: map[string][]byte{c.Digest: config, l.Digest: layer}}
}

func TestPartsThatDoNotFitAreReportedTogether(t *testing.T) {
	_, r := release(t)
	elsewhere := describe(finish.MediaTypeManifest, []byte("elsewhere"))
	r.Images[0].Config.Bytes = []byte("{}")
	r.Images[1].Layers = nil
	r.Artifacts = append(r.Artifacts,
		statement(t, "lost", nil),
		statement(t, "about something else", &elsewhere),
		Artifact{Tag: "x", Manifest: []byte("no JSON")},
	)
	r.Artifacts[0].Blobs = nil
	r.Images = append(r.Images, finish.Image{Platform: finish.Platform{OS: "linux", Architecture: "s390x"}, Manifest: finish.Document{Bytes: []byte("{}")}})
	_, err := r.plan()
	if err == nil {
		t.Fatal("release was accepted")
	}
	for _, want := range []string{
		"blob " + r.Images[0].Config.Descriptor.Digest + " has digest",
		"image linux/arm64 names ",
		"index lists 2 images, 3 are given",
		"artifact 1 names ",
		"artifact 3 has neither a tag nor a subject",
		"artifact 4 has subject " + elsewhere.Digest,
		"artifact 5: invalid character",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}
