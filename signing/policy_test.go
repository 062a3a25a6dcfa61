package signing

import (
	"strings"
	"testing"
)

const goodPolicy = `
rules:
- pattern: registry.k8s.io/**
  identity: krel-trust@k8s-releng-prod.iam.gserviceaccount.com
  issuer: https://accounts.google.com
- pattern: quay.io/kairos/*
  identityRegexp: ^https://github\.com/kairos-io/[a-z]+$
  issuer: https://token.actions.githubusercontent.com
  platformSignatures: true
  signatureRepository: ghcr.io/kairos/signatures
- pattern: registry.example.com:5000/node
  publicKey: |
    -----BEGIN PUBLIC KEY-----
    MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1Ww+9bQgAzD6Rf8wNM4MdhMrG6Pu
    XUR90j53LIAa7k22dTdSQfrBW7p+CY/jTeBhOFN2e3hBlZhQxMjZloJRfw==
    -----END PUBLIC KEY-----
exceptions:
- reference: registry.k8s.io/kube-proxy:v1.37.1
  reason: released before signing
`

func TestPolicyFindingsAreReportedTogether(t *testing.T) {
	_, err := ParsePolicy([]byte(`
rules:
- pattern: etcd
  identity: a@example.com
- pattern: registry.k8s.io/*
  identity: a@example.com
  identityRegexp: ^a$
  issuer: https://issuer.example.com
- pattern: docker.io/kairos/**
  identity: a@example.com
  issuer: https://issuer.example.com
- pattern: registry.k8s.io/*
  publicKey: not a key
  trustedRoot: own
  issuer: https://issuer.example.com
  signatureRepository: ghcr.io/x/**
exceptions:
- reference: registry.k8s.io/kube-proxy
  reason: no tag
- reference: registry.k8s.io/kube-proxy:v1.37.1
- reference: registry.k8s.io/etcd:3.6.6-0
  reason: please
- reference: mirror.example.com/deep/coredns@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  reason: please
- reference: mirror.example.com/pause:3.10
  reason: please
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, finding := range []string{
		"rule 1 (etcd): pattern: not a repository",
		"rule 1 (etcd): issuer goes with identity",
		"rule 2 (registry.k8s.io/*): 2 of identity, identityRegexp and publicKey are set",
		"rule 3 (docker.io/kairos/**): pattern: means index.docker.io/kairos",
		"rule 4 (registry.k8s.io/*): the same pattern",
		"rule 4 (registry.k8s.io/*): publicKey: not a PEM public key",
		"rule 4 (registry.k8s.io/*): issuer goes with",
		"rule 4 (registry.k8s.io/*): trustedRoot goes with",
		`rule 4 (registry.k8s.io/*): signatureRepository ends in "/**", the pattern in "/*"`,
		"exception 1 (registry.k8s.io/kube-proxy): not a reference with tag or digest",
		"exception 2 (registry.k8s.io/kube-proxy:v1.37.1): no reason",
		"exception 3 (registry.k8s.io/etcd:3.6.6-0): etcd must always verify",
		"coredns must always verify",
		"pause must always verify",
	} {
		if !strings.Contains(err.Error(), finding) {
			t.Errorf("not reported: %s\nin: %v", finding, err)
		}
	}
}

func TestPolicyDecodingIsStrict(t *testing.T) {
	for name, file := range map[string]string{
		"empty":                "",
		"only a comment":       "# nothing",
		"unknown field":        strings.Replace(goodPolicy, "reason:", "because:", 1),
		"misspelt rule field":  strings.Replace(goodPolicy, "issuer:", "issuers:", 1),
		"two documents":        goodPolicy + "---\nrules: []\n",
		"field given twice":    strings.Replace(goodPolicy, "  platformSignatures: true", "  platformSignatures: true\n  platformSignatures: false", 1),
		"exception listed two": goodPolicy + "- reference: registry.k8s.io/kube-proxy:v1.37.1\n  reason: again\n",
		"not YAML":             "rules: [",
	} {
		if _, err := ParsePolicy([]byte(file)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := ParsePolicy([]byte(goodPolicy)); err != nil {
		t.Errorf("good policy: %v", err)
	}
}

func TestMostSpecificRuleWins(t *testing.T) {
	var rules []Rule
	for _, pattern := range []string{
		"registry.k8s.io/**", "registry.k8s.io/*", "registry.k8s.io/coredns/*", "registry.k8s.io/etcd", "registry.k8s.io/a/b/**",
	} {
		rules = append(rules, Rule{Pattern: pattern, Identity: "a@example.com", Issuer: "https://issuer.example.com"})
	}
	p, err := NewPolicy(rules, nil)
	if err != nil {
		t.Fatal(err)
	}
	for repository, want := range map[string]string{
		"registry.k8s.io/etcd":            "registry.k8s.io/etcd",
		"registry.k8s.io/pause":           "registry.k8s.io/*",
		"registry.k8s.io/coredns/coredns": "registry.k8s.io/coredns/*",
		"registry.k8s.io/coredns/x/y":     "registry.k8s.io/**",
		"registry.k8s.io/a/b/c/d":         "registry.k8s.io/a/b/**",
		"registry.k8s.io/a/b":             "registry.k8s.io/**",
		"registry.k8s.io.example.com/x":   "",
		"registry.k8s.iox/etcd":           "",
		"example.com/registry.k8s.io/x":   "",
	} {
		got, err := p.rule(repository)
		if want == "" {
			if err == nil {
				t.Errorf("%s is covered by %s", repository, got.Pattern)
			}
			continue
		}
		if err != nil || got.Pattern != want {
			t.Errorf("%s: rule %v (%v), want %s", repository, got, err, want)
		}
	}
}

func TestRegexpMustBeAnchoredAtBothEnds(t *testing.T) {
	for _, tt := range []struct {
		expr string
		ok   bool
	}{
		{`^abc$`, true},
		{`\Aabc\z`, true},
		{`^(abc|abd)$`, true},
		{`^(?:https://github\.com/org/[a-z-]+/w\.yml@refs/tags/v.*)$`, true},
		{`(^abc$)`, true},
		{`^abc$|^def$`, true},
		{`^abc|def$`, false},
		{`^a|b$`, false},
		{`^(a|b)`, false},
		{`(a|b)$`, false},
		{`abc`, false},
		{`^abc`, false},
		{`abc$`, false},
		{``, false},
		{`^$`, false},
		{`(?m)^abc$`, false},
		{`(^)?abc$`, false},
		{`(^)*abc$`, false},
		{`^abc($)?`, false},
		{`^abc(?:$|x)`, false},
		{`x*^abc$`, false},
		{`^https://github.com/org$`, false}, // any character for the dot
		{`^abc.?$`, false},
		{`^abc.{3}$`, false},
		{`^.*@example\.com$`, false}, // begins with anything
		{`^[a-z]+@example\.com$`, false},
		{`^(abc|.*)$`, false},
		{`^a(`, false},
	} {
		if err := checkAnchored(tt.expr); (err == nil) != tt.ok {
			t.Errorf("%q: %v, want accepted %t", tt.expr, err, tt.ok)
		}
	}
}

// FuzzParsePolicy checks that whatever is accepted keeps the promises that do
// not depend on the file: no look-alikes, no exception for the three.
func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(goodPolicy))
	f.Add([]byte("rules:\n- {pattern: registry.k8s.io/**, identityRegexp: '^a|b$', issuer: i}\n"))
	f.Add([]byte("rules: []\nexceptions:\n- {reference: 'x.io/etcd:1', reason: r}\n"))
	f.Add([]byte("rules: &a [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePolicy(b)
		if err != nil {
			return
		}
		for _, r := range p.rules {
			if r.identity != nil && r.identity.MatchString("\x00evil") {
				t.Errorf("%q matches anything that ends in evil", r.IdentityRegexp)
			}
			if r.key == nil && r.accepts(r.Identity+"x", r.Issuer) && r.identity == nil {
				t.Errorf("%q accepts a longer identity", r.Identity)
			}
			if prefix, glob := splitGlob(r.Pattern); glob != "" && !strings.Contains(prefix, ".") && !strings.Contains(prefix, ":") && !strings.HasPrefix(prefix, "localhost") {
				t.Errorf("pattern %q has no registry host", r.Pattern)
			}
		}
		for ref, reason := range p.exceptions {
			if strings.TrimSpace(reason) == "" {
				t.Errorf("exception %s without reason", ref)
			}
			repository, _, _ := strings.Cut(ref, "@")
			repository = strings.TrimSuffix(repository, ":"+ref[strings.LastIndex(ref, ":")+1:])
			for _, never := range []string{"/etcd", "/pause", "/coredns"} {
				if strings.HasSuffix(repository, never) {
					t.Errorf("exception for %s", ref)
				}
			}
		}
	})
}
