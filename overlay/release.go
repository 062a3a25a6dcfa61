package overlay

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// Variables of the files that identify an image.
const (
	BundledKubernetesVersion = "BUNDLED_KUBERNETES_VERSION" // in etc/os-release: "v1.37.2"
	KairosVersion            = "KAIROS_VERSION"             // in etc/kairos-release: unique for each build
)

var (
	releaseName  = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	releaseValue = regexp.MustCompile(`^[A-Za-z0-9._+:/-]+$`)
)

// SetRelease returns the content of an os-release file in which name has this
// value and every other line is as it was. The first assignment is replaced,
// further ones are dropped (the last would win for a reader), and a missing one
// is appended. The value must do without quoting.
func SetRelease(content []byte, name, value string) ([]byte, error) {
	if !releaseName.MatchString(name) || !releaseValue.MatchString(value) {
		return nil, fmt.Errorf("release file: %s=%s needs quoting: expected letters, digits and ._+:/- only", name, value)
	}
	line := name + "=" + value + "\n"
	var out bytes.Buffer
	done := false
	for l := range strings.Lines(string(content)) {
		if strings.HasPrefix(strings.TrimLeft(l, " \t"), name+"=") {
			if !done {
				out.WriteString(line)
				done = true
			}
			continue
		}
		out.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			out.WriteByte('\n')
		}
	}
	if !done {
		out.WriteString(line)
	}
	return out.Bytes(), nil
}

// Release returns the value of name in the content of an os-release file, as a
// shell would see it for values without escapes: the last assignment wins.
func Release(content []byte, name string) (value string, ok bool) {
	for l := range strings.Lines(string(content)) {
		if v, found := strings.CutPrefix(strings.TrimSpace(l), name+"="); found {
			value, ok = strings.Trim(v, `"'`), true
		}
	}
	return value, ok
}
