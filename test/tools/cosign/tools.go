//go:build tools

// Package tools names the program that is built from this module.
package tools

import _ "github.com/sigstore/cosign/v2/cmd/cosign"
