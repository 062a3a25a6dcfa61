package rebuilt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Go is the toolchain that builds everything here.
type Go struct {
	Path string   // absolute path of the go command
	Env  []string // caches, module proxy and proxies; never flags
}

// buildDeadline bounds one component; the largest takes some 20 minutes of one
// slow core from cold.
const buildDeadline = 90 * time.Minute

// userSettings say where modules come from and where they are kept. They are the
// only settings of `go env -w` that are taken over: any other may change what is
// built.
var userSettings = []string{"GOCACHE", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY"}

func (g Go) run(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	base := append([]string{"PATH=/usr/bin:/bin", "GOWORK=off", "GOTOOLCHAIN=local", "GOSUMDB=sum.golang.org", "GOTELEMETRY=off", "LC_ALL=C"}, g.Env...)
	out, err := run.Cmd{Path: g.Path, Args: append([]string{"env"}, userSettings...), Env: base}.Output(ctx)
	if err != nil {
		return nil, err
	}
	values := strings.Split(string(out), "\n") // one line each, in this order
	for i, name := range userSettings {
		base = append(base, name+"="+values[i])
	}
	base = append(base, "GOENV=off")
	return run.Cmd{Path: g.Path, Args: args, Dir: dir, Env: append(base, env...)}.Output(ctx)
}

// build returns the component's binaries by name, taken from the store when the
// very same build was made before: the same module graph by go.mod and go.sum,
// toolchain, target, packages and flags, and the same C inputs.
func (s *Supply) build(ctx context.Context, c component) (map[string]store.Descriptor, error) {
	src := filepath.Join(s.Source, "matrix", "modules", c.folder())
	mod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("component %s %s has no tools module: %w", c.name, c.version, err)
	}
	sum, err := os.ReadFile(filepath.Join(src, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("component %s %s has no tools module: %w", c.name, c.version, err)
	}
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + s.Platform.Architecture}
	ldflags := []string{"-s", "-w"}
	for _, v := range c.vars {
		ldflags = append(ldflags, "-X", v)
	}
	var seccomp cInputs
	if c.cgo {
		if seccomp, err = s.cInputs(ctx, c.name); err != nil {
			return nil, fmt.Errorf("%s needs C: %w", c.name, err)
		}
		ldflags = append(ldflags, "-extldflags", "-static")
	}
	args := []string{"build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=" + strings.Join(ldflags, " ")}
	if len(c.tags) > 0 {
		args = append(args, "-tags="+strings.Join(c.tags, ","))
	}
	key := strings.Join([]string{"v1", string(mod), string(sum), s.goVersion, s.Platform.String(), strings.Join(args, " "), fmt.Sprint(c.programs), seccomp.id}, "\x00")
	return s.cached(ctx, c.name+" "+c.version, key, c.programs, func(ctx context.Context, out string) error {
		work, err := os.MkdirTemp(filepath.Join(s.Upstream.Dir(), "tmp"), "build-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		if err := errors.Join(os.WriteFile(filepath.Join(work, "go.mod"), mod, 0o644), os.WriteFile(filepath.Join(work, "go.sum"), sum, 0o644)); err != nil {
			return err
		}
		// A build of Kubernetes has gigabytes of objects, too much for some /tmp.
		env := append(slices.Clone(env), "GOTMPDIR="+work)
		if c.cgo {
			more, err := seccomp.unpack(ctx, filepath.Join(work, "sysroot"))
			if err != nil {
				return err
			}
			env = append(env[1:], more...)
		}
		args := append(args, "-o", out+string(filepath.Separator))
		for _, p := range c.programs {
			args = append(args, p.pkg)
		}
		if _, err := s.Go.run(ctx, work, env, args...); err != nil {
			return err
		}
		// The build checks downloads against go.sum; this checks what lies
		// unpacked in the module cache, which others may have written to.
		_, err = s.Go.run(ctx, work, env, "mod", "verify")
		return err
	})
}

// pause builds the sandbox program from this repository.
func (s *Supply) pause(ctx context.Context) (map[string]store.Descriptor, error) {
	src := filepath.Join(s.Source, "builder", "rebuilt", "pause")
	code, err := os.ReadFile(filepath.Join(src, "main.go"))
	if err != nil {
		return nil, err
	}
	key := strings.Join([]string{"v1 pause", string(code), s.goVersion, s.Platform.String()}, "\x00")
	return s.cached(ctx, "pause", key, []program{{"pause", "./pause"}}, func(ctx context.Context, out string) error {
		_, err := s.Go.run(ctx, src, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + s.Platform.Architecture},
			"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(out, "pause"), "./main.go")
		return err
	})
}

