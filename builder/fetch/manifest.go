package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

var acceptManifests = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList),
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// descriptor is a content descriptor as manifests spell it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	URLs        []string          `json:"urls"`
	Annotations map[string]string `json:"annotations"`
	Platform    *Platform         `json:"platform"`
}

func (d descriptor) store() store.Descriptor {
	return store.Descriptor{Digest: d.Digest, Size: d.Size}
}

// document is an image manifest or an index, of Docker's or OCI's kind.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config"`
	Layers        []descriptor `json:"layers"`
	Manifests     []descriptor `json:"manifests"`
}

func (d *document) isIndex() bool { return types.MediaType(d.MediaType).IsIndex() }

// Malformed is a document of an image that has the promised digest and is still
// not what it has to be.
type Malformed struct {
	What string // manifest or config
	Err  error
}

func (e *Malformed) Error() string { return "malformed " + e.What + ": " + e.Err.Error() }
func (e *Malformed) Unwrap() error { return e.Err }

// parseDocument reads a manifest or index and checks every descriptor that may
// be followed. What it is, is told from its own bytes only, which the digest
// covers, and never from a header: MediaType is filled in where OCI lets it be
// left out. All findings are reported together.
func parseDocument(b []byte) (*document, error) {
	d := &document{}
	if err := json.Unmarshal(b, d); err != nil {
		return nil, &Malformed{"manifest", err}
	}
	var findings []error
	found := func(format string, args ...any) { findings = append(findings, fmt.Errorf(format, args...)) }
	if d.MediaType == "" {
		d.MediaType = string(types.OCIManifestSchema1)
		if d.Manifests != nil {
			d.MediaType = string(types.OCIImageIndex)
		}
	}
	if d.SchemaVersion != 2 {
		found("schemaVersion is %d, expected 2", d.SchemaVersion)
	}
	switch mt := types.MediaType(d.MediaType); {
	case mt.IsIndex():
		// A document that reads as both kinds means one thing to whoever signed
		// it and another to whoever runs it.
		if d.Config != nil || d.Layers != nil {
			found("an index has config or layers")
		}
		for i, m := range d.Manifests {
			if m.candidate() {
				findings = append(findings, m.check(fmt.Sprintf("manifests[%d]", i), types.MediaType.IsImage)...)
			}
		}
	case mt.IsImage():
		if d.Manifests != nil {
			found("an image manifest has manifests")
		}
		if d.Config == nil {
			found("config is missing")
		} else {
			findings = append(findings, d.Config.check("config", types.MediaType.IsConfig)...)
			if d.Config.Size > maxConfig {
				found("config has %d bytes, at most %d are read", d.Config.Size, maxConfig)
			}
		}
		for i, l := range d.Layers {
			findings = append(findings, l.check(fmt.Sprintf("layers[%d]", i), types.MediaType.IsLayer)...)
		}
	default:
		found("mediaType %q is neither an image manifest nor an index of Docker schema 2 or OCI", d.MediaType)
	}
	if len(findings) > 0 {
		return nil, &Malformed{"manifest", errors.Join(findings...)}
	}
	return d, nil
}

// check returns what is wrong with a descriptor.
func (d descriptor) check(where string, wanted func(types.MediaType) bool) (findings []error) {
	found := func(format string, args ...any) {
		findings = append(findings, fmt.Errorf("%s: %w", where, fmt.Errorf(format, args...)))
	}
	if h, err := v1.NewHash(d.Digest); err != nil || h.Algorithm != "sha256" {
		found("digest %q is not of the form sha256:<64 hex>", d.Digest)
	}
	if d.Size < 0 {
		found("size %d is negative", d.Size)
	}
	mt := types.MediaType(d.MediaType)
	switch {
	case len(d.URLs) > 0 || !mt.IsDistributable():
		found("foreign content (media type %q, urls %q) is not accepted", d.MediaType, d.URLs)
	case !wanted(mt):
		found("media type %q is not accepted here", d.MediaType)
	}
	return findings
}

// candidate tells whether an index entry can be chosen for a platform. Nested
// indexes can't, nor attestations, which build tools list beside the images
// under the platform unknown/unknown and with a reference type.
func (d descriptor) candidate() bool {
	return types.MediaType(d.MediaType).IsImage() && d.Platform != nil &&
		d.Platform.OS != "unknown" && d.Annotations["vnd.docker.reference.type"] == ""
}

// pick returns the index entry for p, the first where there are several, or
// the platforms there are.
func (d *document) pick(p Platform) (chosen *descriptor, offered []string) {
	for i, m := range d.Manifests {
		if !m.candidate() {
			continue
		}
		if m.Platform.Matches(p) {
			return &d.Manifests[i], nil
		}
		offered = append(offered, m.Platform.String())
	}
	return nil, offered
}

// parseConfig reads an image config and checks that it has one sha256 diff_id
// for each of n layers.
func parseConfig(b []byte, n int) (*v1.ConfigFile, error) {
	c := &v1.ConfigFile{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, &Malformed{"config", err}
	}
	if got := len(c.RootFS.DiffIDs); got != n {
		return nil, &Malformed{"config", fmt.Errorf("%d diff_ids for %d layers", got, n)}
	}
	for i, h := range c.RootFS.DiffIDs {
		if h.Algorithm != "sha256" {
			return nil, &Malformed{"config", fmt.Errorf("diff_ids[%d] %q is not of the form sha256:<64 hex>", i, h)}
		}
	}
	return c, nil
}

// short is the form of a digest that people read.
func short(digest string) string {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(h) < 12 {
		return digest
	}
	return h[:12]
}
