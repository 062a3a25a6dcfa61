package cli

import "runtime"

// hostPlatform is the platform images are made for by default.
func hostPlatform() string { return "linux/" + runtime.GOARCH }
