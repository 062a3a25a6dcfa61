package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/images"
)

const verifyOnly = "--verify-only"

func importImagesCommand(stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "import-images [" + verifyOnly + "]",
		Short: "Import the images that this OS image bundles into containerd",
		Long: `Import the images that this OS image bundles into containerd, pinned against
the kubelet's garbage collection. An image that is there with the listed digest
is not imported again. With ` + verifyOnly + ` all archives are read and compared with
the list, and containerd is left alone. One line for each archive that is
refused and a summary go to standard output, explanations to standard error.
Exit code 0: every image is there, every archive is right, or nothing is
bundled; 1: something was refused or failed.`,
		DisableFlagParsing: true, // it takes this one word, spelled like this, and nothing else
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && !slices.Equal(args, []string{verifyOnly}) {
				return fmt.Errorf("import-images: arguments are %q: expected none or %s", args, verifyOnly)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return exitCode(importImages(c.Context(), "/", host.Runner{}, len(args) > 0, stdout, stderr))
		},
	}
}

// importImages imports or verifies the bundle of the file system at root.
func importImages(ctx context.Context, root string, tools host.Runner, verify bool, stdout, stderr io.Writer) int {
	summary := images.Summary{Outcome: images.Failed}
	r, err := host.OpenRoot(root)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		fmt.Fprintln(stdout, summary)
		return 1
	}
	defer func() { _ = r.Close() }()
	i := images.Importer{Root: r, Runner: tools, Log: stdout, Why: stderr}
	if verify {
		summary = i.Verify(ctx)
	} else {
		summary = i.Import(ctx)
	}
	if !summary.OK() {
		return 1
	}
	return 0
}
