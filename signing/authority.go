package signing

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/kairos-io/provider-kubernetes/signing/internal/pki"
	"github.com/sigstore/sigstore-go/pkg/root"
)

const (
	authorityFile  = "authority.pem"
	authorityYears = 10
	leafValidity   = 10 * time.Minute
)

// Authority is a certificate authority and timestamp authority of this machine.
// It gives images that were built here from checked modules an identity, so that
// the same Verifier judges them as it does released ones. Its signature says
// only that: this machine made these bytes. It is no one else's word, and its
// trusted root must never be merged with another.
type Authority struct {
	identity, issuer string
	ca, tsa          pki.Holder
}

// OpenAuthority returns the authority in dir, making it on first use: one file,
// authority.pem (0600), with the keys and certificates of both. It signs as
// identity (an email address or URI) with the OIDC issuer given.
func OpenAuthority(dir, identity, issuer string) (*Authority, error) {
	if identity == "" || issuer == "" {
		return nil, errors.New("open signing authority: identity and issuer must both be given")
	}
	path := filepath.Join(dir, authorityFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		b, err := newAuthority(time.Now())
		if err == nil {
			err = createFile(path, b, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("make signing authority: %w", err)
		}
	}
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read signing authority: %w", err)
	}
	a := &Authority{identity: identity, issuer: issuer}
	for _, h := range []*pki.Holder{&a.ca, &a.tsa} {
		if b, err = decodeHolder(b, h); err != nil {
			return nil, fmt.Errorf("signing authority %s: %w; remove it to make a new one", path, err)
		}
	}
	return a, nil
}

func newAuthority(now time.Time) ([]byte, error) {
	end := now.AddDate(authorityYears, 0, 0)
	ca, err := pki.NewCA("provider-kubernetes local authority", now, end)
	if err != nil {
		return nil, err
	}
	tsa, err := ca.Timestamper(now, end)
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, h := range []pki.Holder{ca, tsa} {
		key, err := x509.MarshalPKCS8PrivateKey(h.Key)
		if err != nil {
			return nil, err
		}
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Cert.Raw})...)
	}
	return b, nil
}

// decodeHolder reads a key and its certificate from the front of a PEM file and
// returns the rest.
func decodeHolder(b []byte, h *pki.Holder) ([]byte, error) {
	key, b := pem.Decode(b)
	if key == nil {
		return nil, errors.New("has no key where one is expected")
	}
	private, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := private.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key is a %T, expected ECDSA", private)
	}
	cert, b := pem.Decode(b)
	if cert == nil {
		return nil, errors.New("has no certificate where one is expected")
	}
	h.Key = ec
	if h.Cert, err = x509.ParseCertificate(cert.Bytes); err != nil {
		return nil, err
	}
	if !ec.PublicKey.Equal(h.Cert.PublicKey) {
		return nil, errors.New("key and certificate don't belong together")
	}
	return b, nil
}

// TrustedRoot returns the trusted_root.json that trusts this authority only.
func (a *Authority) TrustedRoot() ([]byte, error) {
	b, err := pki.TrustedRoot(
		[]root.CertificateAuthority{&root.FulcioCertificateAuthority{
			Root: a.ca.Cert, ValidityPeriodStart: a.ca.Cert.NotBefore, ValidityPeriodEnd: a.ca.Cert.NotAfter,
		}},
		[]root.TimestampingAuthority{&root.SigstoreTimestampingAuthority{
			Root: a.ca.Cert, Leaf: a.tsa.Cert, ValidityPeriodStart: a.tsa.Cert.NotBefore, ValidityPeriodEnd: a.tsa.Cert.NotAfter,
		}},
		nil)
	if err != nil {
		return nil, fmt.Errorf("trusted root of the local authority: %w", err)
	}
	return b, nil
}

// Sign implements Signer with a new leaf certificate of ten minutes, whose key
// is forgotten afterwards, and a timestamp that proves it was used in time.
func (a *Authority) Sign(_ context.Context, repository string, manifest v1.Descriptor) ([]Artifact, error) {
	now := time.Now().UTC().Truncate(time.Second)
	if now.Before(a.ca.Cert.NotBefore) || now.Add(leafValidity).After(a.ca.Cert.NotAfter) {
		return nil, fmt.Errorf("sign %s: the local authority is good from %s to %s, and the clock says %s; set the clock, or remove %s to make a new authority",
			manifest.Digest, stamp(a.ca.Cert.NotBefore), stamp(a.ca.Cert.NotAfter), stamp(now), authorityFile)
	}
	leaf, err := a.ca.Signer(a.identity, a.issuer, now, now.Add(leafValidity))
	var artifacts []Artifact
	if err == nil {
		artifacts, err = credential{
			sign:      func(m []byte) ([]byte, error) { return signMessage(leaf.Key, m) },
			chain:     []*x509.Certificate{leaf.Cert, a.ca.Cert},
			timestamp: func(sig []byte) ([]byte, error) { return a.tsa.Timestamp(sig, now) },
		}.artifacts(repository, manifest)
	}
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", manifest.Digest, err)
	}
	return artifacts, nil
}
