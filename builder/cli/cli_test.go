package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/official"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

const small = `
window: ["1.36", "1.37"]
rows:
  - {minor: "1.36", kubernetes: "1.36.3", etcd: "3.6.8-0", coredns: "v1.14.2", pause: "3.10.2"}
  - {minor: "1.37", kubernetes: "1.37.2", etcd: "3.7.0-0", coredns: "v1.14.6", pause: "3.10.2"}
stack: {containerd: "2.3.7", runc: "1.5.2", cni-plugins: "1.9.1", crictl: "1.37.0"}
epoch: "2026-01-31T00:00:00Z"
`

// terminal is a builder with folders of its own.
type terminal struct {
	t              *testing.T
	app            app
	stdout, stderr bytes.Buffer
	dir            string
}

func open(t *testing.T) *terminal {
	t.Helper()
	m, err := matrix.Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	c := &terminal{t: t, dir: t.TempDir()}
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(c.dir, "config"))
	c.app = app{stdout: &c.stdout, stderr: &c.stderr, matrix: m, registry: "http://127.0.0.1:1"}
	return c
}

// run runs one command line with a source and a cache below dir.
func (c *terminal) run(args ...string) int {
	c.stdout.Reset()
	c.stderr.Reset()
	args = append(args, "--cache", filepath.Join(c.dir, "cache"), "--source", filepath.Join(c.dir, "source"))
	return c.app.run(c.t.Context(), args)
}

// expect runs a command line, wants this exit code, and wants all of say in
// what it wrote to standard error.
func (c *terminal) expect(code int, args []string, say ...string) {
	c.t.Helper()
	if got := c.run(args...); got != code {
		c.t.Errorf("builder %s: exit %d, expected %d: %s", strings.Join(args, " "), got, code, &c.stderr)
	}
	for _, s := range say {
		if !strings.Contains(c.stderr.String(), s) {
			c.t.Errorf("builder %s: standard error does not say %q: %s", strings.Join(args, " "), s, &c.stderr)
		}
	}
}

func (c *terminal) wantStdout(want string) {
	c.t.Helper()
	if got := c.stdout.String(); got != want {
		c.t.Errorf("standard output is\n%s\nexpected\n%s", got, want)
	}
}

func TestMatrixIsPrintedInThreeForms(t *testing.T) {
	c := open(t)
	c.expect(ExitOK, []string{"matrix"})
	c.wantStdout(`MINOR  KUBERNETES  ETCD     COREDNS  PAUSE   CONTAINERD  RUNC   CNI PLUGINS  CRICTL
1.36   v1.36.3     3.6.8-0  v1.14.2  3.10.2  2.3.7       1.5.2  1.9.1        1.37.0
1.37   v1.37.2     3.7.0-0  v1.14.6  3.10.2  2.3.7       1.5.2  1.9.1        1.37.0
`)
	c.expect(ExitOK, []string{"matrix", "--output", "github"})
	c.wantStdout(`{"include":[{"k8s":"1.36","kubernetes":"v1.36.3","newest":false},{"k8s":"1.37","kubernetes":"v1.37.2","newest":true}]}
`)
	c.expect(ExitOK, []string{"matrix", "--output", "json"})
	c.wantStdout(`{
  "epoch": "2026-01-31T00:00:00Z",
  "rows": [
    {
      "minor": "1.36",
      "kubernetes": "v1.36.3",
      "etcd": "3.6.8-0",
      "coredns": "v1.14.2",
      "pause": "3.10.2"
    },
    {
      "minor": "1.37",
      "kubernetes": "v1.37.2",
      "etcd": "3.7.0-0",
      "coredns": "v1.14.6",
      "pause": "3.10.2"
    }
  ],
  "stack": {
    "containerd": "2.3.7",
    "runc": "1.5.2",
    "cni-plugins": "1.9.1",
    "crictl": "1.37.0"
  },
  "window": [
    "1.36",
    "1.37"
  ]
}
`)
}

