package cluster

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

// The documents of kubeadm.k8s.io/v1beta4, field by field as kubeadm reads
// them. Durations are texts such as "5m0s". Where kubeadm tells an empty list
// from a missing one or false from nothing, the field is a pointer.

// TypeMeta names a document's format and kind.
type TypeMeta struct {
	APIVersion string `yaml:"apiVersion,omitempty"`
	Kind       string `yaml:"kind,omitempty"`
}

// ClusterConfiguration is what all nodes of a cluster share.
type ClusterConfiguration struct {
	TypeMeta                    `yaml:",inline"`
	Etcd                        Etcd                  `yaml:"etcd,omitempty"`
	Networking                  Networking            `yaml:"networking,omitempty"`
	KubernetesVersion           Version               `yaml:"kubernetesVersion,omitempty"`
	ControlPlaneEndpoint        string                `yaml:"controlPlaneEndpoint,omitempty"`
	APIServer                   APIServer             `yaml:"apiServer,omitempty"`
	ControllerManager           ControlPlaneComponent `yaml:"controllerManager,omitempty"`
	Scheduler                   ControlPlaneComponent `yaml:"scheduler,omitempty"`
	DNS                         DNS                   `yaml:"dns,omitempty"`
	Proxy                       KubeProxy             `yaml:"proxy,omitempty"`
	CertificatesDir             string                `yaml:"certificatesDir,omitempty"`
	ImageRepository             string                `yaml:"imageRepository,omitempty"`
	FeatureGates                map[string]bool       `yaml:"featureGates,omitempty"`
	ClusterName                 string                `yaml:"clusterName,omitempty"`
	EncryptionAlgorithm         string                `yaml:"encryptionAlgorithm,omitempty"`
	CertificateValidityPeriod   string                `yaml:"certificateValidityPeriod,omitempty"`
	CACertificateValidityPeriod string                `yaml:"caCertificateValidityPeriod,omitempty"`
}

// Version is a Kubernetes version; the zero value is none.
type Version struct{ matrix.Version }

// UnmarshalYAML reads what matrix.ParseVersion reads.
func (v *Version) UnmarshalYAML(n *yaml.Node) error {
	parsed, err := matrix.ParseVersion(n.Value)
	if err != nil {
		hint := ""
		if tag := n.ShortTag(); tag == "!!float" || tag == "!!int" {
			hint = ", in quotes: without them YAML reads a number"
		}
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: kubernetesVersion: %v%s", n.Line, err, hint)}}
	}
	v.Version = parsed
	return nil
}

// ControlPlaneComponent is how a component of the control plane is run.
type ControlPlaneComponent struct {
	ExtraArgs    Args            `yaml:"extraArgs,omitempty"`
	ExtraVolumes []HostPathMount `yaml:"extraVolumes,omitempty"`
	ExtraEnvs    []EnvVar        `yaml:"extraEnvs,omitempty"`
}

// APIServer is how the API server is run.
type APIServer struct {
	ControlPlaneComponent `yaml:",inline"`
	CertSANs              []string `yaml:"certSANs,omitempty"`
}

// ImageMeta is where an image comes from.
type ImageMeta struct {
	ImageRepository string `yaml:"imageRepository,omitempty"`
	ImageTag        string `yaml:"imageTag,omitempty"`
}

// DNS is the cluster's DNS add-on.
type DNS struct {
	ImageMeta `yaml:",inline"`
	Disabled  bool `yaml:"disabled,omitempty"`
}

// KubeProxy is the kube-proxy add-on.
type KubeProxy struct {
	Disabled bool `yaml:"disabled,omitempty"`
}

// Networking is the cluster's networks: comma-separated subnets and a domain.
type Networking struct {
	ServiceSubnet string `yaml:"serviceSubnet,omitempty"`
	PodSubnet     string `yaml:"podSubnet,omitempty"`
	DNSDomain     string `yaml:"dnsDomain,omitempty"`
}

// Etcd is one of its two kinds; stacked when neither is given.
type Etcd struct {
	Local    *LocalEtcd    `yaml:"local,omitempty"`
	External *ExternalEtcd `yaml:"external,omitempty"`
}

// LocalEtcd is a member on each control plane.
type LocalEtcd struct {
	ImageMeta      `yaml:",inline"`
	DataDir        string   `yaml:"dataDir,omitempty"`
	ExtraArgs      Args     `yaml:"extraArgs,omitempty"`
	ExtraEnvs      []EnvVar `yaml:"extraEnvs,omitempty"`
	ServerCertSANs []string `yaml:"serverCertSANs,omitempty"`
	PeerCertSANs   []string `yaml:"peerCertSANs,omitempty"`
}

// ExternalEtcd is a cluster of its own.
type ExternalEtcd struct {
	Endpoints     []string `yaml:"endpoints"`
	HTTPEndpoints []string `yaml:"httpEndpoints,omitempty"`
	CAFile        string   `yaml:"caFile"`
	CertFile      string   `yaml:"certFile"`
	KeyFile       string   `yaml:"keyFile"`
}

