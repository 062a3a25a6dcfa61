//go:build bench

// Package bench compares what a node image's payload costs: the same files are
// put into an image by the builder, by go-containerregistry and by a BuildKit
// daemon, one after the other in one run. Processor time is what counts: wall
// time also depends on the number of cores and on who else uses them.
//
// The files come from an image that was made before (IMAGE, an OCI layout), and
// BuildKit from bin/, where `make bench` puts it.
package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// payload is the regular files of an image's payload layers.
type payload struct {
	dir    string         // one folder per layer with its files
	layers []rootfs.Layer // of the same files, with the image's own compression
	size   int64          // of all files
	runc   string         // BuildKit's worker does not start without it
}

// load takes the payload layers whose names keep accepts out of an image.
func load(b *testing.B, keep func(name string) bool) *payload {
	b.Helper()
	p := &payload{dir: b.TempDir()}
	image := firstImage(b, env("IMAGE", "../../out/k8s-1.37"))
	config := ok(image.ConfigFile())(b)
	layers := ok(image.Layers())(b)
	history := config.History[len(config.History)-len(layers):]
	for i, l := range layers {
		if history[i].CreatedBy == "provider-kubernetes builder" && keep(history[i].Comment) {
			p.add(b, history[i].Comment, l)
		}
	}
	if p.runc == "" {
		b.Fatal("the image has no runc in its payload layers: make one with `make image K8S=1.37`, or name it in IMAGE")
	}
	return p
}

func (p *payload) add(b *testing.B, name string, l v1.Layer) {
	b.Helper()
	layer := rootfs.Layer{Name: name}
	if ok(l.MediaType())(b) == types.OCIUncompressedLayer {
		layer.Compression = rootfs.None
	}
	dir := p.folder(len(p.layers))
	r := ok(l.Uncompressed())(b)
	defer r.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(b, err)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		f := rootfs.File{Path: path.Clean(h.Name), Mode: fs.FileMode(h.Mode).Perm()}
		to := filepath.Join(dir, f.Path)
		check(b, os.MkdirAll(filepath.Dir(to), 0o755))
		w := ok(os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644))(b)
		sum := sha256.New()
		f.Content.Size = ok(io.Copy(io.MultiWriter(w, sum), tr))(b)
		check(b, errors.Join(w.Chmod(f.Mode), w.Close()))
		f.Content.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
		f.Open = func() (io.ReadCloser, error) { return os.Open(to) }
		layer.Files = append(layer.Files, f)
		p.size += f.Content.Size
		if path.Base(f.Path) == "runc" {
			p.runc = to
		}
	}
	p.layers = append(p.layers, layer)
}

func (p *payload) folder(layer int) string { return filepath.Join(p.dir, strconv.Itoa(layer)) }

func firstImage(b *testing.B, dir string) v1.Image {
	b.Helper()
	if _, err := os.Stat(dir); err != nil {
		b.Fatalf("%v: make an image with `make image K8S=1.37`, or name another in IMAGE", err)
	}
	index := ok(layout.ImageIndexFromPath(dir))(b)
	for {
		m := ok(index.IndexManifest())(b)
		if len(m.Manifests) == 0 {
			b.Fatalf("%s is empty", dir)
		}
		if d := m.Manifests[0]; d.MediaType.IsIndex() {
			index = ok(index.ImageIndex(d.Digest))(b)
		} else {
			return ok(index.Image(d.Digest))(b)
		}
	}
}

// cost is what one way of doing it took.
type cost struct {
	cpu, wall time.Duration
	bytes     int64 // of the image
}

type way struct {
	name string
	run  func(b *testing.B, out string) (cpu, wall time.Duration)
	sum  cost
}

