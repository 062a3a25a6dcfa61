package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

const token = "2f1e0d9c8b7a69584736251403f2e1d0"

func authority(t testing.TB, name string, ca bool) (string, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), cert
}

// block makes a cluster: block; an empty value leaves its key out.
func block(t testing.TB, fields map[string]any) []byte {
	t.Helper()
	all := map[string]any{"cluster_token": token, "role": "worker", "control_plane_host": "10.0.0.1"}
	for k, v := range fields {
		if all[k] = v; v == "" {
			delete(all, k)
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestABlockBecomesTypedValues(t *testing.T) {
	pem, cert := authority(t, "kubernetes", true)
	text := `#cloud-config
users: [{name: kairos}]
cluster:
  cluster_token: ` + token + `
  control_plane_host: api.example
  role: controlplane
  env: {HTTP_PROXY: "http://user:pass@proxy:3128", no_proxy: 10.0.0.0/8}
  ca_certs:
  - |
` + indent(pem, "    ") + `
  providerConfig:
    cluster_root_path: /persistent/
    snapshot: required
  config: |
    clusterConfiguration:
      kubernetesVersion: v1.37.2
      networking: {podSubnet: "10.244.0.0/16,fd00:10::/56"}
      apiServer:
        extraArgs: [{name: audit-log-path, value: /x}]
    joinConfiguration:
      nodeRegistration: {taints: []}
      discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, caCertHashes: ["` + KeyHash(cert) + `"]}}
    kubeletConfiguration:
      failCgroupV1: false
`
	extracted, err := Extract([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{"cloud-config": []byte(text), "extracted": extracted} {
		c, warnings, err := Parse(in)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, warnings %q", name, err, warnings)
		}
		if c.Role != ControlPlane || c.ControlPlane != (Endpoint{"api.example", 6443}) || string(c.Token) != token ||
			c.RootPath != "/persistent" || c.Pin.String() != "v1.37.2" || c.Options["snapshot"] != "required" {
			t.Errorf("%s: got %+v", name, c)
		}
		if got := c.Proxy.Env(); !reflect.DeepEqual(got, []string{"HTTP_PROXY=http://user:pass@proxy:3128", "NO_PROXY=10.0.0.0/8"}) {
			t.Errorf("%s: proxy is %q", name, got)
		}
		if len(c.CAs) != 1 || !c.CAs[0].Equal(cert) {
			t.Errorf("%s: authorities are %v", name, c.CAs)
		}
		d := c.Documents
		if d.Cluster.Networking.PodSubnet != "10.244.0.0/16,fd00:10::/56" || !reflect.DeepEqual(d.Cluster.APIServer.ExtraArgs, Args{{"audit-log-path", "/x"}}) {
			t.Errorf("%s: cluster document is %+v", name, d.Cluster)
		}
		if taints := d.Join.NodeRegistration.Taints; taints == nil || len(*taints) != 0 {
			t.Errorf("%s: taints are %v, expected none at all", name, taints)
		}
		if field(&d.Kubelet, "failCgroupV1") != "false" || field(&d.Kubelet, "apiVersion") != "kubelet.config.k8s.io/v1beta1" {
			t.Errorf("%s: kubelet document is %+v", name, d.Kubelet)
		}
		if d.Cluster.Kind != "ClusterConfiguration" || d.Join.APIVersion != kubeadmAPI {
			t.Errorf("%s: documents are %+v and %+v", name, d.Cluster.TypeMeta, d.Join.TypeMeta)
		}
	}
}

func indent(s, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+by)
}

func TestLeftOutValuesHaveDefaults(t *testing.T) {
	c, warnings, err := Parse(block(t, map[string]any{"role": "init", "control_plane_host": ""}))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := Cluster{Token: token, Role: Init, RootPath: "/", Options: map[string]string{}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %#v", c)
	}
	if c.Pin != (matrix.Version{}) || c.ControlPlane.String() != "" {
		t.Errorf("pin %v, endpoint %q, expected none", c.Pin, c.ControlPlane)
	}
}

func TestAllFindingsComeTogether(t *testing.T) {
	pem, _ := authority(t, "kubernetes", true)
	leaf, _ := authority(t, "somebody", false)
	_, warnings, err := Parse(block(t, map[string]any{
		"cluster_token": "short", "role": `"init"`, "control_plane_host": "https://10.0.0.1", "env": map[string]any{"HTTP_PROXY": "nonsense", "FOO": "x"},
		"ca_certs": []string{pem, leaf, "none"}, "providerConfig": map[string]any{"cluster_root_path": "/a/../b"}, "confg": "typo",
		"config": "clusterConfiguration: {kubernetesVersion: 1.36}\n---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: InitConfiguration\n---\nkind: Pod\n",
	}))
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		t.Fatalf("error is %v, expected *Invalid", err)
	}
	for _, want := range []string{
		"cluster_token has 5 characters: expected at least 16",
		`role is "\"init\"": the quotes are part of the value here: expected init, controlplane or worker`,
		`control_plane_host "https://10.0.0.1" is a URL`,
		"HTTP_PROXY of env is no proxy's URL",
		`entry 2 of ca_certs is the certificate of "somebody", not of an authority`,
		"entry 3 of ca_certs is no certificate in PEM",
		`cluster_root_path of providerConfig is "/a/../b": expected an absolute path without ..`,
		`line 1: kubernetesVersion: version "1.36" has 2 numeric parts: expected the form v1.37.2, in quotes`,
		"migrate with kubeadm 1.36",
		"one of the kinds ClusterConfiguration, InitConfiguration",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("findings lack %q:\n%s", want, strings.Join(invalid.Findings, "\n"))
		}
	}
	if len(invalid.Findings) != 10 {
		t.Errorf("expected 10 findings:\n%s", strings.Join(invalid.Findings, "\n"))
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0], `"FOO" of env`) || !strings.Contains(warnings[1], `"confg" is no key`) {
		t.Errorf("warnings are %q", warnings)
	}
}