// HostPathMount is a path of the node in a static pod.
type HostPathMount struct {
	Name      string `yaml:"name"`
	HostPath  string `yaml:"hostPath"`
	MountPath string `yaml:"mountPath"`
	ReadOnly  bool   `yaml:"readOnly,omitempty"`
	PathType  string `yaml:"pathType,omitempty"`
}

// Arg is a command-line argument without its dashes.
type Arg struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

// Args are arguments in the order in which they are passed on.
type Args []Arg

// UnmarshalYAML reads a list of names and values, or the table that it was
// before v1beta4.
func (a *Args) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			*a = append(*a, Arg{n.Content[i].Value, n.Content[i+1].Value})
		}
		return nil
	}
	return n.Decode((*[]Arg)(a))
}

// EnvVar is an environment variable of a container.
type EnvVar struct {
	Name      string         `yaml:"name"`
	Value     string         `yaml:"value,omitempty"`
	ValueFrom map[string]any `yaml:"valueFrom,omitempty"`
}

// InitConfiguration is what `kubeadm init` does on this node.
type InitConfiguration struct {
	TypeMeta         `yaml:",inline"`
	BootstrapTokens  []BootstrapToken `yaml:"bootstrapTokens,omitempty"`
	DryRun           bool             `yaml:"dryRun,omitempty"`
	NodeRegistration NodeRegistration `yaml:"nodeRegistration,omitempty"`
	LocalAPIEndpoint APIEndpoint      `yaml:"localAPIEndpoint,omitempty"`
	CertificateKey   Secret           `yaml:"certificateKey,omitempty"`
	SkipPhases       []string         `yaml:"skipPhases,omitempty"`
	Patches          *Patches         `yaml:"patches,omitempty"`
	Timeouts         *Timeouts        `yaml:"timeouts,omitempty"`
}

// BootstrapToken lets nodes join for a while.
type BootstrapToken struct {
	Token       Secret   `yaml:"token"`
	Description string   `yaml:"description,omitempty"`
	TTL         string   `yaml:"ttl,omitempty"`
	Expires     string   `yaml:"expires,omitempty"`
	Usages      []string `yaml:"usages,omitempty"`
	Groups      []string `yaml:"groups,omitempty"`
}

// NodeRegistration is how the node enters the cluster.
type NodeRegistration struct {
	Name                  string   `yaml:"name,omitempty"`
	CRISocket             string   `yaml:"criSocket,omitempty"`
	Taints                *[]Taint `yaml:"taints,omitempty"` // nil: kubeadm's own; empty: none
	KubeletExtraArgs      Args     `yaml:"kubeletExtraArgs,omitempty"`
	IgnorePreflightErrors []string `yaml:"ignorePreflightErrors,omitempty"`
	ImagePullPolicy       string   `yaml:"imagePullPolicy,omitempty"`
	ImagePullSerial       *bool    `yaml:"imagePullSerial,omitempty"`
}

// Taint keeps pods away from a node.
type Taint struct {
	Key       string `yaml:"key"`
	Value     string `yaml:"value,omitempty"`
	Effect    string `yaml:"effect"`
	TimeAdded string `yaml:"timeAdded,omitempty"`
}

// APIEndpoint is where this node's API server listens.
type APIEndpoint struct {
	AdvertiseAddress string `yaml:"advertiseAddress,omitempty"`
	BindPort         int32  `yaml:"bindPort,omitempty"`
}

// Patches is a folder of patches to what kubeadm writes.
type Patches struct {
	Directory string `yaml:"directory,omitempty"`
}

// Timeouts are kubeadm's patience.
type Timeouts struct {
	ControlPlaneComponentHealthCheck string `yaml:"controlPlaneComponentHealthCheck,omitempty"`
	KubeletHealthCheck               string `yaml:"kubeletHealthCheck,omitempty"`
	KubernetesAPICall                string `yaml:"kubernetesAPICall,omitempty"`
	EtcdAPICall                      string `yaml:"etcdAPICall,omitempty"`
	TLSBootstrap                     string `yaml:"tlsBootstrap,omitempty"`
	Discovery                        string `yaml:"discovery,omitempty"`
	UpgradeManifests                 string `yaml:"upgradeManifests,omitempty"`
}

// JoinConfiguration is what `kubeadm join` does on this node.
type JoinConfiguration struct {
	TypeMeta         `yaml:",inline"`
	DryRun           bool              `yaml:"dryRun,omitempty"`
	NodeRegistration NodeRegistration  `yaml:"nodeRegistration,omitempty"`
	CACertPath       string            `yaml:"caCertPath,omitempty"`
	Discovery        Discovery         `yaml:"discovery,omitempty"`
	ControlPlane     *JoinControlPlane `yaml:"controlPlane,omitempty"`
	SkipPhases       []string          `yaml:"skipPhases,omitempty"`
	Patches          *Patches          `yaml:"patches,omitempty"`
	Timeouts         *Timeouts         `yaml:"timeouts,omitempty"`
}

