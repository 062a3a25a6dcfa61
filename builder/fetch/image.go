package fetch

import (
	"context"
	"fmt"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Image is one platform of an image whose content is in the store.
type Image struct {
	Reference  string // as it was asked for
	Repository name.Repository
	Platform   Platform

	// Top is what Reference names: an index, or the manifest itself.
	Top          store.Descriptor
	TopMediaType string
	TopBytes     []byte

	// Manifest is the platform's manifest, named by the bytes of Top.
	Manifest          store.Descriptor
	ManifestMediaType string
	ManifestBytes     []byte

	Config     store.Descriptor
	ConfigFile *v1.ConfigFile // set by FetchBlobs
	Layers     []Layer        // lowest first
}

// Layer is a layer as the manifest lists it.
type Layer struct {
	store.Descriptor
	MediaType string
	DiffID    string // digest of the uncompressed layer; set by FetchBlobs
}

// Image fetches ref (repository@digest or repository:tag@digest, the tag being
// of no effect) for a platform: manifests, config and layers. When all of it is
// in the store no request is made.
func (c *Client) Image(ctx context.Context, ref string, p Platform) (*Image, error) {
	img, err := c.ImageManifest(ctx, ref, p)
	if err != nil {
		return nil, err
	}
	if err := c.FetchBlobs(ctx, img); err != nil {
		return nil, err
	}
	return img, nil
}

// ImageManifest fetches the manifests of an image but none of its blobs, so
// that a signature over Top can be verified before anything else is fetched.
// Errors: *NoPlatform when the index has no entry for p, *NotFound,
// *Unreachable, *store.DigestMismatch.
func (c *Client) ImageManifest(ctx context.Context, ref string, p Platform) (*Image, error) {
	d, err := name.NewDigest(ref)
	if err != nil {
		return nil, fmt.Errorf("reference %q is not pinned as repository@sha256:<64 hex>: %w", ref, err)
	}
	img := &Image{Reference: ref, Repository: d.Repository, Platform: p}
	top, b, err := c.manifest(ctx, img, store.Descriptor{Digest: d.DigestStr(), Size: unknown})
	if err != nil {
		return nil, err
	}
	img.Top = store.Descriptor{Digest: d.DigestStr(), Size: int64(len(b))}
	img.TopMediaType, img.TopBytes = top.MediaType, b
	img.Manifest, img.ManifestBytes = img.Top, b

	doc := top
	if top.isIndex() {
		entry, offered := top.pick(p)
		if entry == nil {
			return nil, &NoPlatform{Reference: ref, Want: p, Offered: offered}
		}
		img.Manifest = entry.store()
		doc, img.ManifestBytes, err = c.manifest(ctx, img, img.Manifest)
		if err != nil {
			return nil, err
		}
		if doc.MediaType != entry.MediaType {
			return nil, fmt.Errorf("%s: manifest %s is of type %q, its index says %q", ref, img.Manifest.Digest, doc.MediaType, entry.MediaType)
		}
	}
	img.ManifestMediaType = doc.MediaType
	img.Config = doc.Config.store()
	for _, l := range doc.Layers {
		img.Layers = append(img.Layers, Layer{Descriptor: l.store(), MediaType: l.MediaType})
	}
	return img, nil
}

// FetchBlobs fetches the config and the layers that the store lacks, several at
// a time, and fills in ConfigFile and each DiffID. A config for another
// platform is *NoPlatform, and then no layer is fetched.
func (c *Client) FetchBlobs(ctx context.Context, img *Image) error {
	b, err := c.content(ctx, img, "blobs", img.Config, maxConfig)
	if err != nil {
		return fmt.Errorf("%s: config: %w", img.Reference, err)
	}
	config, err := parseConfig(b, len(img.Layers))
	if err != nil {
		return fmt.Errorf("%s: %w", img.Reference, err)
	}
	// Builders often leave the variant to the index entry alone.
	has, want := Platform{config.OS, config.Architecture, config.Variant}, img.Platform
	if has.Variant == "" {
		want.Variant = ""
	}
	if !has.Matches(want) {
		return &NoPlatform{Reference: img.Reference, Want: img.Platform, Offered: []string{has.String()}}
	}

	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.NumCPU())
	for _, l := range img.Layers {
		g.Go(func() error {
			_, err := c.ensure(ctx, c.registrySource(img.Repository, "blobs", l.Digest), l.Descriptor, l.Size)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("%s: layers: %w", img.Reference, err)
	}
	img.ConfigFile = config
	for i, h := range config.RootFS.DiffIDs {
		img.Layers[i].DiffID = h.String()
	}
	return nil
}

// manifest returns a manifest or index of the image, parsed and as it is.
func (c *Client) manifest(ctx context.Context, img *Image, want store.Descriptor) (*document, []byte, error) {
	b, err := c.content(ctx, img, "manifests", want, maxManifest)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: manifest: %w", img.Reference, err)
	}
	doc, err := parseDocument(b)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %s: %w", img.Reference, want.Digest, err)
	}
	return doc, b, nil
}

// content returns a manifest or config through the store.
func (c *Client) content(ctx context.Context, img *Image, kind string, want store.Descriptor, limit int64) ([]byte, error) {
	if want.Size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", want.Digest, want.Size, limit)
	}
	if want.Size != unknown {
		limit = want.Size
	}
	if _, err := c.ensure(ctx, c.registrySource(img.Repository, kind, want.Digest), want, limit); err != nil {
		return nil, err
	}
	return c.Store.ReadAll(want.Digest, maxManifest)
}
