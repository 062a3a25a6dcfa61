// Package inspect proves that an image keeps what is promised about node
// images: types, owners and modes, units and their enablement, containerd's
// configuration, the programs and their versions, the bundled images. It takes
// an image as a container runtime would see it, what is expected of it, and a
// way to run programs; it changes nothing, and reports every finding at once in
// an order that depends on the image only.
package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// Image is one platform's image.
type Image struct {
	Name   string // as the user called it
	Digest string // of its manifest
	FS     *layerfs.FS
	Config *v1.ConfigFile
}

// Expect is what the image must consist of.
type Expect struct {
	Row      matrix.Row
	Stack    matrix.Stack
	Platform v1.Platform
	Overlay  []overlay.File
	Labels   map[string]string // an empty value stands for any, but there must be one
}

// Tools are the means to run programs. The zero value uses the builder's own.
type Tools struct {
	// Output runs a command and returns what it printed.
	Output func(context.Context, run.Cmd) ([]byte, error)
	// TempDir is where programs and units of the image are unpacked, in a
	// folder that is removed again; empty is the system's.
	TempDir string
}

// Finding is one promise that the image does not keep.
type Finding struct {
	Rule  string `json:"rule"`
	Path  string `json:"path,omitempty"` // in the image, with a leading slash
	Found string `json:"found"`
	Want  string `json:"want"`
	Next  string `json:"next"`
}

// Check is the outcome of one rule. Notes tell what could not be proven here or
// is worth knowing; they don't make the rule fail.
type Check struct {
	Rule   string   `json:"rule"`
	Proves string   `json:"proves"`
	Passed bool     `json:"passed"`
	Notes  []string `json:"notes,omitempty"`
}

// Report is the outcome of an inspection: all rules in their order, and the
// findings by rule and path.
type Report struct {
	Image    string    `json:"image"`
	Digest   string    `json:"digest"`
	Platform string    `json:"platform"`
	Checks   []Check   `json:"checks"`
	Findings []Finding `json:"findings"`
}

// OK tells whether the image keeps every promise.
func (r Report) OK() bool { return len(r.Findings) == 0 }

type rule struct {
	name, proves string
	check        func(context.Context, *subject) error
}

var rules = []rule{
	{"paths", "every promised path has its type, owner root:root and mode", checkPaths},
	{"writable", "no file or folder that its group or everybody may write to", checkWritable},
	{"persistent", "nothing of ours where Kairos keeps an older copy over it", checkPersistent},
	{"shadow", "no other program that is found before ours", checkShadow},
	{"units", "units and drop-ins are as shipped and have no [Install] section", checkUnits},
	{"wants", "units are enabled by a relative link under /usr/lib", checkWants},
	{"systemd", "systemd accepts the units without a cycle and calls them static", checkSystemd},
	{"containerd", "containerd's configuration says, and containerd reads, what is promised", checkContainerd},
	{"names", "every program that the daemons look up is in the image", checkNames},
	{"programs", "programs are static, for this platform, and report the pinned versions", checkPrograms},
	{"bundle", "the bundled images are the lock's and the ones kubeadm asks for", checkBundle},
	{"identity", "the image says which Kubernetes it holds", checkIdentity},
}

// Run inspects the image by every rule. The error is about an image that can't
// be read or a machine that can't inspect, never about a promise.
func Run(ctx context.Context, img Image, want Expect, tools Tools) (Report, error) {
	if tools.Output == nil {
		tools.Output = func(ctx context.Context, c run.Cmd) ([]byte, error) { return c.Output(ctx) }
	}
	s := &subject{Image: img, Expect: want, Tools: tools}
	if err := img.FS.Walk(func(e layerfs.Entry) error {
		s.entries = append(s.entries, e)
		return nil
	}); err != nil {
		return Report{}, fmt.Errorf("inspect %s: %w", img.Name, err)
	}
	if err := s.load(ctx); err != nil {
		return Report{}, fmt.Errorf("inspect %s: %w", img.Name, err)
	}
	cleanup, err := s.unpack(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("inspect %s: %w", img.Name, err)
	}
	defer cleanup()

	r := Report{Image: img.Name, Digest: img.Digest, Platform: want.Platform.String(), Findings: []Finding{}}
	for _, rule := range rules {
		s.findings, s.notes = nil, nil
		if err := rule.check(ctx, s); err != nil {
			return Report{}, fmt.Errorf("inspect %s: rule %s: %w", img.Name, rule.name, err)
		}
		for i := range s.findings {
			s.findings[i].Rule = rule.name
		}
		slices.SortFunc(s.findings, func(a, b Finding) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Found, b.Found), strings.Compare(a.Want, b.Want))
		})
		slices.Sort(s.notes)
		r.Checks = append(r.Checks, Check{rule.name, rule.proves, len(s.findings) == 0, slices.Compact(s.notes)})
		r.Findings = append(r.Findings, s.findings...)
	}
	return r, nil
}
