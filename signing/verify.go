package signing

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Outcome is what a check came to.
type Outcome string

// The outcomes. Only Verified and Excepted let an input in.
const (
	Verified     Outcome = "verified"
	Excepted     Outcome = "exception"     // the policy lets this reference in unsigned
	Unsigned     Outcome = "unsigned"      // the place was read, and has no signature
	Unreachable  Outcome = "unreachable"   // a signature may exist, and could not be read
	WrongSigner  Outcome = "wrong-signer"  // signed, but not provably by who the policy names
	WrongDigest  Outcome = "wrong-digest"  // signed by the right one, for other bytes
	TrustExpired Outcome = "trust-expired" // the trust material is too old to judge by
)

// telling orders failures: a fact about a signature says more than a missing
// one, and "could not look" more than "nothing there".
var telling = []Outcome{Unsigned, Unreachable, WrongSigner, TrustExpired, WrongDigest}

// The forms in which a signature is attached to an image.
const (
	FormLegacyTag    = "legacy-tag"    // tag sha256-<hex>.sig
	FormReferrer     = "referrer"      // listed by the referrers API
	FormReferrersTag = "referrers-tag" // listed under tag sha256-<hex>
	FormDetached     = "detached"      // beside a file
)

// Subject is an image to check.
type Subject struct {
	// Reference is how people and the policy name it, with tag.
	Reference string
	// Repository is where its bytes were pulled from. Unused for a layout.
	Repository name.Repository
	// Digest ("sha256:<hex>") is of the top node: index or manifest.
	Digest string
	// Platform is the digest of the platform manifest that was chosen from the
	// bytes with Digest, or empty. A signature on the index vouches for it.
	Platform string
}

// Result tells what a check found.
type Result struct {
	Outcome   Outcome
	Reference string
	// Digest is of the node that carries the signature: the platform manifest's
	// when only that is signed, else the subject's.
	Digest string
	// Identity and Issuer are the signer's, as far as they were proven. Both are
	// empty for a key.
	Identity, Issuer string
	// Location and Form tell where the signature was found.
	Location, Form string
	// SignedAt is the trusted time of the signature; zero for a key.
	SignedAt time.Time
	// Reason is the policy's reason for an exception.
	Reason string
	// Detail says in one line what was found and what was expected.
	Detail string
}

// Accepted tells whether the input may be used.
func (r Result) Accepted() bool { return r.Outcome == Verified || r.Outcome == Excepted }

// Err is nil for an accepted result, else a *Rejection.
func (r Result) Err() error {
	if r.Accepted() {
		return nil
	}
	return &Rejection{r}
}

// Rejection is the error form of a result that lets nothing in.
type Rejection struct{ Result Result }

func (e *Rejection) Error() string {
	what := e.Result.Reference
	if e.Result.Digest != "" {
		what = fmt.Sprintf("signature of %s (%s)", what, e.Result.Digest)
	}
	return fmt.Sprintf("%s: %s: %s", what, e.Result.Outcome, e.Result.Detail)
}

// lookupTimeout bounds the look-up and check of one image's signatures.
const lookupTimeout = 2 * time.Minute

// Verifier checks signatures by a policy and a trusted root.
type Verifier struct {
	Policy *Policy
	// Trust may be nil when every rule has a public key.
	Trust *TrustedRoot
	// Roots are the trusted roots that rules name. What one of them vouches for
	// says nothing about repositories of other rules.
	Roots map[string]*TrustedRoot
	// TrustExpires is when the metadata that delivered Trust expires; zero for
	// never. Nothing is judged by a certificate after that.
	TrustExpires time.Time
	// Transport carries registry requests and does its own retries. Nil means
	// the registry library's transport with its few retries.
	Transport http.RoundTripper
	// Keychain gives registry credentials; nil means none.
	Keychain authn.Keychain
	// Now is the clock TrustExpires is compared with; nil means the real one.
	Now func() time.Time
}

// Verify checks the signature of an image in a registry: first the legacy tag,
// then the referrers API, then the referrers tag. One good signature is enough;
// otherwise the most telling failure is returned, with all details.
//
// The error is for what is not a finding about the signature: a malformed
// subject, no rule (ErrNoRule), no trusted root, or an ended ctx.
func (v *Verifier) Verify(ctx context.Context, s Subject) (Result, error) {
	return v.verifyFrom(ctx, s, func(rule *Rule, repository string) (source, error) {
		where, err := rule.signatureRepository(s.Repository, repository)
		return &registrySource{repo: where, transport: v.Transport, keychain: v.Keychain}, err
	})
}

// VerifyLayout does the same for an image in the OCI layout at dir, whose
// index.json lists the signatures (see Artifact.Descriptor).
func (v *Verifier) VerifyLayout(ctx context.Context, s Subject, dir string) (Result, error) {
	return v.verifyFrom(ctx, s, func(*Rule, string) (source, error) { return layoutSource(dir), nil })
}