func TestWrongUseNamesWhatIsAllowed(t *testing.T) {
	c := open(t)
	key := filepath.Join(c.dir, "missing.pub")
	for _, tt := range []struct {
		args []string
		say  []string
	}{
		{[]string{"imgae"}, []string{"no command imgae", "builder --help"}},
		{[]string{"matrix", "extra"}, []string{"extra"}},
		{[]string{"matrix", "--outptu", "json"}, []string{"--outptu"}},
		{[]string{"matrix", "--output", "yaml"}, []string{"yaml", "table, json, github"}},
		{[]string{"image"}, []string{"no minor", "1.36, 1.37"}},
		{[]string{"image", "--minor", "1.35"}, []string{"1.35 is outside", "1.36, 1.37"}},
		{[]string{"image", "--minor", "1.37.2"}, []string{"1.37.2", "1.36, 1.37"}},
		{[]string{"image", "--minor", "1.37", "--supply", "else"}, []string{"supply else", "auto, official or rebuilt"}},
		{[]string{"image", "--minor", "1.37", "--platform", "linux/mips"}, []string{`"linux/mips"`, "linux/amd64, linux/arm64"}},
		{[]string{"image", "--minor", "1.37", "--platform", "windows/amd64"}, []string{`"windows/amd64"`, "linux/amd64, linux/arm64"}},
		{[]string{"image", "--minor", "1.37", "--platform", "linux/amd64,"}, []string{`""`, "linux/amd64, linux/arm64"}},
		{[]string{"image", "--minor", "1.37", "--platform", "linux/arm64,linux/arm64/v8"}, []string{"linux/arm64 twice"}},
		{[]string{"image", "--minor", "1.37", "--compression", "xz"}, []string{"xz", "gzip or zstd"}},
		{[]string{"image", "--minor", "1.37", "--version", "v1.0.0+build"}, []string{"v1.0.0+build", "v0.5.0"}},
		{[]string{"image", "--minor", "1.37", "--tag", "a b"}, []string{"a b-k8s1.37"}},
		{[]string{"image", "--minor", "1.37", "--push", "Example.com/Node"}, []string{"Example.com/Node"}},
		{[]string{"lock", "--minor", "1.37", "--supply", "auto"}, []string{"supply auto", "official or rebuilt"}},
		{[]string{"lock", "--minor", "1.37", "--platform", "linux"}, []string{`"linux"`, "linux/amd64, linux/arm64"}},
		{[]string{"lock", "--minor", "1.38"}, []string{"1.38 is outside", "1.36, 1.37"}},
		{[]string{"inspect"}, []string{"1 arg"}},
		{[]string{"inspect", "x", "--output", "md"}, []string{"md", "text, json"}},
		{[]string{"inspect", "x", "--platform", "mips"}, []string{`"mips"`, "linux/amd64, linux/arm64"}},
		{[]string{"inspect", "no-such-layout"}, []string{"no-such-layout", "neither a layout nor a reference"}},
		{[]string{"inspect", c.dir}, []string{"OCI layout " + c.dir, "index.json"}},
		{[]string{"verify", "x", "--output", "table"}, []string{"table", "text, json"}},
		{[]string{"verify", "x", "--key", key}, []string{key, "--key"}},
	} {
		c.expect(ExitUsage, tt.args, tt.say...)
		if c.stdout.Len() > 0 {
			t.Errorf("%v: standard output has %q", tt.args, &c.stdout)
		}
	}
	left, err := os.ReadDir(c.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("wrong use left %v, %v", left, err)
	}
}

func TestWithoutACommandTheHelpIsPrinted(t *testing.T) {
	c := open(t)
	c.expect(ExitOK, nil)
	for _, name := range []string{"image", "inspect", "lock", "matrix", "verify"} {
		if !strings.Contains(c.stdout.String(), "\n  "+name+" ") {
			t.Errorf("help does not list %s", name)
		}
	}
}

