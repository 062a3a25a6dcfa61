package official

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/rebuilt"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

const (
	google    = "https://accounts.google.com"
	actions   = "https://token.actions.githubusercontent.com"
	elsewhere = "https://checksums.example.org/list.yaml"
	canonical = "us-central1-docker.pkg.dev"
	assets    = "release-assets.example.com"
)

var (
	promoter = signingtest.Options{Identity: "krel-trust@k8s-releng-prod.iam.gserviceaccount.com", Issuer: google}
	stager   = signingtest.Options{Identity: "krel-staging@k8s-releng-prod.iam.gserviceaccount.com", Issuer: google}
	kairos   = signingtest.Options{Identity: "https://github.com/kairos-io/kairos/.github/workflows/release.yaml@refs/tags/v4.1.0", Issuer: actions}
	builder  = signingtest.Options{Identity: rebuilt.Identity, Issuer: rebuilt.Issuer}
)

// world is everything a connected machine reaches, and a checkout.
type world struct {
	*Supply
	registry, own *standin.Registry // own is the rebuilt supply's
	backend       *standin.Registry // where signatures are, when not beside the images
	web           *standin.Web
	public, local *signingtest.Sigstore
	trust         []byte
}

// newWorld serves a good release of the first row for linux/amd64.
func newWorld(t *testing.T) *world {
	t.Helper()
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		registry: standin.NewRegistry(t, standin.Options{}), own: standin.NewRegistry(t, standin.Options{}),
		web: standin.NewWeb(t), public: signingtest.New(t, signingtest.Config{}), local: signingtest.New(t, signingtest.Config{}),
	}
	w.trust = w.public.TrustedRoot()
	rekor := httptest.NewServer(w.public.Rekor())
	t.Cleanup(rekor.Close)
	w.Supply = &Supply{
		Source: t.TempDir(), Row: m.Rows[0], Stack: m.Stack, Platform: fetch.Platform{OS: "linux", Architecture: "amd64"},
		Rebuilt: w.rebuilt(t),
		Upstream: Upstream{
			Client: w.client(t), Log: signing.Rekor{URL: rekor.URL},
			TrustedRoot: func(context.Context) ([]byte, error) { return w.trust, nil },
		},
	}
	policy, err := os.ReadFile(filepath.Join("..", "..", "signing", "policies", "official.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "signing/policies/official.yaml", policy)

	for _, img := range w.images(Table{Base: "quay.io/kairos/hadron:v1-core-{arch}"}) {
		w.image(t, img.Reference, signer(img.Name))
	}
	table := "base: quay.io/kairos/hadron:v1-core-{arch}\nchecksums:\n"
	for _, r := range w.releases() {
		content := archive(t, r)
		w.publish(t, r, content, stager)
		if !r.signed {
			table += fmt.Sprintf("- {name: %s, version: %q, arch: amd64, sha256: %s, source: %q}\n", r.name, r.version, sum(content), elsewhere)
			w.web.Redirect(r.url, "https://"+assets+"/"+r.name)
			w.web.Put("https://"+assets+"/"+r.name, content)
		}
	}
	w.write(t, "matrix/official.yaml", []byte(table))
	return w
}

func signer(name string) signingtest.Options {
	if name == baseName {
		return kairos
	}
	return promoter
}

// client has an empty store.
func (w *world) client(t *testing.T) *fetch.Client {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	routes := w.registry.Routes("registry.k8s.io", "quay.io")
	if w.backend != nil {
		routes[canonical] = w.backend.URL
	}
	maps.Copy(routes, w.web.Routes("dl.k8s.io", "github.com", assets))
	return &fetch.Client{Store: s, Routes: routes, Retry: fetch.Retry{Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}}
}

// rebuilt is a stand-in for the supply that builds: it says of itself that it
// answers for more than it should.
func (w *world) rebuilt(t *testing.T) supply.Supply {
	t.Helper()
	in := &supply.Inputs{Routes: w.own.Routes(rebuilt.Host, matrix.Registry), Trust: w.local.TrustedRoot(), Resolved: []lock.Input{{Name: "x"}}}
	for name, tools := range map[string][]string{"kubernetes-node": {"kubeadm", "kubectl", "kubelet"}, "containerd": {"containerd", "containerd-shim-runc-v2", "ctr"}, "runc": {"runc"}} {
		ref := rebuilt.Host + "/" + name + ":v1"
		pinned := w.own.Push(ref, standin.Index(standin.Entry(t, standin.Image(t, "linux/amd64", 1), "linux/amd64")))
		_, digest, _ := strings.Cut(pinned, "@")
		w.local.Sign(t, w.repo(t, w.own, ref), hash(t, digest), builder)
		in.Others = append(in.Others, supply.Image{Name: name, Reference: ref, Digest: digest})
		for _, tool := range tools {
			in.Tools = append(in.Tools, supply.Tool{Target: "usr/bin/" + tool, Image: name, Path: "usr/bin/" + tool})
		}
	}
	return given{in}
}

type given struct{ in *supply.Inputs }

func (g given) Name() string                                   { return supply.Rebuilt }
func (g given) Inputs(context.Context) (*supply.Inputs, error) { return g.in, nil }
func (g given) Close() error                                   { return nil }

// image serves a new image under ref and signs it.
func (w *world) image(t *testing.T, ref string, by signingtest.Options) string {
	t.Helper()
	img := standin.Index(standin.Entry(t, standin.Image(t, "linux/amd64", 1), "linux/amd64"))
	w.registry.Push(ref, img)
	digest, err := partial.Digest(img)
	if err != nil {
		t.Fatal(err)
	}
	at := w.registry
	if w.backend != nil {
		at = w.backend
	}
	if by.Identity != "" {
		w.public.Sign(t, w.repo(t, at, ref), digest, by)
	}
	return digest.String()
}

// repo is the repository of ref in a registry that stands in for its own.
func (w *world) repo(t *testing.T, r *standin.Registry, ref string) name.Repository {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := name.NewRepository(r.Host()+"/"+tag.RepositoryStr(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// publish serves a release file with its side files.
func (w *world) publish(t *testing.T, r release, content []byte, by signingtest.Options) {
	t.Helper()
	w.web.Put(r.url, content)
	w.web.Put(r.checksum, fmt.Appendf(nil, "%s  other.tar.gz\n%s  %s\n", strings.Repeat("0", 64), sum(content), path.Base(r.url)))
	if r.signed {
		w.web.Put(r.checksum, []byte(sum(content)))
		sig, cert := w.public.SignBlob(t, hash(t, store.Digest(content)), by)
		w.web.Put(r.url+".sig", sig)
		w.web.Put(r.url+".cert", cert)
	}
}

func (w *world) release(name string) release {
	rs := w.releases()
	return rs[slices.IndexFunc(rs, func(r release) bool { return r.name == name })]
}

// archive is a small file of the form that the release has.
func archive(t *testing.T, r release) []byte {
	t.Helper()
	if !strings.HasSuffix(r.url, "gz") {
		return []byte("#!" + r.name)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	for _, tool := range r.tools {
		content := []byte("#!" + tool.Path)
		if err := tw.WriteHeader(&tar.Header{Name: "./" + tool.Path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(b []byte) string { return strings.TrimPrefix(store.Digest(b), "sha256:") }

func hash(t *testing.T, digest string) v1.Hash {
	t.Helper()
	h, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (w *world) write(t *testing.T, name string, b []byte) {
	t.Helper()
	at := filepath.Join(w.Source, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// relock writes what Relock gives, as the command does.
func (w *world) relock(t *testing.T) lock.Lock {
	t.Helper()
	l, files, err := w.Relock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		w.write(t, name, b)
	}
	w.writeLock(t, l)
	return l
}

func (w *world) writeLock(t *testing.T, l lock.Lock) {
	t.Helper()
	rel, err := filepath.Rel(w.Source, w.LockPath())
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, rel, l.Marshal())
}

func (w *world) inputs(t *testing.T) *supply.Inputs {
	t.Helper()
	in, err := w.Inputs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// take verifies and fetches all inputs, with an empty store, as a build does.
func (w *world) take(t *testing.T, in *supply.Inputs) error {
	t.Helper()
	client := w.client(t)
	maps.Copy(client.Routes, in.Routes)
	v, err := in.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	v.Transport = client.RoundTripper()
	var findings []error
	for _, want := range in.Images() {
		img, err := client.Image(t.Context(), want.Reference+"@"+want.Digest, w.Platform)
		if err != nil {
			findings = append(findings, err)
			continue
		}
		res, err := v.Verify(t.Context(), signing.Subject{Reference: want.Reference, Repository: img.Repository, Digest: img.Top.Digest, Platform: img.Manifest.Digest})
		findings = append(findings, err, res.Err())
	}
	for _, f := range in.Files {
		if f.Signature != nil {
			res, err := f.Verify(t.Context(), v)
			findings = append(findings, err, res.Err())
		}
		_, err := client.File(t.Context(), f.URL, f.Descriptor)
		findings = append(findings, err)
	}
	return errors.Join(findings...)
}

func TestLockThenBuild(t *testing.T) {
	w := newWorld(t)
	l := w.relock(t)
	if len(l.Inputs) != 13 {
		t.Errorf("%d inputs, expected 7 images, the base and 5 files", len(l.Inputs))
	}
	for name, want := range map[string]lock.Verification{
		"etcd":    {By: lock.BySignature, Identity: promoter.Identity, Issuer: google},
		"base":    {By: lock.BySignature, Identity: kairos.Identity, Issuer: actions},
		"kubeadm": {By: lock.BySignature, Identity: stager.Identity, Issuer: google},
		"runc":    {By: lock.ByChecksum, Origin: elsewhere},
	} {
		if in, _ := l.Input(name); in.Verified != want || in.Size <= 0 {
			t.Errorf("%s: %+v", name, in)
		}
	}
	if again := w.relock(t); lock.Diff(l, again) != "" {
		t.Errorf("locking the same release again differs:\n%s", lock.Diff(l, again))
	}

	w.Upstream = Upstream{} // a build asks no log, no checksum and no TUF repository
	before := len(w.web.Requests())
	in := w.inputs(t)
	if err := w.take(t, in); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.web.Requests()[before:] {
		if ext := path.Ext(r.Path); ext == ".sig" || ext == ".cert" || strings.HasPrefix(ext, ".sha256") {
			t.Errorf("the build asked for %s", r.Path)
		}
	}
	var got []string
	for _, img := range in.Images() {
		got = append(got, img.Name)
	}
	if want := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "pause", "etcd", "kubernetes-node", "containerd", "base"}; !slices.Equal(got, want) {
		t.Errorf("images %v, expected %v", got, want)
	}
	if len(in.Routes) != 1 || in.Routes[rebuilt.Host] != w.own.URL {
		t.Errorf("routes %v: expected only %s", in.Routes, rebuilt.Host)
	}
	if len(in.Resolved) != 1 || in.Base.Reference != "quay.io/kairos/hadron:v1-core-amd64" {
		t.Errorf("resolved %v, base %v", in.Resolved, in.Base)
	}
}

func TestEveryToolHasOneSource(t *testing.T) {
	w := newWorld(t)
	w.relock(t)
	from := map[string]string{}
	for _, tool := range w.inputs(t).Tools {
		if from[tool.Target] != "" {
			t.Errorf("/%s comes from two places", tool.Target)
		}
		from[tool.Target] = tool.File + tool.Image
	}
	want := map[string]string{
		"usr/bin/kubeadm": "kubeadm", "usr/bin/kubectl": "kubectl", "usr/bin/kubelet": "kubernetes-node", "usr/bin/runc": "runc", "usr/bin/crictl": "crictl",
		"usr/bin/containerd": "containerd", "usr/bin/containerd-shim-runc-v2": "containerd", "usr/bin/ctr": "containerd",
	}
	for _, p := range supply.CNIPlugins {
		want[overlay.CNIDir+"/"+p] = "cni-plugins"
	}
	for target, source := range want {
		if from[target] != source {
			t.Errorf("/%s comes from %q, expected %q", target, from[target], source)
		}
	}
	if len(from) != len(want) {
		t.Errorf("%d tools, expected %d", len(from), len(want))
	}
}

func TestSignaturesInAnotherPlace(t *testing.T) {
	w := newWorld(t)
	w.backend = standin.NewRegistry(t, standin.Options{})
	w.Upstream.Client = w.client(t)
	for _, img := range w.images(Table{Base: "quay.io/kairos/hadron:v1-core-{arch}"}) {
		w.image(t, img.Reference, signer(img.Name))
	}
	for _, path := range []string{".sig", "/blobs/"} {
		w.registry.Fail(standin.Fault{Path: path, Redirect: "https://" + canonical})
	}
	l := w.relock(t)
	if in, _ := l.Input("etcd"); in.Verified.Identity != promoter.Identity {
		t.Errorf("etcd: %+v", in.Verified)
	}
}

func TestDriftShowsWhatChangedUpstream(t *testing.T) {
	w := newWorld(t)
	old := w.relock(t)
	digest := w.image(t, w.Row.Images()[6].Reference, promoter)
	w.publish(t, w.release("kubeadm"), []byte("#!kubeadm again"), stager)
	diff := lock.Diff(old, w.relock(t))
	if strings.Count(diff, "\n") != 4 || !strings.Contains(diff, "+ etcd "+w.Row.Images()[6].Reference+": image "+digest) || !strings.Contains(diff, "+ kubeadm https://dl.k8s.io/") {
		t.Errorf("diff:\n%s", diff)
	}
}

func TestTagMovesAfterTheLock(t *testing.T) {
	w := newWorld(t)
	l := w.relock(t)
	etcd := w.Row.Images()[6].Reference
	w.image(t, etcd, signingtest.Options{}) // unsigned, under the same tag
	in := w.inputs(t)
	if err := w.take(t, in); err != nil {
		t.Error(err)
	}
	if locked, _ := l.Input("etcd"); in.Bundle[6].Digest != locked.Digest {
		t.Errorf("etcd is %s, locked was %s", in.Bundle[6].Digest, locked.Digest)
	}
}

func TestTagMovesBetweenLookUpAndVerification(t *testing.T) {
	w := newWorld(t)
	first := w.relock(t)
	w.Upstream.Client = w.client(t)
	etcd := w.Row.Images()[6].Reference
	_, tag, _ := strings.Cut(etcd, ":")
	w.registry.Fail(standin.Fault{Path: "/manifests/" + tag, Times: 1, Then: func() { w.image(t, etcd, signingtest.Options{}) }})
	if diff := lock.Diff(first, w.relock(t)); diff != "" {
		t.Errorf("the lock mixes two images:\n%s", diff)
	}
}

func TestBadUpstreamIsRefused(t *testing.T) {
	etcd := func(w *world) string { return w.Row.Images()[6].Reference }
	rejected := func(want signing.Outcome) func(error) bool {
		return func(err error) bool {
			r, ok := errors.AsType[*signing.Rejection](err)
			return ok && r.Result.Outcome == want
		}
	}
	with := func(o signingtest.Options, change func(*signingtest.Options)) signingtest.Options {
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *world)
		want   func(error) bool
		says   string
	}{
		"unsigned image": {
			func(t *testing.T, w *world) { w.image(t, etcd(w), signingtest.Options{}) }, rejected(signing.Unsigned), "etcd",
		},
		"image signed by the signer of files": {
			func(t *testing.T, w *world) { w.image(t, etcd(w), stager) }, rejected(signing.WrongSigner), stager.Identity,
		},
		"base signed from a look-alike repository": {
			func(t *testing.T, w *world) {
				w.image(t, "quay.io/kairos/hadron:v1-core-amd64", with(kairos, func(o *signingtest.Options) {
					o.Identity = strings.Replace(o.Identity, "kairos-io/kairos/", "kairos-io/kairos-fork/", 1)
				}))
			}, rejected(signing.WrongSigner), "kairos-fork",
		},
		"signature for another digest": {
			func(t *testing.T, w *world) {
				w.image(t, etcd(w), with(promoter, func(o *signingtest.Options) { o.Digest = hash(t, store.Digest(nil)) }))
			}, rejected(signing.WrongDigest), "etcd",
		},
		"image signed by the rebuilt supply's authority": {
			func(t *testing.T, w *world) {
				digest := w.image(t, etcd(w), signingtest.Options{})
				w.local.Sign(t, w.repo(t, w.registry, etcd(w)), hash(t, digest), promoter)
			}, rejected(signing.WrongSigner), "etcd",
		},
		"image for other platforms only": {
			func(t *testing.T, w *world) {
				w.registry.Push(etcd(w), standin.Index(standin.Entry(t, standin.Image(t, "linux/arm64", 1), "linux/arm64")))
			}, is[*fetch.NoPlatform], "linux/arm64",
		},
		"tag is not there": {
			func(_ *testing.T, w *world) { w.Row.Etcd = "9.9.9-0" }, is[*fetch.NotFound], "etcd",
		},
		"registry is down": {
			func(_ *testing.T, w *world) {
				w.registry.Fail(standin.Fault{Path: "/etcd/", Status: http.StatusServiceUnavailable})
			}, is[*fetch.Unreachable], "etcd",
		},
		"signatures can't be read": {
			func(_ *testing.T, w *world) {
				w.registry.Fail(standin.Fault{Path: ".sig", Status: http.StatusTooManyRequests})
			}, rejected(signing.Unreachable), "429",
		},
		"kubeadm is not what its checksum says": {
			func(_ *testing.T, w *world) { w.web.Put(w.release("kubeadm").url, []byte("evil")) }, is[*store.DigestMismatch], "kubeadm",
		},
		"kubeadm and its checksum were changed": {
			func(_ *testing.T, w *world) {
				w.web.Put(w.release("kubeadm").url, []byte("evil"))
				w.web.Put(w.release("kubeadm").checksum, []byte(sum([]byte("evil"))))
			}, rejected(signing.WrongDigest), "kubeadm",
		},
		"kubeadm signed by the signer of images": {
			func(t *testing.T, w *world) { w.publish(t, w.release("kubeadm"), []byte("x"), promoter) }, rejected(signing.WrongSigner), promoter.Identity,
		},
		"kubeadm's signature is not in the log": {
			func(t *testing.T, w *world) {
				w.publish(t, w.release("kubeadm"), []byte("x"), with(stager, func(o *signingtest.Options) { o.Unwitnessed = true }))
			}, rejected(signing.WrongSigner), "no trusted time",
		},
		"kubeadm has no signature": {
			func(_ *testing.T, w *world) {
				for _, ext := range []string{".sig", ".cert"} {
					w.web.Fail(standin.Fault{Path: "/kubeadm" + ext, Status: http.StatusNotFound})
				}
			}, rejected(signing.Unsigned), "kubeadm",
		},
		"log is down": {
			func(_ *testing.T, w *world) {
				w.web.Fail(standin.Fault{Path: "/api/v1/log", Status: http.StatusServiceUnavailable})
				w.Upstream.Log = signing.Rekor{URL: w.web.URL}
			}, rejected(signing.Unreachable), "transparency log",
		},
		"runc and its checksum were changed": {
			func(t *testing.T, w *world) {
				w.publish(t, w.release("runc"), []byte("evil"), stager)
				w.web.Put("https://"+assets+"/runc", []byte("evil"))
			}, is[*BadChecksum], elsewhere,
		},
		"runc was changed": {
			func(_ *testing.T, w *world) { w.web.Put("https://"+assets+"/runc", []byte("evil")) }, is[*store.DigestMismatch], "runc",
		},
		"checksum file without a checksum": {
			func(_ *testing.T, w *world) { w.web.Put(w.release("crictl").checksum, []byte("<html>")) }, is[*BadChecksum], "crictl",
		},
		"no independent checksum": {
			func(t *testing.T, w *world) {
				w.write(t, "matrix/official.yaml", []byte("base: quay.io/kairos/hadron:v1-core-{arch}\n"))
			}, is[*NoChecksum], "matrix/official.yaml",
		},
		"trusted root can't be read": {
			func(_ *testing.T, w *world) {
				w.Upstream.TrustedRoot = func(context.Context) ([]byte, error) {
					return nil, &signing.Rejection{Result: signing.Result{Outcome: signing.TrustExpired}}
				}
			}, rejected(signing.TrustExpired), "",
		},
		"base has no rule": {
			func(t *testing.T, w *world) {
				w.write(t, "matrix/official.yaml", []byte("base: example.com/base:v1\n"))
				w.Upstream.Client.Routes["example.com"] = w.registry.URL
				w.image(t, "example.com/base:v1", kairos)
			}, func(err error) bool { return errors.Is(err, signing.ErrNoRule) }, "example.com/base",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(t, w)
			l, files, err := w.Relock(t.Context())
			if err == nil || !c.want(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v: expected it to say %q", err, c.says)
			}
			if len(l.Inputs)+len(files) > 0 {
				t.Error("a lock came with the error")
			}
		})
	}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func TestAllFindingsOfALockComeTogether(t *testing.T) {
	w := newWorld(t)
	w.image(t, w.Row.Images()[6].Reference, signingtest.Options{})
	w.web.Put(w.release("kubectl").url, []byte("evil"))
	w.write(t, "matrix/official.yaml", []byte("base: quay.io/kairos/hadron:v1-core-{arch}\n"))
	_, _, err := w.Relock(t.Context())
	if !is[*signing.Rejection](err) || !is[*store.DigestMismatch](err) || strings.Count(err.Error(), "no independent checksum") != 3 {
		t.Errorf("error %v", err)
	}
}

func TestStaleLockIsRefused(t *testing.T) {
	good := newWorld(t)
	locked := good.relock(t)
	edit := func(name string, change func(*lock.Input)) func(*testing.T, *world, lock.Lock) {
		return func(t *testing.T, w *world, l lock.Lock) {
			i := slices.IndexFunc(l.Inputs, func(in lock.Input) bool { return in.Name == name })
			change(&l.Inputs[i])
			w.writeLock(t, l)
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *world, lock.Lock)
		says   string
	}{
		"no lock":         {func(t *testing.T, w *world, _ lock.Lock) { remove(t, w.LockPath()) }, "does not exist"},
		"no trusted root": {func(t *testing.T, w *world, _ lock.Lock) { remove(t, filepath.Join(w.Source, TrustedRootPath)) }, "trusted_root.json"},
		"unreadable": {func(t *testing.T, w *world, _ lock.Lock) {
			w.write(t, "matrix/locks/1.35-amd64-official.yaml", []byte("x: 1"))
		}, "not found"},
		"newer runc": {func(_ *testing.T, w *world, _ lock.Lock) { w.Stack.Runc = "9.9.9" }, "matrix digest"},
		"other base": {func(t *testing.T, w *world, _ lock.Lock) {
			b, err := os.ReadFile(filepath.Join(w.Source, "matrix/official.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			w.write(t, "matrix/official.yaml", bytes.Replace(b, []byte("v1-core"), []byte("v2-core"), 1))
		}, "v2-core-amd64"},
		"record was taken back": {func(t *testing.T, w *world, _ lock.Lock) {
			w.write(t, "matrix/official.yaml", []byte("base: quay.io/kairos/hadron:v1-core-{arch}\n"))
		}, "runc is sha256:"},
		"input missing":        {func(t *testing.T, w *world, l lock.Lock) { l.Inputs = l.Inputs[1:]; w.writeLock(t, l) }, "is not in the lock"},
		"input from elsewhere": {edit("etcd", func(in *lock.Input) { in.Source = "registry.example.com/etcd:1" }), "registry.example.com"},
		"input too many": {func(t *testing.T, w *world, l lock.Lock) {
			l.Inputs = append(l.Inputs, lock.Input{Name: "more", Kind: lock.Image, Source: "x", Digest: l.Matrix, Size: 1, Verified: l.Inputs[0].Verified})
			w.writeLock(t, l)
		}, "more from x"},
		"kubeadm by checksum": {edit("kubeadm", func(in *lock.Input) {
			in.Signature, in.Certificate, in.LogEntry = "", "", ""
			in.Verified = lock.Verification{By: lock.ByChecksum, Origin: elsewhere}
		}), "expected a signature"},
		"image by checksum":        {edit("etcd", func(in *lock.Input) { in.Verified = lock.Verification{By: lock.ByChecksum, Origin: elsewhere} }), "expected a signature"},
		"runc of another checksum": {edit("runc", func(in *lock.Input) { in.Digest = store.Digest(nil) }), "says otherwise"},
		"log entry is no entry":    {edit("kubectl", func(in *lock.Input) { in.LogEntry = base64.StdEncoding.EncodeToString([]byte("x")) }), "log entry"},
		"signature left out":       {edit("kubectl", func(in *lock.Input) { in.Signature = "" }), "signature is"},
	} {
		t.Run(name, func(t *testing.T) {
			checkout := *good.Supply
			w := &world{Supply: &checkout}
			w.Source = t.TempDir()
			if err := os.CopyFS(w.Source, os.DirFS(good.Source)); err != nil {
				t.Fatal(err)
			}
			changed := locked
			changed.Inputs = slices.Clone(locked.Inputs)
			c.change(t, w, changed)
			_, err := w.Inputs(t.Context())
			stale, ok := errors.AsType[*lock.Stale](err)
			if !ok || !strings.Contains(err.Error(), c.says) || stale.Command != "bin/builder lock --minor 1.35 --supply official --platform linux/amd64" {
				t.Errorf("error %v: expected a stale lock that says %q", err, c.says)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestBuildRefusesWhatIsNotLocked(t *testing.T) {
	w := newWorld(t)
	l := w.relock(t)
	edited := func(change func(*lock.Input)) *supply.Inputs {
		e := l
		e.Inputs = slices.Clone(l.Inputs)
		change(&e.Inputs[slices.IndexFunc(e.Inputs, func(in lock.Input) bool { return in.Name == "kubeadm" })])
		w.writeLock(t, e)
		return w.inputs(t)
	}
	kubectl, _ := l.Input("kubectl")

	err := w.take(t, edited(func(in *lock.Input) { in.Digest = store.Digest([]byte("evil")) }))
	if r, ok := errors.AsType[*signing.Rejection](err); !ok || r.Result.Outcome != signing.WrongDigest {
		t.Errorf("locked digest changed: %v", err)
	}
	err = w.take(t, edited(func(in *lock.Input) { in.LogEntry = kubectl.LogEntry }))
	if r, ok := errors.AsType[*signing.Rejection](err); !ok || r.Result.Outcome != signing.WrongSigner {
		t.Errorf("log entry of another file: %v", err)
	}
	in := edited(func(*lock.Input) {})
	w.web.Put(w.release("kubeadm").url, []byte("evil"))
	if err := w.take(t, in); !is[*store.DigestMismatch](err) {
		t.Errorf("served file changed: %v", err)
	}
}

func TestRebuiltImagesAreJudgedByTheirOwnAuthorityOnly(t *testing.T) {
	w := newWorld(t)
	w.relock(t)
	in := w.inputs(t)
	ref := rebuilt.Host + "/containerd:v1"
	_, digest, _ := strings.Cut(w.own.Push(ref, standin.Index(standin.Entry(t, standin.Image(t, "linux/amd64", 1), "linux/amd64"))), "@")
	w.public.Sign(t, w.repo(t, w.own, ref), hash(t, digest), builder)
	in.Others[1].Digest = digest
	if r, ok := errors.AsType[*signing.Rejection](w.take(t, in)); !ok || r.Result.Outcome != signing.WrongSigner || r.Result.Reference != ref {
		t.Errorf("rejection %+v", r)
	}
}

func TestRebuiltSupplyMustMakeBothImages(t *testing.T) {
	w := newWorld(t)
	w.relock(t)
	own := w.Rebuilt.(given).in
	own.Others = slices.DeleteFunc(own.Others, func(i supply.Image) bool { return i.Name == "containerd" })
	if _, err := w.Inputs(t.Context()); err == nil || !strings.Contains(err.Error(), "no image containerd") {
		t.Errorf("error %v", err)
	}
}