func (v *Verifier) verifyFrom(ctx context.Context, s Subject, open func(*Rule, string) (source, error)) (Result, error) {
	res := Result{Reference: s.Reference, Digest: s.Digest}
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("verify signature of %s: %w", s.Reference, err)
	}
	ref, err := name.ParseReference(s.Reference)
	if err != nil {
		return fail(err)
	}
	nodes := []string{s.Digest}
	rule, ruleErr := v.Policy.rule(ref.Context().Name())
	if ruleErr == nil && rule.PlatformSignatures && s.Platform != "" && s.Platform != s.Digest {
		nodes = append(nodes, s.Platform)
	}
	var digests []v1.Hash
	for _, node := range nodes {
		h, err := parseDigest(node)
		if err != nil {
			return fail(err)
		}
		digests = append(digests, h)
	}

	if reason, ok := v.Policy.exceptions[ref.Name()]; ok {
		res.Outcome, res.Reason, res.Detail = Excepted, reason, "not checked: "+reason
		return res, nil
	}
	if ruleErr != nil {
		return fail(ruleErr)
	}
	v = v.under(rule)
	if done, err := v.checkTrust(rule, &res); err != nil {
		return fail(err)
	} else if done {
		return res, nil
	}
	src, err := open(rule, ref.Context().Name())
	if err != nil {
		return fail(err)
	}

	lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var found Result
	var details []string
	for _, digest := range digests {
		found = v.search(lookup, src, rule, digest)
		if ctx.Err() != nil {
			return fail(context.Cause(ctx))
		}
		found.Reference, found.Digest = s.Reference, s.Digest
		if found.Outcome == Verified {
			found.Digest = digest.String()
			return found, nil
		}
		details = append(details, found.Detail)
		if found.Outcome != Unsigned {
			break
		}
	}
	found.Detail = strings.Join(details, "; ")
	return found, nil
}

// under returns the verifier that judges by the trusted root that the rule names.
func (v *Verifier) under(rule *Rule) *Verifier {
	if rule.TrustedRoot == "" {
		return v
	}
	named := *v
	named.Trust, named.TrustExpires = v.Roots[rule.TrustedRoot], time.Time{}
	return &named
}

// checkTrust fills in res and answers true when the trust material has expired.
func (v *Verifier) checkTrust(rule *Rule, res *Result) (bool, error) {
	if rule.key != nil {
		return false, nil
	}
	if v.Trust == nil {
		return false, fmt.Errorf("rule %s asks for a certificate, and its trusted root %q is not given", rule.Pattern, rule.TrustedRoot)
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	if e := v.TrustExpires; !e.IsZero() && !now().Before(e) {
		res.Outcome = TrustExpired
		res.Detail = fmt.Sprintf("the trust metadata expired at %s; refresh it", stamp(e))
		return true, nil
	}
	return false, nil
}

// search judges the signatures of one digest until one is good.
func (v *Verifier) search(ctx context.Context, src source, rule *Rule, digest v1.Hash) Result {
	worst := Result{Outcome: Unsigned}
	var details []string
	for c, err := range src.find(ctx, digest) {
		r := Result{Location: c.location, Form: c.form}
		if err != nil {
			r.Outcome, r.Detail = Unreachable, err.Error()
		} else {
			v.judge(ctx, rule, c, digest).fill(&r)
		}
		if r.Outcome == Verified {
			return r
		}
		if slices.Index(telling, r.Outcome) > slices.Index(telling, worst.Outcome) {
			worst = r
		}
		if d := strings.TrimPrefix(c.location+": ", ": ") + r.Detail; !slices.Contains(details, d) {
			details = append(details, d)
		}
	}
	if len(details) == 0 {
		details = []string{fmt.Sprintf("%s has no signature of %s", src, digest)}
	}
	if extra := len(details) - maxDetails; extra > 0 {
		details = append(details[:maxDetails], fmt.Sprintf("and %d more", extra))
	}
	worst.Detail = strings.Join(details, "; ")
	return worst
}

// maxDetails bounds how many different failures one message tells.
const maxDetails = 8

// judge checks one signature.
func (v *Verifier) judge(ctx context.Context, rule *Rule, c candidate, digest v1.Hash) finding {
	return guarded(func() finding {
		if c.legacy != nil {
			return v.judgeLegacy(ctx, rule, *c.legacy, digest)
		}
		return v.judgeBundle(rule, c.bundle, digest)
	})
}

// guarded turns a panic into a signature that does not verify. The libraries
// parse bytes that anyone may have put beside an image, and index or assert
// without looking in places.
func guarded(judge func() finding) (f finding) {
	defer func() {
		if p := recover(); p != nil {
			f = wrongSigner("malformed signature: %v", p)
		}
	}()
	return judge()
}

// finding is what one signature proves.
type finding struct {
	outcome          Outcome
	identity, issuer string
	signedAt         time.Time
	detail           string
}

func (f finding) fill(r *Result) {
	r.Outcome, r.Detail = f.outcome, f.detail
	r.Identity, r.Issuer, r.SignedAt = f.identity, f.issuer, f.signedAt
}

func wrongSigner(format string, args ...any) finding {
	return finding{outcome: WrongSigner, detail: fmt.Sprintf(format, args...)}
}

// parseDigest wants sha256, which is what signatures are made over.
func parseDigest(s string) (v1.Hash, error) {
	h, err := v1.NewHash(s)
	if err != nil || h.Algorithm != "sha256" {
		return v1.Hash{}, fmt.Errorf("digest %q is not of the form sha256:<64 hex>", s)
	}
	return h, nil
}

// earliest returns the earliest of some times; there is at least one.
func earliest(times []time.Time) time.Time {
	return slices.MinFunc(times, func(a, b time.Time) int { return cmp.Compare(a.UnixNano(), b.UnixNano()) }).UTC()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
