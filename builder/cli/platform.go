package cli

import (
	"runtime"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
)

// supported are the platforms that node images are made for.
var supported = []fetch.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

// hostPlatform is the platform images are made for by default.
func hostPlatform() string { return "linux/" + runtime.GOARCH }

// platform returns the supported platform that s names, with or without the
// variant that its architecture has by default.
func platform(s string) (fetch.Platform, error) {
	p, err := fetch.ParsePlatform(s)
	var names []string
	for _, known := range supported {
		if err == nil && p.Matches(known) {
			return known, nil
		}
		names = append(names, known.String())
	}
	return p, usage("platform %q is not supported: use one of %s", s, strings.Join(names, ", "))
}
