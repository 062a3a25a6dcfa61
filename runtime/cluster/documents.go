package cluster

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

const (
	// kubeadmAPI is the format that every supported kubeadm reads.
	kubeadmAPI = "kubeadm.k8s.io/v1beta4"
	// maxConfig bounds config:, in bytes.
	maxConfig = 1 << 20
)

// Documents are the documents under config:, each at most once, with apiVersion
// and kind filled in. Those that are not kubeadm's own are passed on as they
// are; a zero Node is none.
type Documents struct {
	Cluster   *ClusterConfiguration
	Init      *InitConfiguration
	Join      *JoinConfiguration
	Upgrade   *UpgradeConfiguration
	Kubelet   yaml.Node
	KubeProxy yaml.Node
}

// formats are the kinds of document with the apiVersion that is accepted.
var formats = map[string]string{
	"ClusterConfiguration":   kubeadmAPI,
	"InitConfiguration":      kubeadmAPI,
	"JoinConfiguration":      kubeadmAPI,
	"UpgradeConfiguration":   kubeadmAPI,
	"KubeletConfiguration":   "kubelet.config.k8s.io/v1beta1",
	"KubeProxyConfiguration": "kubeproxy.config.k8s.io/v1alpha1",
}

// parseDocuments reads config: in either of its two forms, which may be mixed:
// documents with apiVersion and kind, and documents with keys such as
// clusterConfiguration in which both may be left out.
func parseDocuments(text string, f *findings) Documents {
	var out Documents
	if len(text) > maxConfig {
		f.add("config has %d bytes: expected at most %d", len(text), maxConfig)
		return out
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			f.add("config is no YAML: %v", plainError(err))
			return out
		}
		out.split(doc.Content[0], f)
	}
}

// split finds the documents in one YAML document.
func (d *Documents) split(body *yaml.Node, f *findings) {
	if body.ShortTag() == "!!null" {
		return
	}
	if body.Kind != yaml.MappingNode {
		f.add("line %d of config: expected a document with apiVersion and kind", body.Line)
		return
	}
	if kind := field(body, "kind"); kind != "" {
		d.set(kind, body, f)
		return
	}
	for i := 0; i+1 < len(body.Content); i += 2 {
		key := body.Content[i]
		kind := kindOf(key.Value)
		if kind == "" {
			f.add("line %d of config: expected a document with apiVersion and kind, or a key such as clusterConfiguration", key.Line)
			continue
		}
		d.set(kind, named(body.Content[i+1], kind), f)
	}
}

// kindOf returns what a key holds: kubeletConfiguration a KubeletConfiguration.
func kindOf(key string) string {
	for kind := range formats {
		if strings.ToLower(kind[:1])+kind[1:] == key {
			return kind
		}
	}
	return ""
}

// field returns the text of a scalar in a table.
func field(body *yaml.Node, name string) string {
	for i := 0; i+1 < len(body.Content); i += 2 {
		if body.Content[i].Value == name {
			return body.Content[i+1].Value
		}
	}
	return ""
}

// named returns a table with apiVersion and kind where it had none.
func named(body *yaml.Node, kind string) *yaml.Node {
	if body.Kind == yaml.AliasNode {
		body = body.Alias
	}
	out := *body
	if out.ShortTag() == "!!null" {
		out = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: body.Line}
	}
	if out.Kind != yaml.MappingNode {
		return &out
	}
	for _, meta := range [][2]string{{"kind", kind}, {"apiVersion", formats[kind]}} {
		if field(&out, meta[0]) == "" {
			out.Content = slices.Concat([]*yaml.Node{scalar(meta[0]), scalar(meta[1])}, out.Content)
		}
	}
	return &out
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// set decodes one document into its place.
func (d *Documents) set(kind string, body *yaml.Node, f *findings) {
	want, ok := formats[kind]
	if !ok || body.Kind != yaml.MappingNode || field(body, "kind") != kind {
		f.add("line %d of config: expected a table of one of the kinds %s", body.Line, strings.Join(slices.Sorted(maps.Keys(formats)), ", "))
		return
	}
	switch api := field(body, "apiVersion"); {
	case api == want:
	case api == "kubeadm.k8s.io/v1beta3":
		f.add("line %d of config: %s has apiVersion %s, which kubeadm 1.37 doesn't read any more: migrate with kubeadm 1.36 (`kubeadm config migrate`)", body.Line, kind, api)
		return
	default:
		f.add("line %d of config: %s has apiVersion %q, expected %s", body.Line, kind, api, want)
		return
	}
	switch kind {
	case "ClusterConfiguration":
		place(&d.Cluster, kind, body, f)
	case "InitConfiguration":
		place(&d.Init, kind, body, f)
	case "JoinConfiguration":
		place(&d.Join, kind, body, f)
	case "UpgradeConfiguration":
		place(&d.Upgrade, kind, body, f)
	case "KubeletConfiguration":
		pass(&d.Kubelet, kind, body, f)
	case "KubeProxyConfiguration":
		pass(&d.KubeProxy, kind, body, f)
	}
}

