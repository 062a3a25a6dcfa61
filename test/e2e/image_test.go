package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

// memoryLimit is what the builder may use at its peak, however large the bundle.
const memoryLimit = 400 << 20

func TestEveryMinorIsMadeInspectedAndVerified(t *testing.T) {
	p := tools(t)
	rows := slices.Clone(loadMatrix(t).Rows)
	slices.Reverse(rows) // the newest first, as a user would
	for _, row := range rows {
		t.Run(row.Minor.String(), func(t *testing.T) {
			img := made(t, row.Minor.String())
			if peak := img.summary.PeakMemory; peak <= 0 || peak > memoryLimit {
				t.Errorf("the builder used %d MB, expected at most %d", peak>>20, memoryLimit>>20)
			}
			if len(img.summary.Platforms[0].Inputs) == 0 || img.summary.Kubernetes != row.Kubernetes.String() {
				t.Errorf("summary %+v", img.summary)
			}
			if md, err := os.ReadFile(img.location + ".md"); err != nil || !bytes.Contains(md, []byte(img.digest)) {
				t.Errorf("the summary page does not name the digest: %v", err)
			}

			var report struct {
				Checks []struct {
					Rule   string
					Passed bool
				}
				Findings []any
			}
			r := must(t, "/", nil, p.builder, "inspect", img.location, "--output", "json")
			if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Checks) < 12 || len(report.Findings) != 0 {
				t.Errorf("inspection: %v\n%s", err, r.stdout)
			}

			must(t, "/", nil, p.builder, "verify", img.location+"@"+img.digest)
			other := filepath.Join(t.TempDir(), "other.pub")
			if err := os.WriteFile(other, []byte("-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEW2jVyWbG+kPIdDq9GfXPv2dAW8FJ\nqXUqPg0eZaMPNpSMxrIy0lBrpwxCJ4r3Yt2oyf1rqUTf4ZWF0UXqBXxbKg==\n-----END PUBLIC KEY-----\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if r := start(t, "/", nil, p.builder, "verify", img.location, "--key", other); r.code == 0 {
				t.Errorf("a key that did not sign verified the image: %s", r.stdout)
			}
			out := must(t, "/", nil, cosign(t), "verify", "--key", filepath.Join(keys(t), "cosign.pub"), "--insecure-ignore-tlog", "--local-image", img.location)
			if !strings.Contains(out.stdout, img.digest) {
				t.Errorf("cosign verified something else than %s: %s", img.digest, out.stdout)
			}
		})
	}
}

