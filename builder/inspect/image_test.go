package inspect

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// node is one entry of an image that a test makes.
type node struct {
	mode     fs.FileMode
	content  string
	target   string
	uid, gid int
}

// image is a small node image that keeps every promise, for a test to break,
// and what its programs answer.
type image struct {
	want    Expect
	tree    map[string]node
	lock    bundle.Lock
	config  v1.ConfigFile
	answers map[string]string // output by program's name, "kubeadm config" for its list
	calls   int               // of the image's programs
}

func goodImage(t *testing.T) *image {
	t.Helper()
	row := matrix.Row{
		Minor: matrix.Minor{Major: 1, Minor: 37}, Kubernetes: matrix.Version{Major: 1, Minor: 37, Patch: 2},
		Etcd: "3.7.0-0", CoreDNS: "v1.14.6", Pause: "3.10.2",
	}
	files, err := overlay.Files(overlay.Params{Pause: "registry.k8s.io/pause:3.10.2"})
	if err != nil {
		t.Fatal(err)
	}
	i := &image{
		want: Expect{
			Row:      row,
			Stack:    matrix.Stack{Containerd: "2.3.7", Runc: "1.5.2", CNIPlugins: "1.9.1", Crictl: "1.37.0"},
			Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Overlay:  files,
			Labels:   map[string]string{"org.opencontainers.image.version": "", "example.com/minor": "1.37"},
		},
		tree: map[string]node{},
		config: v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Labels: map[string]string{
			"org.opencontainers.image.version": "v1-k8s1.37", "example.com/minor": "1.37",
		}}},
		answers: map[string]string{
			"containerd": "containerd github.com/containerd/containerd/v2 v2.3.7 unknown\n", "ctr": "ctr github.com/containerd/containerd/v2 v2.3.7\n",
			"containerd-shim-runc-v2": "containerd-shim-runc-v2:\n  Version:  v2.3.7\n", "crictl": "crictl version v1.37.0\n",
			"etcdctl": "etcdctl version: 3.7.0\nAPI version: 3.7\n", "etcdutl": "etcdutl version: 3.7.0\nAPI version: 3.7\n",
			"kubeadm": "v1.37.2\n", "kubectl": "Client Version: v1.37.2\nKustomize Version: v5.8.1\n", "kubelet": "Kubernetes v1.37.2\n",
			"runc": "runc version 1.5.2\nspec: 1.3.0\n",
		},
	}
	for _, f := range files {
		i.tree[f.Path] = node{mode: f.Mode, content: string(f.Content), target: f.Target}
		if f.Path == overlay.ContainerdConfig {
			i.answers["containerd config"] = string(f.Content)
		}
	}
	for _, p := range append(programs, promised{path: overlay.Provider}) {
		i.tree[p.path] = node{mode: 0o755, content: elfFile(runtime.GOARCH, false)}
	}
	i.tree[overlay.CNIDir+"/loopback"] = node{mode: 0o755, content: elfFile(runtime.GOARCH, false, "github.com/containernetworking/plugins v1.9.1")}
	for _, h := range slices.Concat(mandatory, optional) {
		i.tree["usr/bin/"+h.name] = node{mode: 0o755}
	}
	i.tree["usr/bin/mount"] = node{mode: fs.ModeSymlink, target: "/bin/busybox"} // resolved in the image
	i.tree["usr/bin/busybox"] = node{mode: 0o755}
	i.tree["bin"] = node{mode: fs.ModeSymlink, target: "usr/bin"}
	i.tree["usr/bin/su"] = node{mode: 0o755 | fs.ModeSetuid}
	i.tree["tmp"] = node{mode: fs.ModeDir | fs.ModeSticky | 0o777}
	i.tree["var/mail"] = node{mode: fs.ModeDir | 0o775, gid: 8}
	i.tree["etc/systemd/system.conf"] = node{mode: 0o644}
	i.tree["usr/lib/os-release"] = node{mode: 0o644, content: "ID=test\nBUNDLED_KUBERNETES_VERSION=v1.37.2\n"}
	i.tree["etc/os-release"] = node{mode: fs.ModeSymlink, target: "/usr/lib/os-release"}
	i.tree["etc/kairos-release"] = node{mode: 0o644, content: "KAIROS_VERSION=\"v1.0.0+1\"\n"}
	for name, requires := range map[string]string{
		"sysinit": "", "shutdown": "", "network": "", "network-online": "", "basic": "Requires=sysinit.target\nAfter=sysinit.target\n",
		"multi-user": "Requires=basic.target\nAfter=basic.target\n",
	} {
		i.tree[overlay.UnitDir+"/"+name+".target"] = node{mode: 0o644, content: "[Unit]\nDescription=" + name + "\n" + requires}
	}

	i.lock = bundle.Lock{KubernetesVersion: "v1.37.2", Platform: "linux/" + runtime.GOARCH}
	for _, img := range row.Images() {
		i.answers["kubeadm config"] += img.Reference + "\n"
		i.bundle(img.Name, img.Reference, ociArchive(t, img.Reference, runtime.GOARCH))
	}
	return i
}

// bundle puts an archive into the image and a line that fits into the lock.
func (i *image) bundle(name, reference string, a archive) {
	sum := sha256.Sum256(a.tar)
	l := bundle.Entry{
		Reference: reference, Digest: a.digest, Archive: name + ".tar", Size: int64(len(a.tar)), SHA256: hex.EncodeToString(sum[:]), Verified: true,
		Verification: lock.Verification{By: lock.BySignature},
	}
	i.tree[overlay.BundleDir+"/"+l.Archive] = node{mode: 0o644, content: string(a.tar)}
	i.lock.Images = slices.DeleteFunc(i.lock.Images, func(o bundle.Entry) bool { return o.Reference == reference })
	i.lock.Images = append(i.lock.Images, l)
}

// edit changes one entry, which must be there.
func (i *image) edit(t *testing.T, name string, change func(*node)) {
	t.Helper()
	n, ok := i.tree[name]
	if !ok {
		t.Fatalf("%s is not in the image", name)
	}
	change(&n)
	i.tree[name] = n
}

func (i *image) replace(t *testing.T, name, old, new string) {
	t.Helper()
	i.edit(t, name, func(n *node) {
		if !strings.Contains(n.content, old) {
			t.Fatalf("%s does not contain %q", name, old)
		}
		n.content = strings.ReplaceAll(n.content, old, new)
	})
}

