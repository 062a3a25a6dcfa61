package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/units"
)

func migrateUnitsCommand(stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate-units",
		Short: "Remove the unit files that earlier images left in /etc/systemd/system",
		Long: `Remove the unit files that earlier images left in /etc/systemd/system, where
they hide those of this image. A file or link that is not exactly what was
shipped is kept and named. Exit code 0: nothing is left, 1: something is.`,
		DisableFlagParsing: true, // it takes no argument of any kind
		Args:               cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return exitCode(migrateUnits(c.Context(), "/", host.Runner{}, stdout, stderr))
		},
	}
}

// migrateUnits migrates the file system at root. The summary is the last line.
func migrateUnits(ctx context.Context, root string, tools host.Runner, stdout, stderr io.Writer) int {
	report := units.Report{Outcome: units.Failed}
	r, err := host.OpenRoot(root)
	if err == nil {
		defer func() { _ = r.Close() }()
		report, err = units.Migration{Root: r, Tools: tools, History: overlay.History, Log: stdout}.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
	}
	fmt.Fprintln(stdout, report)
	return report.Exit()
}
