package signing_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"
)

// tufRepository serves a trusted root by TUF metadata, whose timestamp expires
// then. It returns the first root.json and the repository's URL.
func tufRepository(t *testing.T, trustedRoot []byte, expires time.Time) (first []byte, url string) {
	t.Helper()
	year := time.Now().AddDate(1, 0, 0).UTC()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := metadata.KeyFromPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, crypto.Hash(0))
	if err != nil {
		t.Fatal(err)
	}
	root, targets, snapshot, timestamp := metadata.Root(year), metadata.Targets(year), metadata.Snapshot(year), metadata.Timestamp(expires.UTC())
	for _, role := range metadata.TOP_LEVEL_ROLE_NAMES {
		if err := root.Signed.AddKey(key, role); err != nil {
			t.Fatal(err)
		}
	}
	info, err := metadata.TargetFile().FromBytes("trusted_root.json", trustedRoot, "sha256")
	if err != nil {
		t.Fatal(err)
	}
	targets.Signed.Targets["trusted_root.json"] = info

	files := map[string][]byte{fmt.Sprintf("/targets/%x.trusted_root.json", sha256.Sum256(trustedRoot)): trustedRoot}
	for path, sign := range map[string]func() ([]byte, error){
		"/1.root.json":     func() ([]byte, error) { _, err := root.Sign(signer); return marshal(root, err) },
		"/1.targets.json":  func() ([]byte, error) { _, err := targets.Sign(signer); return marshal(targets, err) },
		"/1.snapshot.json": func() ([]byte, error) { _, err := snapshot.Sign(signer); return marshal(snapshot, err) },
		"/timestamp.json":  func() ([]byte, error) { _, err := timestamp.Sign(signer); return marshal(timestamp, err) },
	} {
		if files[path], err = sign(); err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b)
	}))
	t.Cleanup(srv.Close)
	return files["/1.root.json"], srv.URL
}

func marshal(m interface{ ToBytes(bool) ([]byte, error) }, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return m.ToBytes(false)
}

func TestTrustedRootFromTUF(t *testing.T) {
	want := signingtest.New(t, signingtest.Config{}).TrustedRoot()
	tomorrow := time.Now().AddDate(0, 0, 1)
	first, url := tufRepository(t, want, tomorrow)
	_, other := tufRepository(t, want, tomorrow)
	old, expired := tufRepository(t, want, time.Now().AddDate(0, 0, -1))
	useless, broken := tufRepository(t, []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), tomorrow)

	got, err := signing.TUF{URL: url, Root: first, Dir: t.TempDir()}.TrustedRoot(t.Context())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("trusted root %q, %v", got, err)
	}
	_, err = signing.TUF{URL: expired, Root: old, Dir: t.TempDir()}.TrustedRoot(t.Context())
	if r, ok := errors.AsType[*signing.Rejection](err); !ok || r.Result.Outcome != signing.TrustExpired {
		t.Errorf("expired metadata: %v", err)
	}
	if _, err := (signing.TUF{URL: other, Root: first, Dir: t.TempDir()}).TrustedRoot(t.Context()); err == nil {
		t.Error("metadata of another repository was taken")
	}
	if _, err := (signing.TUF{URL: broken, Root: useless, Dir: t.TempDir()}).TrustedRoot(t.Context()); err == nil {
		t.Error("a document that trusts nobody was taken")
	}
	down := errors.New("no route")
	_, err = signing.TUF{URL: url, Root: first, Dir: t.TempDir(), Transport: failing{down}}.TrustedRoot(t.Context())
	if !errors.Is(err, down) {
		t.Errorf("what the transport said is lost: %v", err)
	}
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }
