// Package status is what the node runtime tells about itself: one document for
// people and programs, at Path for this boot and at Mirror for whoever comes
// after a crash. What is written is whole, durable and free of secrets; what
// can't be read for certain is Unknown, never success.
package status

import (
	"fmt"
	"regexp"
	"slices"
	"time"
)

// APIVersion is the document's format.
const APIVersion = "provider-kubernetes.kairos.io/v1"

// Where the document lies. The folder of Path is emptied by every boot, the one
// of Mirror is kept by Kairos.
const (
	Path   = "/run/provider-kubernetes/status.yaml"
	Mirror = "/var/log/provider-kubernetes/status.yaml"
)

// Phase is the state of the node as a whole.
type Phase string

// The phases. Unknown is only ever read, never written.
const (
	Unknown     Phase = "Unknown"
	Reconciling Phase = "Reconciling" // at work, or nothing known against it yet
	Converged   Phase = "Converged"
	Degraded    Phase = "Degraded" // a member whose kubelet doesn't answer
	Failed      Phase = "Failed"   // stopped; Terminal tells whether a boot may mend it
	Reset       Phase = "Reset"    // left the cluster
)

var phases = []Phase{Reconciling, Converged, Degraded, Failed, Reset}

// Membership is whether the node belongs to a cluster.
type Membership string

// The memberships.
const (
	MembershipUnknown Membership = "unknown"
	Member            Membership = "member"
	NotMember         Membership = "not-member"
)

var memberships = []Membership{MembershipUnknown, Member, NotMember}

// Reason is why a phase is what it is, for programs.
type Reason string

// The reasons; none is the empty string.
const (
	ConfigInvalid      Reason = "ConfigInvalid"      // the cluster: block has findings
	ConfigUnreadable   Reason = "ConfigUnreadable"   // the cluster file is missing or unreadable
	EventInvalid       Reason = "EventInvalid"       // Kairos' event can't be understood
	KubeletUnhealthy   Reason = "KubeletUnhealthy"   // a member's kubelet doesn't answer
	MembershipUnclear  Reason = "MembershipUnclear"  // kubeadm's files can't be read
	NotAMember         Reason = "NotAMember"         // the node has joined no cluster
	UpgradeRefused     Reason = "UpgradeRefused"     // the wanted version can't be gone to from here
	ClusterConfigWrite Reason = "ClusterConfigWrite" // Kairos' file for our stages can't be written

	// What keeps the token and all commands from being written.
	ClusterConfigAncestorUnsafe  Reason = "ClusterConfigAncestorUnsafe"
	ClusterConfigDirUnsafe       Reason = "ClusterConfigDirUnsafe"
	ClusterConfigTokenFileUnsafe Reason = "ClusterConfigTokenFileUnsafe"
	// What leaves no place to write to.
	ClusterConfigAncestorMissing Reason = "ClusterConfigAncestorMissing"
	ClusterConfigDirCreateFailed Reason = "ClusterConfigDirCreateFailed"
	// What is only reported.
	ClusterConfigOverrideRejected Reason = "ClusterConfigOverrideRejected"
	ClusterConfigDirWritable      Reason = "ClusterConfigDirWritable"
	ClusterConfigNotPersistent    Reason = "ClusterConfigNotPersistent"
)

var reasons = []Reason{
	"", ConfigInvalid, ConfigUnreadable, EventInvalid, KubeletUnhealthy, MembershipUnclear, NotAMember, UpgradeRefused,
	ClusterConfigWrite, ClusterConfigAncestorUnsafe, ClusterConfigDirUnsafe, ClusterConfigTokenFileUnsafe,
	ClusterConfigAncestorMissing, ClusterConfigDirCreateFailed, ClusterConfigOverrideRejected,
	ClusterConfigDirWritable, ClusterConfigNotPersistent,
}

// Budget is the time that a pass may take and has taken, in seconds.
type Budget struct {
	Limit int `yaml:"limitSeconds" json:"limitSeconds"`
	Used  int `yaml:"usedSeconds" json:"usedSeconds"`
}

// Document is the status of a node.
type Document struct {
	APIVersion string     `yaml:"apiVersion" json:"apiVersion"`
	Phase      Phase      `yaml:"phase" json:"phase"`
	Role       string     `yaml:"role" json:"role"` // init, controlplane, worker, or empty when not known
	Membership Membership `yaml:"membership" json:"membership"`
	Outcome    string     `yaml:"outcome" json:"outcome"` // what the pass decided, "none", "upgrade-apply"
	Reason     Reason     `yaml:"reason" json:"reason"`
	Terminal   bool       `yaml:"terminal" json:"terminal"`     // no later boot changes this without a person
	LastAction string     `yaml:"lastAction" json:"lastAction"` // what ran last, "agent.boot", "reconcile"
	Message    string     `yaml:"message" json:"message"`       // one line without secrets
	Budget     Budget     `yaml:"budget" json:"budget"`
	UpdatedAt  time.Time  `yaml:"updatedAt" json:"updatedAt"` // UTC, whole seconds
	BootID     string     `yaml:"bootID" json:"bootID"`       // the kernel's boot_id
	Version    string     `yaml:"version" json:"version"`     // of the program that wrote the document
}

var (
	word   = regexp.MustCompile(`^[a-z0-9.-]{0,64}$`)
	roleOf = []string{"", "init", "controlplane", "worker"}
)

// check reports the first field that is outside its closed set.
func (d Document) check() error {
	switch {
	case d.APIVersion != APIVersion:
		return fmt.Errorf("apiVersion is %q, expected %s", d.APIVersion, APIVersion)
	case !slices.Contains(phases, d.Phase):
		return fmt.Errorf("phase is %q, expected one of %v", d.Phase, phases)
	case !slices.Contains(memberships, d.Membership):
		return fmt.Errorf("membership is %q, expected one of %v", d.Membership, memberships)
	case !slices.Contains(reasons, d.Reason):
		return fmt.Errorf("reason %q is not known", d.Reason)
	case !slices.Contains(roleOf, d.Role):
		return fmt.Errorf("role is %q, expected init, controlplane or worker", d.Role)
	case !word.MatchString(d.Outcome) || !word.MatchString(d.LastAction):
		return fmt.Errorf("outcome %q, last action %q: expected one word each", d.Outcome, d.LastAction)
	}
	return nil
}
