package fetch

import (
	"fmt"
	"strings"
)

// Platform is what an image runs on, in the terms of the OCI image index.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// ParsePlatform reads os/architecture or os/architecture/variant.
func ParsePlatform(s string) (Platform, error) {
	parts := strings.Split(s, "/")
	for _, p := range parts {
		if p == "" || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			parts = nil
		}
	}
	switch len(parts) {
	case 2:
		return Platform{OS: parts[0], Architecture: parts[1]}, nil
	case 3:
		return Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}, nil
	}
	return Platform{}, fmt.Errorf("platform %q is not os/architecture or os/architecture/variant, such as linux/amd64", s)
}

// String returns the form that ParsePlatform reads.
func (p Platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// Matches tells whether p and q are the same platform. A missing variant is the
// one that the architecture has by default: v1 for amd64, v8 for arm64, v7 for
// arm. Other variants differ.
func (p Platform) Matches(q Platform) bool { return p.normal() == q.normal() }

func (p Platform) normal() Platform {
	if p.Variant == "" {
		p.Variant = map[string]string{"amd64": "v1", "arm64": "v8", "arm": "v7"}[p.Architecture]
	}
	return p
}

// NoPlatform reports that an image has no manifest for Want. Offered lists what
// it has instead.
type NoPlatform struct {
	Reference string
	Want      Platform
	Offered   []string
}

func (e *NoPlatform) Error() string {
	offered := strings.Join(e.Offered, ", ")
	if offered == "" {
		offered = "no platform at all"
	}
	return fmt.Sprintf("%s has no manifest for %s; it offers %s", e.Reference, e.Want, offered)
}
