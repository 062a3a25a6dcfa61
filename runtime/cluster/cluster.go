// Package cluster reads what an operator wants of a node: the cluster: block of
// a Kairos cloud-config, with kubeadm's documents in it. It goes from text to
// typed values, is pure, and reports all findings at once. Secrets never appear
// in a finding, nor when a value is printed.
package cluster

import (
	"cmp"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

// Role is a node's part in its cluster.
type Role string

// The roles, as Kairos names them.
const (
	Init         Role = "init"         // the control plane that makes the cluster
	ControlPlane Role = "controlplane" // a control plane that joins
	Worker       Role = "worker"
)

// Valid tells whether r is one of the roles.
func (r Role) Valid() bool { return r == Init || r == ControlPlane || r == Worker }

// Cluster is a validated cluster: block.
type Cluster struct {
	Token        Secret // shared by the nodes of one cluster
	Role         Role
	ControlPlane Endpoint       // where the nodes find the API; zero when the documents say it
	Pin          matrix.Version // the version the operator wants; zero when none is given
	Documents    Documents
	Proxy        Proxy
	CAs          []*x509.Certificate
	RootPath     string            // absolute and clean; "/" unless the provider's files lie elsewhere
	Options      map[string]string // providerConfig as it was given
}

// Invalid is everything that is wrong with a block.
type Invalid struct {
	Findings []string
}

func (e *Invalid) Error() string {
	return fmt.Sprintf("cluster configuration has %d finding(s): %s", len(e.Findings), strings.Join(e.Findings, "; "))
}

// findings gathers what is wrong and what is only worth a word.
type findings struct {
	wrong, warnings []string
}

func (f *findings) add(format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *findings) warn(format string, args ...any) {
	f.warnings = append(f.warnings, fmt.Sprintf(format, args...))
}

// Extract returns the cluster: block of a cloud-config as a JSON object of
// texts, lists and tables, and nil when there is none. Scalars stay the text
// that was written: 1.30 doesn't become 1.3.
func Extract(cloudConfig []byte) ([]byte, error) {
	fields, err := decode(cloudConfig)
	if err != nil {
		return nil, fmt.Errorf("cloud-config: %w", err)
	}
	if fields["cluster"] == nil {
		return nil, nil
	}
	return json.Marshal(fields["cluster"])
}

// Parse reads a cluster: block in YAML or JSON, either its content or a
// document with cluster: on top. It returns what is odd but usable as warnings
// and everything that isn't as one *Invalid.
func Parse(b []byte) (Cluster, []string, error) {
	var f findings
	fields, err := decode(b)
	if err != nil {
		return Cluster{}, nil, &Invalid{[]string{err.Error()}}
	}
	if inner, ok := fields["cluster"].(map[string]any); ok {
		fields = inner
	}
	r := reader{fields, &f}

	c := Cluster{
		Token:        r.token(),
		Role:         r.role(),
		ControlPlane: r.endpoint("control_plane_host"),
		Documents:    parseDocuments(r.text("config"), &f),
		Proxy:        r.proxy(),
		CAs:          r.certificates(),
		Options:      r.table("providerConfig"),
	}
	c.RootPath = rootPath(c.Options["cluster_root_path"], &f)
	// Kairos' own: where it writes the stages, and images that this provider
	// brings along in its image.
	r.text("cluster_config_path")
	if r.text("import_local_images") == "true" || r.text("local_images_path") != "" {
		f.warn("import_local_images and local_images_path have no effect: images come from the node image")
	}
	for _, key := range slices.Sorted(maps.Keys(r.fields)) {
		f.warn("%q is no key of the cluster: block and has no effect", key)
	}
	c.Pin = c.Documents.check(c, &f)

	if len(f.wrong) > 0 {
		return Cluster{}, f.warnings, &Invalid{f.wrong}
	}
	return c, f.warnings, nil
}

// reader takes values out of the fields of a block; what is left at the end was
// not asked for.
type reader struct {
	fields map[string]any
	*findings
}

func (r reader) take(key string) any {
	v := r.fields[key]
	delete(r.fields, key)
	return v
}

func (r reader) text(key string) string {
	v := r.take(key)
	s, ok := v.(string)
	if !ok && v != nil {
		r.add("%s is a list or a table: expected text (in YAML %q for several lines)", key, key+": |")
	}
	return s
}

func (r reader) list(key string) []string {
	v := r.take(key)
	items, ok := v.([]any)
	if !ok && v != nil {
		r.add("%s is no list: expected one entry per line, each after a dash", key)
	}
	var out []string
	for i, item := range items {
		s, ok := item.(string)
		if !ok {
			r.add("entry %d of %s is no text", i+1, key)
		}
		out = append(out, s)
	}
	return out
}

func (r reader) table(key string) map[string]string {
	v := r.take(key)
	entries, ok := v.(map[string]any)
	if !ok && v != nil {
		r.add("%s is no table: expected lines of the form name: value", key)
	}
	out := map[string]string{}
	for name, value := range entries {
		s, ok := value.(string)
		if !ok && value != nil {
			r.add("%q of %s is a list or a table: expected text", name, key)
		}
		out[name] = s
	}
	return out
}

func (r reader) token() Secret {
	token := r.text("cluster_token")
	switch {
	case token == "":
		r.add("cluster_token is missing: set the same random text of at least %d characters on every node of the cluster", minToken)
	case strings.ContainsFunc(token, unicode.IsControl) || strings.TrimSpace(token) != token:
		r.add("cluster_token has control characters or space around it")
	case len(token) < minToken:
		r.add("cluster_token has %d characters: expected at least %d", len(token), minToken)
	case tokenBits(token) < goodBits:
		r.warn("cluster_token is worth about %.0f bits: one of %d, such as that of `openssl rand -hex 16`, can't be guessed", tokenBits(token), goodBits)
	}
	return Secret(token)
}

const (
	minToken = 16 // characters
	goodBits = 128
)

// tokenBits estimates from above what guessing a token costs if its characters
// were drawn at random from the smallest usual alphabet that has them all.
func tokenBits(token string) float64 {
	seen := map[rune]bool{}
	for _, c := range token {
		seen[c] = true
	}
	has := func(class string) bool { return strings.ContainsAny(token, class) }
	alphabet := 0
	if strings.Trim(token, "0123456789abcdef") == "" {
		alphabet = 16
	} else {
		for class, size := range map[string]int{"0123456789": 10, "abcdefghijklmnopqrstuvwxyz": 26, "ABCDEFGHIJKLMNOPQRSTUVWXYZ": 26} {
			if has(class) {
				alphabet += size
			}
		}
		if !alphanumeric.MatchString(token) {
			alphabet += 32
		}
	}
	// So few different characters don't come from a larger alphabet.
	if len(seen) < 8 {
		alphabet = min(alphabet, len(seen))
	}
	return float64(len([]rune(token))) * math.Log2(float64(alphabet))
}

var alphanumeric = regexp.MustCompile(`^[A-Za-z0-9]*$`)

func (r reader) role() Role {
	text := r.text("role")
	role := Role(text)
	switch {
	case text == "":
		r.add("role is missing: expected %s, %s or %s", Init, ControlPlane, Worker)
	case !role.Valid():
		hint := ""
		if strings.Trim(text, `"'`) != text {
			hint = ": the quotes are part of the value here"
		}
		r.add("role is %q%s: expected %s, %s or %s", text, hint, Init, ControlPlane, Worker)
	}
	return role
}

func (r reader) endpoint(key string) Endpoint {
	text := r.text(key)
	if text == "" {
		return Endpoint{}
	}
	e, err := ParseEndpoint(text)
	if err != nil {
		r.add("%s %v", key, err)
		e.Host = text // it was given, after all
	}
	return e
}

func rootPath(p string, f *findings) string {
	p = cmp.Or(p, "/")
	if clean := path.Clean(p); !path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") || strings.ContainsFunc(p, unicode.IsControl) {
		f.add("cluster_root_path of providerConfig is %q: expected an absolute path without ..", p)
	} else {
		p = clean
	}
	return p
}

// decode reads one YAML or JSON document whose top is a table. Every scalar but
// null is the text that was written.
func decode(b []byte) (map[string]any, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, plainError(err)
	}
	fields := map[string]any{}
	if doc.IsZero() || len(doc.Content) == 1 && doc.Content[0].ShortTag() == "!!null" {
		return fields, nil
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("is no table: expected lines of the form key: value")
	}
	asText(&doc)
	if err := doc.Decode(&fields); err != nil {
		return nil, plainError(err)
	}
	return fields, nil
}

func asText(n *yaml.Node) {
	if tag := n.ShortTag(); n.Kind == yaml.ScalarNode && tag != "!!null" && tag != "!!merge" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		asText(child)
	}
}

// plainError takes quoted pieces of the input out of a parser's message: they
// may be secrets.
func plainError(err error) error {
	return errors.New(quoted.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "…"))
}

var quoted = regexp.MustCompile("(?s)'.*'|\".*\"|`[^`]*`")
