// Command agent-provider-kubernetes is the node runtime: the program that a
// node image runs at every boot.
package main

import (
	"os"

	"github.com/kairos-io/provider-kubernetes/runtime/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
