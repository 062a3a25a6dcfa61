package matrix

import "fmt"

// StepKind says what going from one version to another means.
type StepKind string

// The kinds of step. Only StepPatch and StepMinor change a cluster.
const (
	StepNone      StepKind = "none"          // same version
	StepPatch     StepKind = "patch"         // newer patch of the same minor
	StepMinor     StepKind = "minor"         // exactly one minor up
	StepSkip      StepKind = "skip"          // more than one minor up
	StepDowngrade StepKind = "downgrade"     // older patch or minor
	StepOutside   StepKind = "out-of-window" // the target's minor is not built by us
	StepUnstable  StepKind = "pre-release"   // the target or the start is not a release
)

// Step is the verdict on one move. Next is the minor whose image to boot next
// when the move is refused but a legal way exists; it is zero otherwise.
type Step struct {
	Kind   StepKind
	Reason string
	Next   Minor
}

// Allowed tells whether the move may be made.
func (s Step) Allowed() bool {
	return s.Kind == StepNone || s.Kind == StepPatch || s.Kind == StepMinor
}

// Step judges moving a cluster from one version to another. Only the target has
// to be in the window, so a cluster one minor below it may upgrade in. Build
// metadata does not count. The rule of one minor at a time is the Kubernetes
// version skew policy's for kube-apiserver; kubeadm enforces the same.
func (m Matrix) Step(from, to Version) Step {
	minors := to.Minor - from.Minor
	switch {
	case from.Pre != "" || to.Pre != "":
		if from.Compare(to) == 0 {
			return Step{Kind: StepNone, Reason: "same version"}
		}
		return Step{Kind: StepUnstable, Reason: fmt.Sprintf("%s to %s involves a pre-release", from, to)}
	case from.Major != to.Major:
		return Step{Kind: StepOutside, Reason: fmt.Sprintf("%s to %s changes the major version", from, to)}
	case to.Compare(from) < 0:
		s := Step{Kind: StepDowngrade, Reason: fmt.Sprintf("%s is older than %s", to, from)}
		// A trailing zero is lost when 1.30 is typed or read as a number.
		if full := to.Minor * 10; full == from.Minor || full == from.Minor+1 {
			s.Reason += fmt.Sprintf("; did you mean %s?", Version{Major: to.Major, Minor: full, Patch: to.Patch})
		}
		return s
	case from.Compare(to) == 0:
		return Step{Kind: StepNone, Reason: "same version"}
	case minors > 1:
		return Step{Kind: StepSkip, Next: from.MinorOf().Next(),
			Reason: fmt.Sprintf("%s to %s skips %d minor(s)", from, to, minors-1)}
	case !m.InWindow(to.MinorOf()):
		return Step{Kind: StepOutside, Reason: fmt.Sprintf("minor %s is not in the window %s to %s", to.MinorOf(), m.Window[0], m.Newest())}
	case minors == 1:
		return Step{Kind: StepMinor, Reason: "one minor up"}
	default:
		return Step{Kind: StepPatch, Reason: "newer patch of the same minor"}
	}
}

// Path returns the minors to go through from one version to another minor, the
// last being the target; empty when there is nowhere to go upwards.
func (m Matrix) Path(from Version, to Minor) []Minor {
	var path []Minor
	for next := from.MinorOf().Next(); next.Compare(to) <= 0; next = next.Next() {
		path = append(path, next)
	}
	return path
}