// cached answers from the store's record of an earlier build, or builds into a
// temporary folder and keeps each program's binary.
func (s *Supply) cached(ctx context.Context, title, key string, programs []program, build func(ctx context.Context, out string) error) (map[string]store.Descriptor, error) {
	bins := map[string]store.Descriptor{}
	if s.Upstream.Lookup("builds", key, &bins) && s.all(programs, bins) {
		return bins, nil
	}
	step := s.Report.Step("build " + title)
	ctx, cancel := context.WithTimeoutCause(ctx, buildDeadline, fmt.Errorf("build of %s did not finish within %s", title, buildDeadline))
	defer cancel()
	out, err := os.MkdirTemp(filepath.Join(s.Upstream.Dir(), "tmp"), "out-*")
	if err != nil {
		return nil, step.Done(err)
	}
	defer os.RemoveAll(out)
	if err := build(ctx, out); err != nil {
		return nil, step.Done(fmt.Errorf("build %s: %w", title, err))
	}
	bins = map[string]store.Descriptor{}
	for _, p := range programs {
		f, err := os.Open(filepath.Join(out, goName(p.pkg)))
		if err != nil {
			return nil, step.Done(err)
		}
		d, err := s.Upstream.Put(ctx, f, store.Descriptor{})
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, step.Done(err)
		}
		bins[p.name] = d
	}
	return bins, step.Done(s.Upstream.Record("builds", key, bins))
}

func (s *Supply) all(programs []program, bins map[string]store.Descriptor) bool {
	for _, p := range programs {
		if !s.Upstream.Has(bins[p.name]) {
			return false
		}
	}
	return true
}

// goName is the file name that `go build -o folder/` gives a package: its last
// path element that is not a major version.
func goName(pkg string) string {
	parts := strings.Split(pkg, "/")
	last := parts[len(parts)-1]
	if len(parts) > 1 && len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		last = parts[len(parts)-2]
	}
	return last
}

// cInputs are what a C build takes from outside Go's modules. id names compiler,
// C library and libseccomp by their content.
type cInputs struct {
	id  string
	deb string // libseccomp-dev, a verified Debian package
}

func (s *Supply) cInputs(ctx context.Context, user string) (c cInputs, err error) {
	if s.Platform.Architecture != runtime.GOARCH {
		return c, fmt.Errorf("a build for %s needs a host of that architecture; this one is %s", s.Platform, runtime.GOARCH)
	}
	gcc, err := run.Look("gcc")
	if err != nil {
		return c, fmt.Errorf("%w; install gcc, libc6-dev and pkg-config", err)
	}
	if _, err := run.Look("pkg-config"); err != nil {
		return c, fmt.Errorf("%w; install pkg-config", err)
	}
	ask := func(what string) (string, error) {
		out, err := run.Cmd{Path: gcc, Args: []string{what}, Env: []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}}.Output(ctx)
		return strings.TrimSpace(string(out)), err
	}
	version, err := ask("-dumpfullversion")
	if err != nil {
		return c, err
	}
	libc, err := ask("-print-file-name=libc.a")
	if err != nil {
		return c, err
	}
	static, err := os.ReadFile(libc)
	if err != nil {
		return c, fmt.Errorf("gcc has no static C library: %w; install libc6-dev", err)
	}
	pkgs, err := s.debs(ctx, user, []string{seccompPackage})
	if err != nil {
		return c, err
	}
	for _, p := range pkgs {
		if strings.HasPrefix(p.File, seccompPackage+"_") {
			c.id = version + " " + store.Digest(static) + " " + p.Digest
			c.deb, err = s.Upstream.Path(p.Digest)
			return c, err
		}
	}
	return c, fmt.Errorf("%s is not among the packages that it resolved to", seccompPackage)
}

const seccompPackage = "libseccomp-dev"

// unpack lays headers and static library out in dir and returns the environment
// in which a build finds them. None of it is recorded in what is built.
func (c cInputs) unpack(ctx context.Context, dir string) ([]string, error) {
	tool, err := run.Look("dpkg-deb")
	if err != nil {
		return nil, err
	}
	if _, err := (run.Cmd{Path: tool, Args: []string{"--extract", c.deb, dir}, Env: []string{"PATH=/usr/bin:/bin"}}).Output(ctx); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(dir, "usr/lib/*/pkgconfig/libseccomp.pc"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%s has %d files libseccomp.pc, expected one", seccompPackage, len(found))
	}
	return []string{"CGO_ENABLED=1", "PKG_CONFIG_PATH=" + filepath.Dir(found[0]), "PKG_CONFIG_SYSROOT_DIR=" + dir}, nil
}
