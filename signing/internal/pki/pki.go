// Package pki makes the certificates and timestamps of a small signing
// authority in the form that sigstore verifiers want. It keeps nothing: keys
// and times come from the caller.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/sigstore/sigstore-go/pkg/root"
)

// Fulcio's extension for the OIDC issuer: the first form is the bare string,
// the second a DER UTF8String.
var (
	oidIssuer       = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}
	oidIssuerV2     = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
	oidExtKeyUsage  = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidTimeStamping = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 8}
	oidTSAPolicy    = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2}
)

// Holder is a certificate with its private key.
type Holder struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// NewKey returns an ECDSA P-256 key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewCA returns a self-signed certificate authority.
func NewCA(commonName string, notBefore, notAfter time.Time) (Holder, error) {
	return issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, nil)
}

// Signer issues a code-signing leaf for identity (an email address, or a URI
// when it has "://") as vouched for by the OIDC issuer.
func (ca Holder) Signer(identity, issuer string, notBefore, notAfter time.Time) (Holder, error) {
	v2, err := asn1.MarshalWithParams(issuer, "utf8")
	if err != nil {
		return Holder{}, err
	}
	leaf := &x509.Certificate{
		NotBefore:   notBefore,
		NotAfter:    notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{
			{Id: oidIssuer, Value: []byte(issuer)},
			{Id: oidIssuerV2, Value: v2},
		},
	}
	if strings.Contains(identity, "://") {
		u, err := url.Parse(identity)
		if err != nil {
			return Holder{}, err
		}
		leaf.URIs = []*url.URL{u}
	} else {
		leaf.EmailAddresses = []string{identity}
	}
	return issue(leaf, &ca)
}

// Timestamper issues a leaf that may timestamp (RFC 3161 §2.3: time stamping as
// only use, critical).
func (ca Holder) Timestamper(notBefore, notAfter time.Time) (Holder, error) {
	usage, err := asn1.Marshal([]asn1.ObjectIdentifier{oidTimeStamping})
	if err != nil {
		return Holder{}, err
	}
	return issue(&x509.Certificate{
		Subject:         pkix.Name{CommonName: ca.Cert.Subject.CommonName + " timestamps"},
		NotBefore:       notBefore,
		NotAfter:        notAfter,
		KeyUsage:        x509.KeyUsageDigitalSignature,
		ExtraExtensions: []pkix.Extension{{Id: oidExtKeyUsage, Critical: true, Value: usage}},
	}, &ca)
}

// issue signs template with a new key; without a parent, with that key itself.
func issue(template *x509.Certificate, parent *Holder) (Holder, error) {
	key, err := NewKey()
	if err != nil {
		return Holder{}, err
	}
	h := Holder{Cert: template, Key: key}
	if parent == nil {
		parent = &h
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Cert, key.Public(), parent.Key)
	if err != nil {
		return Holder{}, fmt.Errorf("issue certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return Holder{Cert: cert, Key: key}, err
}

// Timestamp returns the RFC 3161 response (DER) that says sig existed at t.
func (tsa Holder) Timestamp(sig []byte, t time.Time) ([]byte, error) {
	sum := sha256.Sum256(sig)
	ts := timestamp.Timestamp{
		HashAlgorithm: crypto.SHA256,
		HashedMessage: sum[:],
		Time:          t,
		Policy:        oidTSAPolicy,
	}
	return ts.CreateResponseWithOpts(tsa.Cert, tsa.Key, crypto.SHA256)
}

// TrustedRoot encodes a trusted_root.json. The maps are by hex log id.
func TrustedRoot(cas []root.CertificateAuthority, tsas []root.TimestampingAuthority, logs map[string]*root.TransparencyLog) ([]byte, error) {
	tr, err := root.NewTrustedRoot(root.TrustedRootMediaType01, cas, nil, tsas, logs)
	if err != nil {
		return nil, err
	}
	b, err := tr.MarshalJSON()
	if err != nil {
		return nil, err
	}
	// The encoder varies its white space from build to build on purpose.
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
