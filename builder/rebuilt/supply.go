// Package rebuilt is the supply that makes every input on this machine: the
// programs from Go modules that the checksum database vouches for, the base and
// the libraries of kube-proxy's image from Debian's signed archive. It makes
// them into images with the names that kubeadm asks for, signs them with an
// identity of its own, and serves them from a local OCI layout, so that they are
// fetched, verified and taken apart by the same code as any other input.
//
// Its signing identity says no more than: this machine built these bytes from
// inputs that were checked. Builds are cached by content.
package rebuilt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/debian"
	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// Identity and Issuer are what this supply signs as. The names can't be anyone
// else's: .invalid is reserved (RFC 2606).
const (
	Identity = "rebuilt-supply@provider-kubernetes.invalid"
	Issuer   = "https://rebuilt-supply.provider-kubernetes.invalid"
	// Host is the registry name of images that only this supply has.
	Host = "rebuilt-supply.provider-kubernetes.invalid"
)

// Supply makes the inputs of one row for one platform.
type Supply struct {
	Source   string // root of a checkout
	Dir      string // state: layout, signing identity, apt's lists
	Row      matrix.Row
	Stack    matrix.Stack
	Epoch    time.Time
	Platform fetch.Platform
	Go       Go
	Debian   debian.Archive
	Upstream *store.Store // an OCI layout; never the pipeline's own store
	Refresh  bool         // ask the Debian archive again
	Only     []string     // names of the images to make; empty means all
	Report   *report.Reporter

	goVersion string
	resolved  []lock.Input
	server    *server
}

// Open returns the supply with its folders below dir.
func Open(dir, source string, row matrix.Row, stack matrix.Stack, epoch time.Time, platform fetch.Platform, toolchain Go, proxies []string, rep *report.Reporter) (*Supply, error) {
	up, err := store.Open(filepath.Join(dir, "upstream"))
	if err != nil {
		return nil, err
	}
	s := &Supply{Source: source, Dir: dir, Row: row, Stack: stack, Epoch: epoch, Platform: platform, Go: toolchain, Upstream: up, Report: rep}
	s.Debian = debian.Archive{Dir: filepath.Join(dir, "apt"), Arch: platform.Architecture, Store: up, Fetch: &fetch.Client{Store: up}, Env: proxies}
	return s, nil
}

// Name returns "rebuilt".
func (s *Supply) Name() string { return supply.Rebuilt }

// Close stops the registry.
func (s *Supply) Close() error {
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// Inputs builds what is missing, checks the lock, and serves the images.
func (s *Supply) Inputs(ctx context.Context) (*supply.Inputs, error) {
	l, err := s.checkedLock()
	if err != nil {
		return nil, err
	}
	if s.goVersion, err = s.toolchain(ctx); err != nil {
		return nil, err
	}
	all := map[string]store.Descriptor{}
	for _, c := range s.needed() {
		bins, err := s.build(ctx, c)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, bins)
	}
	if s.makes("pause") {
		pause, err := s.pause(ctx)
		if err != nil {
			return nil, err
		}
		all["pause"] = pause["pause"]
	}

	made, err := s.images(ctx, all)
	if err != nil {
		return nil, err
	}
	authority, err := signing.OpenAuthority(filepath.Join(s.Dir, "identity"), Identity, Issuer)
	if err != nil {
		return nil, err
	}
	policy, err := os.ReadFile(filepath.Join(s.Source, "signing", "policies", "rebuilt.yaml"))
	if err != nil {
		return nil, err
	}
	trust, err := authority.TrustedRoot()
	if err != nil {
		return nil, err
	}
	in := &supply.Inputs{Routes: map[string]string{}, Policy: policy, Trust: trust, Lock: l, Resolved: s.resolved, Toolchain: s.goVersion}
	if s.server, err = serve(s.Upstream); err != nil {
		return nil, err
	}
	in.Routes[matrix.Registry], in.Routes[Host] = s.server.url, s.server.url
	for _, m := range made {
		if err := s.server.publish(ctx, m, authority); err != nil {
			return nil, fmt.Errorf("serve %s: %w", m.reference, err)
		}
		img := supply.Image{Name: m.name, Reference: m.reference, Digest: m.index.Digest}
		switch {
		case m.name == "base":
			in.Base = img
		case strings.HasPrefix(m.reference, Host):
			in.Others = append(in.Others, img)
		default:
			in.Bundle = append(in.Bundle, img)
		}
		for _, path := range m.tools {
			target := path
			if m.name == "cni-plugins" {
				target = overlay.CNIDir + "/" + filepath.Base(path)
			}
			in.Tools = append(in.Tools, supply.Tool{Target: target, Image: m.name, Path: path})
		}
	}
	return in, nil
}

