package signing

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
)

// TrustedRoot is what signatures are judged by: certificate authorities,
// transparency logs and timestamp authorities, each with its time of use. An
// authority that has ended stays in it, since what it signed before stays good.
type TrustedRoot struct {
	material root.TrustedMaterial
}

// ParseTrustedRoot reads a trusted_root.json (the JSON form of
// dev.sigstore.trustroot.v1.TrustedRoot).
func ParseTrustedRoot(b []byte) (*TrustedRoot, error) {
	tr, err := root.NewTrustedRootFromJSON(b)
	if err != nil {
		return nil, fmt.Errorf("trusted root: %w", err)
	}
	if len(tr.FulcioCertificateAuthorities()) == 0 {
		return nil, errors.New("trusted root: names no certificate authority")
	}
	if len(tr.RekorLogs()) == 0 && len(tr.TimestampingAuthorities()) == 0 {
		return nil, errors.New("trusted root: names no transparency log and no timestamp authority, so nothing can tell when a signature was made")
	}
	return &TrustedRoot{tr}, nil
}

// logged tells whether signatures must be in a transparency log. Where the root
// names one, its witness is part of the trust.
func (t *TrustedRoot) logged() bool { return len(t.material.RekorLogs()) > 0 }

// timestamp returns the time an RFC 3161 response gives to sig when one of the
// timestamp authorities vouches for it.
func (t *TrustedRoot) timestamp(response, sig []byte) (time.Time, error) {
	err := errors.New("trusted root names no timestamp authority")
	for _, tsa := range t.material.TimestampingAuthorities() {
		var ts *root.Timestamp
		if ts, err = tsa.Verify(response, sig); err == nil {
			return ts.Time, nil
		}
	}
	return time.Time{}, err
}

// ended returns when the last of the certificate authorities ended, and whether
// that was before a certificate was made: nothing in this root can vouch for it
// then, because the root itself is out of date.
func (t *TrustedRoot) ended(leaf *x509.Certificate) (time.Time, bool) {
	var last time.Time
	for _, ca := range t.material.FulcioCertificateAuthorities() {
		f, ok := ca.(*root.FulcioCertificateAuthority)
		if !ok {
			return time.Time{}, false
		}
		end := f.Root.NotAfter
		for _, c := range f.Intermediates {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if e := f.ValidityPeriodEnd; !e.IsZero() && e.Before(end) {
			end = e
		}
		if end.After(last) {
			last = end
		}
	}
	return last, last.Before(leaf.NotBefore)
}
