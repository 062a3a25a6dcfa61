package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

func statusCommand(stdout, stderr io.Writer) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Print what this node's runtime last said about itself in this boot",
		Long: `Print what this node's runtime last said about itself in this boot. A document
that is missing, damaged or from an earlier boot has the phase Unknown.
Exit code 0: nothing is wrong, 1: unknown or failed, 2: the configuration is
invalid, 3: refused, 7: degraded.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 || output != "yaml" && output != "json" {
				return fmt.Errorf("status: arguments are %q, output is %q: expected no argument, and yaml or json", args, output)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return printStatus("/", output, stdout, stderr) },
	}
	c.Flags().StringVarP(&output, "output", "o", "yaml", "yaml or json")
	return c
}

// printStatus prints the status of the file system at root; the error is the
// exit code it asks for.
func printStatus(root, output string, stdout, stderr io.Writer) exitCode {
	r, err := host.OpenRoot(root)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	defer func() { _ = r.Close() }()
	d := status.Read(r)
	if output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(d)
	} else {
		err = yaml.NewEncoder(stdout).Encode(d)
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return exitOf(d)
}
