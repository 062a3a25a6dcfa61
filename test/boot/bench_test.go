package boot

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kairos-io/provider-kubernetes/test/images"
	"github.com/kairos-io/provider-kubernetes/test/lab"
)

// measured is an image with /usr/bin/measure.
func measured(b *testing.B) lab.Image {
	b.Helper()
	image := stock(b, "1.37")
	root, err := images.Root()
	if err != nil {
		b.Fatal(err)
	}
	l := newLayer(b)
	if err := build(root, filepath.Join(l.dir, "usr", "bin", "measure"), "./test/boot/measure"); err != nil {
		b.Fatal(err)
	}
	return image.With(l.dir)
}

// measure runs the node runtime b.N times in a node and reports what one run
// costs: processor time of it and what it starts, and its largest peak of memory.
func measure(b *testing.B, n *lab.Node, args ...string) {
	var cpu, peak float64
	for b.Loop() {
		var seconds, bytes float64
		var code int
		out := must(b, n, append([]string{"measure", agent}, args...)...)
		if _, err := fmt.Sscan(out, &seconds, &bytes, &code); err != nil || code != 0 {
			b.Fatalf("%s: %q, %v", args[0], out, err)
		}
		cpu, peak = cpu+seconds, max(peak, bytes)
	}
	b.ReportMetric(cpu*1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(peak/1e6, "peak-MB")
}

// BenchmarkVerbs measures what runs at each boot, on a node where nothing is
// left to do.
func BenchmarkVerbs(b *testing.B) {
	files := member(b)
	files["/etc/cluster.yaml"] = `cluster_token: 0123456789abcdef0123456789abcdef
control_plane_host: 127.0.0.1
role: worker
`
	n := lab.Start(b, lab.Options{Image: measured(b), Files: files})
	b.Run("migrate-units", func(b *testing.B) { measure(b, n, "migrate-units") })
	b.Run("import-images", func(b *testing.B) { measure(b, n, "import-images") })
	// It is converged when the kubelet answers.
	must(b, n, "timeout", "60", "sh", "-c", "until "+agent+" reconcile --cluster-file /etc/cluster.yaml | grep phase=Converged; do sleep 0.1; done")
	b.Run("reconcile", func(b *testing.B) { measure(b, n, "reconcile", "--cluster-file", "/etc/cluster.yaml") })
}

// BenchmarkBoot measures a boot, from power on until systemd has nothing left to
// do, on a node that was booted before: with all units, and without those of the
// node runtime.
func BenchmarkBoot(b *testing.B) {
	image := stock(b, "1.37")
	masked := newLayer(b)
	for _, unit := range []string{migrateUnit, importUnit} {
		masked.link(unitDir+unit, "/dev/null")
	}
	for _, c := range []struct {
		units string
		image lab.Image
	}{{"all", image}, {"without", image.With(masked.dir)}} {
		b.Run("units="+c.units, func(b *testing.B) {
			n := lab.Start(b, lab.Options{Image: c.image})
			powerOff(b, n)
			var inside float64
			for b.Loop() {
				boot(b, n)
				b.StopTimer()
				var finish, begin float64 // microseconds since the kernel's start
				out := must(b, n, "systemctl", "show", "--value", "--property=FinishTimestampMonotonic", "--property=UserspaceTimestampMonotonic")
				if _, err := fmt.Sscan(out, &begin, &finish); err != nil || finish <= begin {
					b.Fatalf("boot from %f to %f, %v\n%s", begin, finish, err, out)
				}
				inside += (finish - begin) / 1e6
				powerOff(b, n)
				b.StartTimer()
			}
			b.ReportMetric(inside/float64(b.N), "startup-s/op")
		})
	}
}
