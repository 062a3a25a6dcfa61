package signing

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
)

// judgeBundle checks a Sigstore bundle: either a signed in-toto statement of
// cosign's sign predicate about the digest, or a signature over the digest's
// bytes themselves.
func (v *Verifier) judgeBundle(rule *Rule, raw []byte, digest v1.Hash) finding {
	var b bundle.Bundle
	if err := b.UnmarshalJSON(raw); err != nil {
		return wrongSigner("bundle: %v", err)
	}
	return v.judgeEntity(rule, &b, digest)
}

func (v *Verifier) judgeEntity(rule *Rule, b *bundle.Bundle, digest v1.Hash) finding {
	content, err := b.SignatureContent()
	if err != nil {
		return wrongSigner("bundle: %v", err)
	}
	// What the bundle says it signs is verified first and compared with the
	// digest last, so that a signature for other bytes is told from a bad one.
	var claimed []string
	var artifact verify.ArtifactPolicyOption
	if env := content.EnvelopeContent(); env != nil {
		st, err := env.Statement()
		if err != nil {
			return wrongSigner("bundle statement: %v", err)
		}
		if st.GetPredicateType() != ctypes.CosignSignPredicateType {
			return wrongSigner("bundle states %q, expected the signature predicate %q", st.GetPredicateType(), ctypes.CosignSignPredicateType)
		}
		for _, s := range st.GetSubject() {
			claimed = append(claimed, "sha256:"+s.GetDigest()["sha256"])
		}
		artifact = verify.WithoutArtifactUnsafe()
	} else {
		msg := content.MessageSignatureContent()
		if msg.DigestAlgorithm() != protocommon.HashAlgorithm_SHA2_256.String() {
			return wrongSigner("bundle digest is %s, expected SHA2_256", msg.DigestAlgorithm())
		}
		claimed = []string{"sha256:" + hex.EncodeToString(msg.Digest())}
		artifact = verify.WithArtifactDigest("sha256", msg.Digest())
	}

	f := v.judgeSigner(rule, b, artifact)
	if f.outcome == Verified && !slices.Contains(claimed, digest.String()) {
		f.outcome, f.detail = WrongDigest, fmt.Sprintf("signed for %s, expected %s", claimed, digest)
	}
	return f
}

func (v *Verifier) judgeSigner(rule *Rule, b *bundle.Bundle, artifact verify.ArtifactPolicyOption) finding {
	if rule.key != nil {
		verifier, err := verify.NewVerifier(&keyMaterial{key: rule.key}, verify.WithNoObserverTimestamps())
		if err == nil {
			_, err = verifier.Verify(b, verify.NewPolicy(artifact, verify.WithKey()))
		}
		if err != nil {
			return wrongSigner("not signed by %s: %v", rule.wants(), err)
		}
		return finding{outcome: Verified}
	}

	content, err := b.VerificationContent()
	if err != nil {
		return wrongSigner("bundle: %v", err)
	}
	leaf := content.Certificate()
	if leaf == nil {
		return wrongSigner("signed with a bare key, expected %s", rule.wants())
	}
	// These claimed times are only for a clear message; the verifier proves its own.
	if f := checkTimes(leaf, v.claimedTimes(b)); f.outcome != Verified {
		return f
	}
	opts := []verify.VerifierOption{verify.WithObserverTimestamps(1)}
	if v.Trust.logged() {
		opts = append(opts, verify.WithTransparencyLog(1))
	}
	if len(v.Trust.material.CTLogs()) > 0 {
		opts = append(opts, verify.WithSignedCertificateTimestamps(1))
	}
	verifier, err := verify.NewVerifier(v.Trust.material, opts...)
	if err != nil {
		return wrongSigner("%v", err)
	}
	res, err := verifier.Verify(b, verify.NewPolicy(artifact, verify.WithoutIdentitiesUnsafe()))
	if err != nil {
		return v.untrusted(leaf, err)
	}
	var times []time.Time
	for _, t := range res.VerifiedTimestamps {
		times = append(times, t.Timestamp)
	}
	return judgeIdentity(rule, leaf, times)
}

// claimedTimes lists the times in a bundle that the trusted root might prove.
func (v *Verifier) claimedTimes(b *bundle.Bundle) (times []time.Time) {
	content, err := b.SignatureContent()
	if err != nil {
		return nil
	}
	stamps, _ := b.Timestamps()
	for _, s := range stamps {
		if t, err := v.Trust.timestamp(s, bytes.Clone(content.Signature())); err == nil {
			times = append(times, t)
		}
	}
	entries, _ := b.TlogEntries()
	for _, e := range entries {
		if t := e.IntegratedTime(); v.Trust.logged() && !t.IsZero() {
			times = append(times, t)
		}
	}
	return times
}

// keyMaterial trusts one public key and nothing else.
type keyMaterial struct {
	root.BaseTrustedMaterial
	key signature.Verifier
}

func (m *keyMaterial) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	return root.NewExpiringKey(m.key, time.Time{}, time.Time{}), nil
}