func TestDocumentsArePassedOnInTheFormOfKubeadm(t *testing.T) {
	c, warnings, err := Parse(block(t, map[string]any{"config": `
clusterConfiguration: {kubernetesVersion: 1.37.2, etcd: {local: {imageTag: 3.6.12-0}}}
kubeletConfiguration: {failCgroupV1: false, evictionHard: {memory.available: 1%}}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0} # kept
---
# nothing here
---
joinConfiguration:
  nodeRegistration: {taints: [], imagePullSerial: false}
  discovery: {bootstrapToken: {token: abcdef.0123456789abcdef}}
`}))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	d := c.Documents
	for name, x := range map[string]struct {
		doc  any
		want string
	}{
		"cluster": {d.Cluster, "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd:\n    local:\n        imageTag: 3.6.12-0\nkubernetesVersion: v1.37.2\n"},
		"join":    {d.Join, "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n    taints: []\n    imagePullSerial: false\ndiscovery:\n    bootstrapToken:\n        token: abcdef.0123456789abcdef\n"},
		// A brace in front would make kubeadm read JSON.
		"kubelet": {d.Kubelet, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nevictionHard: {memory.available: 1%}\n"},
		"proxy":   {d.KubeProxy, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {maxPerCore: 0} # kept\n"},
	} {
		if got, err := yaml.Marshal(x.doc); err != nil || string(got) != x.want {
			t.Errorf("%s: %v\n%s\nexpected\n%s", name, err, got, x.want)
		}
	}
}

func TestOneFindingForEachMistake(t *testing.T) {
	ca, _ := authority(t, "one", true)
	_, other := authority(t, "two", true)
	for want, fields := range map[string]map[string]any{
		"cluster_token is missing":                                                      {"cluster_token": ""},
		"cluster_token has control":                                                     {"cluster_token": token + "\n"},
		"local_images_path is a list or a table":                                        {"local_images_path": []string{"/x"}},
		"role is missing":                                                               {"role": ""},
		`role is "control-plane": expected`:                                             {"role": "control-plane"},
		"role is \"'worker'\": the quotes":                                              {"role": "'worker'"},
		"control_plane_host is missing":                                                 {"control_plane_host": ""},
		"control_plane_host \"fd00::1:6443\" may or may not have a port":                {"control_plane_host": "fd00::1:6443"},
		"config is a list or a table: expected text (in YAML \"config: |\"":             {"config": map[string]any{"clusterConfiguration": map[string]any{}}},
		"config is no YAML: line 2":                                                     {"config": "a: b\nc"},
		"line 1 of config: expected a document with apiVersion and kind":                {"config": "- a"},
		"line 2 of config: expected a document with apiVersion and kind, or a key":      {"config": "clusterConfiguration: {}\nclusterConfig: {}"},
		"line 3 of config: a second ClusterConfiguration":                               {"config": "clusterConfiguration: {}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"},
		`InitConfiguration has apiVersion "", expected kubeadm.k8s.io/v1beta4`:          {"config": "kind: InitConfiguration"},
		`InitConfiguration has apiVersion "kubeadm.k8s.io/v1", expected`:                {"config": "kind: InitConfiguration\napiVersion: kubeadm.k8s.io/v1"},
		"line 2: cannot unmarshal !!str … into bool":                                    {"config": "initConfiguration:\n  dryRun: secretsecret"},
		`kubernetesVersion: version "stable-1.36"`:                                      {"config": "clusterConfiguration: {kubernetesVersion: stable-1.36}"},
		`kubernetesVersion: version "v1.36"`:                                            {"config": "clusterConfiguration: {kubernetesVersion: v1.36}"},
		`kubernetesVersion: version ""`:                                                 {"config": `clusterConfiguration: {kubernetesVersion: ""}`},
		"controlPlaneEndpoint is 10.0.0.2:6443 and control_plane_host is 10.0.0.1:6443": {"config": "clusterConfiguration: {controlPlaneEndpoint: 10.0.0.2}"},
		`podSubnet: "10.244.0.0" is no network`:                                         {"config": "clusterConfiguration: {networking: {podSubnet: 10.244.0.0}}"},
		"token of discovery: expected a bootstrap token":                                {"config": "joinConfiguration: {discovery: {bootstrapToken: {token: abc}}}"},
		"certificateKey of JoinConfiguration: expected 64":                              {"config": "joinConfiguration: {controlPlane: {certificateKey: abc}}"},
		"unsafeSkipCAVerification trusts whoever answers":                               {"config": "joinConfiguration: {discovery: {bootstrapToken: {unsafeSkipCAVerification: true}}}"},
		"entry 1 of caCertHashes is no pin":                                             {"config": "joinConfiguration: {discovery: {bootstrapToken: {caCertHashes: [abc]}}}"},
		"no entry of ca_certs has a key that caCertHashes pins":                         {"ca_certs": []string{ca}, "config": "joinConfiguration: {discovery: {bootstrapToken: {caCertHashes: [\"" + KeyHash(other) + "\"]}}}"},
		"HTTPS_PROXY of env is given in upper and in lower case with two values":        {"env": map[string]any{"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}},
		"NO_PROXY of env has control characters":                                        {"env": map[string]any{"NO_PROXY": "a\nb"}},
		`cluster_root_path of providerConfig is "relative"`:                             {"providerConfig": map[string]any{"cluster_root_path": "relative"}},
		"env is no table":                {"env": "A=b"},
		"ca_certs is no list":            {"ca_certs": ca},
		`"a" of providerConfig is a lis`: {"providerConfig": map[string]any{"a": []string{}}},
	} {
		_, _, err := Parse(block(t, fields))
		var invalid *Invalid
		if !errors.As(err, &invalid) || len(invalid.Findings) != 1 || !strings.Contains(invalid.Findings[0], want) {
			t.Errorf("%v: got %v, expected one finding with %q", fields, err, want)
		}
	}
}

func TestSpellingsOfAVersion(t *testing.T) {
	for spelling, want := range map[string]string{`"v1.36.4"`: "v1.36.4", "1.36.4": "v1.36.4", "v1.37.0-rc.1": "v1.37.0-rc.1", "v1.36.4+vendor.1": "v1.36.4+vendor.1"} {
		c, _, err := Parse(block(t, map[string]any{"config": "clusterConfiguration:\n  kubernetesVersion: " + spelling}))
		if err != nil || c.Pin.String() != want {
			t.Errorf("%s: got %s, %v, expected %s", spelling, c.Pin, err, want)
		}
	}
}

func TestArgumentsOfBothFormsAreRead(t *testing.T) {
	for _, args := range []string{"[{name: b, value: /x}, {name: a, value: '1'}]", "{b: /x, a: '1'}"} {
		c, _, err := Parse(block(t, map[string]any{"config": "clusterConfiguration: {scheduler: {extraArgs: " + args + "}}"}))
		if err != nil || !reflect.DeepEqual(c.Documents.Cluster.Scheduler.ExtraArgs, Args{{"b", "/x"}, {"a", "1"}}) {
			t.Errorf("%s: %v, %+v", args, err, c.Documents.Cluster)
		}
	}
}

func TestUnknownFieldsAreOnlyWarnedOf(t *testing.T) {
	_, warnings, err := Parse(block(t, map[string]any{"config": "clusterConfiguration: {clusterNmae: x, etcd: {local: {dir: /x}}}"}))
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0]+warnings[1], `"clusterNmae" is no field of ClusterConfiguration`) || !strings.Contains(warnings[0]+warnings[1], `"dir" is no field of LocalEtcd`) {
		t.Errorf("%v, warnings %q", err, warnings)
	}
}

func TestWeakTokensAreWarnedOf(t *testing.T) {
	for text, weak := range map[string]bool{
		token: false, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": true, "1234567890123456": true, "kubernetes-cluster": true,
		"0123456789abcdef0123456789abcdef": false, "Zm9vYmFyLXJhbmRvbS1iYXNlNjQ=": false,
	} {
		_, warnings, err := Parse(block(t, map[string]any{"cluster_token": text}))
		if err != nil || (len(warnings) == 1) != weak {
			t.Errorf("%q: %v, warnings %q", text, err, warnings)
		}
		if strings.Contains(strings.Join(warnings, ""), text) {
			t.Errorf("a warning shows the token: %q", warnings)
		}
	}
}

func TestACloudConfigWithoutABlockHasNone(t *testing.T) {
	for _, text := range []string{"", "#cloud-config\n", "users: []", "cluster:\n", "null"} {
		if b, err := Extract([]byte(text)); b != nil || err != nil {
			t.Errorf("%q: %s, %v", text, b, err)
		}
	}
	for _, text := range []string{"- a", "a: [", "just text", "cluster: *abcsecret", "a: 1\na: 2"} {
		if b, err := Extract([]byte(text)); b != nil || err == nil || strings.Contains(err.Error(), "abcsecret") {
			t.Errorf("%q: %s, %v", text, b, err)
		}
	}
}

func TestScalarsStayTheTextThatWasWritten(t *testing.T) {
	b, err := Extract([]byte("cluster: {providerConfig: {a: 1.30, b: 007, c: yes, d: 2026-11-30, e: 0x10, f: ~}}"))
	if want := `{"providerConfig":{"a":"1.30","b":"007","c":"yes","d":"2026-11-30","e":"0x10","f":null}}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v, expected %s", b, err, want)
	}
}

func TestSecretsShowThemselvesToYAMLOnly(t *testing.T) {
	c, _, err := Parse(block(t, map[string]any{
		"env":    map[string]any{"HTTPS_PROXY": "http://u:hunter2@p:1"},
		"config": "initConfiguration: {certificateKey: " + strings.Repeat("ab", 32) + ", bootstrapTokens: [{token: abcdef.0123456789abcdef}]}\njoinConfiguration: {discovery: {tlsBootstrapToken: bbcdef.0123456789abcdef, bootstrapToken: {token: cbcdef.0123456789abcdef}}, controlPlane: {certificateKey: " + strings.Repeat("cd", 32) + "}}",
	}))
	if err != nil {
		t.Fatal(err)
	}
	secrets := c.Secrets()
	if len(secrets) != 7 {
		t.Fatalf("got %d secrets, expected 7", len(secrets))
	}
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	printed := string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed += fmt.Sprintf(verb, c.Token) + fmt.Sprintf(verb, c.Proxy) + fmt.Sprintf(verb, *c.Documents.Init)
	}
	printed += fmt.Sprintf("%v %+v %#v", c, c, c)
	for _, s := range secrets {
		if strings.Contains(printed, s) || strings.Contains(printed, fmt.Sprintf("%x", s)) {
			t.Errorf("%q shows", s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("role: worker\nconfig: |\n  clusterConfiguration: {kubernetesVersion: 1.36}\n")
	f.Add("cluster: {role: init, ca_certs: [x], env: {a: b}}")
	f.Add("a: &a [*a]")
	f.Add("<<: {role: init}\nconfig: 'kubeletConfiguration: &x {a: *x}'")
	f.Add("config: \"apiVersion: kubeadm.k8s.io/v1beta4\\nkind: JoinConfiguration\\nnodeRegistration: {taints: ~}\"")
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "Sup3rS3cr3tT0k3nThatN0b0dyKn0ws"
		if strings.Contains(text, secret) {
			return
		}
		c, warnings, err := Parse([]byte("cluster_token: " + secret + "\n" + text))
		all := strings.Join(warnings, "") + fmt.Sprintf("%+v %v", c, err)
		if strings.Contains(all, secret) {
			t.Errorf("the token shows in %q", all)
		}
		if err == nil && (c.Role == "" || len(c.Token) < minToken) {
			t.Errorf("accepted %+v", c)
		}
		_, _ = Extract([]byte(text))
	})
}
