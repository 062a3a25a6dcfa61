// Package bundle makes the set of images that a node imports without a network:
// one archive per image that the bundled kubeadm asks for, under exactly the
// name it looks up, and images.lock, the list that the node trusts. The digest
// in the list is that of the verified platform manifest, so the node's store
// shows the same digest after the import.
package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
)

// LockName is the list's file name; list and archives lie in the image's
// overlay.BundleDir.
const LockName = "images.lock"

// Document head of images.lock.
const (
	APIVersion = "provider-kubernetes.kairos.io/v1"
	Kind       = "ImagesLock"
)

// Entry is one bundled image: Digest is that of its manifest, SHA256 (bare hex)
// and Size are those of the archive, a file beside the list.
type Entry struct {
	Reference    string            `yaml:"reference" json:"reference"`
	Digest       string            `yaml:"digest" json:"digest"`
	Archive      string            `yaml:"archive" json:"archive"`
	Size         int64             `yaml:"size" json:"size"`
	SHA256       string            `yaml:"sha256" json:"sha256"`
	Verified     bool              `yaml:"verified" json:"verified"`
	Verification lock.Verification `yaml:"verification" json:"verification"`
	Reason       string            `yaml:"reason,omitempty" json:"reason,omitempty"`
}

// Lock is images.lock.
type Lock struct {
	APIVersion        string  `yaml:"apiVersion" json:"apiVersion"`
	Kind              string  `yaml:"kind" json:"kind"`
	KubernetesVersion string  `yaml:"kubernetesVersion" json:"kubernetesVersion"`
	Platform          string  `yaml:"platform" json:"platform"`
	Images            []Entry `yaml:"images" json:"images"`
}

// Marshal returns the canonical text: images sorted by reference.
func (l Lock) Marshal() []byte {
	l.APIVersion, l.Kind = APIVersion, Kind
	l.Images = slices.Clone(l.Images)
	slices.SortFunc(l.Images, func(a, b Entry) int { return strings.Compare(a.Reference, b.Reference) })
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(l), enc.Close()); err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	return buf.Bytes()
}

// ParseLock reads images.lock strictly; all findings come together.
func ParseLock(b []byte) (Lock, error) {
	var l Lock
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&l); err != nil {
		return Lock{}, fmt.Errorf("%s: %w", LockName, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Lock{}, fmt.Errorf("%s: more than one YAML document", LockName)
	}
	var errs []error
	find := func(format string, a ...any) { errs = append(errs, fmt.Errorf(LockName+": "+format, a...)) }
	if l.APIVersion != APIVersion || l.Kind != Kind {
		find("is %s of %s: expected %s of %s", l.Kind, l.APIVersion, Kind, APIVersion)
	}
	if l.KubernetesVersion == "" || l.Platform == "" {
		find("kubernetesVersion is %q and platform %q: both must be set", l.KubernetesVersion, l.Platform)
	}
	if len(l.Images) == 0 {
		find("lists no image")
	}
	seen := map[string]bool{}
	for _, e := range l.Images {
		switch hex, ok := strings.CutPrefix(e.Digest, "sha256:"); {
		case e.Reference == "":
			find("an image has no reference")
		case !ok || !isHex64(hex) || !isHex64(e.SHA256) || e.Size <= 0:
			find("%s: digest %q, sha256 %q, size %d: expected sha256:<64 hex>, <64 hex> and a positive size", e.Reference, e.Digest, e.SHA256, e.Size)
		case path.Base(e.Archive) != e.Archive || !strings.HasSuffix(e.Archive, ".tar") || e.Archive == ".tar":
			find("%s: archive %q: expected the plain name of a .tar file", e.Reference, e.Archive)
		case seen[e.Reference] || seen[e.Archive]:
			find("%s or its archive %s is there twice", e.Reference, e.Archive)
		case !e.Verified && e.Reason == "":
			find("%s is not verified and no reason is given", e.Reference)
		}
		seen[e.Reference], seen[e.Archive] = true, true
	}
	if len(errs) > 0 {
		return Lock{}, errors.Join(errs...)
	}
	return l, nil
}

// Compare returns how the references of a bundle differ from those that kubeadm
// asks for; empty when the sets are equal.
func Compare(have, want []string) []string {
	var found []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			found = append(found, "kubeadm asks for "+w+", which is not bundled")
		}
	}
	for _, h := range have {
		if !slices.Contains(want, h) {
			found = append(found, h+" is bundled, but kubeadm does not ask for it")
		}
	}
	return found
}

func isHex64(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
