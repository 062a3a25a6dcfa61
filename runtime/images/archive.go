package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
)

// Names and values of an OCI layout (image-spec, image-layout.md) and of the
// annotation that containerd's importer takes an image's name from.
const (
	layoutName     = "oci-layout"
	layoutText     = `{"imageLayoutVersion":"1.0.0"}`
	indexName      = "index.json"
	dockerName     = "manifest.json"
	blobDir        = "blobs/sha256/"
	containerdName = "io.containerd.image.name"
	referenceName  = "org.opencontainers.image.ref.name"
	indexType      = "application/vnd.oci.image.index.v1+json"
	manifestLimit  = 4 << 20 // bytes; what registries accept at most
	documentLimit  = 64 << 10
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Variant      string `json:"variant"`
	} `json:"platform"`
}

// blob is a file under blobs/sha256/ of an archive.
type blob struct {
	size  int64
	whole bool // the content's digest is the file's name
}

// archive is what one pass over an archive leaves behind.
type archive struct {
	documents map[string][]byte // oci-layout, index.json, manifest.json and the locked manifest
	blobs     map[string]blob   // by digest
	sha256    string            // of the whole file
}

// verify reads an archive once and returns nil if it is img and nothing else:
// an OCI layout in a plain tar whose index names the locked manifest alone, by
// exactly the locked reference, with each blob of that manifest and no other
// file, and whose bytes as a whole are the locked ones. Everything else is a
// refusal with reason tar-structure, manifest or config-digest.
func (img Image) verify(r io.Reader) error {
	a, err := read(r, blobPath(img.Digest))
	if err != nil {
		return err
	}
	if err := a.check(img); err != nil {
		return err
	}
	if a.sha256 != img.SHA256 {
		return refuse(badTar, "its sha256 is %s: expected %s; the image in it is right, the bytes around it are not", a.sha256, img.SHA256)
	}
	return nil
}

// read takes a tar apart. It keeps the documents and the blob named manifest in
// memory and hashes everything.
func read(r io.Reader, manifest string) (archive, error) {
	a := archive{documents: map[string][]byte{}, blobs: map[string]blob{}}
	whole := sha256.New()
	in := io.TeeReader(r, whole)
	buf := make([]byte, 256<<10)
	seen := map[string]bool{}
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return a, refuse(badTar, "no tar: %w", err)
		}
		name := h.Name
		if seen[name] || h.Format != tar.FormatUSTAR {
			return a, refuse(badTar, "%.100q is there twice or is no plain ustar entry", name)
		}
		seen[name] = true
		digest, isBlob := strings.CutPrefix(name, blobDir)
		switch {
		case h.Typeflag == tar.TypeDir && (name == "blobs/" || name == blobDir):
			continue
		case h.Typeflag != tar.TypeReg:
			return a, refuse(badTar, "%.100q is of type %q: expected plain files", name, h.Typeflag)
		case isBlob && !hexForm.MatchString(digest), !isBlob && name != layoutName && name != indexName && name != dockerName:
			return a, refuse(badTar, "holds %.100q, which belongs to no image", name)
		case name == manifest && h.Size > manifestLimit, !isBlob && h.Size > documentLimit:
			return a, refuse(badTar, "%s has %d bytes: too large", name, h.Size)
		}
		sum := sha256.New()
		if !isBlob || name == manifest {
			var keep bytes.Buffer
			_, err = io.CopyBuffer(io.MultiWriter(sum, &keep), tr, buf)
			a.documents[name] = keep.Bytes()
		} else {
			_, err = io.CopyBuffer(sum, tr, buf)
		}
		if err != nil {
			return a, refuse(badTar, "%s: %w", name, err)
		}
		if isBlob {
			a.blobs["sha256:"+digest] = blob{h.Size, hex.EncodeToString(sum.Sum(nil)) == digest}
		}
	}
	// A tar ends with zeroes; anything else behind its end could be read by another reader.
	for {
		n, err := in.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return a, refuse(badTar, "something follows the end of the tar")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return a, refuse(badTar, "behind its end: %w", err)
		}
	}
	a.sha256 = hex.EncodeToString(whole.Sum(nil))
	return a, nil
}

// check compares what the archive holds with the list.
func (a archive) check(img Image) error {
	for _, name := range []string{layoutName, indexName, dockerName} {
		if _, ok := a.documents[name]; !ok {
			return refuse(badTar, "no %s in it", name)
		}
	}
	if got := a.documents[layoutName]; string(got) != layoutText {
		return refuse(badTar, "%s is %.60q: expected %s", layoutName, got, layoutText)
	}

	var index struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
	if err := decode(a.documents[indexName], &index); err != nil {
		return refuse(badManifest, "%s: %w", indexName, err)
	}
	if index.SchemaVersion != 2 || index.MediaType != indexType || len(index.Manifests) != 1 {
		return refuse(badManifest, "%s is a %.80q of schema %d with %d manifests: expected %s of schema 2 with one", indexName, index.MediaType, index.SchemaVersion, len(index.Manifests), indexType)
	}
	top := index.Manifests[0]
	if want := map[string]string{containerdName: img.Reference, referenceName: img.Reference}; !maps.Equal(top.Annotations, want) {
		return refuse(badManifest, "%s names the image by %.300q: expected %q", indexName, top.Annotations, want)
	}
	if top.Digest != img.Digest {
		return refuse(badManifest, "%s names manifest %.80q: expected %s", indexName, top.Digest, img.Digest)
	}
	if err := a.has(top); err != nil {
		return refuse(badManifest, "manifest: %w", err)
	}

	var m struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(a.documents[blobPath(img.Digest)], &m); err != nil {
		return refuse(badManifest, "manifest %s: %w", img.Digest, err)
	}
	if m.SchemaVersion != 2 || len(m.Layers) == 0 {
		return refuse(badManifest, "manifest %s has schema %d and %d layers: expected an image manifest", img.Digest, m.SchemaVersion, len(m.Layers))
	}
	if err := a.has(m.Config); err != nil {
		return refuse(badConfig, "config: %w", err)
	}
	listed := map[string]bool{top.Digest: true, m.Config.Digest: true}
	var layers []string
	for _, l := range m.Layers {
		if err := a.has(l); err != nil {
			return refuse(badManifest, "layer: %w", err)
		}
		listed[l.Digest] = true
		layers = append(layers, blobPath(l.Digest))
	}
	for digest := range a.blobs {
		if !listed[digest] {
			return refuse(badTar, "holds %s, which the manifest doesn't list", digest)
		}
	}

	type dockerImage struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var docker []dockerImage
	if err := decode(a.documents[dockerName], &docker); err != nil {
		return refuse(badManifest, "%s: %w", dockerName, err)
	}
	if want := []dockerImage{{blobPath(m.Config.Digest), []string{img.Reference}, layers}}; !reflect.DeepEqual(docker, want) {
		return refuse(badManifest, "%s lists other images than %s alone", dockerName, img.Reference)
	}
	return nil
}

// has returns what is wrong with the blob that d names.
func (a archive) has(d descriptor) error {
	switch b, ok := a.blobs[d.Digest]; {
	case !ok:
		return fmt.Errorf("%.80q is not in the archive", d.Digest)
	case b.size != d.Size:
		return fmt.Errorf("%s has %d bytes: expected %d", d.Digest, b.size, d.Size)
	case !b.whole:
		return fmt.Errorf("%s: its content has another digest", d.Digest)
	}
	return nil
}

func blobPath(digest string) string { return blobDir + strings.TrimPrefix(digest, "sha256:") }

// decode reads one JSON document without unknown keys into v.
func decode(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows its one document")
	}
	return nil
}
