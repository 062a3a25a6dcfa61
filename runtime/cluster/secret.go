package cluster

import (
	"fmt"
	"io"
)

// Secret is a text that shows itself to nobody: not when printed with any verb,
// not in JSON, not in a log. Only YAML gets it, since kubeadm reads its secrets
// from YAML files.
type Secret string

// Format writes a mark in place of the secret.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// String returns a mark in place of the secret, and nothing for an empty one.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// MarshalText returns what String does.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML returns the secret itself.
func (s Secret) MarshalYAML() (any, error) { return string(s), nil }

// Secrets returns every secret of c, for a log to leave out.
func (c Cluster) Secrets() []string {
	var out []string
	add := func(secrets ...Secret) {
		for _, s := range secrets {
			if s != "" {
				out = append(out, string(s))
			}
		}
	}
	add(c.Token, c.Proxy.HTTP, c.Proxy.HTTPS, c.Proxy.All)
	if i := c.Documents.Init; i != nil {
		add(i.CertificateKey)
		for _, t := range i.BootstrapTokens {
			add(t.Token)
		}
	}
	if j := c.Documents.Join; j != nil {
		add(j.Discovery.TLSBootstrapToken)
		if t := j.Discovery.BootstrapToken; t != nil {
			add(t.Token)
		}
		if p := j.ControlPlane; p != nil {
			add(p.CertificateKey)
		}
	}
	return out
}