// place decodes one of kubeadm's documents. Like kubeadm it ignores, with a
// warning, fields that it doesn't know.
func place[T any](at **T, kind string, body *yaml.Node, f *findings) {
	if *at != nil {
		f.add("line %d of config: a second %s", body.Line, kind)
		return
	}
	doc := new(T)
	*at = doc
	for _, problem := range typeErrors(body.Decode(doc)) {
		f.add("config, %s: %s", kind, problem)
	}
	// Only a Decoder is strict, and it wants text.
	again, err := yaml.Marshal(body)
	if err != nil {
		return
	}
	strict := yaml.NewDecoder(bytes.NewReader(again))
	strict.KnownFields(true)
	for _, problem := range typeErrors(strict.Decode(new(T))) {
		if m := unknownField.FindStringSubmatch(problem); m != nil {
			f.warn("config, %s: %q is no field of %s and has no effect", kind, m[1], m[2])
		}
	}
}

var unknownField = regexp.MustCompile(`field (.+) not found in type cluster\.(\w+)`)

// typeErrors takes a decoding error apart and leaves the input's values out.
func typeErrors(err error) []string {
	var te *yaml.TypeError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &te):
		return []string{plainError(err).Error()}
	}
	var out []string
	for _, line := range te.Errors {
		if strings.Contains(line, "cannot unmarshal") {
			line = plainError(errors.New(line)).Error()
		}
		out = append(out, line)
	}
	return out
}

// pass keeps a document as it is written.
func pass(at *yaml.Node, kind string, body *yaml.Node, f *findings) {
	if !at.IsZero() {
		f.add("line %d of config: a second %s", body.Line, kind)
		return
	}
	b, err := yaml.Marshal(body)
	if err == nil {
		err = yaml.Unmarshal(b, new(map[string]any))
	}
	if err != nil {
		f.add("config, %s: it can't be passed on by itself: %v", kind, plainError(err))
		return
	}
	*at = *body
	// kubeadm takes a document that begins with a brace for JSON.
	at.Style &^= yaml.FlowStyle
}

var (
	bootstrapToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	certificateKey = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
)

// check looks for values that kubeadm would refuse, or worse accept, and for
// contradictions with the rest of the block. It returns the version that the
// documents ask for.
func (d Documents) check(c Cluster, f *findings) (pin matrix.Version) {
	token := func(where string, s Secret) {
		if s != "" && !bootstrapToken.MatchString(string(s)) {
			f.add("config, %s: expected a bootstrap token, six characters, a dot, and sixteen, of a-z and 0-9", where)
		}
	}
	key := func(where string, s Secret) {
		if s != "" && !certificateKey.MatchString(string(s)) {
			f.add("config, %s: expected 64 hexadecimal digits", where)
		}
	}
	if cc := d.Cluster; cc != nil {
		pin = cc.KubernetesVersion.Version
		checkSubnets("serviceSubnet", cc.Networking.ServiceSubnet, f)
		checkSubnets("podSubnet", cc.Networking.PodSubnet, f)
		if cc.ControlPlaneEndpoint != "" {
			e, err := ParseEndpoint(cc.ControlPlaneEndpoint)
			switch {
			case err != nil:
				f.add("config, controlPlaneEndpoint %v", err)
			case c.ControlPlane.Port != 0 && e != c.ControlPlane:
				f.add("controlPlaneEndpoint is %s and control_plane_host is %s: expected the same, or one of them", e, c.ControlPlane)
			}
		}
	}
	if i := d.Init; i != nil {
		for _, t := range i.BootstrapTokens {
			token("bootstrapTokens", t.Token)
		}
		key("certificateKey of InitConfiguration", i.CertificateKey)
		checkListen(i.LocalAPIEndpoint, f)
	}
	var discovery Discovery
	if j := d.Join; j != nil {
		discovery = j.Discovery
		token("tlsBootstrapToken", discovery.TLSBootstrapToken)
		if p := j.ControlPlane; p != nil {
			key("certificateKey of JoinConfiguration", p.CertificateKey)
			checkListen(p.LocalAPIEndpoint, f)
		}
		if t := discovery.BootstrapToken; t != nil {
			token("token of discovery", t.Token)
			checkPins(t.CACertHashes, c.CAs, f)
			if t.UnsafeSkipCAVerification {
				f.add("config: unsafeSkipCAVerification trusts whoever answers: pin the cluster's authority with caCertHashes or ca_certs")
			}
			if t.APIServerEndpoint != "" {
				if _, err := ParseEndpoint(t.APIServerEndpoint); err != nil {
					f.add("config, apiServerEndpoint %v", err)
				}
			}
		}
	}
	found := discovery.File != nil || discovery.BootstrapToken != nil && discovery.BootstrapToken.APIServerEndpoint != ""
	if c.ControlPlane == (Endpoint{}) && c.Role != Init && !found {
		f.add("control_plane_host is missing: a node that joins needs to know where the API is")
	}
	return pin
}

func checkSubnets(name, list string, f *findings) {
	if list == "" {
		return
	}
	for subnet := range strings.SplitSeq(list, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(subnet)); err != nil {
			f.add("config, %s: %q is no network: expected the form 10.244.0.0/16 or fd00:10::/56", name, subnet)
		}
	}
}

func checkListen(e APIEndpoint, f *findings) {
	if a := e.AdvertiseAddress; a != "" {
		if _, err := netip.ParseAddr(a); err != nil {
			f.add("config, advertiseAddress: %q is no IP address", a)
		}
	}
	if e.BindPort < 0 || e.BindPort > 65535 {
		f.add("config, bindPort: %d is no port", e.BindPort)
	}
}