func TestDryRunPrintsThePlanAndDoesNothing(t *testing.T) {
	c := open(t)
	c.expect(ExitOK, []string{"image", "--minor", "1.37", "--platform", "linux/amd64,linux/arm64/v8", "--push", "registry.example.com/node", "--tag", "v1", "--dry-run"})
	c.wantStdout(`supply rebuilt: there is no lock of the official supply at matrix/locks/1.37-amd64-official.yaml
would make Kubernetes v1.37.2 for linux/amd64,linux/arm64/v8:
  1. read matrix/locks/1.37-amd64-rebuilt.yaml and matrix/locks/1.37-arm64-rebuilt.yaml and refuse what is stale
  2. fetch and verify by digest: registry.k8s.io/kube-apiserver:v1.37.2 registry.k8s.io/kube-controller-manager:v1.37.2 registry.k8s.io/kube-scheduler:v1.37.2 registry.k8s.io/kube-proxy:v1.37.2 registry.k8s.io/coredns/coredns:v1.14.6 registry.k8s.io/pause:3.10.2 registry.k8s.io/etcd:3.7.0-0
  3. take kubeadm, kubelet, kubectl, crictl 1.37.0, containerd 2.3.7, runc 1.5.2 and CNI plugins 1.9.1 from verified inputs, etcdctl and etcdutl 3.7.0 from the etcd image
  4. compare the bundle with kubeadm's own list and write images.lock
  5. write the payload layers and put them on the base
  6. inspect the result
  7. sign it by digest and publish it as v1-k8s1.37, v1, latest
`)
	if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
		t.Errorf("a dry run left %v, %v", left, err)
	}
	c.expect(ExitOK, []string{"image", "--minor", "1.36", "--supply", "official", "--platform", "linux/amd64", "--push", "registry.example.com/node", "--dry-run"})
	for _, want := range []string{"supply official: asked for\n", "1.36-amd64-official.yaml and refuse", "publish it as dev-k8s1.36\n"} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("plan does not say %q:\n%s", want, &c.stdout)
		}
	}
}

func TestAStaleLockIsRefusedWithTheCommandThatRefreshesIt(t *testing.T) {
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	minor := m.Newest().String()
	for _, tt := range []struct {
		name   string
		change func(source string) error
		say    string
	}{
		{"a module's hash in go.sum", func(source string) error {
			name := filepath.Join(source, "matrix/modules/runc-"+m.Stack.Runc+"/go.sum")
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line := "github.com/opencontainers/runc v" + m.Stack.Runc + " h1:"
			return os.WriteFile(name, bytes.Replace(b, []byte(line), []byte(line+"0"), 1), 0o644)
		}, "module github.com/opencontainers/runc@v" + m.Stack.Runc},
		{"a tools module that is gone", func(source string) error {
			return os.RemoveAll(filepath.Join(source, "matrix/modules/crictl-"+m.Stack.Crictl))
		}, "component crictl " + m.Stack.Crictl + " has no tools module"},
		{"the matrix digest", func(source string) error {
			name := lock.Path(source, "rebuilt", m.Newest(), "linux/amd64")
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			l, err := lock.Parse(b)
			if err != nil {
				return err
			}
			l.Matrix = "sha256:" + strings.Repeat("ab", 32)
			return os.WriteFile(name, l.Marshal(), 0o644)
		}, "matrix digest is sha256:abab"},
		{"no lock", func(source string) error { return os.Remove(lock.Path(source, "rebuilt", m.Newest(), "linux/amd64")) }, "it does not exist"},
		{"a lock that is no lock", func(source string) error {
			return os.WriteFile(lock.Path(source, "rebuilt", m.Newest(), "linux/amd64"), []byte("inputs: 7\n"), 0o644)
		}, "lock:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := open(t)
			c.app.matrix = m
			source := filepath.Join(c.dir, "source")
			if err := os.CopyFS(filepath.Join(source, "matrix"), os.DirFS("../../matrix")); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(source); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(c.dir, "out")
			c.expect(ExitStale, []string{"image", "--minor", minor, "--platform", "linux/amd64", "--supply", "rebuilt", "--out", out},
				tt.say, "is stale", "bin/builder lock --minor "+minor+" --supply rebuilt --platform linux/amd64")
			if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("output folder: %v", err)
			}
		})
	}
}

