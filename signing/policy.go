// Package signing says who may have signed an input and checks that they did,
// and signs what the builder makes.
//
// In: a policy file, a trusted_root.json, and the digest of an image or file.
// Out: one Result with a closed set of outcomes. A check is always by digest,
// never by tag, and "there is no signature" is never mixed up with "the
// signature could not be read". It is the only package that knows cosign and
// sigstore-go.
package signing

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"go.yaml.in/yaml/v3"
)

// ErrNoRule means that no rule of the policy covers a reference, so nothing
// can vouch for it.
var ErrNoRule = errors.New("no rule of the signing policy covers it")

// Policy says whose signature each input needs. It is made by ParsePolicy or
// NewPolicy only.
type Policy struct {
	rules      []Rule
	exceptions map[string]string // full reference → reason
}

// Rule names the signer of the repositories that match Pattern. Exactly one of
// Identity, IdentityRegexp and PublicKey is set.
type Rule struct {
	// Pattern is a repository in full ("registry.k8s.io/etcd"), or a prefix of
	// one: "registry.k8s.io/*" covers one more path element,
	// "registry.k8s.io/**" any number. The most specific pattern wins.
	Pattern string `yaml:"pattern"`
	// Identity is compared exactly with the certificate's only subject
	// alternative name, Issuer with its OIDC issuer.
	Identity string `yaml:"identity,omitempty"`
	// IdentityRegexp must be anchored at both ends, begin with literal text and
	// escape its dots: a bare prefix also matches look-alike names.
	IdentityRegexp string `yaml:"identityRegexp,omitempty"`
	Issuer         string `yaml:"issuer,omitempty"`
	// PublicKey is a PEM public key, for signatures without a certificate.
	PublicKey string `yaml:"publicKey,omitempty"`
	// TrustedRoot names the root of Verifier.Roots that alone judges these
	// signatures, instead of Verifier.Trust. Not with PublicKey.
	TrustedRoot string `yaml:"trustedRoot,omitempty"`
	// PlatformSignatures accepts a signature on the platform manifest when the
	// index above it has none.
	PlatformSignatures bool `yaml:"platformSignatures,omitempty"`
	// SignatureRepository is where signatures are looked for instead of beside
	// the bytes, for mirrors that don't copy them. When it ends as Pattern does
	// ("/*" or "/**"), what the pattern's end matched is put there.
	SignatureRepository string `yaml:"signatureRepository,omitempty"`

	identity *regexp.Regexp
	key      signature.Verifier
}

// Exception lets one reference in without a signature.
type Exception struct {
	Reference string `yaml:"reference"` // with tag or digest
	Reason    string `yaml:"reason"`
}

