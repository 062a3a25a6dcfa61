// Package image makes one node image: it takes what a supply names, fetches and
// verifies all of it, makes the bundle and the payload layers, puts them on the
// base, proves that the result keeps what is promised, signs it, writes it out
// and verifies its own output. Nothing is published before everything holds.
package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/inspect"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// Labels that every image carries besides org.opencontainers.image.*.
const (
	LabelMinor   = "provider-kubernetes.kairos.io/minor"
	LabelVersion = "provider-kubernetes.kairos.io/kubernetes-version"
	LabelSupply  = "provider-kubernetes.kairos.io/supply"
	LabelKairos  = "provider-kubernetes.kairos.io/kairos-version"
)

// Spec is what to make for one platform.
type Spec struct {
	Row         matrix.Row
	Stack       matrix.Stack
	Epoch       time.Time // of every file and of the image
	Platform    fetch.Platform
	Version     string // of this project, "v0.5.0"
	Provider    string // path of the node runtime's binary for this platform
	Compression rootfs.Compression
	Supply      supply.Supply
	Store       *store.Store
	Keychain    authn.Keychain // registry credentials; nil means the user's Docker credentials
	Retry       fetch.Retry    // of downloads
	Progress    func(name string, done, total int64)
	Report      *report.Reporter
}

// Made is one finished and inspected platform image, whole in the store.
type Made struct {
	Image         finish.Image
	Inspection    inspect.Report
	KairosVersion string
	Summary       report.Platform
}

// NotConformant is an image that does not keep what is promised.
type NotConformant struct{ Report inspect.Report }

func (e *NotConformant) Error() string {
	var b strings.Builder
	_ = e.Report.Text(&b)
	return b.String()
}

type maker struct{ Spec }

// Make makes the image of one platform. Errors are those of the steps:
// *lock.Stale, *signing.Rejection, *fetch.Unreachable, *store.DigestMismatch,
// *BadTool, *NotConformant and others.
func Make(ctx context.Context, s Spec) (*Made, error) {
	m := &maker{s}
	in, err := s.Supply.Inputs(ctx)
	if err != nil {
		return nil, err
	}
	v, err := m.fetchAll(ctx, in, &fetch.Client{Store: m.Store, Routes: in.Routes, Keychain: m.Keychain, Retry: m.Retry, Progress: m.Progress})
	if err != nil {
		return nil, err
	}
	tools, err := m.tools(ctx, in, v)
	if err != nil {
		return nil, err
	}
	if err := m.checkTools(ctx, tools, v.images["etcd"]); err != nil {
		return nil, err
	}
	archives, list, err := m.bundle(ctx, in, v, tools)
	if err != nil {
		return nil, err
	}
	built, kairos, err := m.payload(ctx, in, v, tools, archives, list)
	if err != nil {
		return nil, err
	}
	img, err := m.finish(ctx, v, built, kairos)
	if err != nil {
		return nil, err
	}
	inspection, err := m.inspect(ctx, img)
	if err != nil {
		return nil, err
	}
	made := &Made{Image: img, Inspection: inspection, KairosVersion: kairos, Summary: report.Platform{
		Platform: m.Platform.String(), Digest: img.Manifest.Descriptor.Digest, Inputs: v.rows, Resolved: in.Resolved, Toolchain: in.Toolchain,
	}}
	base := len(img.Layers) - len(built)
	for i, l := range img.Layers {
		row := report.Layer{Name: "base", Digest: l.Descriptor.Digest, Size: l.Descriptor.Size, Reused: true}
		if i >= base {
			b := built[i-base]
			row.Name, row.Reused, row.Uncompressed = b.Name, b.Reused, b.Uncompressed
		}
		made.Summary.Layers = append(made.Summary.Layers, row)
	}
	return made, nil
}

