package cluster

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
	"strings"
)

// KeyHash returns kubeadm's pin of a certificate: "sha256:" and the hexadecimal
// SHA-256 of its public key information (RFC 7469, section 2.4).
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (r reader) certificates() []*x509.Certificate {
	var certs []*x509.Certificate
	for i, text := range r.list("ca_certs") {
		rest := []byte(strings.TrimSpace(text))
		for {
			block, after := pem.Decode(rest)
			if block == nil {
				r.add("entry %d of ca_certs is no certificate in PEM", i+1)
				break
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			switch {
			case block.Type != "CERTIFICATE" || err != nil:
				r.add("entry %d of ca_certs has a PEM block that is no certificate", i+1)
			case !cert.IsCA:
				r.add("entry %d of ca_certs is the certificate of %q, not of an authority", i+1, cert.Subject.CommonName)
			default:
				certs = append(certs, cert)
			}
			if rest = after; len(rest) == 0 {
				break
			}
		}
	}
	return certs
}

// checkPins compares kubeadm's pins with the authorities that were given.
func checkPins(pins []string, cas []*x509.Certificate, f *findings) {
	var good []string
	for i, pin := range pins {
		pin = strings.ToLower(pin)
		if b, err := hex.DecodeString(strings.TrimPrefix(pin, "sha256:")); err != nil || len(b) != sha256.Size || !strings.HasPrefix(pin, "sha256:") {
			f.add("entry %d of caCertHashes is no pin: expected sha256: and 64 hexadecimal digits", i+1)
			continue
		}
		good = append(good, pin)
	}
	if len(good) > 0 && len(cas) > 0 && !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return slices.Contains(good, KeyHash(ca)) }) {
		f.add("no entry of ca_certs has a key that caCertHashes pins: one of the two is of another cluster")
	}
}
