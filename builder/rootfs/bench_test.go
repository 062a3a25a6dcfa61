package rootfs

import (
	"fmt"
	"math/rand"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

const benchSize = 128 << 20

// benchFiles puts eight files into the store: random bytes and a Go program by
// turns.
func benchFiles(b *testing.B, s *store.Store) []File {
	b.Helper()
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		b.Fatal(err)
	}
	rnd := rand.New(rand.NewSource(1))
	var files []File
	for i := range 8 {
		data := make([]byte, benchSize/8)
		rnd.Read(data)
		if i%2 == 1 {
			for n := 0; n < len(data); n += copy(data[n:], text) {
			}
		}
		d, err := s.PutBytes(data)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, File{Path: fmt.Sprintf("usr/bin/file-%d", i), Mode: 0o755, Content: d})
	}
	return files
}

// measure runs f b.N times and reports the processor time of one run.
func measure(b *testing.B, f func()) {
	b.SetBytes(benchSize)
	start := cpuSeconds(b)
	for b.Loop() {
		f()
	}
	b.ReportMetric((cpuSeconds(b)-start)/float64(b.N), "cpu-s/op")
}

func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func BenchmarkWrite(b *testing.B) {
	s := openStore(b)
	files := benchFiles(b, s)
	for name, c := range map[string]Compression{"gzip": Gzip, "zstd": Zstd, "none": None} {
		b.Run(name, func(b *testing.B) {
			epoch := time.Unix(0, 0)
			measure(b, func() {
				epoch = epoch.Add(time.Second) // another layer each time
				w := Writer{Store: s, Epoch: epoch}
				built, err := w.Write(b.Context(), Layer{Name: "bench", Files: files, Compression: c})
				if err != nil || built.Reused {
					b.Fatal(built, err)
				}
				p, _ := s.Path(built.Descriptor.Digest)
				if err := os.Remove(p); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(built.Descriptor.Size)/1e6, "MB-out")
			})
		})
	}
}
