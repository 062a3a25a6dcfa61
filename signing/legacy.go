package signing

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// judgeLegacy checks a simple-signing payload with what its layer's annotations
// carry: signature, certificate, log entry and timestamp.
func (v *Verifier) judgeLegacy(ctx context.Context, rule *Rule, sig legacySignature, digest v1.Hash) finding {
	f := finding{outcome: Verified}
	b64sig := sig.annotations[static.SignatureAnnotationKey]
	if rule.key != nil {
		s, err := static.NewSignature(sig.payload, b64sig)
		if err == nil {
			_, err = cosign.VerifyImageSignature(ctx, s, digest, &cosign.CheckOpts{SigVerifier: rule.key, IgnoreTlog: true, Offline: true})
		}
		if err != nil {
			return wrongSigner("not signed by %s: %v", rule.wants(), err)
		}
	} else if f = v.judgeCertified(ctx, rule, sig, b64sig, digest); f.outcome != Verified {
		return f
	}

	// Only now is it known who wrote the payload. Which repository it names is
	// not compared: images are signed where they are promoted from, and the
	// binding is the digest and the signer.
	var claim payload.SimpleContainerImage
	if err := json.Unmarshal(sig.payload, &claim); err != nil {
		return wrongSigner("payload: %v", err)
	}
	if claim.Critical.Type != payload.CosignSignatureType {
		return wrongSigner("payload has type %q, expected %q", claim.Critical.Type, payload.CosignSignatureType)
	}
	if got := claim.Critical.Image.DockerManifestDigest; got != digest.String() {
		f.outcome, f.detail = WrongDigest, fmt.Sprintf("signed for %s, expected %s", got, digest)
	}
	return f
}

func (v *Verifier) judgeCertified(ctx context.Context, rule *Rule, sig legacySignature, b64sig string, digest v1.Hash) finding {
	certs, err := cryptoutils.LoadCertificatesFromPEM(bytes.NewReader([]byte(sig.annotations[static.CertificateAnnotationKey])))
	if err != nil || len(certs) == 0 {
		return wrongSigner("has no certificate, expected %s", rule.wants())
	}
	leaf := certs[0]
	opts := []static.Option{static.WithCertChain([]byte(sig.annotations[static.CertificateAnnotationKey]), nil)}

	// The times at which someone in the trusted root saw the signature. The log's
	// is proven by the check below.
	var times []time.Time
	raw, err := base64.StdEncoding.DecodeString(b64sig)
	if err != nil {
		return wrongSigner("signature: %v", err)
	}
	var ts cbundle.RFC3161Timestamp
	if a := sig.annotations[static.RFC3161TimestampAnnotationKey]; a != "" {
		if err := json.Unmarshal([]byte(a), &ts); err != nil {
			return wrongSigner("timestamp: %v", err)
		}
	}
	t, err := v.Trust.timestamp(ts.SignedRFC3161Timestamp, raw)
	timestamped := err == nil
	if timestamped {
		times = append(times, t)
		opts = append(opts, static.WithRFC3161Timestamp(&ts))
	}
	entry := sig.annotations[static.BundleAnnotationKey]
	if v.Trust.logged() && entry != "" {
		var b cbundle.RekorBundle
		if err := json.Unmarshal([]byte(entry), &b); err != nil {
			return wrongSigner("log entry: %v", err)
		}
		times = append(times, time.Unix(b.Payload.IntegratedTime, 0))
		opts = append(opts, static.WithBundle(&b))
	}
	if f := checkTimes(leaf, times); f.outcome != Verified {
		return f
	}
	if v.Trust.logged() && entry == "" {
		return wrongSigner("has no transparency log entry, and the trusted root asks for one")
	}

	s, err := static.NewSignature(sig.payload, b64sig, opts...)
	if err == nil {
		_, err = cosign.VerifyImageSignature(ctx, s, digest, &cosign.CheckOpts{
			TrustedMaterial:     v.Trust.material,
			Offline:             true,
			IgnoreTlog:          !v.Trust.logged(),
			IgnoreSCT:           len(v.Trust.material.CTLogs()) == 0,
			UseSignedTimestamps: timestamped,
		})
	}
	// The library judges the chain when the leaf was made and the leaf when the
	// signature was: judge the whole chain at each trusted time as well.
	for _, t := range times {
		if err == nil {
			_, err = verify.VerifyLeafCertificate(t, leaf, v.Trust.material)
		}
	}
	if err != nil {
		return v.untrusted(leaf, err)
	}
	return judgeIdentity(rule, leaf, times)
}

// checkTimes wants at least one time, and each inside the leaf's validity. The
// wall clock is never asked: a signature stays good when its short-lived
// certificate has expired since.
func checkTimes(leaf *x509.Certificate, times []time.Time) finding {
	window := fmt.Sprintf("the certificate's validity (%s to %s)", stamp(leaf.NotBefore), stamp(leaf.NotAfter))
	if len(times) == 0 {
		return wrongSigner("no trusted time inside %s: no log entry or timestamp that the trusted root knows", window)
	}
	for _, t := range times {
		if t.Before(leaf.NotBefore) || t.After(leaf.NotAfter) {
			return wrongSigner("no trusted time inside %s: signed at %s", window, stamp(t))
		}
	}
	return finding{outcome: Verified}
}

// untrusted reports a signature that does not verify against the trusted root.
func (v *Verifier) untrusted(leaf *x509.Certificate, err error) finding {
	if end, old := v.Trust.ended(leaf); old {
		return finding{outcome: TrustExpired, detail: fmt.Sprintf(
			"every certificate authority of the trusted root had ended by %s, and the certificate was made at %s; refresh the trusted root", stamp(end), stamp(leaf.NotBefore))}
	}
	return wrongSigner("does not verify against the trusted root: %v", err)
}

// judgeIdentity compares the names in a verified certificate with the rule.
func judgeIdentity(rule *Rule, leaf *x509.Certificate, times []time.Time) finding {
	sans := cryptoutils.GetSubjectAlternateNames(leaf)
	if len(sans) != 1 {
		return wrongSigner("certificate names %d identities %q, expected exactly one", len(sans), sans)
	}
	ext, err := certificate.ParseExtensions(leaf.Extensions)
	if err != nil {
		return wrongSigner("certificate extensions: %v", err)
	}
	f := finding{outcome: Verified, identity: sans[0], issuer: ext.Issuer, signedAt: earliest(times)}
	if !rule.accepts(f.identity, f.issuer) {
		f.outcome = WrongSigner
		f.detail = fmt.Sprintf("signed by %q with issuer %q, expected %s", f.identity, f.issuer, rule.wants())
	}
	return f
}
