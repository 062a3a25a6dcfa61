// Package publish puts a finished release where people get it from: into an OCI
// layout on disk or into a registry. A release is an image index with its
// images, whose layers are in the store, and the signatures beside it. What is
// written is read back and compared with its digests before anybody can find it
// by name: a layout appears as a whole or not at all, and tags move last.
package publish

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Release is what gets published.
type Release struct {
	Index     finish.Document
	Images    []finish.Image // the ones that Index lists
	Artifacts []Artifact
	// Annotations are for Index's descriptor in a layout's index.json.
	Annotations map[string]string
}

// Artifact is a manifest that says something about the index or an image: a
// signature, an attestation. It is found by its tag, or through the referrers
// of its subject, or both.
type Artifact struct {
	Tag       string
	MediaType string
	Manifest  []byte
	Blobs     map[string][]byte // config and layers, by digest
	// Annotations are for its descriptor in a layout's index.json.
	Annotations map[string]string
}

// descriptor is an OCI descriptor, https://github.com/opencontainers/image-spec/blob/main/descriptor.md
type descriptor struct {
	MediaType string `json:"mediaType"`
	store.Descriptor
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// node is an OCI index or image manifest, as far as it names other content.
type node struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        *descriptor       `json:"config,omitempty"`
	Layers        []descriptor      `json:"layers,omitempty"`
	Manifests     []descriptor      `json:"manifests,omitempty"`
	Subject       *descriptor       `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// children are all descriptors in n but the subject, which n doesn't contain.
func (n node) children() []descriptor {
	all := slices.Concat(n.Manifests, n.Layers)
	if n.Config != nil {
		all = append(all, *n.Config)
	}
	return all
}

// blob is a layer, config or signature: in memory, or in the store when data is
// nil.
type blob struct {
	store.Descriptor
	data []byte
}

// manifest is a document that names blobs or other manifests.
type manifest struct {
	descriptor // with the annotations for a layout's index.json
	node       node
	data       []byte
}

// plan is a release laid out: everything once, and every manifest with all that
// it names.
type plan struct {
	blobs     []blob
	images    []manifest
	index     manifest
	artifacts []manifest
	tags      []string // of the artifacts; some are empty
}

// planner collects a plan and what is wrong with it.
type planner struct {
	plan
	known    map[string]blob
	findings []error
}

// plan checks that the parts of the release fit together. The error lists all
// findings.
func (r Release) plan() (plan, error) {
	p := planner{known: map[string]blob{}}
	for _, image := range r.Images {
		p.known[image.Config.Descriptor.Digest] = blob{image.Config.Descriptor, image.Config.Bytes}
		for _, l := range image.Layers {
			p.known[l.Descriptor.Digest] = blob{l.Descriptor, nil}
		}
	}
	for _, a := range r.Artifacts {
		for digest, b := range a.Blobs {
			p.known[digest] = blob{store.Descriptor{Digest: digest, Size: int64(len(b))}, b}
		}
	}
	p.blobs = slices.SortedFunc(maps.Values(p.known), func(a, b blob) int { return cmp.Compare(a.Digest, b.Digest) })
	for _, b := range p.blobs {
		if got := store.Digest(b.data); b.data != nil && got != b.Digest {
			p.report("blob %s has digest %s", b.Digest, got)
		}
	}

	subjects := map[string]bool{r.Index.Descriptor.Digest: true}
	for _, image := range r.Images {
		m := p.manifest("image "+image.Platform.String(), image.Manifest.MediaType, image.Manifest.Bytes)
		subjects[m.Digest] = true
		p.known[m.Digest] = blob{m.Descriptor, m.data}
		p.images = append(p.images, m)
	}
	p.index = p.manifest("index", r.Index.MediaType, r.Index.Bytes)
	p.index.Annotations = r.Annotations
	if len(p.index.node.Manifests) != len(r.Images) {
		p.report("index lists %d images, %d are given", len(p.index.node.Manifests), len(r.Images))
	}

	for i, a := range r.Artifacts {
		name := fmt.Sprintf("artifact %d", i+1)
		m := p.manifest(name, a.MediaType, a.Manifest)
		m.ArtifactType, m.Annotations = m.node.ArtifactType, a.Annotations
		if s := m.node.Subject; s == nil && a.Tag == "" {
			p.report("%s has neither a tag nor a subject: nobody would find it", name)
		} else if s != nil && !subjects[s.Digest] {
			p.report("%s has subject %s, which is neither the index nor an image", name, s.Digest)
		}
		p.artifacts, p.tags = append(p.artifacts, m), append(p.tags, a.Tag)
	}
	return p.plan, errors.Join(p.findings...)
}

func (p *planner) report(format string, args ...any) {
	p.findings = append(p.findings, fmt.Errorf(format, args...))
}

// manifest reads a document and checks that everything it names is known.
func (p *planner) manifest(name, mediaType string, data []byte) manifest {
	m := manifest{data: data, descriptor: describe(mediaType, data)}
	if err := json.Unmarshal(data, &m.node); err != nil {
		p.report("%s: %w", name, err)
	}
	for _, d := range m.node.children() {
		if b, ok := p.known[d.Digest]; !ok || b.Descriptor != d.Descriptor {
			p.report("%s names %s with %d bytes, which is not given", name, d.Digest, d.Size)
		}
	}
	return m
}

func describe(mediaType string, b []byte) descriptor {
	return descriptor{MediaType: mediaType, Descriptor: store.Descriptor{Digest: store.Digest(b), Size: int64(len(b))}}
}