func TestEtcdToolsRunAndAreTheBundledEtcds(t *testing.T) {
	row := loadMatrix(t).Rows[len(loadMatrix(t).Rows)-1]
	fsys := openFS(t, made(t, row.Minor.String()))
	for _, tool := range []string{"etcdctl", "etcdutl"} {
		file := filepath.Join(t.TempDir(), tool)
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		e, err := fsys.Copy(t.Context(), f, "usr/bin/"+tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if e.Mode.Perm() != 0o755 || e.UID != 0 || e.GID != 0 {
			t.Errorf("%s has mode %s and owner %d:%d", tool, e.Mode, e.UID, e.GID)
		}
		if out := must(t, "/", nil, file, "version").stdout; !strings.Contains(out, tool+" version: "+row.EtcdVersion()) {
			t.Errorf("%s says %q, expected version %s", tool, out, row.EtcdVersion())
		}
	}
}

func TestUnpackedImagePassesSystemdAnalyze(t *testing.T) {
	fsys := openFS(t, made(t, loadMatrix(t).Newest().String()))
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := fsys.Extract(t.Context(), root, func(e layerfs.Entry) bool { return true }); err != nil {
		t.Fatal(err)
	}
	args := []string{"verify", "--root=" + dir, "--man=no", "--recursive-errors=yes"}
	r := start(t, "/", nil, "systemd-analyze", append(args, overlay.Units...)...)
	if r.code != 0 || strings.Contains(r.stdout+r.stderr, "ordering cycle") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for _, unit := range overlay.Units {
		if out := start(t, "/", nil, "systemctl", "--root="+dir, "is-enabled", unit).stdout; strings.TrimSpace(out) != "static" {
			t.Errorf("%s is %q, expected static", unit, out)
		}
		// A fresh /etc: whatever starts our units is under /usr.
		if fi, err := os.Lstat(filepath.Join(dir, "etc/systemd/system/multi-user.target.wants", unit)); err == nil {
			t.Errorf("%s is enabled by %s in /etc", unit, fi.Name())
		}
		if target, err := os.Readlink(filepath.Join(dir, overlay.WantsDir, unit)); err != nil || target != "../"+unit {
			t.Errorf("%s is enabled by a link to %q: %v", unit, target, err)
		}
	}
}

// blobs lists the store's blobs.
func blobs(t *testing.T, cache string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(cache, "store", "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "provider-kubernetes")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(home, ".cache", "provider-kubernetes")
}

func TestSecondRunFetchesBuildsAndCompressesNothing(t *testing.T) {
	minor := loadMatrix(t).Newest().String()
	first := made(t, minor)
	before := blobs(t, cacheDir(t))
	second := tools(t).build(t, nil, minor, t.TempDir())
	if second.digest != first.digest {
		t.Errorf("digest %s, then %s", first.digest, second.digest)
	}
	for _, l := range second.summary.Platforms[0].Layers {
		if !l.Reused {
			t.Errorf("layer %s was made again", l.Name)
		}
	}
	for _, s := range second.summary.Steps {
		for _, verb := range []string{"build ", "assemble ", "extract "} {
			if strings.HasPrefix(s.Name, verb) {
				t.Errorf("the second run had the step %q", s.Name)
			}
		}
	}
	if after := blobs(t, cacheDir(t)); !slices.Equal(before, after) {
		t.Errorf("%d blobs, then %d", len(before), len(after))
	}
}

// copySource copies the tracked part of the checkout that a build reads.
func copySource(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"go.mod", "go.sum", "Makefile", "builder", "runtime", "matrix", "overlay", "signing"} {
		must(t, root, nil, "cp", "-r", name, dir)
	}
}

func TestChangedOverlayFileMakesOneLayerAgain(t *testing.T) {
	p := tools(t)
	minor := loadMatrix(t).Newest().String()
	first := made(t, minor)
	source := t.TempDir()
	copySource(t, source)
	name := filepath.Join(source, "overlay/rootfs/usr/lib/sysctl.d/60-provider-kubernetes.conf")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// The cache may know the line of an earlier run.
	if err := os.WriteFile(name, append(text, "\n# "+rand.Text()+"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	changed := compile(t, source, t.TempDir())
	changed.provider = p.provider
	second := changed.build(t, nil, minor, t.TempDir())
	var again []string
	for _, l := range second.summary.Platforms[0].Layers {
		if !l.Reused {
			again = append(again, l.Name)
		}
	}
	if !slices.Equal(again, []string{"overlay"}) {
		t.Errorf("made again: %v, expected the overlay alone", again)
	}
	if second.digest == first.digest || second.summary.KairosVersion == first.summary.KairosVersion {
		t.Error("another image has the same digest or KAIROS_VERSION")
	}
}

// Everything but the resolved Debian packages is made from scratch: another
// checkout at another path, another cache, umask and time zone. What is shared
// is Go's own build cache, which is keyed by content.
func TestBuildsAreReproducible(t *testing.T) {
	minor := loadMatrix(t).Newest().String()
	first := made(t, minor)
	source, cache, out := t.TempDir(), t.TempDir(), t.TempDir()
	copySource(t, source)
	sharePackages(t, filepath.Join(cacheDir(t), "rebuilt", "upstream"), filepath.Join(cache, "rebuilt", "upstream"))

	script := `umask 077; exec "$0" "$@"`
	p := compile(t, source, t.TempDir())
	args := []string{"-c", script, p.builder, "image", "--source", source, "--cache", cache, "--minor", minor, "--supply", "rebuilt", "--provider", p.provider, "--out", out}
	start := time.Now()
	r := must(t, source, []string{"TZ=Pacific/Kiritimati", "LANG=de_DE.UTF-8"}, "/bin/sh", args...)
	t.Logf("made from scratch in %s", time.Since(start).Round(time.Second))
	if !strings.Contains(r.stdout, "@"+first.digest+"\n") {
		t.Errorf("digest differs: expected %s\n%s", first.digest, r.stdout)
	}
	second := image{location: filepath.Join(out, "k8s-"+minor), digest: first.digest}
	a, b := openFS(t, first), openFS(t, second)
	lockOf := func(f *layerfs.FS) []byte {
		text, err := f.ReadFile(t.Context(), overlay.BundleDir+"/"+bundle.LockName, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if x, y := lockOf(a), lockOf(b); !bytes.Equal(x, y) {
		t.Errorf("images.lock differs:\n%s\n%s", x, y)
	}
}

// sharePackages gives a fresh cache the record of which Debian packages were
// resolved, with the packages: the archive may have moved on since.
func sharePackages(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(to, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, "/", nil, "mkdir", "-p", filepath.Join(to, "records"))
	must(t, "/", nil, "cp", "-r", filepath.Join(from, "records/debian"), filepath.Join(to, "records"))
	err := filepath.WalkDir(filepath.Join(to, "records/debian"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var pkgs []struct{ Digest string }
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &pkgs); err != nil {
			return err
		}
		for _, p := range pkgs {
			blob := "blobs/" + strings.Replace(p.Digest, ":", "/", 1)
			if _, err := os.Stat(filepath.Join(to, blob)); err == nil {
				continue
			}
			content, err := os.ReadFile(filepath.Join(from, blob))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, blob), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPushedImageIsFoundVerifiedAndInspected(t *testing.T) {
	p := tools(t)
	minor := loadMatrix(t).Newest().String()
	digest := made(t, minor).digest
	pub := filepath.Join(keys(t), "cosign.pub")
	emptyRoot := filepath.Join(t.TempDir(), "trusted_root.json")
	if err := os.WriteFile(emptyRoot, []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		referrers bool
	}{{"registry with the referrers API", true}, {"registry without it", false}} {
		t.Run(c.name, func(t *testing.T) {
			reg := standin.NewRegistry(t, standin.Options{Referrers: c.referrers})
			repo := reg.Host() + "/example/node"
			img := p.build(t, nil, minor, t.TempDir(), "--push", repo, "--tag", "v0.9.0")
			if img.location != repo || img.digest != digest {
				t.Errorf("pushed %s@%s, expected %s@%s", img.location, img.digest, repo, digest)
			}
			for _, tag := range []string{"v0.9.0-k8s" + minor, "v0.9.0", "latest"} {
				if out := must(t, "/", nil, p.builder, "verify", repo+":"+tag).stdout; !strings.Contains(out, digest) {
					t.Errorf("tag %s: %s", tag, out)
				}
			}
			must(t, "/", nil, cosign(t), "verify", "--key", pub, "--insecure-ignore-tlog", "--allow-http-registry", "--trusted-root", emptyRoot, repo+"@"+digest)
			must(t, "/", nil, cosign(t), "verify", "--key", pub, "--insecure-ignore-tlog", "--allow-http-registry", "--trusted-root", emptyRoot, "--new-bundle-format", repo+"@"+digest)
			if c.referrers {
				must(t, "/", nil, p.builder, "inspect", repo+"@"+digest, "--cache", t.TempDir())
			}
		})
	}
}
