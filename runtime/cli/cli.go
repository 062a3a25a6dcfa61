// Package cli is the node runtime's command line.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

// version is set by the linker.
var version = "v0.0.0-dev"

// exitCode ends the program after a verb has printed all there is to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command line and returns its exit code: that of the verb, or 2
// for wrong use. Called with an event or with nothing it is Kairos' plugin, as
// long as stdin holds a request.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "agent-provider-kubernetes",
		Short:         "The Kubernetes provider of a Kairos node",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		// Without it any argument would print the help and be no error.
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(versionCommand(stdout), migrateUnitsCommand(stdout, stderr), importImagesCommand(stdout, stderr),
		statusCommand(stdout, stderr), reconcileCommand(stdout, stderr))
	if event, request, ok := event(root, args, stdin); ok {
		return answer("/", event, request, stdout, stderr)
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 2
	}
	return 0
}

func versionCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and the minors it knows, as JSON",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			m, err := matrix.Load()
			if err != nil {
				return err
			}
			return json.NewEncoder(stdout).Encode(map[string]any{"version": version, "window": m.Window})
		},
	}
}