func BenchmarkPayload(b *testing.B) {
	sets := []struct {
		name string
		keep func(layer string) bool
	}{
		{"programs", func(l string) bool { return l == "runtime-stack" || l == "kubernetes" || l == "provider" }},
		{"with-images", func(l string) bool { return l != "overlay" }},
	}
	for _, set := range sets {
		b.Run(set.name, func(b *testing.B) {
			p := load(b, set.keep)
			ways := []way{
				{name: "builder-gzip", run: inProcess(p.builder(rootfs.Gzip))},
				{name: "builder-zstd", run: inProcess(p.builder(rootfs.Zstd))},
				{name: "library-gzip", run: inProcess(p.library(compression.GZip))},
				{name: "library-zstd", run: inProcess(p.library(compression.ZStd))},
				{name: "buildkit-gzip", run: p.buildkit("gzip")},
				{name: "buildkit-zstd", run: p.buildkit("zstd")},
			}
			n := 0
			for b.Loop() {
				for i := range ways {
					w := &ways[i]
					out := filepath.Join(b.TempDir(), "image")
					cpu, wall := w.run(b, out)
					w.sum.cpu, w.sum.wall, w.sum.bytes = w.sum.cpu+cpu, w.sum.wall+wall, size(b, out)
					check(b, os.RemoveAll(out))
				}
				n++
			}
			report(b, p, ways, n)
		})
	}
}

// report prints one line per way and the ratios as metrics.
func report(b *testing.B, p *payload, ways []way, n int) {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "way\tCPU s\twall s\tMB out\tCPU to builder's\t\n")
	best := map[string]cost{"gzip": ways[0].sum, "zstd": ways[1].sum}
	for _, w := range ways {
		by, kind, _ := strings.Cut(w.name, "-")
		ratio := w.sum.cpu.Seconds() / best[kind].cpu.Seconds()
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.0f\t%.1f\t\n", w.name, w.sum.cpu.Seconds()/float64(n), w.sum.wall.Seconds()/float64(n), float64(w.sum.bytes)/1e6, ratio)
		if by != "builder" {
			b.ReportMetric(ratio, w.name+"-ratio")
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ways[0].sum.cpu.Seconds()/float64(n), "builder-gzip-cpu-s")
	check(b, t.Flush())
	b.Logf("%d layers, %.0f MB of files, mean of %d:\n%s", len(p.layers), float64(p.size)/1e6, n, text.String())
}

// inProcess measures this process.
func inProcess(f func(b *testing.B, out string)) func(*testing.B, string) (time.Duration, time.Duration) {
	return func(b *testing.B, out string) (time.Duration, time.Duration) {
		runtime.GC()
		start, cpu := time.Now(), ownCPU(b)
		f(b, out)
		return ownCPU(b) - cpu, time.Since(start)
	}
}

// builder writes the payload as `builder image` does: contents are checked
// against their digests, what is compressed already is stored as it is, blobs are
// synced. Publishing, with its reading back, comes after that.
func (p *payload) builder(c rootfs.Compression) func(*testing.B, string) {
	return func(b *testing.B, out string) {
		st := ok(store.Open(out))(b)
		layers := slices.Clone(p.layers)
		for i := range layers {
			if layers[i].Compression != rootfs.None {
				layers[i].Compression = c
			}
		}
		w := rootfs.Writer{Store: st, Epoch: time.Unix(1, 0)}
		spec := finish.Spec{
			Base:     finish.Base{Config: fmt.Appendf(nil, `{"os":"linux","architecture":%q}`, runtime.GOARCH)},
			Layers:   ok(w.WriteAll(b.Context(), layers))(b),
			Platform: finish.Platform{OS: "linux", Architecture: runtime.GOARCH},
		}
		image := ok(finish.Append{Store: st}.Finish(b.Context(), spec))(b)
		for _, d := range []finish.Document{image.Config, image.Manifest} {
			ok(st.PutBytes(d.Bytes))(b)
		}
	}
}

