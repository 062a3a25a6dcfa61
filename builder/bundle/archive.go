package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

const (
	archiveFormat  = "v2"
	indexType      = "application/vnd.oci.image.index.v1+json"
	containerdName = "io.containerd.image.name" // containerd's importer names the image by it
	layoutVersion  = `{"imageLayoutVersion":"1.0.0"}`
	referenceName  = "org.opencontainers.image.ref.name"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// Archive writes one image as an OCI layout in an uncompressed tar and returns
// its descriptor in the store. The layout names exactly one manifest, the
// platform's, with the bytes that were verified: an index of several platforms
// would promise content that is not there. docker's manifest.json lies beside
// it for tools that know no layout. The bytes depend on the image, its reference
// and its platform alone; an archive that was written before is taken from the store.
func Archive(ctx context.Context, st *store.Store, reference string, img *fetch.Image) (store.Descriptor, error) {
	key := strings.Join([]string{archiveFormat, reference, img.Manifest.Digest, img.Platform.String()}, " ")
	var known store.Descriptor
	if st.Lookup("archives", key, &known) && st.Has(known) {
		return known, nil
	}
	blobs := []store.Descriptor{img.Manifest, img.Config}
	layers := []string{}
	for _, l := range img.Layers {
		blobs = append(blobs, l.Descriptor)
		layers = append(layers, blobPath(l.Digest))
	}
	index, err := json.Marshal(struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}{2, indexType, []descriptor{{
		MediaType: img.ManifestMediaType, Digest: img.Manifest.Digest, Size: img.Manifest.Size,
		Annotations: map[string]string{containerdName: reference, referenceName: reference},
		Platform:    &platform{img.Platform.Architecture, img.Platform.OS, img.Platform.Variant},
	}}})
	if err != nil {
		return store.Descriptor{}, err
	}
	docker, err := json.Marshal([]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{{blobPath(img.Config.Digest), []string{reference}, layers}})
	if err != nil {
		return store.Descriptor{}, err
	}

	w, err := st.Writer()
	if err != nil {
		return store.Descriptor{}, err
	}
	defer w.Abort()
	tw := tar.NewWriter(w)
	entry := func(name string, kind byte, size int64, mode int64) error {
		return tw.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Size: size, Mode: mode, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
	}
	small := func(name string, b []byte) error {
		if err := entry(name, tar.TypeReg, int64(len(b)), 0o644); err != nil {
			return err
		}
		_, err := tw.Write(b)
		return err
	}
	if err := small("oci-layout", []byte(layoutVersion)); err != nil {
		return store.Descriptor{}, err
	}
	if err := small("index.json", index); err != nil {
		return store.Descriptor{}, err
	}
	if err := small("manifest.json", docker); err != nil {
		return store.Descriptor{}, err
	}
	for _, d := range []string{"blobs/", "blobs/sha256/"} {
		if err := entry(d, tar.TypeDir, 0, 0o755); err != nil {
			return store.Descriptor{}, err
		}
	}
	slices.SortFunc(blobs, func(a, b store.Descriptor) int { return strings.Compare(a.Digest, b.Digest) })
	for _, b := range slices.Compact(blobs) {
		if err := ctx.Err(); err != nil {
			return store.Descriptor{}, err
		}
		if err := entry(blobPath(b.Digest), tar.TypeReg, b.Size, 0o644); err != nil {
			return store.Descriptor{}, err
		}
		r, err := st.OpenVerified(b)
		if err != nil {
			return store.Descriptor{}, err
		}
		_, err = io.Copy(tw, r)
		r.Close()
		if err != nil {
			return store.Descriptor{}, fmt.Errorf("archive of %s: %w", reference, err)
		}
	}
	if err := tw.Close(); err != nil {
		return store.Descriptor{}, err
	}
	d, err := w.Commit(store.Descriptor{})
	if err != nil {
		return store.Descriptor{}, err
	}
	return d, st.Record("archives", key, d)
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