// ParsePolicy reads a policy file: YAML with the lists "rules" (see Rule) and
// "exceptions" (see Exception). Unknown fields are refused. The error holds all
// findings.
func ParsePolicy(b []byte) (*Policy, error) {
	var file struct {
		Rules      []Rule      `yaml:"rules"`
		Exceptions []Exception `yaml:"exceptions"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("signing policy: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("signing policy: more than one YAML document; write one")
	}
	return NewPolicy(file.Rules, file.Exceptions)
}

// NewPolicy checks rules and exceptions as ParsePolicy does.
func NewPolicy(rules []Rule, exceptions []Exception) (*Policy, error) {
	p := &Policy{exceptions: map[string]string{}}
	var findings []error
	if len(rules) == 0 {
		findings = append(findings, errors.New("no rules; add one with pattern, identity and issuer"))
	}
	seen := map[string]bool{}
	for i, r := range rules {
		errs := r.compile()
		if seen[r.Pattern] {
			errs = append(errs, errors.New("the same pattern is in an earlier rule; keep one"))
		}
		seen[r.Pattern] = true
		for _, err := range errs {
			findings = append(findings, fmt.Errorf("rule %d (%s): %w", i+1, r.Pattern, err))
		}
		p.rules = append(p.rules, r)
	}
	for i, e := range exceptions {
		if err := p.except(e); err != nil {
			findings = append(findings, fmt.Errorf("exception %d (%s): %w", i+1, e.Reference, err))
		}
	}
	if err := errors.Join(findings...); err != nil {
		return nil, fmt.Errorf("signing policy: %w", err)
	}
	return p, nil
}

func (p *Policy) except(e Exception) error {
	ref, err := name.ParseReference(e.Reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("not a reference with tag or digest: %w", err)
	}
	if strings.TrimSpace(e.Reason) == "" {
		return errors.New("no reason; write why its signature is not needed")
	}
	// The etcd image is where the snapshot tools come from, and these three are
	// what every cluster runs first: they are never let in unchecked.
	switch base := path.Base(ref.Context().RepositoryStr()); base {
	case "etcd", "pause", "coredns":
		return fmt.Errorf("%s must always verify; remove the exception", base)
	}
	if _, ok := p.exceptions[ref.Name()]; ok {
		return errors.New("listed twice; keep one")
	}
	p.exceptions[ref.Name()] = e.Reason
	return nil
}

// rule returns the most specific rule for a repository's full name.
func (p *Policy) rule(repository string) (*Rule, error) {
	var best *Rule
	for i := range p.rules {
		r := &p.rules[i]
		if _, ok := r.match(repository); ok && (best == nil || r.rank() > best.rank()) {
			best = r
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%s: %w; add one", repository, ErrNoRule)
	}
	return best, nil
}

// splitGlob cuts a trailing "/*" or "/**" off a pattern.
func splitGlob(pattern string) (prefix, glob string) {
	for _, glob := range []string{"/**", "/*"} {
		if prefix, ok := strings.CutSuffix(pattern, glob); ok {
			return prefix, glob
		}
	}
	return pattern, ""
}

// match tells whether the rule covers a repository, and what the glob matched.
func (r *Rule) match(repository string) (rest string, ok bool) {
	prefix, glob := splitGlob(r.Pattern)
	if glob == "" {
		return "", repository == prefix
	}
	rest, ok = strings.CutPrefix(repository, prefix+"/")
	return rest, ok && rest != "" && (glob == "/**" || !strings.Contains(rest, "/"))
}

// rank orders the patterns that cover one repository: no glob above any glob,
// then the longer prefix, then the narrower glob.
func (r *Rule) rank() int {
	prefix, glob := splitGlob(r.Pattern)
	return 4*len(prefix) + 3 - len(glob)
}

// signatureRepository returns where signatures of a repository are looked for.
func (r *Rule) signatureRepository(pulled name.Repository, repository string) (name.Repository, error) {
	if r.SignatureRepository == "" {
		return pulled, nil
	}
	prefix, glob := splitGlob(r.SignatureRepository)
	if glob != "" {
		rest, _ := r.match(repository)
		prefix += "/" + rest
	}
	return name.NewRepository(prefix, name.StrictValidation)
}

// accepts compares a certificate's names with the rule.
func (r *Rule) accepts(identity, issuer string) bool {
	if issuer != r.Issuer {
		return false
	}
	if r.identity != nil {
		return r.identity.MatchString(identity)
	}
	return identity == r.Identity
}

// wants says whose signature the rule asks for.
func (r *Rule) wants() string {
	switch {
	case r.PublicKey != "":
		return "the public key of the policy"
	case r.IdentityRegexp != "":
		return fmt.Sprintf("an identity matching %q with issuer %q", r.IdentityRegexp, r.Issuer)
	}
	return fmt.Sprintf("%q with issuer %q", r.Identity, r.Issuer)
}

func (r *Rule) compile() (findings []error) {
	add := func(format string, args ...any) { findings = append(findings, fmt.Errorf(format, args...)) }

	prefix, glob := splitGlob(r.Pattern)
	if err := checkRepository(prefix, glob); err != nil {
		add("pattern: %w", err)
	}
	if r.SignatureRepository != "" {
		prefix, sigGlob := splitGlob(r.SignatureRepository)
		if err := checkRepository(prefix, sigGlob); err != nil {
			add("signatureRepository: %w", err)
		}
		if sigGlob != "" && sigGlob != glob {
			add("signatureRepository ends in %q, the pattern in %q; end both alike", sigGlob, glob)
		}
	}

	signers := 0
	for _, s := range []string{r.Identity, r.IdentityRegexp, r.PublicKey} {
		if s != "" {
			signers++
		}
	}
	if signers != 1 {
		add("%d of identity, identityRegexp and publicKey are set; set exactly one", signers)
	}
	if (r.Issuer == "") != (r.PublicKey != "") {
		add("issuer goes with identity and identityRegexp, never with publicKey")
	}
	if r.TrustedRoot != "" && r.PublicKey != "" {
		add("trustedRoot goes with identity and identityRegexp, never with publicKey")
	}
	if r.IdentityRegexp != "" {
		if err := checkAnchored(r.IdentityRegexp); err != nil {
			add("identityRegexp: %w", err)
		} else {
			r.identity = regexp.MustCompile(r.IdentityRegexp)
		}
	}
	if r.PublicKey != "" {
		pub, err := cryptoutils.UnmarshalPEMToPublicKey([]byte(r.PublicKey))
		if err == nil {
			r.key, err = signature.LoadVerifier(pub, crypto.SHA256)
		}
		if err != nil {
			add("publicKey: not a PEM public key: %w", err)
		}
	}
	return findings
}

// checkRepository wants a repository in full, registry host included, so that
// a pattern never means another registry than the one it shows.
func checkRepository(prefix, glob string) error {
	full := prefix
	if glob != "" {
		full += "/x"
	}
	repo, err := name.NewRepository(full, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("not a repository, or one with a trailing /* or /**: %w", err)
	}
	if repo.Name() != full {
		return fmt.Errorf("means %s; write the registry host and the whole path", strings.TrimSuffix(repo.Name(), "/x"))
	}
	return nil
}

// checkAnchored refuses every expression that is not provably anchored at both
// ends, or that is loose in the two ways by which look-alike names get in.
func checkAnchored(expr string) error {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return err
	}
	if !anchored(re, syntax.OpBeginText) || !anchored(re, syntax.OpEndText) {
		return errors.New("not anchored at both ends, so it also matches look-alike names; write ^(?:...)$")
	}
	if bare(re) {
		return errors.New(`has a dot that matches any character; write \. for a dot`)
	}
	if !literalStart(re) {
		return errors.New("does not begin with literal text, so it also matches look-alike names; begin with the fixed part of the identity")
	}
	return nil
}

// anchored tells whether every match of re begins (OpBeginText) or ends
// (OpEndText) at that end of the text.
func anchored(re *syntax.Regexp, end syntax.Op) bool {
	switch re.Op {
	case end:
		return true
	case syntax.OpCapture:
		return anchored(re.Sub[0], end)
	case syntax.OpConcat:
		if end == syntax.OpBeginText {
			return anchored(re.Sub[0], end)
		}
		return anchored(re.Sub[len(re.Sub)-1], end)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !anchored(sub, end) {
				return false
			}
		}
		return true
	}
	return false
}

// bare tells whether re has a "." other than in ".*" and ".+".
func bare(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return true
	case syntax.OpStar, syntax.OpPlus:
		if op := re.Sub[0].Op; op == syntax.OpAnyChar || op == syntax.OpAnyCharNotNL {
			return false
		}
	}
	return slices.ContainsFunc(re.Sub, bare)
}

// literalStart tells whether every match of re begins with fixed text.
func literalStart(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return true
	case syntax.OpCapture:
		return literalStart(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if sub.Op != syntax.OpBeginText {
				return literalStart(sub)
			}
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !literalStart(sub) {
				return false
			}
		}
		return true
	}
	return false
}
