// Package debian takes packages from the Debian archive that the build host is
// configured for and lays their files out as one tree. apt resolves against an
// empty system and checks the archive's signature, so the SHA-256 of every
// package descends from a signed index; each package is fetched by that digest.
// No maintainer script runs and nothing of the host's own system is read.
package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Package is one resolved package. File is its name in the archive's pool
// ("runc_1.1.5+ds1-1_amd64.deb"); URL is where apt found it and is not part of
// what identifies it.
type Package struct {
	store.Descriptor
	File string `json:"file"`
	URL  string `json:"url,omitempty"`
}

// Fetcher downloads a file whose digest and size are known into the store.
type Fetcher interface {
	File(ctx context.Context, url string, want store.Descriptor) (store.Descriptor, error)
}

// Archive is the host's configured archive, used through a private apt state in Dir.
type Archive struct {
	Dir   string // apt's lists, rebuilt at will
	Arch  string // Debian's name: amd64, arm64
	Store *store.Store
	Fetch Fetcher
	Env   []string // proxy settings for apt
}

const aptDeadline = 5 * time.Minute

// Resolve returns the named packages with all they depend on (without what
// they only recommend), sorted by file name. A resolution is remembered in the
// store and used again until refresh is set or one of its packages can no
// longer be had, so that the same packages give the same tree while the archive
// moves on. fresh tells whether the archive was asked.
func (a Archive) Resolve(ctx context.Context, names []string, refresh bool) (pkgs []Package, fresh bool, err error) {
	names = slices.Sorted(slices.Values(names))
	key := "v1 " + a.Arch + " " + strings.Join(names, " ")
	if !refresh && a.Store.Lookup("debian", key, &pkgs) && len(pkgs) > 0 {
		if a.download(ctx, pkgs) == nil {
			return pkgs, false, nil
		}
		pkgs = nil
	}
	if pkgs, err = a.ask(ctx, names); err != nil {
		return nil, true, err
	}
	if err := a.download(ctx, pkgs); err != nil {
		return nil, true, err
	}
	return pkgs, true, a.Store.Record("debian", key, pkgs)
}

func (a Archive) download(ctx context.Context, pkgs []Package) error {
	for _, p := range pkgs {
		if a.Store.Has(p.Descriptor) {
			continue
		}
		if _, err := a.Fetch.File(ctx, p.URL, p.Descriptor); err != nil {
			return fmt.Errorf("package %s: %w", p.File, err)
		}
	}
	return nil
}

func (a Archive) ask(ctx context.Context, names []string) ([]Package, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, aptDeadline, fmt.Errorf("apt did not finish within %s", aptDeadline))
	defer cancel()
	status := filepath.Join(a.Dir, "status")
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.Dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	apt, err := run.Look("apt-get")
	if err != nil {
		return nil, fmt.Errorf("the rebuilt supply takes its base from Debian packages and needs a Debian host: %w", err)
	}
	get := func(args ...string) ([]byte, error) {
		opts := []string{"-q",
			"-o", "APT::Architecture=" + a.Arch, "-o", "APT::Architectures::=" + a.Arch,
			"-o", "Dir::State::Lists=" + filepath.Join(a.Dir, "lists"),
			"-o", "Dir::State::status=" + status,
			"-o", "Dir::Cache=" + filepath.Join(a.Dir, "cache"),
			"-o", "Dir::Log=" + a.Dir,
			"-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
			"-o", "Acquire::ForceHash=SHA256", "-o", "Acquire::Languages=none",
			"-o", "Acquire::AllowInsecureRepositories=false", "-o", "APT::Get::AllowUnauthenticated=false",
			"-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=60",
		}
		return run.Cmd{Path: apt, Args: append(opts, args...), Dir: a.Dir, Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, a.Env...)}.Output(ctx)
	}
	if _, err := get("update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		return nil, fmt.Errorf("refresh the Debian archive's index: %w", err)
	}
	out, err := get(append([]string{"install", "--no-install-recommends", "--yes", "--print-uris"}, names...)...)
	if err != nil {
		// What can't be had apt says on standard output.
		return nil, fmt.Errorf("resolve %s: %w\n%s", strings.Join(names, " "), err, out)
	}
	return ParseURIs(out)
}

// ParseURIs reads the lines of `apt-get --print-uris`:
//
//	'<url>' <file> <size> SHA256:<hex>
//
// Other lines are apt's remarks. A line without a SHA-256 is an error.
func ParseURIs(b []byte) ([]Package, error) {
	var pkgs []Package
	var errs []error
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		p, ok := parseURI(strings.Fields(line))
		if !ok {
			errs = append(errs, fmt.Errorf("apt printed %q: expected '<url>' <file> <size> SHA256:<hex>", strings.TrimSpace(line)))
			continue
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("apt named no package to download"))
	}
	slices.SortFunc(pkgs, func(x, y Package) int { return strings.Compare(x.File, y.File) })
	return pkgs, errors.Join(errs...)
}

func parseURI(f []string) (p Package, ok bool) {
	if len(f) != 4 {
		return p, false
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	hash, ok := strings.CutPrefix(f[3], "SHA256:")
	if err != nil || size <= 0 || !ok || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" || filepath.Base(f[1]) != f[1] {
		return p, false
	}
	return Package{store.Descriptor{Digest: "sha256:" + hash, Size: size}, f[1], strings.Trim(f[0], "'")}, true
}
