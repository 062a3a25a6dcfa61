// Command builder makes, inspects and verifies node images.
package main

import (
	"os"

	"github.com/kairos-io/provider-kubernetes/builder/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
