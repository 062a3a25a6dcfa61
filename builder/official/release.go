package official

import (
	"fmt"
	"path"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// baseName is the input name of the base image.
const baseName = "base"

// images returns the images that are taken from registries.
func (s *Supply) images(table Table) []matrix.Image {
	return append(s.Row.Images(), matrix.Image{Name: baseName, Reference: table.base(s.Platform.Architecture)})
}

// release is one file that a project publishes, with its published checksum and
// what is laid into the image from it.
type release struct {
	name, version string
	url, checksum string
	signed        bool // detached signature and certificate lie beside it
	tools         []supply.Tool
}

// releaseHost serves the releases that have no signature we check.
const releaseHost = "github.com"

// project returns the place below releaseHost of a release without signature.
func project(name string) string {
	return map[string]string{"runc": "opencontainers/runc", "cni-plugins": "containernetworking/plugins", "crictl": "kubernetes-sigs/cri-tools"}[name]
}

// releases returns the files of the row and stack. Where they lie is documented
// by each project: kubernetes.io/releases/download, and the release pages.
func (s *Supply) releases() []release {
	arch := s.Platform.Architecture
	var out []release
	for _, name := range []string{"kubeadm", "kubectl"} {
		url := fmt.Sprintf("https://dl.k8s.io/release/%s/bin/linux/%s/%s", s.Row.Kubernetes, arch, name)
		out = append(out, release{name, s.Row.Kubernetes.String(), url, url + ".sha256", true, []supply.Tool{{Target: "usr/bin/" + name, File: name}}})
	}
	add := func(name, version, file, checksum string, tools ...supply.Tool) {
		at := fmt.Sprintf("https://%s/%s/releases/download/v%s/", releaseHost, project(name), version)
		out = append(out, release{name, version, at + file, at + checksum, false, tools})
	}
	add("runc", s.Stack.Runc, "runc."+arch, "runc.sha256sum", supply.Tool{Target: "usr/bin/runc", File: "runc"})
	var plugins []supply.Tool
	for _, p := range supply.CNIPlugins {
		plugins = append(plugins, supply.Tool{Target: overlay.CNIDir + "/" + p, File: "cni-plugins", Path: p})
	}
	cni := fmt.Sprintf("cni-plugins-linux-%s-v%s.tgz", arch, s.Stack.CNIPlugins)
	add("cni-plugins", s.Stack.CNIPlugins, cni, cni+".sha256", plugins...)
	crictl := fmt.Sprintf("crictl-v%s-linux-%s.tar.gz", s.Stack.Crictl, arch)
	add("crictl", s.Stack.Crictl, crictl, crictl+".sha256", supply.Tool{Target: "usr/bin/crictl", File: "crictl", Path: "crictl"})
	return out
}

// published reads a checksum file: a checksum alone, or lines of a checksum and
// a file name, of which the one for this file counts. It returns 64 hex digits.
func published(b []byte, file string) (string, error) {
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		// "*" marks a file that was read as binary (sha256sum).
		if len(f) == 1 || len(f) == 2 && path.Base(strings.TrimPrefix(f[1], "*")) == file {
			if sum := strings.ToLower(f[0]); isHex(sum) {
				return sum, nil
			}
		}
	}
	return "", fmt.Errorf("no sha256 of %s", file)
}
