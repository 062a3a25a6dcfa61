package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func describe(mediaType string, b []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum(b), Size: int64(len(b))}
}

// entry is one header of a tar with its content.
type entry struct {
	tar.Header
	body []byte
}

func file(name string, body []byte) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatUSTAR}, body}
}

func folder(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatUSTAR}, nil}
}

// packed is an image as the build writes it, open to damage before it is written.
type packed struct {
	reference               string
	config, manifest, layer []byte
	entries                 []entry
}

// pack makes an image with one layer, which holds one file with this content.
func pack(reference string, content []byte) packed {
	var plain, layer bytes.Buffer
	tw := tar.NewWriter(&plain)
	write(tw, file("program", content))
	must(tw.Close())
	zw := gzip.NewWriter(&layer)
	_, err := zw.Write(plain.Bytes())
	must(err, zw.Close())

	p := packed{reference: reference, layer: layer.Bytes()}
	p.config = marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/program"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(plain.Bytes())}},
	})
	p.manifest = marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": describe("application/vnd.oci.image.config.v1+json", p.config),
		"layers": []descriptor{describe("application/vnd.oci.image.layer.v1.tar+gzip", p.layer)},
	})
	p.entries = []entry{file(layoutName, []byte(layoutText)), file(indexName, p.index(nil)), file(dockerName, p.docker()), folder("blobs/"), folder(blobDir)}
	for _, b := range [][]byte{p.config, p.manifest, p.layer} {
		p.entries = append(p.entries, file(blobDir+sum(b), b))
	}
	return p
}

// index is the archive's index.json after its one descriptor was changed.
func (p packed) index(change func(*descriptor)) []byte {
	d := describe("application/vnd.oci.image.manifest.v1+json", p.manifest)
	d.Annotations = map[string]string{containerdName: p.reference, referenceName: p.reference}
	if change != nil {
		change(&d)
	}
	return marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{d}})
}

func (p packed) docker() []byte {
	return marshal([]map[string]any{{"Config": blobDir + sum(p.config), "RepoTags": []string{p.reference}, "Layers": []string{blobDir + sum(p.layer)}}})
}

// at returns the entry of that name.
func (p packed) at(name string) *entry {
	i := slices.IndexFunc(p.entries, func(e entry) bool { return e.Name == name })
	return &p.entries[i]
}

func (p packed) bytes() []byte {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range p.entries {
		write(tw, e)
	}
	must(tw.Close())
	return b.Bytes()
}

func write(tw *tar.Writer, e entry) {
	e.Size = int64(len(e.body))
	must(tw.WriteHeader(&e.Header))
	_, err := tw.Write(e.body)
	must(err)
}

func must(errs ...error) {
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}

