package inspect

import (
	"context"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// searchPath is the PATH that the drop-ins give the daemons.
var searchPath = []string{"usr/sbin", "usr/bin", "sbin", "bin"}

// helper is a program that is looked up by name.
type helper struct {
	name, user string
}

// mandatory programs stop kubeadm or the kubelet when they are missing
// (k8s.io/kubernetes cmd/kubeadm/app/preflight/checks_linux.go and
// app/util/initsystem, k8s.io/mount-utils).
var mandatory = []helper{
	{"cp", "kubeadm, to back up etcd's data"},
	{"losetup", "the kubelet, for block volumes"},
	{"mount", "the kubelet, for volumes"},
	{"systemctl", "kubeadm, to start the kubelet"},
	{"umount", "the kubelet, for volumes"},
}

// optional programs serve one kind of volume or network only.
var optional = []helper{
	{"blkid", "the kubelet, to format local block volumes"},
	{"fsck", "the kubelet, for local block volumes"},
	{"iptables", "the bridge, portmap and firewall plugins"},
	{"mkfs.ext4", "the kubelet, to format local block volumes"},
	{"modprobe", "kubeadm, to find the kernel's configuration"},
	{"nft", "the bridge and portmap plugins with the nftables backend"},
}

// checkNames resolves what the daemons look up by name as they would do it in
// the image. What they start by absolute path is the business of other rules.
func checkNames(_ context.Context, s *subject) error {
	for _, h := range mandatory {
		if !s.inPath(h.name) {
			s.find("", h.name+" is in none of /"+strings.Join(searchPath, ", /"), "it is needed by "+h.user, "add the program to the base image")
		}
	}
	for _, h := range optional {
		if !s.inPath(h.name) {
			s.note("%s is missing; it is used by %s", h.name, h.user)
		}
	}
	// containerd gives every pod a loopback interface through this plugin.
	if _, ok := s.lstat(overlay.CNIDir + "/loopback"); !ok {
		s.find(overlay.CNIDir+"/loopback", "missing", "the CNI reference plugins", rebuild)
	}
	return nil
}

func (s *subject) inPath(name string) bool {
	for _, dir := range searchPath {
		e, err := s.FS.Stat(dir + "/" + name)
		if err == nil && e.Type == layerfs.Regular && e.Mode&0o111 != 0 {
			return true
		}
	}
	return false
}