// bundle writes the archives and the list of what kubeadm asks for.
func (m *maker) bundle(ctx context.Context, in *supply.Inputs, v *verified, tools map[string]store.Descriptor) (map[string]store.Descriptor, bundle.Lock, error) {
	wanted, err := m.kubeadmImages(ctx, tools["usr/bin/kubeadm"])
	if err != nil {
		return nil, bundle.Lock{}, fmt.Errorf("ask kubeadm for its images: %w", err)
	}
	var have []string
	for _, i := range in.Bundle {
		have = append(have, i.Reference)
	}
	if found := bundle.Compare(have, wanted); len(found) > 0 {
		return nil, bundle.Lock{}, &InputMismatch{What: "the bundle of " + m.Row.Minor.String(), Findings: found, Next: "correct matrix/matrix.yaml, then refresh the locks"}
	}
	step := m.Report.Step(fmt.Sprintf("bundle %d images", len(have)))
	archives := map[string]store.Descriptor{}
	list := bundle.Lock{KubernetesVersion: m.Row.Kubernetes.String(), Platform: m.Platform.String()}
	for _, i := range in.Bundle {
		d, err := bundle.Archive(ctx, m.Store, i.Reference, v.images[i.Name])
		if err != nil {
			return nil, list, step.Done(err)
		}
		res := v.results[i.Name]
		archives[i.Name+".tar"] = d
		list.Images = append(list.Images, bundle.Entry{
			Reference: i.Reference, Digest: v.images[i.Name].Manifest.Digest, Archive: i.Name + ".tar", Size: d.Size, SHA256: strings.TrimPrefix(d.Digest, "sha256:"),
			Verified: res.Outcome == signing.Verified, Verification: supply.Vouched(res), Reason: res.Reason,
		})
	}
	return archives, list, step.Done(nil)
}

// InputMismatch is an input set that is not what it has to be.
type InputMismatch struct {
	What     string
	Findings []string
	Next     string
}

func (e *InputMismatch) Error() string {
	return fmt.Sprintf("%s does not match:\n  %s\n%s", e.What, strings.Join(e.Findings, "\n  "), e.Next)
}

// payload makes the layers above the base, those that change least often first:
// the runtime stack that all minors share, the bundled images, the Kubernetes
// binaries, the overlay, the provider.
func (m *maker) payload(ctx context.Context, in *supply.Inputs, v *verified, tools, archives map[string]store.Descriptor, list bundle.Lock) ([]rootfs.Built, string, error) {
	stack := rootfs.Layer{Name: "runtime-stack", Compression: m.Compression}
	kube := rootfs.Layer{Name: "kubernetes", Compression: m.Compression}
	for target, d := range tools {
		f := rootfs.File{Path: target, Mode: 0o755, Content: d}
		switch path.Base(target) {
		case "kubeadm", "kubelet", "kubectl", "etcdctl", "etcdutl":
			kube.Files = append(kube.Files, f)
		default:
			stack.Files = append(stack.Files, f)
		}
	}
	layers := []rootfs.Layer{stack}
	for _, i := range in.Bundle {
		name := i.Name + ".tar"
		layers = append(layers, rootfs.Layer{Name: "image " + i.Name, Compression: rootfs.None, Files: []rootfs.File{
			{Path: overlay.BundleDir + "/" + name, Mode: 0o644, Content: archives[name]},
		}})
	}
	layers = append(layers, kube)

	files, err := overlay.Files(overlay.Params{Pause: matrix.Registry + "/pause:" + m.Row.Pause})
	if err != nil {
		return nil, "", err
	}
	over := rootfs.Layer{Name: "overlay", Compression: m.Compression}
	for _, f := range files {
		over.Files = append(over.Files, file(f))
	}
	over.Files = append(over.Files, rootfs.File{Path: overlay.BundleDir + "/" + bundle.LockName, Mode: 0o644, Data: list.Marshal()})
	provider, err := m.provider(ctx)
	if err != nil {
		return nil, "", err
	}
	kairos := m.kairosVersion(v, append(layers, over), provider)
	release, err := m.release(ctx, v.images["base"], kairos)
	if err != nil {
		return nil, "", err
	}
	over.Files = append(over.Files, release...)
	layers = append(layers, over, rootfs.Layer{Name: "provider", Compression: m.Compression, Files: []rootfs.File{
		{Path: overlay.Provider, Mode: 0o755, Content: provider},
	}})

	step := m.Report.Step(fmt.Sprintf("write %d layers", len(layers)))
	w := &rootfs.Writer{Store: m.Store, Epoch: m.Epoch}
	built, err := w.WriteAll(ctx, layers)
	reused := 0
	for _, b := range built {
		if b.Reused {
			reused++
		}
	}
	step.Detail("%d of %d reused", reused, len(layers))
	return built, kairos, step.Done(err)
}

