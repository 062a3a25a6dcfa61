package inspect

import (
	"cmp"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/program"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// promised is a program of the image: how it tells its version, which version that
// must be (without a leading v), and the Go module that has the same version.
type promised struct {
	path    string
	args    []string
	version func(Expect) string
	module  string
}

const kubeadm = "usr/bin/kubeadm"

var programs = []promised{
	{"usr/bin/containerd", []string{"--version"}, containerd, "github.com/containerd/containerd/v2"},
	{"usr/bin/containerd-shim-runc-v2", []string{"-v"}, containerd, "github.com/containerd/containerd/v2"},
	{"usr/bin/crictl", []string{"--version"}, func(w Expect) string { return w.Stack.Crictl }, "sigs.k8s.io/cri-tools"},
	{"usr/bin/ctr", []string{"--version"}, containerd, "github.com/containerd/containerd/v2"},
	{"usr/bin/etcdctl", []string{"version"}, etcd, "go.etcd.io/etcd/etcdctl/v3"},
	{"usr/bin/etcdutl", []string{"version"}, etcd, "go.etcd.io/etcd/etcdutl/v3"},
	{kubeadm, []string{"version", "-o", "short"}, kubernetes, "k8s.io/kubernetes"},
	{"usr/bin/kubectl", []string{"version", "--client"}, kubernetes, "k8s.io/kubernetes"},
	{"usr/bin/kubelet", []string{"--version"}, kubernetes, "k8s.io/kubernetes"},
	{"usr/bin/runc", []string{"--version"}, func(w Expect) string { return w.Stack.Runc }, "github.com/opencontainers/runc"},
}

func containerd(w Expect) string { return w.Stack.Containerd }
func etcd(w Expect) string       { return w.Row.EtcdVersion() }
func kubernetes(w Expect) string { return w.Row.Kubernetes.String()[1:] }

// checkPrograms looks at every promised program and every CNI plugin. Versions
// are asked of the programs themselves, or read from what the Go linker wrote
// into them when they are for another platform.
func checkPrograms(ctx context.Context, s *subject) error {
	all := append(slices.Clone(programs), promised{path: overlay.Provider})
	for _, e := range s.entries {
		if path.Dir(e.Path) == overlay.CNIDir {
			all = append(all, promised{
				path: e.Path, module: "github.com/containernetworking/plugins",
				version: func(w Expect) string { return w.Stack.CNIPlugins },
			})
		}
	}
	for _, p := range all {
		e, ok := s.lstat(p.path)
		if !ok || e.Type != layerfs.Regular {
			continue // the rule about paths
		}
		file := filepath.Join(s.dir, p.path)
		if found := program.NotStatic(file, s.Platform.Architecture); found != "" {
			s.find(p.path, found, "a static executable for "+s.Platform.String(), "build it with CGO_ENABLED=0, or link it statically")
			continue
		}
		if p.version == nil {
			continue
		}
		var got string
		if len(p.args) > 0 && s.runs() && e.Mode&0o111 != 0 {
			out, err := s.output(ctx, file, p.args...)
			if ctx.Err() != nil {
				return err
			}
			if err != nil {
				s.find(p.path, s.message(out, err), "it reports version "+p.version(s.Expect), "run it and see what it objects to")
				continue
			}
			got = cmp.Or(program.FirstVersion(string(out)), strings.TrimSpace(string(out)))
		} else if got = program.ModuleVersion(file, p.module); got == "" {
			s.note("%s of %s is not recorded in the programs, and they were not run", p.module, s.Platform)
			continue
		}
		if want := p.version(s.Expect); got != want {
			s.find(p.path, "version "+got, "version "+want, "take the program of the pinned version")
		}
	}
	return nil
}
