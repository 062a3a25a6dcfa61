package rebuilt

import (
	"fmt"
	"strings"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

// component is what one tools module builds: programs of one project at one
// version. The folder matrix/modules/<name>-<version> holds its go.mod and go.sum.
type component struct {
	name     string
	version  string // without a leading v
	requires []string
	programs []program
	tags     []string
	vars     []string // "importpath.name=value" set at link time
	cgo      bool     // needs a C compiler and libseccomp
	staging  string   // module whose v0.0.0 requirements are its staging modules
}

// program is one main package and the name its binary gets.
type program struct {
	name, pkg string
}

// folder is where the component's go.mod lies below matrix/modules.
func (c component) folder() string { return c.name + "-" + c.version }

// unknownCommit stands for the commit that a module does not record.
const unknownCommit = "unknown"

// components returns what has to be built for a row, in a fixed order.
func components(row matrix.Row, stack matrix.Stack) []component {
	k := row.Kubernetes.String()
	kube := component{
		name: "kubernetes", version: k[1:], requires: []string{"k8s.io/kubernetes@" + k}, staging: "k8s.io/kubernetes",
	}
	for _, p := range []string{"kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		kube.programs = append(kube.programs, program{p, "k8s.io/kubernetes/cmd/" + p})
	}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		kube.vars = append(kube.vars,
			pkg+".gitVersion="+k, pkg+".gitMajor="+fmt.Sprint(row.Kubernetes.Major), pkg+".gitMinor="+fmt.Sprint(row.Kubernetes.Minor),
			pkg+".gitTreeState=clean", pkg+".gitCommit="+unknownCommit)
	}

	etcd := component{name: "etcd", version: row.EtcdVersion(), vars: []string{"go.etcd.io/etcd/api/v3/version.GitSHA=" + unknownCommit}}
	for _, p := range []program{{"etcd", "server"}, {"etcdctl", "etcdctl"}, {"etcdutl", "etcdutl"}} {
		p.pkg = "go.etcd.io/etcd/" + p.pkg + "/v3"
		etcd.requires = append(etcd.requires, p.pkg+"@v"+row.EtcdVersion())
		etcd.programs = append(etcd.programs, p)
	}
	dns := strings.TrimPrefix(row.CoreDNS, "v")
	containerd := component{
		name: "containerd", version: stack.Containerd, requires: []string{"github.com/containerd/containerd/v2@v" + stack.Containerd},
		tags: []string{"osusergo", "netgo", "static_build", "urfave_cli_no_docs"},
		vars: []string{"github.com/containerd/containerd/v2/version.Version=v" + stack.Containerd, "github.com/containerd/containerd/v2/version.Revision=" + unknownCommit},
	}
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		containerd.programs = append(containerd.programs, program{p, "github.com/containerd/containerd/v2/cmd/" + p})
	}
	cni := component{
		name: "cni-plugins", version: stack.CNIPlugins, requires: []string{"github.com/containernetworking/plugins@v" + stack.CNIPlugins},
		vars: []string{"github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v" + stack.CNIPlugins},
	}
	for _, p := range []string{
		"ipam/dhcp", "ipam/host-local", "ipam/static",
		"main/bridge", "main/dummy", "main/host-device", "main/ipvlan", "main/loopback", "main/macvlan", "main/ptp", "main/tap", "main/vlan",
		"meta/bandwidth", "meta/firewall", "meta/portmap", "meta/sbr", "meta/tuning", "meta/vrf",
	} {
		cni.programs = append(cni.programs, program{p[5:], "github.com/containernetworking/plugins/plugins/" + p})
	}
	return []component{
		kube,
		etcd,
		{
			name: "coredns", version: dns, requires: []string{"github.com/coredns/coredns@v" + dns},
			programs: []program{{"coredns", "github.com/coredns/coredns"}},
			vars:     []string{"github.com/coredns/coredns/coremain.GitCommit=" + unknownCommit},
		},
		containerd,
		{
			name: "runc", version: stack.Runc, requires: []string{"github.com/opencontainers/runc@v" + stack.Runc}, cgo: true,
			programs: []program{{"runc", "github.com/opencontainers/runc"}},
			tags:     []string{"seccomp", "netgo", "osusergo"},
		},
		cni,
		{
			name: "crictl", version: stack.Crictl, requires: []string{"sigs.k8s.io/cri-tools@v" + stack.Crictl},
			programs: []program{{"crictl", "sigs.k8s.io/cri-tools/cmd/crictl"}},
			vars:     []string{"sigs.k8s.io/cri-tools/pkg/version.Version=v" + stack.Crictl},
		},
	}
}