// listed returns the list's entry for archive bytes.
func (p packed) listed(archive []byte) Image {
	name := p.reference[strings.LastIndexByte(p.reference, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	return Image{p.reference, "sha256:" + sum(p.manifest), name + ".tar", int64(len(archive)), sum(archive)}
}

// node is a root file system with a bundle, and a ctr that plays containerd.
type node struct {
	t        testing.TB
	dir      string
	list     []Image
	programs string // the folder with ctr
	fake     fakeState
	bound    time.Duration
}

var references = []string{"registry.k8s.io/kube-apiserver:v1.37.2", "registry.k8s.io/coredns/coredns:v1.14.6", "registry.k8s.io/pause:3.10.2"}

func newNode(t testing.TB) *node {
	n := &node{t: t, dir: t.TempDir(), programs: t.TempDir(), bound: time.Minute}
	must(os.Chmod(n.dir, 0o755))
	for _, d := range []string{filepath.Dir(overlay.Provider), overlay.BundleDir} {
		for at := d; at != "."; at = filepath.Dir(at) {
			must(os.MkdirAll(n.path(at), 0o755))
			must(os.Chmod(n.path(at), 0o755))
		}
	}
	n.write(overlay.Provider, []byte("the provider"), 0o755)
	for _, ref := range references {
		p := pack(ref, []byte("the program of "+ref))
		n.list = append(n.list, p.listed(p.bytes()))
		n.archive(n.list[len(n.list)-1].Archive, p.bytes())
	}
	n.lock(lockText(n.list))

	self, err := os.Executable()
	must(err)
	must(os.Symlink(self, filepath.Join(n.programs, "ctr")))
	n.fake = fakeState{Images: map[string]*fakeImage{}}
	n.save()
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name string, b []byte, mode os.FileMode) {
	n.t.Helper()
	_ = os.Remove(n.path(name))
	must(os.WriteFile(n.path(name), b, mode), os.Chmod(n.path(name), mode))
}

func (n *node) archive(name string, b []byte) { n.write(overlay.BundleDir+"/"+name, b, 0o644) }
func (n *node) lock(text string)              { n.archive(LockName, []byte(text)) }

func lockText(list []Image) string {
	text := "apiVersion: provider-kubernetes.kairos.io/v1\nkind: ImagesLock\nkubernetesVersion: v1.37.2\nplatform: linux/amd64\nimages:\n"
	for _, img := range list {
		text += fmt.Sprintf(`  - reference: %s
    digest: %s
    archive: %s
    size: %d
    sha256: %s
    verified: true
    verification:
      by: signature
      identity: krel-trust@k8s-releng-prod.iam.gserviceaccount.com
      issuer: https://accounts.google.com
`, img.Reference, img.Digest, img.Archive, img.Size, img.SHA256)
	}
	return text
}

// replace puts an archive in the place of the pause image's and lists it with
// its new size and sha256, so that nothing but its content is wrong.
func (n *node) replace(p packed) {
	b := p.bytes()
	i := slices.IndexFunc(n.list, func(img Image) bool { return img.Reference == p.reference })
	n.list[i].Size, n.list[i].SHA256 = int64(len(b)), sum(b)
	n.archive(n.list[i].Archive, b)
	n.lock(lockText(n.list))
}

// importer returns an Importer for the node and what it will have logged.
func (n *node) importer() (Importer, *bytes.Buffer, *bytes.Buffer) {
	n.t.Helper()
	root, err := host.OpenRoot(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = root.Close() })
	log, why := &bytes.Buffer{}, &bytes.Buffer{}
	return Importer{
		Root: root, Runner: host.Runner{Dir: n.programs}, Log: log, Why: why,
		Bound: n.bound, Pause: time.Millisecond, owner: uint32(os.Getuid()),
	}, log, why
}

func (n *node) doImport() (Summary, string, string) {
	n.t.Helper()
	i, log, why := n.importer()
	s := i.Import(context.Background())
	return s, log.String(), why.String()
}

func (n *node) doVerify() (Summary, string, string) {
	n.t.Helper()
	i, log, why := n.importer()
	s := i.Verify(context.Background())
	return s, log.String(), why.String()
}

// all returns what containerd holds after a good import.
func (n *node) all() map[string]*fakeImage {
	m := map[string]*fakeImage{}
	for _, img := range n.list {
		m[img.Reference] = &fakeImage{img.Digest, map[string]string{pinLabel: pinValue}}
	}
	return m
}

func (n *node) save() {
	must(os.WriteFile(filepath.Join(n.programs, stateName), marshal(n.fake), 0o600))
}

// load reads what ctr made of containerd.
func (n *node) load() fakeState {
	b, err := os.ReadFile(filepath.Join(n.programs, stateName))
	must(err)
	var s fakeState
	must(json.Unmarshal(b, &s))
	return s
}

func sameImages(a, b map[string]*fakeImage) bool {
	return maps.EqualFunc(a, b, func(x, y *fakeImage) bool {
		return x.Digest == y.Digest && maps.Equal(x.Labels, y.Labels)
	})
}
