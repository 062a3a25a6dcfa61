package signing_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
)

const (
	stager    = "krel-staging@k8s-releng-prod.iam.gserviceaccount.com"
	kubeadmAt = "dl.k8s.io/release/v1.37.2/bin/linux/amd64/kubeadm"
)

func TestDetachedSignature(t *testing.T) {
	s, stranger := signingtest.New(t, signingtest.Config{}), signingtest.New(t, signingtest.Config{})
	log := httptest.NewServer(s.Rekor())
	t.Cleanup(log.Close)
	down := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(down.Close)
	digestOf := func(content string) v1.Hash {
		sum := sha256.Sum256([]byte(content))
		return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	}
	kubeadm := digestOf("kubeadm")
	good := signingtest.Options{Identity: stager, Issuer: google}
	lastYear := time.Now().AddDate(-1, 0, 0)

	for _, tt := range []struct {
		name    string
		by      *signingtest.Sigstore
		change  func(*signingtest.Options)
		blob    func(*signing.Blob)
		url     string
		outcome signing.Outcome
		detail  string
	}{
		{name: "good", outcome: signing.Verified},
		{name: "certificate expired since", change: func(o *signingtest.Options) { o.SignedAt = lastYear }, outcome: signing.Verified},
		{name: "certificate as plain PEM", blob: func(b *signing.Blob) {
			b.Certificate, _ = base64.StdEncoding.DecodeString(string(b.Certificate))
		}, outcome: signing.Verified},
		{name: "no signature files", blob: func(b *signing.Blob) { b.Signature, b.Certificate = nil, nil }, outcome: signing.Unsigned},
		{name: "image signer instead of file signer", change: func(o *signingtest.Options) { o.Identity = releaser }, outcome: signing.WrongSigner, detail: releaser},
		{name: "other authority", by: stranger, outcome: signing.WrongSigner, detail: "no trusted time"},
		{name: "not in the log", change: func(o *signingtest.Options) { o.Unwitnessed = true }, outcome: signing.WrongSigner, detail: "no trusted time"},
		{name: "logged after the certificate expired", change: func(o *signingtest.Options) {
			o.NotBefore, o.NotAfter, o.SignedAt = lastYear, lastYear.Add(10*time.Minute), lastYear.Add(time.Hour)
		}, outcome: signing.WrongSigner, detail: "no trusted time"},
		{name: "changed file", blob: func(b *signing.Blob) { b.Digest = digestOf("evil").String() }, outcome: signing.WrongDigest},
		{name: "signature of another file", change: func(o *signingtest.Options) { o.Digest = digestOf("kubectl") }, outcome: signing.WrongDigest},
		{name: "signature is no base64", blob: func(b *signing.Blob) { b.Signature = []byte("<html>") }, outcome: signing.WrongSigner},
		{name: "certificate missing", blob: func(b *signing.Blob) { b.Certificate = nil }, outcome: signing.WrongSigner},
		{name: "log does not answer", url: down.URL, outcome: signing.Unreachable, detail: "404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := good
			if tt.change != nil {
				tt.change(&o)
			}
			by := s
			if tt.by != nil {
				by = tt.by
			}
			b := signing.Blob{Reference: kubeadmAt, Digest: kubeadm.String()}
			b.Signature, b.Certificate = by.SignBlob(t, kubeadm, o)
			if tt.blob != nil {
				tt.blob(&b)
			}
			v := newVerifier(t, s.TrustedRoot(), signing.Rule{Pattern: "dl.k8s.io/**", Identity: stager, Issuer: google})
			url := log.URL
			if tt.url != "" {
				url = tt.url
			}
			got, err := v.VerifyBlob(t.Context(), b, signing.Rekor{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			want(t, got, tt.outcome, tt.detail)
			if tt.outcome == signing.Verified && (got.Identity != stager || got.SignedAt.IsZero() || got.Location != kubeadmAt+".sig") {
				t.Errorf("result %+v", got)
			}
		})
	}
}

func TestDetachedSignatureNeedsARule(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	v := newVerifier(t, s.TrustedRoot())
	_, err := v.VerifyBlob(t.Context(), signing.Blob{Reference: kubeadmAt, Digest: "sha256:" + hex.EncodeToString(make([]byte, 32))}, signing.Rekor{})
	if !errors.Is(err, signing.ErrNoRule) {
		t.Errorf("error %v", err)
	}
}

func TestNamedTrustedRootJudgesItsRuleOnly(t *testing.T) {
	public, own := signingtest.New(t, signingtest.Config{}), signingtest.New(t, signingtest.Config{})
	const here = "files.example.com/tool"
	v := newVerifier(t, public.TrustedRoot(),
		signing.Rule{Pattern: "dl.k8s.io/**", Identity: stager, Issuer: google},
		signing.Rule{Pattern: "files.example.com/**", Identity: stager, Issuer: google, TrustedRoot: "own"})
	root, err := signing.ParseTrustedRoot(own.TrustedRoot())
	if err != nil {
		t.Fatal(err)
	}
	v.Roots = map[string]*signing.TrustedRoot{"own": root}
	v.TrustExpires = time.Now().Add(-time.Hour)
	v.Now = func() time.Time { return v.TrustExpires.Add(-time.Hour) }

	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(make([]byte, 32))}
	for _, tt := range []struct {
		reference string
		by        *signingtest.Sigstore
		outcome   signing.Outcome
	}{
		{kubeadmAt, public, signing.Verified},
		{kubeadmAt, own, signing.WrongSigner},
		{here, own, signing.Verified},
		{here, public, signing.WrongSigner},
	} {
		b := signing.Blob{Reference: tt.reference, Digest: digest.String()}
		b.Signature, b.Certificate = tt.by.SignBlob(t, digest, signingtest.Options{Identity: stager, Issuer: google})
		log := httptest.NewServer(tt.by.Rekor())
		t.Cleanup(log.Close)
		got, err := v.VerifyBlob(t.Context(), b, signing.Rekor{URL: log.URL})
		if err != nil || got.Outcome != tt.outcome {
			t.Errorf("%s: %+v, %v; expected %s", tt.reference, got, err, tt.outcome)
		}
	}

	v.Now = nil // the metadata that expired did not deliver the named root
	b := signing.Blob{Reference: here, Digest: digest.String(), Signature: []byte("x"), Certificate: []byte("x")}
	if got, err := v.VerifyBlob(t.Context(), b, signing.Rekor{}); err != nil || got.Outcome != signing.WrongSigner {
		t.Errorf("named root: %+v, %v", got, err)
	}
	v.Roots = nil
	if _, err := v.VerifyBlob(t.Context(), b, signing.Rekor{}); err == nil {
		t.Error("verified without the named root")
	}
}