func file(f overlay.File) rootfs.File {
	out := rootfs.File{Path: f.Path, Mode: f.Mode.Perm(), Data: f.Content}
	switch {
	case f.Mode.IsDir():
		out.Type = rootfs.Dir
	case f.Target != "":
		out.Type, out.Target = rootfs.Symlink, f.Target
	}
	return out
}

// provider puts the node runtime's binary into the store.
func (m *maker) provider(ctx context.Context) (store.Descriptor, error) {
	f, err := openRegular(m.Provider)
	if err != nil {
		return store.Descriptor{}, fmt.Errorf("node runtime: %w; build it with `make runtime`", err)
	}
	defer f.Close()
	return m.Store.Put(ctx, f, store.Descriptor{})
}

// kairosVersion names this build: Kairos takes two images with one version for
// the same, so it has to differ whenever the content does, and to be the same
// when the build is repeated. It is a semantic version whose build metadata
// holds the Kubernetes version and a digest of all that goes in.
func (m *maker) kairosVersion(v *verified, layers []rootfs.Layer, provider store.Descriptor) string {
	h := sha256.New()
	fmt.Fprintln(h, m.Platform, m.Epoch.Unix(), m.Compression, m.Supply.Name(), v.images["base"].Manifest.Digest, provider.Digest)
	for _, l := range layers {
		slices.SortFunc(l.Files, func(a, b rootfs.File) int { return strings.Compare(a.Path, b.Path) })
		for _, f := range l.Files {
			fmt.Fprintln(h, l.Name, f.Path, f.Mode, f.Target, f.Content.Digest, store.Digest(f.Data))
		}
	}
	return fmt.Sprintf("%s+k8s.%s.%s", m.Version, m.Row.Kubernetes.String()[1:], hex.EncodeToString(h.Sum(nil))[:12])
}

// releaseFiles identify an operating system, and a Kairos image.
var releaseFiles = []string{"etc/os-release", "usr/lib/os-release", "etc/kairos-release"}

// release returns the base's release files with what this image says of itself.
func (m *maker) release(ctx context.Context, base *fetch.Image, kairos string) ([]rootfs.File, error) {
	key := "v2\x00" + base.Manifest.Digest
	var texts map[string]string
	if !m.Store.Lookup("release-files", key, &texts) {
		fsys, err := m.open(ctx, base)
		if err != nil {
			return nil, err
		}
		texts = map[string]string{}
		for _, name := range releaseFiles {
			// A link stays one: what it leads to is in the list too.
			if e, err := fsys.Lstat(name); err != nil || e.Type != layerfs.Regular {
				continue
			}
			b, err := fsys.ReadFile(ctx, name, 64<<10)
			if err != nil {
				return nil, fmt.Errorf("base %s: %w", base.Reference, err)
			}
			texts[name] = string(b)
		}
		if err := m.Store.Record("release-files", key, texts); err != nil {
			return nil, err
		}
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("base %s has none of %s", base.Reference, strings.Join(releaseFiles, ", "))
	}
	var out []rootfs.File
	for name, text := range texts {
		b, err := overlay.SetRelease([]byte(text), overlay.BundledKubernetesVersion, m.Row.Kubernetes.String())
		if err == nil {
			b, err = overlay.SetRelease(b, overlay.KairosVersion, kairos)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, rootfs.File{Path: name, Mode: 0o644, Data: b})
	}
	return out, nil
}

