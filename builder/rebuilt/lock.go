package rebuilt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

// Relock resolves every component's module graph from the matrix again. It
// returns the lock and the files to write, by path below the checkout; it
// writes nothing itself.
func (s *Supply) Relock(ctx context.Context) (lock.Lock, map[string][]byte, error) {
	l := lock.Lock{APIVersion: lock.APIVersion, Supply: supply.Rebuilt, Minor: s.Row.Minor.String(), Platform: s.Platform.String(), Matrix: lock.MatrixDigest(s.Row, s.Stack)}
	out := map[string][]byte{}
	for _, c := range components(s.Row, s.Stack) {
		step := s.Report.Step("resolve " + c.name + " " + c.version)
		inputs, files, err := s.resolve(ctx, c)
		if err := step.Done(err); err != nil {
			return lock.Lock{}, nil, fmt.Errorf("component %s %s: %w", c.name, c.version, err)
		}
		l.Inputs = append(l.Inputs, inputs...)
		for name, b := range files {
			out[filepath.Join("matrix", "modules", c.folder(), name)] = b
		}
	}
	for _, p := range s.packages() {
		l.Inputs = append(l.Inputs, lock.Input{Name: p.user, Kind: lock.Packages, Source: "debian", Packages: p.names, Verified: lock.Verification{By: lock.ByArchive}})
	}
	return l, out, nil
}

// resolve makes the component's go.mod and go.sum.
func (s *Supply) resolve(ctx context.Context, c component) ([]lock.Input, map[string][]byte, error) {
	work, err := os.MkdirTemp(filepath.Join(s.Upstream.Dir(), "tmp"), "relock-*")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(work)

	type download struct {
		Path, Version, GoMod, Zip, Sum, Error string
	}
	fetch := func(req string) (d download, err error) {
		b, rerr := s.Go.run(ctx, work, nil, "mod", "download", "-json", req)
		if err := json.Unmarshal(b, &d); err != nil {
			return d, errors.Join(rerr, err)
		}
		if d.Error != "" {
			return d, errors.New(d.Error)
		}
		return d, rerr
	}
	var mod, tools bytes.Buffer
	fmt.Fprintf(&mod, "// Written by `builder lock`: what %s %s is built from.\nmodule github.com/kairos-io/provider-kubernetes/matrix/modules/%s\n\ngo 1.26.0\n", c.name, c.version, c.folder())
	var inputs []lock.Input
	for _, req := range c.requires {
		d, err := fetch(req)
		if err != nil {
			return nil, nil, err
		}
		fi, err := os.Stat(d.Zip)
		if err != nil {
			return nil, nil, err
		}
		inputs = append(inputs, lock.Input{Name: c.name, Kind: lock.Module, Source: req, Digest: d.Sum, Size: fi.Size(), Verified: lock.Verification{By: lock.ByChecksumDB}})
		fmt.Fprintf(&mod, "require %s %s\n", d.Path, d.Version)
		if d.Path == c.staging {
			extra, err := staging(d.GoMod, d.Version)
			if err != nil {
				return nil, nil, err
			}
			mod.WriteString(extra)
		}
	}
	tools.WriteString("//go:build tools\n\n// Package tools names the programs that are built from this module.\npackage tools\n\nimport (\n")
	for _, p := range c.programs {
		fmt.Fprintf(&tools, "\t_ %q\n", p.pkg)
	}
	tools.WriteString(")\n")
	files := map[string][]byte{"tools.go": tools.Bytes()}
	if err := errors.Join(
		os.WriteFile(filepath.Join(work, "go.mod"), mod.Bytes(), 0o644),
		os.WriteFile(filepath.Join(work, "tools.go"), tools.Bytes(), 0o644),
	); err != nil {
		return nil, nil, err
	}
	// -e: tests of dependencies may import modules that nobody serves any more.
	if _, err := s.Go.run(ctx, work, nil, "mod", "tidy", "-e"); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if files[name], err = os.ReadFile(filepath.Join(work, name)); err != nil {
			return nil, nil, err
		}
	}
	return inputs, files, nil
}

// staging returns the lines of go.mod that Kubernetes needs of whoever builds
// it: a replacement for every staging module that it requires at v0.0.0, which
// is published as v0.<minor>.<patch>, and its own compatibility settings.
func staging(gomod, version string) (string, error) {
	b, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	f, err := modfile.Parse(gomod, b, nil)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, g := range f.Godebug {
		fmt.Fprintf(&out, "godebug %s=%s\n", g.Key, g.Value)
	}
	var names []string
	for _, r := range f.Require {
		if r.Mod.Version == "v0.0.0" && strings.HasPrefix(r.Mod.Path, "k8s.io/") {
			names = append(names, r.Mod.Path)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(&out, "replace %s => %s v0.%s\n", n, n, strings.TrimPrefix(version, "v1."))
	}
	return out.String(), nil
}

// Modules returns the folders below matrix/modules that the rows of a matrix use.
func Modules(m matrix.Matrix) []string {
	var names []string
	for _, row := range m.Rows {
		for _, c := range components(row, m.Stack) {
			if !slices.Contains(names, c.folder()) {
				names = append(names, c.folder())
			}
		}
	}
	return names
}
