package signing

import (
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// FuzzSignatureImage gives whatever a stranger may put beside an image to the
// reader: it must neither panic nor find a good signature.
func FuzzSignatureImage(f *testing.F) {
	digest := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	open := func() (*Authority, *TrustedRoot) {
		a, err := OpenAuthority(f.TempDir(), "builder@localhost.example", "https://localhost.example")
		if err != nil {
			f.Fatal(err)
		}
		b, err := a.TrustedRoot()
		if err != nil {
			f.Fatal(err)
		}
		trust, err := ParseTrustedRoot(b)
		if err != nil {
			f.Fatal(err)
		}
		return a, trust
	}
	stranger, _ := open()
	_, trust := open()
	artifacts, err := stranger.Sign(f.Context(), "registry.example.com/node", v1.Descriptor{MediaType: types.OCIImageIndex, Digest: digest, Size: 1})
	if err != nil {
		f.Fatal(err)
	}
	for _, a := range artifacts {
		for _, b := range a.Blobs {
			f.Add(a.Manifest, b)
		}
	}
	// A log entry whose body is no string, and one whose key is no PEM.
	layer := `{"schemaVersion":2,"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","size":2,"annotations":{"dev.cosignproject.cosign/signature":"AA==","dev.sigstore.cosign/bundle":`
	f.Add([]byte(layer+`"{\"Payload\":{\"body\":7}}"}}]}`), []byte("{}"))
	f.Add([]byte(layer+`"{\"Payload\":{\"body\":\"e30=\"}}"}}]}`), []byte("{}"))
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}]}`), []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","dsseEnvelope":{},"verificationMaterial":{"certificate":{}}}`))

	policy, err := NewPolicy([]Rule{{Pattern: "registry.example.com/**", Identity: "builder@localhost.example", Issuer: "https://localhost.example"}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	v := &Verifier{Policy: policy, Trust: trust}
	f.Fuzz(func(t *testing.T, manifest, blob []byte) {
		read := func(v1.Descriptor) ([]byte, error) { return blob, nil }
		for c, err := range unpack(manifest, FormReferrer, "here", read) {
			if err != nil {
				continue
			}
			if found := v.judge(t.Context(), &policy.rules[0], c, digest); found.outcome == Verified {
				t.Error("a stranger's signature is good")
			}
		}
	})
}