// inspect runs all rules on the image. Its programs answer from a table; the
// programs of this machine are really run.
func (i *image) inspect(t *testing.T) Report {
	t.Helper()
	r, err := Run(t.Context(), i.image(t), i.want, Tools{Output: i.answer, TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (i *image) image(t *testing.T) Image {
	t.Helper()
	return Image{Name: "oci:test", Digest: "sha256:0", FS: i.layers(t), Config: &i.config}
}

func (i *image) answer(ctx context.Context, c run.Cmd) ([]byte, error) {
	if !strings.HasPrefix(c.Path, c.Dir+"/") {
		return c.Output(ctx)
	}
	i.calls++
	key := filepath.Base(c.Path)
	if slices.Contains(c.Args, "config") {
		key += " config"
	}
	out, ok := i.answers[key]
	if !ok {
		return nil, &run.Error{Path: c.Path, Args: c.Args, Exit: 1, Stderr: "no answer", Err: fmt.Errorf("exit status 1")}
	}
	return []byte(out), nil
}

// layers writes the tree into one layer, as root and with all parent folders.
func (i *image) layers(t *testing.T) *layerfs.FS {
	t.Helper()
	tree := maps.Clone(i.tree)
	if _, ok := tree[lockPath]; !ok {
		tree[lockPath] = node{mode: 0o644, content: string(i.lock.Marshal())}
	}
	for name := range i.tree {
		for _, dir := range parents(name) {
			if _, ok := tree[dir]; !ok {
				tree[dir] = node{mode: fs.ModeDir | 0o755}
			}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		n := tree[name]
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(n.content)), Uid: n.uid, Gid: n.gid}
		switch {
		case n.mode.IsDir():
			h.Typeflag = tar.TypeDir
		case n.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
		}
		h.Mode = int64(n.mode.Perm())
		for bit, o := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSticky: 0o1000} {
			if n.mode&bit != 0 {
				h.Mode |= o
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, n.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d := store.Descriptor{Digest: store.Digest(b.Bytes()), Size: int64(b.Len())}
	f, err := layerfs.New(t.Context(), []layerfs.Layer{{Descriptor: d, DiffID: d.Digest, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// elfFile is a small file that is an executable for the architecture, and
// records which Go module versions it was built from ("path version" each).
func elfFile(arch string, dynamic bool, modules ...string) string {
	info := "0123456789abcdef" + "path\texample.com/tool\n"
	for _, m := range modules {
		info += "dep\t" + strings.ReplaceAll(m, " ", "\t") + "\th1:x\n"
	}
	data := []byte("\xff Go buildinf:\x08\x02")
	data = append(data, make([]byte, 32-len(data))...)
	for _, v := range []string{"go1.26.0", info + "0123456789abcdef"} {
		data = append(binary.AppendUvarint(data, uint64(len(v))), v...)
	}

	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	size := uint64(len(data))
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put(uint16(elf.ET_EXEC))
	put(uint16(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "s390x": elf.EM_S390}[arch]))
	put(uint32(1))
	put([3]uint64{0x4000b0, 64, 0}) // entry, program headers, section headers
	put(uint32(0))
	put([6]uint16{64, 56, 2, 64, 0, 0})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: 176, Vaddr: 0x4000b0, Filesz: size, Memsz: size})
	second := elf.Prog64{Type: uint32(elf.PT_NOTE)}
	if dynamic {
		second.Type = uint32(elf.PT_INTERP)
	}
	put(second)
	b.Write(data)
	return b.String()
}

type archive struct {
	tar    []byte
	digest string // of the manifest
}

// entries is the content of an archive by name, in the order of the tar.
type entries [][2]string

// with replaces the content of one entry.
func (e entries) with(name, content string) entries {
	for i := range e {
		if e[i][0] == name {
			e[i][1] = content
		}
	}
	return e
}

func (e entries) archive(t testing.TB, digest string) archive {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range e {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive{b.Bytes(), digest}
}

func ociArchive(t testing.TB, reference, arch string) archive {
	t.Helper()
	e, digest := ociEntries(t, reference, arch)
	return e.archive(t, digest)
}

// ociEntries is a whole image archive, with the digest of its manifest.
func ociEntries(t testing.TB, reference, arch string) (e entries, digest string) {
	t.Helper()
	add := func(name string, doc any) v1.Descriptor {
		b, ok := doc.([]byte)
		if !ok {
			var err error
			if b, err = json.Marshal(doc); err != nil {
				t.Fatal(err)
			}
		}
		hash, size, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		e = append(e, [2]string{cmp.Or(name, "blobs/sha256/"+hash.Hex), string(b)})
		return v1.Descriptor{Digest: hash, Size: size}
	}
	add("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
	layer := add("", []byte("layer of "+reference))
	layer.MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
	config := add("", map[string]any{"os": "linux", "architecture": arch, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{}}})
	config.MediaType = "application/vnd.oci.image.config.v1+json"
	manifest := add("", v1.Manifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json", Config: config, Layers: []v1.Descriptor{layer}})
	manifest.MediaType = "application/vnd.oci.image.manifest.v1+json"
	manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference}
	add("index.json", v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{manifest}})
	add("manifest.json", []map[string]any{{
		"Config": path.Join("blobs/sha256", config.Digest.Hex), "RepoTags": []string{reference}, "Layers": []string{path.Join("blobs/sha256", layer.Digest.Hex)},
	}})
	return e, manifest.Digest.String()
}
