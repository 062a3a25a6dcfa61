// Package supply says what an image's named inputs are, whichever place they
// come from: images by reference and digest, tools as files of such images or
// as release files, a base, and the identities that must have signed them. A
// supply resolves them; the pipeline then fetches, verifies and extracts all of
// them the same way.
package supply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// Names of the supplies.
const (
	Official = "official"
	Rebuilt  = "rebuilt"
)

// Supply resolves inputs. Close ends what Inputs started.
type Supply interface {
	Name() string
	Inputs(ctx context.Context) (*Inputs, error)
	Close() error
}

// Inputs is everything one image is made from, every item named by digest.
type Inputs struct {
	Bundle []Image // what kubeadm asks for, in the matrix's order
	Others []Image // images that only tools are taken from
	Base   Image
	Files  []File
	Tools  []Tool

	// Routes sends a registry's name to the base URL that answers for it.
	Routes map[string]string
	// Policy and Trust are the documents that everything is verified with: a
	// signing policy and a trusted root. Roots are the further trusted roots that
	// rules of the policy name.
	Policy, Trust []byte
	Roots         map[string][]byte

	Lock     lock.Lock
	Resolved []lock.Input // inputs that were resolved while building
	// Toolchain is the compiler of what was built here ("go1.26.8"): another one
	// makes other bytes from the same inputs.
	Toolchain string
}

// Image is one input image. Digest is that of its top manifest or index.
type Image struct {
	Name, Reference, Digest string
}

// File is one release file. Signature and Certificate are detached, as
// dl.k8s.io serves them, and LogEntry is what the transparency log has for them;
// without them the checksum's origin vouches.
type File struct {
	Name, URL string
	store.Descriptor
	Signature, Certificate []byte
	LogEntry               signing.LogEntry
	Origin                 string
}

// Verify checks the detached signature of the file's digest without network:
// the log entry beside it tells when it was made. A file without signature is
// signing.Unsigned. Errors are those of signing.Verifier.VerifyBlob.
func (f File) Verify(ctx context.Context, v *signing.Verifier) (signing.Result, error) {
	return v.VerifyBlob(ctx, signing.Blob{
		Reference: f.Reference(), Digest: f.Digest, Signature: f.Signature, Certificate: f.Certificate,
	}, kept{f.LogEntry})
}

// Reference is the file's URL without scheme, which is how the policy names it.
func (f File) Reference() string {
	_, ref, _ := strings.Cut(f.URL, "://")
	return ref
}

// kept is the one log entry that was kept with a file.
type kept struct{ entry signing.LogEntry }

func (k kept) Find(context.Context, v1.Hash, []byte, []byte) ([]signing.LogEntry, error) {
	return []signing.LogEntry{k.entry}, nil
}

// Tool is one file that is laid into the image at Target (clean, without
// leading slash). It is taken from an image, from a release file, or from a
// member of a release file that is a gzipped tar.
type Tool struct {
	Target string
	Image  string // Name of an Image
	File   string // Name of a File
	Path   string // in the image, or the member's name; empty: the file itself
}

// Images returns all input images: bundle, others, base.
func (in *Inputs) Images() []Image {
	return append(append(slices.Clone(in.Bundle), in.Others...), in.Base)
}

// Verifier judges by the policy and the trusted roots of the inputs.
func (in *Inputs) Verifier() (*signing.Verifier, error) {
	v := &signing.Verifier{Roots: map[string]*signing.TrustedRoot{}}
	var err error
	if v.Policy, err = signing.ParsePolicy(in.Policy); err != nil {
		return nil, err
	}
	if v.Trust, err = signing.ParseTrustedRoot(in.Trust); err != nil {
		return nil, err
	}
	for name, b := range in.Roots {
		if v.Roots[name], err = signing.ParseTrustedRoot(b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return v, nil
}

// Vouched says in a lock's terms what an accepted check came to.
func Vouched(r signing.Result) lock.Verification {
	if r.Outcome == signing.Excepted {
		return lock.Verification{By: lock.ByException, Reason: r.Reason}
	}
	return lock.Verification{By: lock.BySignature, Identity: r.Identity, Issuer: r.Issuer}
}

// CNIPlugins are the reference plugins of containernetworking/plugins.
var CNIPlugins = []string{
	"bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback",
	"macvlan", "portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf",
}
