package signing_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/kairos-io/provider-kubernetes/signing"
)

const builderIdentity, builderIssuer = "rebuilt@localhost.example", "https://localhost.example"

func openAuthority(t *testing.T, dir string) (*signing.Authority, []byte) {
	t.Helper()
	a, err := signing.OpenAuthority(dir, builderIdentity, builderIssuer)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := a.TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	return a, trust
}

func TestLocalAuthoritySignsForTheSameVerifier(t *testing.T) {
	dir := t.TempDir()
	a, trust := openAuthority(t, dir)
	_, again := openAuthority(t, dir)
	if !bytes.Equal(trust, again) {
		t.Error("the trusted root changed on the second use")
	}
	rule := signing.Rule{Pattern: nodeRepository, Identity: builderIdentity, Issuer: builderIssuer}
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	artifacts := sign(t, a, repo, index)
	subject := signing.Subject{Reference: nodeRepository + ":v1", Digest: index.String()}
	for i := range artifacts {
		repo := newRegistry(t, true, nil)
		push(t, repo, artifacts[i:i+1])
		subject := subject
		subject.Repository = repo
		got := verify(t, newVerifier(t, trust, rule), subject)
		want(t, got, signing.Verified)
		if got.Identity != builderIdentity || got.Issuer != builderIssuer || got.SignedAt.IsZero() {
			t.Errorf("result %+v", got)
		}
		_, stranger := openAuthority(t, t.TempDir())
		want(t, verify(t, newVerifier(t, stranger, rule), subject), signing.WrongSigner, "trusted root")
		other := rule
		other.Identity = releaser
		want(t, verify(t, newVerifier(t, trust, other), subject), signing.WrongSigner, builderIdentity)
	}
	idx, err := remote.Index(repo.Digest(index.String()))
	if err != nil {
		t.Fatal(err)
	}
	got, err := newVerifier(t, trust, rule).VerifyLayout(t.Context(), subject, writeLayout(t, idx, artifacts))
	if err != nil {
		t.Fatal(err)
	}
	want(t, got, signing.Verified)
}

func TestAuthorityFileMustBePrivateAndWhole(t *testing.T) {
	dir := t.TempDir()
	openAuthority(t, dir)
	path := filepath.Join(dir, "authority.pem")
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", fi.Mode(), err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, good[:len(good)/2], append(good[len(good)/2:len(good):len(good)], good[:len(good)/2]...)} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := signing.OpenAuthority(dir, builderIdentity, builderIssuer); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%d of %d bytes: %v", len(bad), len(good), err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.OpenAuthority(dir, builderIdentity, builderIssuer); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("file that others can read: %v", err)
	}
	if _, err := signing.OpenAuthority(t.TempDir(), "", builderIssuer); err == nil {
		t.Error("made an authority for nobody")
	}
}
