// Package finish makes an image of a base image and payload layers. It takes
// the base's config and layer descriptors and layers that are in the store, and
// returns the bytes of an OCI manifest and config, and of the index over the
// manifests of several platforms. The same inputs give the same bytes. Nothing
// is fetched and no layer is read.
package finish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Media types of the documents, from
// https://github.com/opencontainers/image-spec/blob/main/media-types.md
const (
	MediaTypeIndex    = "application/vnd.oci.image.index.v1+json"
	MediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	MediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
)

// Engine makes one image for one platform.
type Engine interface {
	Finish(context.Context, Spec) (Image, error)
}

// Spec is what an image is made of.
type Spec struct {
	Base        Base
	Layers      []rootfs.Built // on top of the base's, lowest first
	Platform    Platform
	Created     time.Time         // in whole seconds
	Labels      map[string]string // added to the base's; these win
	Annotations map[string]string // of the manifest
	CreatedBy   string            // named in the history of every payload layer
}

// Base is the image to build on. Its layers, lowest first, must be in the
// store; Config holds the bytes of an OCI or Docker image config.
type Base struct {
	Config []byte
	Layers []Layer
}

// Layer is a layer of an image. DiffID is the digest of its uncompressed tar.
type Layer struct {
	MediaType  string
	Descriptor store.Descriptor
	DiffID     string
}

// Platform is what an image runs on, in the terms of GOOS and GOARCH.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

func (p Platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// Document is a JSON document together with its descriptor.
type Document struct {
	MediaType  string
	Descriptor store.Descriptor
	Bytes      []byte
}

// Image is a finished image. Its layers are in the store; its manifest and
// config are not.
type Image struct {
	Platform Platform
	Manifest Document
	Config   Document
	Layers   []Layer // the base's and the payload's, lowest first
}

// Append is the engine that puts payload layers on a base image. The blobs of
// the base's layers stay what they are, so nodes and registries that have them
// keep them; their Docker media types are named by the OCI types for the same
// bytes. The base's config is kept, entries unknown here included, except for
// platform, creation time, history, diff_ids and labels.
type Append struct {
	Store *store.Store
}

// Finish refuses a base whose platform is not the wanted one or whose layers
// don't match its config, and layers that are not in the store; the error lists
// all findings.
func (a Append) Finish(_ context.Context, s Spec) (Image, error) {
	config, diffIDs, err := s.config()
	findings := []error{err}
	layers := slices.Clone(s.Base.Layers)
	for i, l := range layers {
		mediaType, ok := ociLayer[l.MediaType]
		if !ok {
			findings = append(findings, fmt.Errorf("base layer %s has media type %q, expected a tar layer that may be distributed", l.Descriptor.Digest, l.MediaType))
		}
		if l.DiffID != "" && i < len(diffIDs) && l.DiffID != diffIDs[i] {
			findings = append(findings, fmt.Errorf("base layer %s has diff_id %s, its config says %s", l.Descriptor.Digest, l.DiffID, diffIDs[i]))
		}
		layers[i].MediaType = mediaType
	}
	for _, l := range s.Layers {
		layers = append(layers, Layer{l.MediaType, l.Descriptor, l.DiffID})
	}
	for _, l := range layers {
		if !a.Store.Has(l.Descriptor) {
			findings = append(findings, fmt.Errorf("layer %s of %d bytes is not in the store", l.Descriptor.Digest, l.Descriptor.Size))
		}
	}
	if err := errors.Join(findings...); err != nil {
		return Image{}, fmt.Errorf("image for %s:\n%w", s.Platform, err)
	}

	m := manifest{SchemaVersion: 2, MediaType: MediaTypeManifest, Config: config.describe(), Annotations: s.Annotations}
	for i := range layers {
		layers[i].DiffID = diffIDs[i]
		m.Layers = append(m.Layers, descriptor{MediaType: layers[i].MediaType, Descriptor: layers[i].Descriptor})
	}
	doc, err := document(MediaTypeManifest, m)
	return Image{s.Platform, doc, config, layers}, err
}

// ociLayer gives the OCI media type for every accepted type of a base layer.
var ociLayer = map[string]string{
	rootfs.Gzip.MediaType():                             rootfs.Gzip.MediaType(),
	rootfs.Zstd.MediaType():                             rootfs.Zstd.MediaType(),
	rootfs.None.MediaType():                             rootfs.None.MediaType(),
	"application/vnd.docker.image.rootfs.diff.tar.gzip": rootfs.Gzip.MediaType(),
	"application/vnd.docker.image.rootfs.diff.tar.zstd": rootfs.Zstd.MediaType(),
	"application/vnd.docker.image.rootfs.diff.tar":      rootfs.None.MediaType(),
}

// config returns the config of the image and the diff_ids of all its layers.
// Members of the base's config are passed on raw, so that none is lost.
func (s Spec) config() (Document, []string, error) {
	var base struct {
		Platform
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []json.RawMessage `json:"history"`
		Config  struct{ Labels map[string]string }
	}
	members := map[string]json.RawMessage{}
	inner := map[string]json.RawMessage{}
	err := errors.Join(json.Unmarshal(s.Base.Config, &base), json.Unmarshal(s.Base.Config, &members))
	if raw := members["config"]; err == nil && raw != nil {
		err = json.Unmarshal(raw, &inner)
	}
	if err != nil {
		return Document{}, nil, fmt.Errorf("base config: %w", err)
	}

	var findings []error
	want := s.Platform
	if want.OS == "" || want.Architecture == "" {
		findings = append(findings, fmt.Errorf("platform %q lacks an os or architecture", want))
	}
	if base.OS != want.OS || base.Architecture != want.Architecture ||
		base.Variant != "" && want.Variant != "" && base.Variant != want.Variant {
		findings = append(findings, fmt.Errorf("base is for platform %q, expected %q: give the base's digest for that platform", base.Platform, want))
	}
	if len(base.RootFS.DiffIDs) != len(s.Base.Layers) {
		findings = append(findings, fmt.Errorf("base has %d layers but %d diff_ids", len(s.Base.Layers), len(base.RootFS.DiffIDs)))
	}
	if err := errors.Join(findings...); err != nil {
		return Document{}, nil, err
	}

	created := s.Created.UTC().Truncate(time.Second)
	history := []any{}
	for _, raw := range base.History {
		history = append(history, raw)
	}
	base.RootFS.Type = "layers"
	for _, l := range s.Layers {
		base.RootFS.DiffIDs = append(base.RootFS.DiffIDs, l.DiffID)
		history = append(history, map[string]any{"created": created, "created_by": s.CreatedBy, "comment": l.Name})
	}
	labels := map[string]string{}
	maps.Copy(labels, base.Config.Labels)
	maps.Copy(labels, s.Labels)

	changed := map[string]any{
		"config":       merge(inner, map[string]any{"Labels": labels}),
		"created":      created,
		"os":           want.OS,
		"architecture": want.Architecture,
		"rootfs":       base.RootFS,
		"history":      history,
	}
	if want.Variant != "" {
		changed["variant"] = want.Variant
	}
	doc, err := document(MediaTypeConfig, merge(members, changed))
	return doc, base.RootFS.DiffIDs, err
}

// merge returns the members of base with those in changed added or replaced.
func merge(base map[string]json.RawMessage, changed map[string]any) map[string]any {
	merged := map[string]any{}
	for name, raw := range base {
		merged[name] = raw
	}
	maps.Copy(merged, changed)
	return merged
}

// Index returns the index over the images, ordered by platform. Two images for
// one platform are refused.
func Index(images []Image, annotations map[string]string) (Document, error) {
	idx := index{SchemaVersion: 2, MediaType: MediaTypeIndex, Manifests: []descriptor{}, Annotations: annotations}
	images = slices.SortedFunc(slices.Values(images), func(a, b Image) int {
		return cmp.Compare(a.Platform.String(), b.Platform.String())
	})
	for i, image := range images {
		if i > 0 && images[i-1].Platform == image.Platform {
			return Document{}, fmt.Errorf("index has two images for platform %s", image.Platform)
		}
		d := image.Manifest.describe()
		d.Platform = &image.Platform
		idx.Manifests = append(idx.Manifests, d)
	}
	return document(MediaTypeIndex, idx)
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	store.Descriptor
	Platform *Platform `json:"platform,omitempty"`
}

func (d Document) describe() descriptor {
	return descriptor{MediaType: d.MediaType, Descriptor: d.Descriptor}
}

// document renders v in its one form: compact, members in the order of the
// struct or sorted by name.
func document(mediaType string, v any) (Document, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return Document{}, err
	}
	return Document{mediaType, store.Descriptor{Digest: store.Digest(b), Size: int64(len(b))}, b}, nil
}
