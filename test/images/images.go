// Package images makes node images of this checkout for the tests that need
// one, through the built builder alone and with the caches of a user's own
// builds: what did not change is not made again. They are left in out/test of
// the checkout, so that every package of a test run has the same.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Image is a finished image in an OCI layout.
type Image struct {
	Layout string // folder
	Digest string // of the index, "sha256:…"
}

// Root returns the top of the checkout that the current folder is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod in %s or above it: run the tests in a checkout", dir)
		}
	}
}

// Make returns this checkout's image of a minor, "1.37", for this machine's
// architecture. It is made when it does not exist or its sources changed; the
// very first one takes as long as building Kubernetes. A test run with -short
// that asks for an image is skipped.
func Make(t testing.TB, minor string) Image {
	t.Helper()
	if testing.Short() {
		t.Skip("makes a whole image")
	}
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	img, ok := done[minor]
	if !ok {
		if img, err = made(t.Context(), root, minor); err != nil {
			t.Fatal(err)
		}
		done[minor] = img
	}
	return img
}

// All tests of a process have the same image, whoever edits meanwhile.
var (
	mu   sync.Mutex
	done = map[string]Image{}
)

// made takes the image that an earlier run made from the same sources, or makes
// it.
func made(ctx context.Context, root, minor string) (img Image, err error) {
	out := filepath.Join(root, "out", "test")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return img, err
	}
	// Packages are tested side by side.
	lock, err := os.OpenFile(filepath.Join(out, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return img, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return img, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	var known struct {
		Sources string
		Image   Image
	}
	sources, err := fingerprint(root)
	if err != nil {
		return img, err
	}
	note := filepath.Join(out, "sources-"+minor+".json")
	if b, err := os.ReadFile(note); err == nil && json.Unmarshal(b, &known) == nil && known.Sources == sources {
		if _, err := os.Stat(filepath.Join(known.Image.Layout, "index.json")); err == nil {
			return known.Image, nil
		}
	}
	if known.Image, err = build(ctx, root, out, minor); err != nil {
		return img, err
	}
	known.Sources = sources
	b, err := json.Marshal(known)
	if err != nil {
		return img, err
	}
	return known.Image, os.WriteFile(note, b, 0o644)
}

// fingerprint is a digest of everything in the checkout that an image comes
// from. Reading it here also tells `go test`, which knows nothing of what child
// processes read, that a result is not to be taken from its cache.
func fingerprint(root string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version())
	for _, top := range []string{"builder", "matrix", "overlay", "runtime", "signing", "go.mod", "go.sum", "Makefile"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") {
				return err
			}
			b, err := os.ReadFile(name)
			fmt.Fprintf(h, "%s %d\n%s", strings.TrimPrefix(name, root), len(b), b)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

var lastLine = regexp.MustCompile(`(?m)^image (\S+)@(sha256:[0-9a-f]{64})\n*\z`)

// build makes an image as `make image` does.
func build(ctx context.Context, root, out, minor string) (Image, error) {
	bin := filepath.Join(out, "bin")
	if _, err := command(ctx, root, "make", "--no-print-directory", "builder", "runtime", "BIN="+bin); err != nil {
		return Image{}, err
	}
	b, err := command(ctx, root, filepath.Join(bin, "builder"), "image", "--source", root, "--minor", minor, "--supply", "rebuilt",
		"--provider", filepath.Join(bin, "agent-provider-kubernetes-{arch}"), "--out", out)
	if err != nil {
		return Image{}, err
	}
	m := lastLine.FindSubmatch(b)
	if m == nil {
		return Image{}, fmt.Errorf("builder image ended with %q: expected a last line \"image LAYOUT@DIGEST\"", b)
	}
	return Image{Layout: string(m[1]), Digest: string(m[2])}, nil
}

func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return b, nil
}
