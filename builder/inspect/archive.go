package inspect

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
)

type problem struct{ found, want string }

// maxJSON bounds a document in an archive: containerd's own limit for a
// manifest is 8 MiB.
const maxJSON = 8 << 20

// readArchive compares one image archive with its line of the lock: an OCI
// layout in a plain tar, with the manifest.json of docker-archive beside it.
// It reads r to its end and keeps documents only, not layers.
func readArchive(r io.Reader, want bundle.Entry, platform v1.Platform) (problems []problem) {
	find := func(found, want string, a ...any) {
		problems = append(problems, problem{found, fmt.Sprintf(want, a...)})
	}
	sum := sha256.New()
	in := io.TeeReader(r, sum)
	defer func() {
		_, _ = io.Copy(io.Discard, in)
		if got := hex.EncodeToString(sum.Sum(nil)); got != want.SHA256 {
			find("sha256 "+got, "sha256 %s", want.SHA256)
		}
	}()

	documents := map[string][]byte{}
	blobs := map[string]int64{} // size by digest
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			find("a broken tar: "+err.Error(), "an OCI layout")
			return problems
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		name := strings.TrimPrefix(h.Name, "./")
		digest, isBlob := strings.CutPrefix(name, "blobs/sha256/")
		if h.Typeflag != tar.TypeReg || !isBlob && name != "oci-layout" && name != "index.json" && name != "manifest.json" {
			find(fmt.Sprintf("entry %q of type %q", h.Name, h.Typeflag), "an OCI layout and manifest.json only")
			continue
		}
		if _, dup := documents[name]; dup {
			find(fmt.Sprintf("entry %q twice", name), "one of each")
		}
		var content bytes.Buffer
		hash := sha256.New()
		dst := io.Writer(hash)
		if h.Size <= maxJSON {
			dst = io.MultiWriter(hash, &content)
		}
		if _, err := io.Copy(dst, tr); err != nil {
			find("a broken tar: "+err.Error(), "an OCI layout")
			return problems
		}
		documents[name] = content.Bytes()
		if isBlob {
			if got := hex.EncodeToString(hash.Sum(nil)); got != digest {
				find(fmt.Sprintf("blob %.80s has digest sha256:%s", digest, got), "content that its name says")
				continue
			}
			blobs["sha256:"+digest] = h.Size
		}
	}

	index, err := v1.ParseIndexManifest(bytes.NewReader(documents["index.json"]))
	if err != nil || len(index.Manifests) != 1 {
		find("an index.json that does not list one manifest", "manifest %s", want.Digest)
		return problems
	}
	desc := index.Manifests[0]
	if desc.Digest.String() != want.Digest {
		find("manifest "+desc.Digest.String(), "manifest %s", want.Digest)
	}
	for _, name := range []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"} {
		if got := desc.Annotations[name]; got != want.Reference {
			find(fmt.Sprintf("annotation %s is %q", name, got), "%s", want.Reference)
		}
	}
	var docker []struct{ RepoTags []string }
	if err := json.Unmarshal(documents["manifest.json"], &docker); err != nil || len(docker) != 1 || len(docker[0].RepoTags) != 1 || docker[0].RepoTags[0] != want.Reference {
		find(fmt.Sprintf("manifest.json names %v", docker), "one image named %s", want.Reference)
	}

	if !desc.MediaType.IsImage() {
		find("a manifest of type "+string(desc.MediaType), "an image manifest")
		return problems
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(documents["blobs/sha256/"+desc.Digest.Hex]))
	if err != nil {
		find("no readable manifest "+desc.Digest.String(), "the image's manifest")
		return problems
	}
	for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
		if size, ok := blobs[d.Digest.String()]; !ok || size != d.Size {
			find(fmt.Sprintf("blob %s: %d bytes", d.Digest, size), "%d bytes", d.Size)
		}
	}
	// containerd leaves out an image whose configuration names no platform.
	config, err := v1.ParseConfigFile(bytes.NewReader(documents["blobs/sha256/"+manifest.Config.Digest.Hex]))
	if err != nil || config.OS != platform.OS || config.Architecture != platform.Architecture {
		var got v1.ConfigFile
		if err == nil {
			got = *config
		}
		find(fmt.Sprintf("an image for %q/%q", got.OS, got.Architecture), "%s", platform)
	}
	return problems
}
