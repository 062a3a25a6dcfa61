package matrix

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Minor is a Kubernetes minor such as 1.37.
type Minor struct {
	Major, Minor int
}

// ParseMinor reads "1.37"; a leading v is accepted, a patch is not.
func ParseMinor(s string) (Minor, error) {
	major, minor, ok := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	a, aok := number(major)
	b, bok := number(minor)
	if !ok || !aok || !bok {
		return Minor{}, fmt.Errorf("minor %q is not of the form 1.37", s)
	}
	return Minor{a, b}, nil
}

func (m Minor) String() string { return fmt.Sprintf("%d.%d", m.Major, m.Minor) }

// Compare orders minors; negative when m is older than o.
func (m Minor) Compare(o Minor) int {
	return cmp.Or(cmp.Compare(m.Major, o.Major), cmp.Compare(m.Minor, o.Minor))
}

// Next returns the minor after m.
func (m Minor) Next() Minor { return Minor{m.Major, m.Minor + 1} }

// Version is a Kubernetes version. Build metadata is kept for display but has
// no part in the order, as semantic versioning 2.0.0 (items 10 and 11) says.
type Version struct {
	Major, Minor, Patch int
	Pre, Build          string
}

// ParseVersion reads "v1.37.2", "1.37.2", "v1.37.0-rc.1" or "v1.36.4+vendor.1".
// A version without a patch, a channel name ("stable-1.36") or a number with
// leading zeros is an error that shows the text.
func ParseVersion(s string) (Version, error) {
	bad := func(why string) (Version, error) {
		return Version{}, fmt.Errorf("version %q %s: expected the form v1.37.2", s, why)
	}
	rest, build, hasBuild := strings.Cut(strings.TrimPrefix(s, "v"), "+")
	core, pre, hasPre := strings.Cut(rest, "-")
	if hasBuild && !identifiers(build, false) {
		return bad("has malformed build metadata")
	}
	if hasPre && !identifiers(pre, true) {
		return bad("has a malformed pre-release part")
	}
	parts := strings.Split(core, ".")
	if len(parts) != 3 {
		return bad(fmt.Sprintf("has %d numeric parts", len(parts)))
	}
	var n [3]int
	for i, p := range parts {
		v, ok := number(p)
		if !ok {
			return bad(fmt.Sprintf("has %q where a number belongs", p))
		}
		n[i] = v
	}
	return Version{n[0], n[1], n[2], pre, build}, nil
}

// String returns the version with a leading v.
func (v Version) String() string {
	s := fmt.Sprintf("v%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		s += "-" + v.Pre
	}
	if v.Build != "" {
		s += "+" + v.Build
	}
	return s
}

// MinorOf returns the minor that v belongs to.
func (v Version) MinorOf() Minor { return Minor{v.Major, v.Minor} }

// Compare orders versions by semantic versioning 2.0.0 item 11; negative when
// v is older than o. A pre-release is older than its release.
func (v Version) Compare(o Version) int {
	return cmp.Or(
		cmp.Compare(v.Major, o.Major),
		cmp.Compare(v.Minor, o.Minor),
		cmp.Compare(v.Patch, o.Patch),
		comparePre(v.Pre, o.Pre),
	)
}

func comparePre(a, b string) int {
	if a == b {
		return 0
	}
	if a == "" {
		return 1
	}
	if b == "" {
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(as) && i < len(bs); i++ {
		an, aok := number(as[i])
		bn, bok := number(bs[i])
		var c int
		switch {
		case aok && bok:
			c = cmp.Compare(an, bn)
		case aok:
			c = -1
		case bok:
			c = 1
		default:
			c = strings.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// number reads a decimal without sign or leading zeros, at most nine digits.
func number(s string) (int, bool) {
	if s == "" || len(s) > 9 || (len(s) > 1 && s[0] == '0') || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

func identifiers(s string, pre bool) bool {
	for id := range strings.SplitSeq(s, ".") {
		if id == "" {
			return false
		}
		digits := true
		for _, c := range id {
			if c < '0' || c > '9' {
				digits = false
			}
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-') {
				return false
			}
		}
		if pre && digits && len(id) > 1 && id[0] == '0' {
			return false
		}
	}
	return true
}
