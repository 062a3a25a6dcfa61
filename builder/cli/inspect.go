package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/inspect"
)

func (a *app) inspectCommand() *cobra.Command {
	var minor, wanted, out string
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Prove that an image keeps what is promised about node images",
		Long: `Inspect an image: a registry reference, an OCI layout folder or a tar archive of
one. All findings are reported; any finding is exit 6.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := output(out, "text", "json"); err != nil {
				return err
			}
			p, err := platform(wanted)
			if err != nil {
				return err
			}
			img, closer, err := a.openImage(cmd.Context(), args[0], p)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closer.Close()) }()
			if minor == "" && img.Config != nil {
				minor = img.Config.Config.Labels[image.LabelMinor]
			}
			row, err := a.row(minor)
			if err != nil {
				return err
			}
			want, err := image.Expected(row, a.matrix.Stack, p)
			if err != nil {
				return err
			}
			r, err := inspect.Run(cmd.Context(), img, want, inspect.Tools{})
			if err != nil {
				return err
			}
			if out == "json" {
				enc := json.NewEncoder(a.stdout)
				enc.SetIndent("", "  ")
				err = enc.Encode(r)
			} else {
				err = r.Text(a.stdout)
			}
			if err == nil && !r.OK() {
				err = &findings{len(r.Findings)}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&minor, "minor", "", "minor to expect; by default what the image's label says")
	f.StringVar(&wanted, "platform", hostPlatform(), "platform to inspect")
	f.StringVar(&out, "output", "text", "text or json")
	return cmd
}

// findings says how many promises an image does not keep; they were printed.
type findings struct{ n int }

func (e *findings) Error() string { return fmt.Sprintf("%d finding(s)", e.n) }