// JoinControlPlane makes the joining node a control plane.
type JoinControlPlane struct {
	LocalAPIEndpoint APIEndpoint `yaml:"localAPIEndpoint,omitempty"`
	CertificateKey   Secret      `yaml:"certificateKey,omitempty"`
}

// Discovery is how a joining node comes to trust the cluster.
type Discovery struct {
	BootstrapToken    *BootstrapTokenDiscovery `yaml:"bootstrapToken,omitempty"`
	File              *FileDiscovery           `yaml:"file,omitempty"`
	TLSBootstrapToken Secret                   `yaml:"tlsBootstrapToken,omitempty"`
}

// BootstrapTokenDiscovery trusts what a token signs and pins name.
type BootstrapTokenDiscovery struct {
	Token                    Secret   `yaml:"token"`
	APIServerEndpoint        string   `yaml:"apiServerEndpoint,omitempty"`
	CACertHashes             []string `yaml:"caCertHashes,omitempty"`
	UnsafeSkipCAVerification bool     `yaml:"unsafeSkipCAVerification,omitempty"`
}

// FileDiscovery trusts a kubeconfig file.
type FileDiscovery struct {
	KubeConfigPath string `yaml:"kubeConfigPath"`
}

// UpgradeConfiguration is what `kubeadm upgrade` does on this node.
type UpgradeConfiguration struct {
	TypeMeta `yaml:",inline"`
	Apply    *UpgradeApply `yaml:"apply,omitempty"`
	Diff     *UpgradeDiff  `yaml:"diff,omitempty"`
	Node     *UpgradeNode  `yaml:"node,omitempty"`
	Plan     *UpgradePlan  `yaml:"plan,omitempty"`
	Timeouts *Timeouts     `yaml:"timeouts,omitempty"`
}

// UpgradeApply is `kubeadm upgrade apply`.
type UpgradeApply struct {
	KubernetesVersion         string   `yaml:"kubernetesVersion,omitempty"`
	AllowExperimentalUpgrades *bool    `yaml:"allowExperimentalUpgrades,omitempty"`
	AllowRCUpgrades           *bool    `yaml:"allowRCUpgrades,omitempty"`
	CertificateRenewal        *bool    `yaml:"certificateRenewal,omitempty"`
	DryRun                    *bool    `yaml:"dryRun,omitempty"`
	EtcdUpgrade               *bool    `yaml:"etcdUpgrade,omitempty"`
	ForceUpgrade              *bool    `yaml:"forceUpgrade,omitempty"`
	IgnorePreflightErrors     []string `yaml:"ignorePreflightErrors,omitempty"`
	Patches                   *Patches `yaml:"patches,omitempty"`
	PrintConfig               *bool    `yaml:"printConfig,omitempty"`
	SkipPhases                []string `yaml:"skipPhases,omitempty"`
	ImagePullPolicy           string   `yaml:"imagePullPolicy,omitempty"`
	ImagePullSerial           *bool    `yaml:"imagePullSerial,omitempty"`
}

// UpgradeDiff is `kubeadm upgrade diff`.
type UpgradeDiff struct {
	KubernetesVersion string `yaml:"kubernetesVersion,omitempty"`
	ContextLines      int    `yaml:"contextLines,omitempty"`
}

// UpgradeNode is `kubeadm upgrade node`.
type UpgradeNode struct {
	CertificateRenewal    *bool    `yaml:"certificateRenewal,omitempty"`
	DryRun                *bool    `yaml:"dryRun,omitempty"`
	EtcdUpgrade           *bool    `yaml:"etcdUpgrade,omitempty"`
	IgnorePreflightErrors []string `yaml:"ignorePreflightErrors,omitempty"`
	SkipPhases            []string `yaml:"skipPhases,omitempty"`
	Patches               *Patches `yaml:"patches,omitempty"`
	ImagePullPolicy       string   `yaml:"imagePullPolicy,omitempty"`
	ImagePullSerial       *bool    `yaml:"imagePullSerial,omitempty"`
}

// UpgradePlan is `kubeadm upgrade plan`.
type UpgradePlan struct {
	KubernetesVersion         string   `yaml:"kubernetesVersion,omitempty"`
	AllowExperimentalUpgrades *bool    `yaml:"allowExperimentalUpgrades,omitempty"`
	AllowRCUpgrades           *bool    `yaml:"allowRCUpgrades,omitempty"`
	DryRun                    *bool    `yaml:"dryRun,omitempty"`
	EtcdUpgrade               *bool    `yaml:"etcdUpgrade,omitempty"`
	IgnorePreflightErrors     []string `yaml:"ignorePreflightErrors,omitempty"`
	PrintConfig               *bool    `yaml:"printConfig,omitempty"`
}
