package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/inspect"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// locate returns an image's place (layout folder or repository) and its digest.
func (a *app) locate(ctx context.Context, image string) (place, digest string, err error) {
	place, digest = split(image)
	if isFolder(place) {
		if digest != "" {
			return place, digest, nil
		}
		src, err := publish.OpenLayout(place)
		if err != nil {
			return "", "", usage("%w", err)
		}
		defer src.Close()
		d, err := onlyIndex(src.Index())
		return place, d.Digest, err
	}
	ref, err := name.ParseReference(image, name.StrictValidation)
	if err != nil {
		return "", "", usage("%s is neither a layout nor a reference with registry and tag or digest: %w", image, err)
	}
	if digest == "" {
		st, err := a.store()
		if err != nil {
			return "", "", err
		}
		r, err := (&fetch.Client{Store: st}).Resolve(ctx, image)
		if err != nil {
			return "", "", err
		}
		digest = r.Digest
	}
	return ref.Context().Name(), digest, nil
}

// store opens the store of everything that was fetched or made.
func (a *app) store() (*store.Store, error) { return store.Open(filepath.Join(a.cache, "store")) }

// entry is a descriptor in an index, as far as it is needed here.
type entry struct {
	MediaType string `json:"mediaType"`
	store.Descriptor
	Platform    *v1.Platform      `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

func (e entry) isIndex() bool {
	return strings.HasSuffix(e.MediaType, "image.index.v1+json") || strings.HasSuffix(e.MediaType, "manifest.list.v2+json")
}

// onlyIndex returns the one image that a layout's index.json names; several
// names of the same one count once, and signatures beside it don't count.
func onlyIndex(b []byte) (entry, error) {
	var doc struct{ Manifests []entry }
	if err := json.Unmarshal(b, &doc); err != nil {
		return entry{}, fmt.Errorf("index.json: %w", err)
	}
	var found []entry
	var names []string
	for _, e := range doc.Manifests {
		if strings.HasPrefix(e.Annotations["org.opencontainers.image.ref.name"], "sha256-") || e.Annotations["kind"] == "dev.cosignproject.cosign/sigs" || strings.Contains(e.Annotations["kind"], "atts") {
			continue
		}
		if slices.ContainsFunc(found, func(o entry) bool { return o.Digest == e.Digest }) {
			continue
		}
		found = append(found, e)
		names = append(names, e.Digest)
	}
	// An artifact that refers to the image is listed without a name.
	if named := slices.DeleteFunc(slices.Clone(found), func(e entry) bool { return e.Annotations["org.opencontainers.image.ref.name"] == "" }); len(named) == 1 {
		return named[0], nil
	}
	if len(found) != 1 {
		return entry{}, usage("the layout holds %d images (%s): name one as PATH@DIGEST", len(found), strings.Join(names, ", "))
	}
	return found[0], nil
}

// openImage returns one platform of an image for inspection: a layout folder, a
// layout in a tar archive, or a registry reference. Close it.
func (a *app) openImage(ctx context.Context, image string, p fetch.Platform) (img inspect.Image, closer io.Closer, err error) {
	place, digest := split(image)
	if _, err := os.Stat(place); err == nil {
		src, err := publish.OpenLayout(place)
		if err != nil {
			return img, nil, usage("%w", err)
		}
		img, err = fromLayout(ctx, src, digest, p)
		if err != nil {
			return img, nil, errors.Join(err, src.Close())
		}
		img.Name = image
		return img, src, nil
	}
	place, digest, err = a.locate(ctx, image)
	if err != nil {
		return img, nil, err
	}
	st, err := a.store()
	if err != nil {
		return img, nil, err
	}
	got, err := (&fetch.Client{Store: st}).Image(ctx, place+"@"+digest, p)
	if err != nil {
		return img, nil, err
	}
	var layers []layerfs.Layer
	for _, l := range got.Layers {
		layers = append(layers, layerfs.Layer{Descriptor: l.Descriptor, DiffID: l.DiffID, Open: func() (io.ReadCloser, error) { return st.Open(l.Digest) }})
	}
	fsys, err := layerfs.New(ctx, layers)
	return inspect.Image{Name: image, Digest: got.Manifest.Digest, FS: fsys, Config: got.ConfigFile}, io.NopCloser(nil), err
}

func fromLayout(ctx context.Context, src *publish.LayoutSource, digest string, p fetch.Platform) (inspect.Image, error) {
	var img inspect.Image
	top, err := onlyIndex(src.Index())
	if digest != "" {
		var doc struct{ Manifests []entry }
		if err = json.Unmarshal(src.Index(), &doc); err == nil {
			err = usage("the layout does not list %s", digest)
			for _, e := range doc.Manifests {
				if e.Digest == digest {
					top, err = e, nil
				}
			}
		}
	}
	if err != nil {
		return img, err
	}
	read := func(d store.Descriptor, v any) ([]byte, error) {
		if d.Size > 8<<20 {
			return nil, fmt.Errorf("%s has %d bytes, expected a document of at most 8 MiB", d.Digest, d.Size)
		}
		r, err := src.Blob(d)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		return b, json.Unmarshal(b, v)
	}
	if top.isIndex() {
		var doc struct{ Manifests []entry }
		if _, err := read(top.Descriptor, &doc); err != nil {
			return img, err
		}
		var offered []string
		found := false
		for _, e := range doc.Manifests {
			if e.Platform == nil {
				continue
			}
			q := fetch.Platform{OS: e.Platform.OS, Architecture: e.Platform.Architecture, Variant: e.Platform.Variant}
			offered = append(offered, q.String())
			if !found && q.Matches(p) {
				top, found = e, true
			}
		}
		if !found {
			return img, &fetch.NoPlatform{Reference: top.Digest, Want: p, Offered: offered}
		}
	}
	var manifest struct {
		Config entry
		Layers []entry
	}
	if _, err := read(top.Descriptor, &manifest); err != nil {
		return img, err
	}
	var raw json.RawMessage
	config, err := read(manifest.Config.Descriptor, &raw)
	if err != nil {
		return img, err
	}
	if img.Config, err = v1.ParseConfigFile(bytes.NewReader(config)); err != nil {
		return img, err
	}
	if len(img.Config.RootFS.DiffIDs) != len(manifest.Layers) {
		return img, fmt.Errorf("manifest %s lists %d layers, its config %d", top.Digest, len(manifest.Layers), len(img.Config.RootFS.DiffIDs))
	}
	var layers []layerfs.Layer
	for i, l := range manifest.Layers {
		layers = append(layers, layerfs.Layer{Descriptor: l.Descriptor, DiffID: img.Config.RootFS.DiffIDs[i].String(), Open: func() (io.ReadCloser, error) { return src.Blob(l.Descriptor) }})
	}
	img.Digest = top.Digest
	img.FS, err = layerfs.New(ctx, layers)
	return img, err
}