// LockPath is where this supply's lock lies.
func (s *Supply) LockPath() string {
	return lock.Path(s.Source, supply.Rebuilt, s.Row.Minor, s.Platform.String())
}

// RefreshCommand is what makes this supply's lock fresh.
func (s *Supply) RefreshCommand() string {
	return fmt.Sprintf("bin/builder lock --minor %s --supply rebuilt --platform %s", s.Row.Minor, s.Platform)
}

func (s *Supply) checkedLock() (lock.Lock, error) {
	stale := func(found ...string) error {
		return &lock.Stale{Path: s.LockPath(), Findings: found, Command: s.RefreshCommand()}
	}
	b, err := os.ReadFile(s.LockPath())
	if errors.Is(err, os.ErrNotExist) {
		return lock.Lock{}, stale("it does not exist")
	}
	if err != nil {
		return lock.Lock{}, err
	}
	l, err := lock.Parse(b)
	if err != nil {
		return lock.Lock{}, stale(strings.Split(err.Error(), "\n")...)
	}
	found := l.Check(supply.Rebuilt, s.Row, s.Stack, s.Platform.String())
	for _, c := range components(s.Row, s.Stack) {
		for _, req := range c.requires {
			h, herr := s.moduleHash(c, req)
			var in lock.Input
			for _, i := range l.Inputs {
				if i.Name == c.name && i.Source == req {
					in = i
				}
			}
			switch {
			case herr != nil:
				found = append(found, herr.Error())
			case in.Digest == "":
				found = append(found, fmt.Sprintf("module %s of %s is not in the lock", req, c.name))
			case in.Digest != h:
				found = append(found, fmt.Sprintf("module %s is %s in the lock and %s in go.sum", req, in.Digest, h))
			}
		}
	}
	for _, p := range s.packages() {
		var have []string
		for _, in := range l.Inputs {
			if in.Name == p.user && in.Kind == lock.Packages {
				have = in.Packages
			}
		}
		if !slices.Equal(have, p.names) {
			found = append(found, fmt.Sprintf("packages of %s are %q in the lock, expected %q", p.user, strings.Join(have, " "), strings.Join(p.names, " ")))
		}
	}
	if len(found) > 0 {
		return lock.Lock{}, stale(found...)
	}
	return l, nil
}

// moduleHash returns the h1: hash that the component's go.sum has for a module.
func (s *Supply) moduleHash(c component, req string) (string, error) {
	path := filepath.Join(s.Source, "matrix", "modules", c.folder(), "go.sum")
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("component %s %s has no tools module: %w", c.name, c.version, err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0]+"@"+f[1] == req {
			return f[2], nil
		}
	}
	return "", fmt.Errorf("%s has no line for %s", path, req)
}

// toolchain returns the go command's version. One that is too old for what is
// built refuses by itself.
func (s *Supply) toolchain(ctx context.Context) (string, error) {
	if s.Go.Path == "" {
		return "", errors.New("the rebuilt supply needs the go command: name it with --go")
	}
	out, err := s.Go.run(ctx, "/", nil, "env", "GOVERSION")
	if err != nil {
		return "", fmt.Errorf("%w (this builder was made by %s)", err, runtime.Version())
	}
	return strings.TrimSpace(string(out)), nil
}