func TestSupplyIsChosenForAReason(t *testing.T) {
	c := open(t)
	status := http.StatusUnauthorized // what a registry says to someone it does not know
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	}))
	defer registry.Close()
	row := c.app.matrix.Rows[1]
	amd64 := fetch.Platform{OS: "linux", Architecture: "amd64"}
	want := func(asked, name, reason string) {
		t.Helper()
		gotName, gotReason, err := c.app.choose(t.Context(), asked, row, amd64)
		if err != nil || gotName != name || !strings.Contains(gotReason, reason) {
			t.Errorf("%s gives %s because %q, %v; expected %s because %q", asked, gotName, gotReason, err, name, reason)
		}
	}
	c.app.source = c.dir
	want("official", "official", "asked for")
	want("rebuilt", "rebuilt", "asked for")
	want("auto", "rebuilt", "no lock of the official supply at matrix/locks/1.37-amd64-official.yaml")

	if err := store.WriteFile(lock.Path(c.dir, "official", row.Minor, "linux/amd64"), []byte("stale, which is for the supply to say"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.app.registry = registry.URL
	want("auto", "official", "its lock is there and "+registry.URL+" answers")
	status = http.StatusBadGateway
	want("auto", "rebuilt", registry.URL+" does not answer: 502")
	registry.Close()
	want("auto", "rebuilt", registry.URL+" does not answer: ")
}

func TestExitCodes(t *testing.T) {
	reject := func(o signing.Outcome) error { return &signing.Rejection{Result: signing.Result{Outcome: o}} }
	timeout, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("no answer within a minute"))
	defer cancel()
	_, late := run.Cmd{Path: "/usr/bin/true"}.Output(timeout)

	for _, tt := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{errors.New("else"), ExitUnexpected},
		{context.Canceled, ExitUnexpected},
		{usage("wrong"), ExitUsage},
		{&image.BadPolicy{Err: errors.New("wrong")}, ExitUsage},
		{fmt.Errorf("x: %w", signing.ErrNoRule), ExitRefused},
		{&official.NoChecksum{}, ExitRefused},
		{&lock.Stale{}, ExitStale},
		{errDrift, ExitStale},
		{&image.InputMismatch{}, ExitStale},
		{&image.BadTool{}, ExitStale},
		{&official.BadChecksum{}, ExitStale},
		{&store.DigestMismatch{}, ExitStale},
		{&fetch.NoPlatform{}, ExitStale},
		{&image.BadLayers{Err: &layerfs.Escape{}}, ExitStale},
		{&fetch.Malformed{What: "manifest", Err: errors.New("x")}, ExitStale},
		{&fetch.Unreachable{}, ExitUnreachable},
		{&fetch.NotFound{}, ExitUnreachable},
		{&publish.Unreachable{Err: errors.New("x")}, ExitUnreachable},
		{reject(signing.Unreachable), ExitUnreachable},
		{reject(signing.Unsigned), ExitVerification},
		{reject(signing.WrongSigner), ExitVerification},
		{reject(signing.WrongDigest), ExitVerification},
		{reject(signing.TrustExpired), ExitVerification},
		{&image.NotConformant{}, ExitVerification},
		{&findings{1}, ExitVerification},
		{&damaged{&store.DigestMismatch{}}, ExitVerification},
		{context.DeadlineExceeded, ExitDeadline},
		{late, ExitDeadline},

		{errors.Join(reject(signing.Unreachable), reject(signing.WrongSigner)), ExitVerification},
		{errors.Join(&fetch.Unreachable{}, reject(signing.Unsigned)), ExitVerification},
		{errors.Join(&fetch.Unreachable{}, &store.DigestMismatch{}), ExitStale},
	} {
		if got := ExitCode(tt.err); got != tt.code {
			t.Errorf("%T %v: exit %d, expected %d", tt.err, tt.err, got, tt.code)
		}
		if tt.err != nil {
			if got := ExitCode(fmt.Errorf("step: %w", errors.Join(errors.New("else"), tt.err))); got != tt.code {
				t.Errorf("%T wrapped: exit %d, expected %d", tt.err, got, tt.code)
			}
		}
	}
}

func TestAnInterruptedRunSaysThatNothingWasPublished(t *testing.T) {
	c := open(t)
	if _, err := signing.LoadOrCreateKey(c.dir); err != nil {
		t.Fatal(err)
	}
	reg := standin.NewRegistry(t, standin.Options{})
	reg.Fail(standin.Fault{Path: "/manifests/", Hang: true})
	go func() {
		for tick := time.NewTicker(time.Millisecond); reg.Count("", "/manifests/") == 0; <-tick.C {
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	}()
	code := Main([]string{"verify", reg.Host() + "/node:v1", "--key", filepath.Join(c.dir, "cosign.pub"), "--cache", filepath.Join(c.dir, "cache")}, &c.stdout, &c.stderr)
	if code != ExitUnexpected || !strings.HasPrefix(c.stderr.String(), "error: interrupted; nothing was published: ") || c.stdout.Len() > 0 {
		t.Errorf("exit %d, standard error %q, output %q", code, &c.stderr, &c.stdout)
	}
}

func TestAnInterruptedPushSaysWhereToLook(t *testing.T) {
	c := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.app.pushing = "registry.example.com/node"
	if code := c.app.run(ctx, []string{"no-such-command"}); code == ExitOK || !strings.Contains(c.stderr.String(), "interrupted while pushing to registry.example.com/node, where tags move last") {
		t.Errorf("exit %d, standard error %q", code, &c.stderr)
	}
}
