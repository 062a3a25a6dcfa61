package images

import (
	"errors"
	"fmt"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

// Outcome is how an import ended.
type Outcome string

// Outcomes. Failed is for an import of which nothing succeeded and that ctr or
// the deadline stopped; Refused for a bundle, or all of its archives, that must
// not be imported.
const (
	Success    Outcome = "success"     // every image is in containerd
	Partial    Outcome = "partial"     // some are, or some archives verify
	Refused    Outcome = "refused"     // none is
	Failed     Outcome = "failed"      // none is
	NotBundled Outcome = "not-bundled" // the OS image has no bundle
	Verified   Outcome = "verified"    // every archive is what the list says
)

// reason is why a bundle or an archive was not imported. What is said of an
// archive may also be said of images.lock, and device of the bundle's folder:
// then the whole bundle is refused.
type reason string

const (
	dirUnsafe    reason = "dir-unsafe"    // a folder on the bundle's path is a link, not root's, or writable by others
	anchorUnsafe reason = "anchor-unsafe" // the provider binary or a folder on its path is
	lockMissing  reason = "lock-missing"
	lockInvalid  reason = "lock-invalid"
	missing      reason = "missing"
	symlink      reason = "symlink"
	notRegular   reason = "not-regular"
	badOwner     reason = "owner"
	badMode      reason = "mode"          // writable by group or others
	badSize      reason = "size"          // not the listed one; a list: empty or larger than 1 MiB
	badDevice    reason = "device"        // another file system or mount than the provider binary's
	badTar       reason = "tar-structure" // no OCI layout in a plain tar, something beside the image in it, or other bytes than the listed ones
	badManifest  reason = "manifest"      // another name, another manifest, or a layer that is missing or damaged
	badConfig    reason = "config-digest" // the image's configuration is missing or damaged
	ctrFailed    reason = "ctr-failed"
	deadline     reason = "deadline"
)

// refusal is an error with its reason.
type refusal struct {
	reason reason
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(why reason, format string, a ...any) error {
	return &refusal{why, fmt.Errorf(format, a...)}
}

// reasonOf returns the reason of an error that refuse made, ctrFailed otherwise.
func reasonOf(err error) reason {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	return ctrFailed
}

// Summary is what an import did. Entries is the sum of the next four when the
// bundle itself was not refused, except that a verification counts no archive
// that is right.
type Summary struct {
	Outcome  Outcome
	Entries  int  // images on the list
	Imported int  // images imported
	Present  int  // images that were there and equal
	Refused  int  // archives that must not be imported
	Failed   int  // archives that could not be imported
	Unlisted int  // files in the bundle's folder that the list doesn't name
	ReadOnly bool // whether the bundle's file system is mounted so
}

// OK tells whether nothing is left to do.
func (s Summary) OK() bool {
	return s.Outcome == Success || s.Outcome == Verified || s.Outcome == NotBundled
}

// String returns the last line of the log.
func (s Summary) String() string {
	return fmt.Sprintf("image-import: summary outcome=%s entries=%d imported=%d present=%d refused=%d failed=%d unlisted=%d readonly=%t dir=/%s",
		s.Outcome, s.Entries, s.Imported, s.Present, s.Refused, s.Failed, s.Unlisted, s.ReadOnly, overlay.BundleDir)
}
