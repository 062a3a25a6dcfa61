package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// LockName is the bundle's list, a file beside the archives.
const LockName = "images.lock"

const (
	lockVersion = "provider-kubernetes.kairos.io/v1"
	lockKind    = "ImagesLock"
	lockLimit   = 1 << 20 // bytes; a list of seven images has 3 KiB
)

// Image is one entry of the list.
type Image struct {
	Reference string // name that kubeadm and the kubelet ask for, "registry.k8s.io/pause:3.10.2"
	Digest    string // of the image's manifest, "sha256:<64 hex>"
	Archive   string // plain file name, "pause.tar"
	Size      int64  // of the archive in bytes
	SHA256    string // of the archive, 64 lower-case hex digits
}

// Both forms are narrower than what a registry or a file system allows: the
// values go to log lines, to ctr's filters and to paths as they are.
var (
	referenceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)+:[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	archiveForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*\.tar$`)
	hexForm       = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ParseLock reads images.lock strictly: one document, no unknown key, at least
// one image, no reference and no archive twice. All findings come together.
// What the build says about an image's verification is not read: the list is
// trusted as a file of the signed image.
func ParseLock(b []byte) ([]Image, error) {
	var doc struct {
		APIVersion        string `yaml:"apiVersion"`
		Kind              string `yaml:"kind"`
		KubernetesVersion string `yaml:"kubernetesVersion"`
		Platform          string `yaml:"platform"`
		Images            []struct {
			Reference    string    `yaml:"reference"`
			Digest       string    `yaml:"digest"`
			Archive      string    `yaml:"archive"`
			Size         int64     `yaml:"size"`
			SHA256       string    `yaml:"sha256"`
			Verified     bool      `yaml:"verified"`
			Verification yaml.Node `yaml:"verification"`
			Reason       string    `yaml:"reason"`
		} `yaml:"images"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s: %w", LockName, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more follows its one document", LockName)
	}

	var found []error
	find := func(format string, a ...any) { found = append(found, fmt.Errorf(LockName+": "+format, a...)) }
	if doc.APIVersion != lockVersion || doc.Kind != lockKind {
		find("is %q of %q: expected %s of %s", doc.Kind, doc.APIVersion, lockKind, lockVersion)
	}
	if len(doc.Images) == 0 {
		find("lists no image")
	}
	seen := map[string]bool{}
	list := make([]Image, 0, len(doc.Images))
	for n, e := range doc.Images {
		hex, ok := strings.CutPrefix(e.Digest, "sha256:")
		switch {
		case !referenceForm.MatchString(e.Reference) || len(e.Reference) > 255:
			find("image %d: reference %.300q: expected host/repository:tag", n+1, e.Reference)
		case !archiveForm.MatchString(e.Archive) || len(e.Archive) > 255:
			find("%s: archive %.300q: expected the plain name of a .tar file", e.Reference, e.Archive)
		case !ok || !hexForm.MatchString(hex) || !hexForm.MatchString(e.SHA256) || e.Size <= 0:
			find("%s: digest %.80q, sha256 %.80q, size %d: expected sha256:<64 hex>, <64 hex> and a positive size", e.Reference, e.Digest, e.SHA256, e.Size)
		case seen[e.Reference] || seen[e.Archive]:
			find("%s or its archive %s is listed twice", e.Reference, e.Archive)
		}
		seen[e.Reference], seen[e.Archive] = true, true
		list = append(list, Image{e.Reference, e.Digest, e.Archive, e.Size, e.SHA256})
	}
	if len(found) > 0 {
		return nil, errors.Join(found...)
	}
	return list, nil
}