// library writes a tar per layer and makes an OCI layout of them by
// go-containerregistry's own path, with its default level.
func (p *payload) library(c compression.Compression) func(*testing.B, string) {
	return func(b *testing.B, out string) {
		check(b, os.Mkdir(out, 0o755))
		var layers []v1.Layer
		for i := range p.layers {
			file := filepath.Join(out, strconv.Itoa(i)+".tar")
			w := ok(os.Create(file))(b)
			tw := tar.NewWriter(w)
			check(b, errors.Join(tw.AddFS(os.DirFS(p.folder(i))), tw.Close(), w.Close()))
			layers = append(layers, ok(tarball.LayerFromFile(file, tarball.WithCompression(c)))(b))
			defer os.Remove(file)
		}
		image := ok(mutate.AppendLayers(empty.Image, layers...))(b)
		to := ok(layout.Write(out, empty.Index))(b)
		check(b, to.AppendImage(image))
	}
}

// buildkit copies the payload into an empty image, one COPY per layer, by a
// daemon that has just started and has nothing cached. What counts is the
// daemon's processor time during the build and the client's.
func (p *payload) buildkit(c string) func(*testing.B, string) (time.Duration, time.Duration) {
	return func(b *testing.B, out string) (time.Duration, time.Duration) {
		dir := ok(os.MkdirTemp("", "buildkit-"))(b) // short, for the socket's name
		defer os.RemoveAll(dir)
		var dockerfile strings.Builder
		dockerfile.WriteString("FROM scratch\n")
		for i := range p.layers {
			fmt.Fprintf(&dockerfile, "COPY %d/ /\n", i)
		}
		check(b, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile.String()), 0o644))

		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
		defer cancel()
		socket := filepath.Join(dir, "s")
		var log bytes.Buffer
		daemon := exec.CommandContext(ctx, "../../bin/buildkitd", "--root", filepath.Join(dir, "root"), "--addr", "unix://"+socket,
			"--config", filepath.Join(dir, "none.toml"), "--containerd-worker=false", "--oci-worker-net", "host")
		daemon.Env = append(os.Environ(), "PATH="+filepath.Dir(p.runc)+":"+os.Getenv("PATH"))
		daemon.Stderr = &log
		if err := daemon.Start(); err != nil {
			b.Fatalf("%v: `make bench` builds it", err)
		}
		defer func() {
			check(b, daemon.Process.Signal(syscall.SIGTERM))
			_ = daemon.Wait() // it was told to end
		}()
		client := func(args ...string) time.Duration {
			cmd := exec.CommandContext(ctx, "../../bin/buildctl", append([]string{"--addr", "unix://" + socket}, args...)...)
			if text, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("buildctl: %v\n%s\n%s", err, text, log.String())
			}
			return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		awaitSocket(ctx, b, socket, &log)
		client("debug", "workers")

		start, cpu := time.Now(), processCPU(b, daemon.Process.Pid)
		used := client("build", "--frontend", "dockerfile.v0", "--local", "context="+p.dir, "--local", "dockerfile="+dir,
			"--output", "type=oci,tar=false,dest="+out+",compression="+c)
		return processCPU(b, daemon.Process.Pid) - cpu + used, time.Since(start)
	}
}

func awaitSocket(ctx context.Context, b *testing.B, socket string, log *bytes.Buffer) {
	b.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket); err == nil {
			check(b, c.Close())
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.Fatalf("buildkitd does not answer; it has to run as root:\n%s", log.String())
		}
	}
}

func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processCPU returns what a process and its ended children have used:
// fields 14 to 17 of proc_pid_stat(5), in hundredths of a second.
func processCPU(b *testing.B, pid int) (sum time.Duration) {
	b.Helper()
	stat := ok(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(b)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, f := range fields[11:15] {
		sum += time.Duration(ok(strconv.Atoi(f))(b)) * 10 * time.Millisecond
	}
	return sum
}

func size(b *testing.B, dir string) (n int64) {
	b.Helper()
	check(b, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		return err
	}))
	return n
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// ok returns v, or ends the benchmark with err.
func ok[T any](v T, err error) func(*testing.B) T {
	return func(b *testing.B) T {
		b.Helper()
		check(b, err)
		return v
	}
}
