// Package e2e proves the main job on real input, through the built programs
// alone: node images are made from verified sources, inspected, signed, pushed
// and verified with the stock cosign command line. It uses the caches that a
// user's own builds use, so that only the first run is long.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

// root is the checkout.
var root = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// result is what one run of a program came to.
type result struct {
	stdout, stderr string
	code           int
}

// start runs a program in dir and waits for it.
func start(t *testing.T, dir string, env []string, name string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdout, cmd.Env = dir, &stdout, append(os.Environ(), env...)
	cmd.Stderr = io.MultiWriter(&stderr, &progress{t: t})
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// progress shows a program's finished steps while the test runs.
type progress struct {
	t    *testing.T
	rest string
}

func (p *progress) Write(b []byte) (int, error) {
	p.rest += string(b)
	for {
		line, rest, ok := strings.Cut(p.rest, "\n")
		if !ok {
			return len(b), nil
		}
		p.rest = rest
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "ok" && f[1] == "build" || f[0] == "FAIL") {
			p.t.Log(line)
		}
	}
}

// must runs a program that has to exit with 0.
func must(t *testing.T, dir string, env []string, name string, args ...string) result {
	t.Helper()
	r := start(t, dir, env, name, args...)
	if r.code != 0 {
		t.Fatalf("%s %s: exit %d\n%s%s", filepath.Base(name), strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}

// programs are the builder and the node runtime of a checkout.
type programs struct {
	source, builder, provider string
}

// compile builds a checkout's programs as its Makefile does.
func compile(t *testing.T, source, out string) programs {
	t.Helper()
	must(t, source, nil, "make", "--no-print-directory", "builder", "runtime", "BIN="+out)
	return programs{source, filepath.Join(out, "builder"), filepath.Join(out, "agent-provider-kubernetes-{arch}")}
}

// scratch is the folder of what all tests of a run share.
var scratch string

var compiled = sync.OnceValues(func() (programs, error) {
	out := filepath.Join(scratch, "bin")
	cmd := exec.Command("make", "--no-print-directory", "builder", "runtime", "BIN="+out)
	cmd.Dir = root
	if b, err := cmd.CombinedOutput(); err != nil {
		return programs{}, fmt.Errorf("make builder runtime: %w\n%s", err, b)
	}
	return programs{root, filepath.Join(out, "builder"), filepath.Join(out, "agent-provider-kubernetes-{arch}")}, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "e2e-*")
	if err != nil {
		panic(err)
	}
	scratch = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// tools returns this checkout's programs.
func tools(t *testing.T) programs {
	t.Helper()
	if testing.Short() {
		t.Skip("makes whole images")
	}
	p, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// cosign returns the stock cosign command line, built from its own module.
var cosignBuilt = sync.OnceValues(func() (string, error) {
	out := filepath.Join(root, "bin", "cosign")
	cmd := exec.Command("go", "build", "-C", filepath.Join(root, "test", "tools", "cosign"), "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "github.com/sigstore/cosign/v2/cmd/cosign")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cosign: %w\n%s", err, b)
	}
	return out, nil
})

func cosign(t *testing.T) string {
	t.Helper()
	p, err := cosignBuilt()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// keys is where the builder keeps the key pair that it makes on first use.
func keys(t *testing.T) string {
	t.Helper()
	dir, err := os.UserConfigDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "provider-kubernetes")
}

// image is a finished image as the command line tells of it.
type image struct {
	location, digest string
	summary          report.Summary
	run              result
}

var lastLine = regexp.MustCompile(`^image (\S+)@(sha256:[0-9a-f]{64})$`)

// build makes an image and reads what the command says of it.
func (p programs) build(t *testing.T, env []string, minor, out string, args ...string) image {
	t.Helper()
	args = append([]string{"image", "--source", p.source, "--minor", minor, "--supply", "rebuilt", "--provider", p.provider, "--out", out}, args...)
	r := must(t, "/", env, p.builder, args...)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	m := lastLine.FindStringSubmatch(lines[len(lines)-1])
	if m == nil || !strings.HasPrefix(lines[0], "supply rebuilt: ") {
		t.Fatalf("first line %q, last line %q: expected the supply with its reason, and the image", lines[0], lines[len(lines)-1])
	}
	img := image{location: m[1], digest: m[2], run: r}
	b, err := os.ReadFile(filepath.Join(out, "k8s-"+minor+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &img.summary); err != nil {
		t.Fatal(err)
	}
	if img.summary.Digest != img.digest {
		t.Errorf("the summary says %s, the last line %s", img.summary.Digest, img.digest)
	}
	return img
}

// made returns an image of this checkout, made once per test run.
func made(t *testing.T, minor string) image {
	t.Helper()
	p := tools(t)
	madeMu.Lock()
	defer madeMu.Unlock()
	if img, ok := madeImages[minor]; ok {
		return img
	}
	madeImages[minor] = p.build(t, nil, minor, filepath.Join(scratch, "out"))
	return madeImages[minor]
}

var (
	madeMu     sync.Mutex
	madeImages = map[string]image{}
)

func loadMatrix(t *testing.T) matrix.Matrix {
	t.Helper()
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openFS reads the layers of an image in a layout.
func openFS(t *testing.T, img image) *layerfs.FS {
	t.Helper()
	src, err := publish.OpenLayout(img.location)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	read := func(d store.Descriptor, v any) {
		r, err := src.Blob(d)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := json.NewDecoder(r).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	var top struct {
		Manifests []struct {
			store.Descriptor
			MediaType string
		}
	}
	if err := json.Unmarshal(src.Index(), &top); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(top.Manifests, func(d struct {
		store.Descriptor
		MediaType string
	}) bool {
		return d.Digest == img.digest
	})
	if at < 0 {
		t.Fatalf("the layout does not list %s", img.digest)
	}
	var index struct{ Manifests []store.Descriptor }
	read(top.Manifests[at].Descriptor, &index)
	var manifest struct {
		Config store.Descriptor
		Layers []store.Descriptor
	}
	read(index.Manifests[0], &manifest)
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	read(manifest.Config, &config)
	var layers []layerfs.Layer
	for i, l := range manifest.Layers {
		layers = append(layers, layerfs.Layer{Descriptor: l, DiffID: config.RootFS.DiffIDs[i], Open: func() (io.ReadCloser, error) { return src.Blob(l) }})
	}
	fsys, err := layerfs.New(context.Background(), layers)
	if err != nil {
		t.Fatal(err)
	}
	return fsys
}
