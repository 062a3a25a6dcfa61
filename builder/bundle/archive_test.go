package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

const reference = "registry.k8s.io/coredns/coredns:v1.14.6"

var amd64 = fetch.Platform{OS: "linux", Architecture: "amd64"}

// fetched returns one platform of an image that is offered for two, with its
// content in a store of its own.
func fetched(t *testing.T) (*store.Store, *fetch.Image) {
	t.Helper()
	reg := standin.NewRegistry(t, standin.Options{})
	img := standin.Image(t, "linux/amd64", 3)
	ref := reg.Push(reference, standin.Index(
		standin.Entry(t, img, "linux/amd64"), standin.Entry(t, standin.Image(t, "linux/arm64", 2), "linux/arm64"), standin.Attestation(t, img)))
	st, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, err := (&fetch.Client{Store: st, Routes: reg.Routes("registry.k8s.io")}).Image(t.Context(), ref, amd64)
	if err != nil {
		t.Fatal(err)
	}
	return st, got
}

func archived(t *testing.T, st *store.Store, img *fetch.Image) (store.Descriptor, string) {
	t.Helper()
	d, err := Archive(t.Context(), st, reference, img)
	if err != nil {
		t.Fatal(err)
	}
	file, err := st.Path(d.Digest)
	if err != nil || !st.Has(d) {
		t.Fatalf("archive %v is not in the store: %v", d, err)
	}
	return d, file
}

func TestAnArchiveHoldsOnePlatformUnderTheNameThatKubeadmLooksUp(t *testing.T) {
	st, img := fetched(t)
	_, file := archived(t, st, img)

	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	entries := map[string][]byte{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d %q and is of %v", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		b, err := io.ReadAll(tr)
		if err != nil || h.Mode != 0o644 {
			t.Fatalf("%s has mode %o: %v", h.Name, h.Mode, err)
		}
		entries[h.Name] = b
		if err := store.WriteFile(filepath.Join(dir, h.Name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	want := []string{"oci-layout", "index.json", "manifest.json", blobPath(img.Manifest.Digest), blobPath(img.Config.Digest)}
	for _, l := range img.Layers {
		want = append(want, blobPath(l.Digest))
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(entries)); !slices.Equal(got, want) {
		t.Errorf("archive holds %v, expected %v", got, want)
	}
	if !bytes.Equal(entries[blobPath(img.Manifest.Digest)], img.ManifestBytes) {
		t.Error("the manifest is not the one that was verified")
	}

	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("index.json lists %+v: %v", list, err)
	}
	d := list.Manifests[0]
	if d.Digest.String() != img.Manifest.Digest || d.Platform.String() != "linux/amd64" ||
		!reflect.DeepEqual(d.Annotations, map[string]string{containerdName: reference, referenceName: reference}) {
		t.Errorf("index.json lists %+v", d)
	}
	got, err := index.Image(d.Digest)
	if err == nil {
		err = validate.Image(got)
	}
	if err != nil {
		t.Errorf("the layout: %v", err)
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatalf("manifest.json: %v", err)
	}
	if config, err := loaded.ConfigName(); err != nil || config.String() != img.Config.Digest {
		t.Errorf("manifest.json leads to config %v, expected %s: %v", config, img.Config.Digest, err)
	}
	var docker []struct{ RepoTags []string }
	if err := json.Unmarshal(entries["manifest.json"], &docker); err != nil || len(docker) != 1 || !slices.Equal(docker[0].RepoTags, []string{reference}) {
		t.Errorf("manifest.json names %+v: %v", docker, err)
	}
}

func TestAnArchiveIsTheSameWhoeverWritesIt(t *testing.T) {
	st, img := fetched(t)
	first, _ := archived(t, st, img)

	other, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	blobs := []store.Descriptor{img.Manifest, img.Config}
	for _, l := range img.Layers {
		blobs = append(blobs, l.Descriptor)
	}
	for _, d := range blobs {
		r, err := st.Open(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Put(t.Context(), r, d); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	old := syscall.Umask(0o077)
	second, _ := archived(t, other, img)
	syscall.Umask(old)
	if second != first {
		t.Errorf("another store and umask give %v, expected %v", second, first)
	}
}

func TestAnArchiveIsWrittenOnceForEachNameAndPlatform(t *testing.T) {
	st, img := fetched(t)
	first, _ := archived(t, st, img)
	variant := *img
	variant.Platform.Variant = "v1"
	second, _ := archived(t, st, &variant)
	renamed, err := Archive(t.Context(), st, "registry.k8s.io/coredns:v1", img)
	if err != nil || first == second || first == renamed {
		t.Errorf("archives %v, of a variant %v, under another name %v: %v", first, second, renamed, err)
	}
	layer, err := st.Path(img.Layers[0].Digest)
	if err == nil {
		err = os.Remove(layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := archived(t, st, img); again != first {
		t.Errorf("what was written before is now %v, expected %v", again, first)
	}
}

func TestNoArchiveOfADamagedImage(t *testing.T) {
	st, img := fetched(t)
	layer, err := st.Path(img.Layers[1].Digest)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(layer, b, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Archive(t.Context(), st, reference, img)
	if _, ok := errors.AsType[*store.DigestMismatch](err); !ok || !strings.Contains(err.Error(), reference) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(st.Dir(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
