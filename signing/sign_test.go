package signing_test

import (
	"bytes"
	"encoding/pem"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

const nodeRepository = "registry.example.com/kairos/node"

func newKey(t *testing.T) *signing.Key {
	t.Helper()
	// Plain, since deriving a key from a password is slow by design.
	private, err := cosign.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := cryptoutils.MarshalPrivateKeyToPEM(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "given.key")
	if err := os.WriteFile(path, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := signing.LoadKey(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rawManifest is a manifest that a registry client can push.
type rawManifest struct {
	raw       []byte
	mediaType types.MediaType
}

func (m rawManifest) RawManifest() ([]byte, error)        { return m.raw, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return m.mediaType, nil }

// push writes artifacts as a publisher does.
func push(t *testing.T, repo name.Repository, artifacts []signing.Artifact) {
	t.Helper()
	for _, a := range artifacts {
		for _, b := range a.Blobs {
			if err := remote.WriteLayer(repo, static.NewLayer(b, "application/octet-stream")); err != nil {
				t.Fatal(err)
			}
		}
		var ref name.Reference = repo.Digest(a.Descriptor.Digest.String())
		if a.Tag != "" {
			ref = repo.Tag(a.Tag)
		}
		if err := remote.Put(ref, rawManifest{a.Manifest, a.Descriptor.MediaType}); err != nil {
			t.Fatal(err)
		}
	}
}

// writeLayout writes an index with its artifacts as an OCI layout.
func writeLayout(t *testing.T, idx v1.ImageIndex, artifacts []signing.Artifact) string {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendIndex(idx, layout.WithAnnotations(map[string]string{signing.KindAnnotation: signing.KindImageIndex})); err != nil {
		t.Fatal(err)
	}
	for _, a := range artifacts {
		blobs := maps.Clone(a.Blobs)
		blobs[a.Descriptor.Digest] = a.Manifest
		for h, b := range blobs {
			if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", h.Hex), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := path.AppendDescriptor(a.Descriptor); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func sign(t *testing.T, s signing.Signer, repo name.Repository, digest v1.Hash) []signing.Artifact {
	t.Helper()
	d, err := remote.Head(repo.Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	artifacts, err := s.Sign(t.Context(), nodeRepository, *d)
	if err != nil {
		t.Fatal(err)
	}
	return artifacts
}

func keyVerifier(t *testing.T, key *signing.Key) *signing.Verifier {
	t.Helper()
	policy, err := signing.NewPolicy([]signing.Rule{{Pattern: nodeRepository, PublicKey: string(key.PublicKey())}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &signing.Verifier{Policy: policy}
}

func TestKeySignatureVerifiesInEveryForm(t *testing.T) {
	key := newKey(t)
	for _, referrers := range []bool{false, true} {
		repo := newRegistry(t, referrers, nil)
		index, _ := pushIndex(t, repo)
		artifacts := sign(t, key, repo, index)
		subject := signing.Subject{Reference: nodeRepository + ":v1", Repository: repo, Digest: index.String()}
		for _, a := range artifacts {
			repo := newRegistry(t, referrers, nil)
			subject := subject
			subject.Repository = repo
			push(t, repo, []signing.Artifact{a})
			got := verify(t, keyVerifier(t, key), subject)
			want(t, got, signing.Verified)
			if (a.Tag != "") != (got.Form == signing.FormLegacyTag) {
				t.Errorf("%q found as %s", a.Tag, got.Form)
			}
			want(t, verify(t, keyVerifier(t, newKey(t)), subject), signing.WrongSigner, "public key")
		}
	}
}

func TestKeySignatureVerifiesWithCosign(t *testing.T) {
	key := newKey(t)
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	artifacts := sign(t, key, repo, index)
	push(t, repo, artifacts)
	ref := repo.Digest(index.String())

	pub, err := cryptoutils.UnmarshalPEMToPublicKey(key.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.LoadDefaultVerifier(pub)
	if err != nil {
		t.Fatal(err)
	}
	opts := &cosign.CheckOpts{SigVerifier: verifier, IgnoreTlog: true, ClaimVerifier: cosign.SimpleClaimVerifier}
	if sigs, _, err := cosign.VerifyImageSignatures(t.Context(), ref, opts); err != nil || len(sigs) != 1 {
		t.Errorf("legacy: %d signatures, %v", len(sigs), err)
	}

	idx, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	if sigs, _, err := cosign.VerifyLocalImageSignatures(t.Context(), writeLayout(t, idx, artifacts), opts); err != nil || len(sigs) != 1 {
		t.Errorf("layout: %d signatures, %v", len(sigs), err)
	}

	opts.NewBundleFormat = true
	opts.TrustedMaterial = &root.BaseTrustedMaterial{}
	if sigs, _, err := cosign.VerifyImageAttestations(t.Context(), ref, opts); err != nil || len(sigs) != 1 {
		t.Errorf("bundle: %d signatures, %v", len(sigs), err)
	}
}

func TestLayoutIsVerifiedLikeARegistry(t *testing.T) {
	key := newKey(t)
	repo := newRegistry(t, true, nil)
	index, platform := pushIndex(t, repo)
	artifacts := sign(t, key, repo, index)
	idx, err := remote.Index(repo.Digest(index.String()))
	if err != nil {
		t.Fatal(err)
	}
	subject := signing.Subject{Reference: nodeRepository + ":v1", Digest: index.String()}
	verifyLayout := func(dir string, s signing.Subject) signing.Result {
		t.Helper()
		res, err := keyVerifier(t, key).VerifyLayout(t.Context(), s, dir)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for i, form := range []string{signing.FormLegacyTag, signing.FormReferrer} {
		got := verifyLayout(writeLayout(t, idx, artifacts[i:i+1]), subject)
		want(t, got, signing.Verified)
		if got.Form != form {
			t.Errorf("form %s, want %s", got.Form, form)
		}
	}
	want(t, verifyLayout(writeLayout(t, idx, nil), subject), signing.Unsigned)
	other := subject
	other.Digest = platform.String()
	want(t, verifyLayout(writeLayout(t, idx, artifacts), other), signing.Unsigned)

	m, err := v1.ParseManifest(bytes.NewReader(artifacts[0].Manifest))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []v1.Hash{artifacts[0].Descriptor.Digest, m.Layers[0].Digest} {
		dir := writeLayout(t, idx, artifacts[:1])
		if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", h.Hex), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		want(t, verifyLayout(dir, subject), signing.Unreachable, h.String())
	}
	want(t, verifyLayout(t.TempDir(), subject), signing.Unreachable, "index.json")
}

func TestSameKeySignsTheSameImageAlike(t *testing.T) {
	key := newKey(t)
	d := v1.Descriptor{MediaType: types.OCIImageIndex, Size: 9, Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}}
	first, err := key.Sign(t.Context(), nodeRepository, d)
	if err != nil {
		t.Fatal(err)
	}
	second, err := key.Sign(t.Context(), nodeRepository, d)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(first, second) {
		t.Error("signatures differ")
	}
	d.Digest.Algorithm = "sha512"
	if _, err := key.Sign(t.Context(), nodeRepository, d); err == nil {
		t.Error("signed a digest that nobody can verify")
	}
}

func TestKeyIsMadeOnceAndPrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "keys")
	keys := make([]*signing.Key, 2)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			key, err := signing.LoadOrCreateKey(dir)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = key
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, k := range keys {
		if !bytes.Equal(k.PublicKey(), keys[0].PublicKey()) {
			t.Fatal("two builders made two keys")
		}
	}
	for file, mode := range map[string]fs.FileMode{"": 0o700, "cosign.key": 0o600, "cosign.pub": 0o644} {
		fi, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != mode {
			t.Errorf("%q has mode %#o, want %#o", file, fi.Mode().Perm(), mode)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left %v, %v", entries, err)
	}
	private, err := os.ReadFile(filepath.Join(dir, "cosign.key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cosign.LoadPrivateKey(private, []byte{}, nil); err != nil {
		t.Errorf("cosign can't read it: %v", err)
	}
}

func TestUnsafeOrForeignKeyFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := signing.LoadOrCreateKey(dir); err != nil {
		t.Fatal(err)
	}
	key, pub := filepath.Join(dir, "cosign.key"), filepath.Join(dir, "cosign.pub")

	if err := os.Remove(pub); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.LoadOrCreateKey(dir); err != nil {
		t.Errorf("public key was not written again: %v", err)
	}
	if err := os.WriteFile(pub, newKey(t).PublicKey(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.LoadOrCreateKey(dir); err == nil || !strings.Contains(err.Error(), "not the public half") {
		t.Errorf("public key of another pair: %v", err)
	}
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.LoadOrCreateKey(dir); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("key that others can read: %v", err)
	}
	for name, content := range map[string][]byte{
		"no PEM":    []byte("hello"),
		"other PEM": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
	} {
		path := filepath.Join(dir, "given.key")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := signing.LoadKey(path, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestGivenKeyMayBeEncrypted(t *testing.T) {
	encrypted, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte("secret"), nil })
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "given.key")
	if err := os.WriteFile(path, encrypted.PrivateBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.LoadKey(path, nil); err == nil {
		t.Error("read without its password")
	}
	key, err := signing.LoadKey(path, []byte("secret"))
	if err != nil || !bytes.Equal(key.PublicKey(), encrypted.PublicBytes) {
		t.Errorf("encrypted: %v", err)
	}
}
