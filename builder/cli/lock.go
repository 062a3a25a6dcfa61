package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/official"
	"github.com/kairos-io/provider-kubernetes/builder/rebuilt"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/signing"
)

func (a *app) lockCommand() *cobra.Command {
	var minor, supplyName, wanted, gocmd, trustedRoot string
	var check bool
	cmd := &cobra.Command{
		Use:   "lock --minor 1.37",
		Short: "Resolve the inputs of one minor again and show what changed",
		Long: `Resolve the inputs of one minor and platform, write its lock, and print the
difference for review. With --check nothing is written and any drift is exit 4.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			row, err := a.row(minor)
			if err != nil {
				return err
			}
			p, err := platform(wanted)
			if err != nil {
				return err
			}
			fresh, files, err := a.relock(cmd.Context(), supplyName, row, p, gocmd, trustedRoot)
			if err != nil {
				return err
			}
			path := lock.Path(a.source, supplyName, row.Minor, p.String())
			var old lock.Lock
			if b, err := os.ReadFile(path); err == nil {
				if old, err = lock.Parse(b); err != nil {
					fmt.Fprintf(a.stderr, "the lock that is there can't be read and counts as empty: %v\n", err)
				}
			}
			// The lock comes last: with half of the rest written it is stale.
			changed, err := a.replace(files, check)
			if err != nil {
				return err
			}
			last, err := a.replace(map[string][]byte{mustRel(a.source, path): fresh.Marshal()}, check)
			if err != nil {
				return err
			}
			removed, err := a.removeUnused(check)
			if err != nil {
				return err
			}
			for _, name := range append(changed, last...) {
				fmt.Fprintf(a.stdout, "changed %s\n", name)
			}
			for _, name := range removed {
				fmt.Fprintf(a.stdout, "removed %s: no row of the matrix uses it\n", name)
			}
			fmt.Fprint(a.stdout, lock.Diff(old, fresh))
			switch {
			case len(changed)+len(last)+len(removed) == 0:
				fmt.Fprintln(a.stdout, "no drift")
			case check:
				return errDrift
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&minor, "minor", "", "Kubernetes minor, such as 1.37")
	f.StringVar(&supplyName, "supply", supply.Rebuilt, "official or rebuilt")
	f.StringVar(&wanted, "platform", hostPlatform(), "platform of the image")
	f.StringVar(&gocmd, "go", "", "the go command; found in PATH by default")
	f.StringVar(&trustedRoot, "trusted-root", "", "trusted_root.json to judge released inputs by; sigstore's TUF repository gives it by default (official supply)")
	f.BoolVar(&check, "check", false, "write nothing; drift is exit 4")
	return cmd
}

// replace writes the files, by path below the checkout, that are not as they
// should be, and returns their names in order. With check nothing is written.
func (a *app) replace(files map[string][]byte, check bool) (changed []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(a.source, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, files[name]) {
			continue
		}
		changed = append(changed, name)
		if check {
			continue
		}
		if err := store.WriteFile(path, files[name], 0o644); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// removeUnused removes the tools modules of versions that the matrix no longer
// names and returns their folders. With check nothing is removed.
func (a *app) removeUnused(check bool) (removed []string, err error) {
	used := rebuilt.Modules(a.matrix)
	dir := filepath.Join("matrix", "modules")
	entries, err := os.ReadDir(filepath.Join(a.source, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !e.IsDir() || slices.Contains(used, e.Name()) {
			continue
		}
		removed = append(removed, name)
		if check {
			continue
		}
		if err := os.RemoveAll(filepath.Join(a.source, name)); err != nil {
			return nil, err
		}
	}
	return removed, nil
}

// relock resolves a supply's inputs; files are by path below the checkout.
func (a *app) relock(ctx context.Context, name string, row matrix.Row, p fetch.Platform, gocmd, trustedRoot string) (lock.Lock, map[string][]byte, error) {
	switch name {
	case supply.Rebuilt:
		s, err := a.openRebuilt(row, p, gocmd, false, a.reporter())
		if err != nil {
			return lock.Lock{}, nil, err
		}
		return s.Relock(ctx)
	case supply.Official:
		up, err := a.upstream(trustedRoot)
		if err != nil {
			return lock.Lock{}, nil, err
		}
		s := &official.Supply{Source: a.source, Row: row, Stack: a.matrix.Stack, Platform: p, Upstream: up, Report: a.reporter()}
		return s.Relock(ctx)
	}
	return lock.Lock{}, nil, usage("supply %s is unknown: use official or rebuilt", name)
}

// upstream returns what released inputs are resolved with. The trusted root comes
// from a file, or from sigstore's TUF repository.
func (a *app) upstream(trustedRoot string) (official.Upstream, error) {
	st, err := a.store()
	if err != nil {
		return official.Upstream{}, err
	}
	client := &fetch.Client{Store: st}
	up := official.Upstream{
		Client:      client,
		Log:         signing.Rekor{URL: "https://rekor.sigstore.dev", Transport: client.RoundTripper()},
		TrustedRoot: signing.TUF{Dir: filepath.Join(a.cache, "tuf"), Transport: client.RoundTripper()}.TrustedRoot,
	}
	if trustedRoot != "" {
		up.TrustedRoot = func(context.Context) ([]byte, error) {
			b, err := os.ReadFile(trustedRoot)
			if err != nil {
				return nil, usage("--trusted-root: %w", err)
			}
			return b, nil
		}
	}
	return up, nil
}

func mustRel(root, path string) string {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		panic(err) // both are absolute
	}
	return rel
}
