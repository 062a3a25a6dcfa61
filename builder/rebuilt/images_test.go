package rebuilt

import (
	"slices"
	"testing"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

func TestOnlyWhatTheWantedImagesTakeIsBuilt(t *testing.T) {
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	built := func(only ...string) (names []string) {
		s := &Supply{Row: m.Rows[0], Stack: m.Stack, Only: only}
		for _, c := range s.needed() {
			for _, p := range c.programs {
				names = append(names, p.name)
			}
		}
		slices.Sort(names)
		return names
	}
	want := []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubeadm", "kubectl", "kubelet"}
	if got := built("kubernetes-node", "containerd"); !slices.Equal(got, want) {
		t.Errorf("programs %v, expected %v", got, want)
	}
	var all []string
	for _, c := range components(m.Rows[0], m.Stack) {
		for _, p := range c.programs {
			all = append(all, p.name)
		}
	}
	slices.Sort(all)
	if got := built(); !slices.Equal(got, all) {
		t.Errorf("all images take %v, expected every program: %v", got, all)
	}
}