func (m *maker) finish(ctx context.Context, v *verified, built []rootfs.Built, kairos string) (finish.Image, error) {
	base := v.images["base"]
	config, err := m.Store.ReadAll(base.Config.Digest, 8<<20)
	if err != nil {
		return finish.Image{}, err
	}
	spec := finish.Spec{
		Base: finish.Base{Config: config}, Layers: built, Platform: finish.Platform(m.Platform), Created: m.Epoch, CreatedBy: "provider-kubernetes builder",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "provider-kubernetes " + m.Row.Minor.String(),
			"org.opencontainers.image.description": "Kairos node image with Kubernetes " + m.Row.Kubernetes.String(),
			"org.opencontainers.image.source":      "https://github.com/kairos-io/provider-kubernetes",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     m.Version,
			"org.opencontainers.image.created":     m.Epoch.UTC().Format(time.RFC3339),
			"org.opencontainers.image.base.name":   base.Reference,
			"org.opencontainers.image.base.digest": base.Top.Digest,
			LabelMinor:                             m.Row.Minor.String(),
			LabelVersion:                           m.Row.Kubernetes.String(),
			LabelSupply:                            m.Supply.Name(),
			LabelKairos:                            kairos,
		},
	}
	for _, l := range base.Layers {
		spec.Base.Layers = append(spec.Base.Layers, finish.Layer{MediaType: l.MediaType, Descriptor: l.Descriptor, DiffID: l.DiffID})
	}
	img, err := (finish.Append{Store: m.Store}).Finish(ctx, spec)
	if err != nil {
		return img, err
	}
	for _, doc := range []finish.Document{img.Manifest, img.Config} {
		if _, err := m.Store.Put(ctx, bytes.NewReader(doc.Bytes), doc.Descriptor); err != nil {
			return img, err
		}
	}
	return img, nil
}

// inspect proves the finished image, read back from the store.
func (m *maker) inspect(ctx context.Context, img finish.Image) (inspect.Report, error) {
	step := m.Report.Step("inspect")
	var layers []layerfs.Layer
	for _, l := range img.Layers {
		layers = append(layers, m.layer(l.Descriptor, l.DiffID))
	}
	fsys, err := layerfs.New(ctx, layers)
	if err != nil {
		return inspect.Report{}, step.Done(err)
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(img.Config.Bytes))
	if err != nil {
		return inspect.Report{}, step.Done(err)
	}
	want, err := Expected(m.Row, m.Stack, m.Platform)
	if err != nil {
		return inspect.Report{}, step.Done(err)
	}
	r, err := inspect.Run(ctx, inspect.Image{Name: "image for " + m.Platform.String(), Digest: img.Manifest.Descriptor.Digest, FS: fsys, Config: config}, want, inspect.Tools{})
	if err == nil && !r.OK() {
		err = &NotConformant{r}
	}
	return r, step.Done(err)
}

// Expected returns what an image of this row must be like.
func Expected(row matrix.Row, stack matrix.Stack, p fetch.Platform) (inspect.Expect, error) {
	files, err := overlay.Files(overlay.Params{Pause: matrix.Registry + "/pause:" + row.Pause})
	return inspect.Expect{
		Row: row, Stack: stack, Platform: v1.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}, Overlay: files,
		Labels: map[string]string{
			LabelMinor: row.Minor.String(), LabelVersion: row.Kubernetes.String(), LabelSupply: "", LabelKairos: "",
			"org.opencontainers.image.version": "", "org.opencontainers.image.source": "",
		},
	}, err
}

func (m *maker) layer(d store.Descriptor, diffID string) layerfs.Layer {
	return layerfs.Layer{Descriptor: d, DiffID: diffID, Open: func() (io.ReadCloser, error) { return m.Store.Open(d.Digest) }}
}

// openRegular opens a file of the build host that must be a regular file.
func openRegular(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), err, f.Close())
	}
	return f, nil
}
