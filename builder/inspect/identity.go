package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

const (
	osRelease     = "etc/os-release"
	kairosRelease = "etc/kairos-release"
)

// checkIdentity looks at the labels and platform of the image's configuration
// and at what the file system says about itself.
func checkIdentity(_ context.Context, s *subject) error {
	if c := s.Config; c.OS != s.Platform.OS || c.Architecture != s.Platform.Architecture {
		s.find("", fmt.Sprintf("the image is for %s/%s", c.OS, c.Architecture), s.Platform.String(), "inspect the manifest of that platform")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		got, want := s.Config.Config.Labels[name], s.Labels[name]
		if got == "" || want != "" && got != want {
			if want == "" {
				want = "a value"
			}
			s.find("", fmt.Sprintf("label %s is %q", name, got), want, "set the label where the image is made")
		}
	}
	name, want := overlay.BundledKubernetesVersion, s.Row.Kubernetes.String()
	if got, _ := overlay.Release(s.small[osRelease], name); got != want {
		s.find(osRelease, fmt.Sprintf("%s=%s", name, got), name+"="+want, "set the line where the image is made")
	}
	name = overlay.KairosVersion
	if got, _ := overlay.Release(slices.Concat(s.small[osRelease], []byte("\n"), s.small[kairosRelease]), name); got == "" {
		s.find(kairosRelease, name+" is not set", "a value that no other build has", "set the line where the image is made: upgrades to an equal value are skipped")
	}
	return nil
}
