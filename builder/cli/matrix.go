package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (a *app) matrixCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Print which images are built, and from which versions",
		Long:  "Print the matrix. --output github is one line of JSON for a workflow's strategy.matrix.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := output(out, "table", "json", "github"); err != nil {
				return err
			}
			switch out {
			case "json":
				enc := json.NewEncoder(a.stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(map[string]any{"window": a.matrix.Window, "rows": a.matrix.Rows, "stack": a.matrix.Stack, "epoch": a.matrix.Epoch})
			case "github":
				type job struct {
					K8S        string `json:"k8s"`
					Kubernetes string `json:"kubernetes"`
					Newest     bool   `json:"newest"`
				}
				var include []job
				for _, r := range a.matrix.Rows {
					include = append(include, job{r.Minor.String(), r.Kubernetes.String(), r.Minor == a.matrix.Newest()})
				}
				return json.NewEncoder(a.stdout).Encode(map[string]any{"include": include})
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "MINOR\tKUBERNETES\tETCD\tCOREDNS\tPAUSE\tCONTAINERD\tRUNC\tCNI PLUGINS\tCRICTL")
			s := a.matrix.Stack
			for _, r := range a.matrix.Rows {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Minor, r.Kubernetes, r.Etcd, r.CoreDNS, r.Pause, s.Containerd, s.Runc, s.CNIPlugins, s.Crictl)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&out, "output", "table", "table, json or github")
	return cmd
}
