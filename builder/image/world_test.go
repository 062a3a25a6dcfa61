package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

// The program of testdata, built for the platform of the images and for another.
var native, foreign []byte

func TestMain(m *testing.M) {
	// Everything temporary goes here, so that what is left behind shows.
	dir, err := os.MkdirTemp("", "image-*")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		panic(err)
	}
	build := func(arch string) []byte {
		out := filepath.Join(dir, "program")
		defer os.Remove(out)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-buildvcs=false")
		if text, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v: %s", err, text))
		}
		b, err := os.ReadFile(out)
		if err != nil {
			panic(err)
		}
		return b
	}
	native, foreign = build(platform.Architecture), build(other.Architecture)
	code := m.Run()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		fmt.Println("left behind:", left, err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// says returns a static program that gives these answers to these command lines.
func says(program []byte, answers ...string) string {
	return string(program) + "\nanswers:\n" + strings.Join(answers, "\x00") + "\x00"
}

// dynamic returns the program with its last program header turned into one that
// asks for an interpreter.
func dynamic(program []byte) string {
	b := bytes.Clone(program)
	headers, size, count := int(b[32]), int(b[54]), int(b[56]) // in the 64-bit ELF header
	binary.LittleEndian.PutUint32(b[headers+size*(count-1):], uint32(elf.PT_INTERP))
	return string(b)
}

// file is one entry of an image's only layer.
type file struct {
	name          string
	mode          int64 // 0 means 0755
	content       string
	symlink, hard string
	typeflag      byte // 0 means what the other fields tell
}

func layer(t *testing.T, files []file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Typeflag: tar.TypeReg, Size: int64(len(f.content))}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		switch {
		case f.typeflag != 0:
			h.Typeflag = f.typeflag
		case f.symlink != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.symlink
		case f.hard != "":
			h.Typeflag, h.Linkname = tar.TypeLink, f.hard
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// input is one image of the supply: what is published, and how it is signed.
type input struct {
	ref      string
	files    []file
	platform string
	signer   *signingtest.Sigstore // nil leaves it unsigned
	options  signingtest.Options

	digest, manifest, layer string // known once it is published
}

const (
	imageSigner = "images@example.com"
	fileSigner  = "files@example.com"
	issuer      = "https://accounts.example.com"

	kubectlURL = "https://dl.k8s.io/release/kubectl"
	pluginsURL = "https://github.com/containernetworking/plugins/plugins.tgz"
)

const policy = `
rules:
  - {pattern: registry.k8s.io/**, identity: ` + imageSigner + `, issuer: ` + issuer + `}
  - {pattern: inputs.example.com/**, identity: ` + imageSigner + `, issuer: ` + issuer + `}
  - {pattern: dl.k8s.io/**, identity: ` + fileSigner + `, issuer: ` + issuer + `}
`

// platform is what the images are made for: this machine's, since the programs
// in them are run. other is one that it does not run.
var platform, other = fetch.Platform{OS: "linux", Architecture: runtime.GOARCH}, fetch.Platform{
	OS: "linux", Architecture: map[bool]string{false: "arm64", true: "amd64"}[runtime.GOARCH == "arm64"],
}

// world is a supply whose inputs a registry and a web server serve, and the
// image that is to be made of them. Everything in it is good; a test changes
// something before publish, or lets a server misbehave after it.
type world struct {
	t        *testing.T
	reg      *standin.Registry
	web      *standin.Web
	sigstore *signingtest.Sigstore
	row      matrix.Row
	images   map[string]*input
	kubectl  string // content of a signed release file
	plugins  []file // members of a release file that a checksum vouches for
	blob     signingtest.Options
	in       supply.Inputs
	spec     image.Spec
	mu       sync.Mutex
	waits    []time.Duration // what the downloads waited for
}

func newWorld(t *testing.T, conf signingtest.Config) *world {
	t.Helper()
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	row, _ := m.Row(m.Newest())
	w := &world{
		t: t, reg: standin.NewRegistry(t, standin.Options{Referrers: true}), web: standin.NewWeb(t),
		sigstore: signingtest.New(t, conf), row: row, images: map[string]*input{},
		blob: signingtest.Options{Identity: fileSigner, Issuer: issuer},
	}
	add := func(name, ref string, files ...file) {
		w.images[name] = &input{ref: ref, files: files, platform: platform.String(), signer: w.sigstore, options: signingtest.Options{Identity: imageSigner, Issuer: issuer}}
	}
	var refs []string
	for _, i := range row.Images() {
		add(i.Name, i.Reference, file{name: "usr/local/bin/" + i.Name, content: i.Name})
		w.in.Bundle = append(w.in.Bundle, supply.Image{Name: i.Name, Reference: i.Reference})
		refs = append(refs, i.Reference)
	}
	w.images["etcd"].files = []file{
		{name: "usr/local/bin/etcdctl", content: w.tool("etcdctl", row.EtcdVersion())},
		{name: "usr/local/bin/etcdutl", content: w.tool("etcdutl", row.EtcdVersion())},
	}
	add("tools", "inputs.example.com/tools:v1", file{name: "usr/bin/kubeadm", content: w.kubeadm(refs)})
	add("base", "inputs.example.com/base:v1", file{name: "etc/os-release", mode: 0o644, content: "ID=kairos\n"})
	w.in.Others = []supply.Image{{Name: "tools", Reference: w.images["tools"].ref}}
	w.in.Base = supply.Image{Name: "base", Reference: w.images["base"].ref}
	w.kubectl, w.plugins = "kubectl", []file{{name: "./loopback", content: "loopback"}}
	w.in.Tools = []supply.Tool{
		{Target: "usr/bin/kubeadm", Image: "tools", Path: "usr/bin/kubeadm"},
		{Target: "usr/bin/kubectl", File: "kubectl"},
		{Target: overlay.CNIDir + "/loopback", File: "plugins", Path: "loopback"},
	}
	w.in.Policy, w.in.Trust = []byte(policy), w.sigstore.TrustedRoot()
	w.in.Routes = w.reg.Routes("registry.k8s.io", "inputs.example.com")
	for _, host := range []string{"dl.k8s.io", "github.com"} {
		w.in.Routes[host] = w.web.URL
	}
	provider := filepath.Join(t.TempDir(), "provider")
	if err := os.WriteFile(provider, native, 0o755); err != nil {
		t.Fatal(err)
	}
	w.spec = image.Spec{
		Row: row, Stack: m.Stack, Epoch: m.Epoch, Platform: platform, Version: "v0.5.0", Provider: provider,
		Supply: inputs{&w.in}, Store: openStore(t, t.TempDir()),
		Retry: fetch.Retry{Sleep: func(ctx context.Context, d time.Duration) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.waits = append(w.waits, d)
			return ctx.Err()
		}},
	}
	return w
}

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	st, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (w *world) tool(name, version string) string {
	return says(native, name+" version", name+" version: "+version+"\nAPI version: 3.7\n")
}

func (w *world) kubeadm(refs []string) string {
	return says(native, "kubeadm config images list --kubernetes-version "+w.row.Kubernetes.String(), strings.Join(refs, "\n")+"\n")
}

// publish puts everything where the supply says it is.
func (w *world) publish() {
	w.t.Helper()
	for _, list := range [][]supply.Image{w.in.Bundle, w.in.Others} {
		for i := range list {
			list[i].Digest = w.push(w.images[list[i].Name])
		}
	}
	w.in.Base.Digest = w.push(w.images["base"])

	kubectl := []byte(w.kubectl)
	w.web.Put(kubectlURL, kubectl)
	signed := supply.File{Name: "kubectl", URL: kubectlURL, Descriptor: describe(kubectl)}
	signed.Signature, signed.Certificate = w.sigstore.SignBlob(w.t, hash(w.t, signed.Digest), w.blob)
	signed.LogEntry = w.logged(signed)

	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(layer(w.t, w.plugins)); err != nil {
		w.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.web.Put(pluginsURL, b.Bytes())
	w.in.Files = []supply.File{signed, {Name: "plugins", URL: pluginsURL, Descriptor: describe(b.Bytes()), Origin: "a list that others keep"}}
}

func (w *world) push(in *input) string {
	w.t.Helper()
	content := layer(w.t, in.files)
	in.layer = store.Digest(content)
	parsed, err := v1.ParsePlatform(in.platform)
	if err != nil {
		w.t.Fatal(err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: parsed.OS, Architecture: parsed.Architecture, RootFS: v1.RootFS{Type: "layers"}})
	if err == nil {
		img, err = mutate.AppendLayers(img, static.NewLayer(content, types.OCIUncompressedLayer))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		w.t.Fatal(err)
	}
	in.manifest = digest.String()
	_, in.digest, _ = strings.Cut(w.reg.Push(in.ref, standin.Index(standin.Entry(w.t, img, in.platform))), "@")
	if in.signer != nil {
		ref, err := name.NewTag(in.ref)
		if err != nil {
			w.t.Fatal(err)
		}
		repo, err := name.NewRepository(w.reg.Host() + "/" + ref.RepositoryStr())
		if err != nil {
			w.t.Fatal(err)
		}
		o := in.options
		o.DockerReference = ref.Repository.Name()
		in.signer.Sign(w.t, repo, hash(w.t, in.digest), o)
	}
	return in.digest
}

// logged returns what the transparency log has for a file's signature.
func (w *world) logged(f supply.File) signing.LogEntry {
	w.t.Helper()
	log := httptest.NewServer(w.sigstore.Rekor())
	defer log.Close()
	sig, err := base64.StdEncoding.DecodeString(string(f.Signature))
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := base64.StdEncoding.DecodeString(string(f.Certificate))
	if err != nil {
		w.t.Fatal(err)
	}
	digest := hash(w.t, f.Digest)
	if w.blob.Digest != (v1.Hash{}) {
		digest = w.blob.Digest
	}
	found, err := signing.Rekor{URL: log.URL}.Find(w.t.Context(), digest, sig, cert)
	if err != nil || len(found) != 1 {
		w.t.Fatalf("log has %d entries, expected 1: %v", len(found), err)
	}
	return found[0]
}

// text replaces {etcd}, {etcd.digest}, {etcd.manifest} and {etcd.layer}, and so
// for every image, with what they are in this world.
func (w *world) text(s string) string {
	for name, in := range w.images {
		s = strings.NewReplacer("{"+name+"}", in.ref, "{"+name+".digest}", in.digest, "{"+name+".manifest}", in.manifest, "{"+name+".layer}", in.layer).Replace(s)
	}
	return s
}

// nothingLeft checks that the store holds whole blobs only and no temporary file.
func (w *world) nothingLeft() {
	w.t.Helper()
	left, err := os.ReadDir(filepath.Join(w.spec.Store.Dir(), "tmp"))
	if err != nil || len(left) > 0 {
		w.t.Errorf("left behind: %v, %v", left, err)
	}
	blobs := filepath.Join(w.spec.Store.Dir(), "blobs", "sha256")
	entries, err := os.ReadDir(blobs)
	if err != nil {
		w.t.Error(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(blobs, e.Name()))
		if sum := sha256.Sum256(b); err != nil || hex.EncodeToString(sum[:]) != e.Name() {
			w.t.Errorf("blob %s has digest %x, %v", e.Name(), sum, err)
		}
	}
}

// inputs is the supply of a world.
type inputs struct{ in *supply.Inputs }

func (s inputs) Name() string                                   { return "test" }
func (s inputs) Inputs(context.Context) (*supply.Inputs, error) { return s.in, nil }
func (s inputs) Close() error                                   { return nil }

func describe(b []byte) store.Descriptor {
	return store.Descriptor{Digest: store.Digest(b), Size: int64(len(b))}
}

func hash(t *testing.T, digest string) v1.Hash {
	t.Helper()
	h, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// built returns a program whose build information says that its main package is
// that of an etcd module at this version.
func built(t *testing.T, arch, tool, version string) string {
	t.Helper()
	module := "go.etcd.io/etcd/" + tool + "/v3"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                        "module example.com/build\n\ngo 1.26\n\nrequire " + module + " v" + version + "\n",
		"tools.go":                      "//go:build tools\n\npackage build\n\nimport _ \"" + module + "\"\n",
		"vendor/modules.txt":            "# " + module + " v" + version + "\n## explicit\n" + module + "\n",
		"vendor/" + module + "/main.go": "package main\n\nfunc main() {}\n",
	} {
		if err := store.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out")
	cmd := exec.Command("go", "build", "-mod=vendor", "-trimpath", "-ldflags=-s -w", "-o", out, module)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
