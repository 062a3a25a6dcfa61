package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
)

var took = regexp.MustCompile(`  [0-9]+(\.[0-9]+)?(µs|ms|s)\b`)

// shown is what a reporter wrote, with every duration as 0s and what moves the
// cursor of a terminal spelled out.
func shown(b *bytes.Buffer) string {
	s := took.ReplaceAllString(b.String(), "  0s")
	return strings.NewReplacer("\r\x1b[K", "<CLEAR>").Replace(s)
}

func work(r *Reporter) error {
	r.Note("supply %s", "rebuilt")
	fetch := r.Step("fetch layers")
	fetch.Progress(50_000, 100_000)
	build := r.Step("build runc")
	_ = build.Done(nil)
	fetch.Detail("%d of %d reused", 1, 2)
	_ = fetch.Done(nil)
	return r.Step("inspect").Done(errors.New("2 findings"))
}

func TestLinesOfARunWithoutTerminal(t *testing.T) {
	var b bytes.Buffer
	r := New(&b, false)
	if err := work(r); err == nil || err.Error() != "2 findings" {
		t.Errorf("Done changed the error to %v", err)
	}
	want := `supply rebuilt
  …    fetch layers
  …    build runc
  ok   build runc  0s
  ok   fetch layers  0s  1 of 2 reused
  …    inspect
  FAIL inspect  0s
`
	if got := shown(&b); got != want {
		t.Errorf("got\n%sexpected\n%s", got, want)
	}
	var names []string
	for _, s := range r.Timings() {
		names = append(names, s.Name)
		if s.Seconds < 0 {
			t.Errorf("%s took %v s", s.Name, s.Seconds)
		}
	}
	if !reflect.DeepEqual(names, []string{"build runc", "fetch layers", "inspect"}) {
		t.Errorf("steps %v", names)
	}
}

func TestABarOnATerminal(t *testing.T) {
	var b bytes.Buffer
	_ = work(New(&b, true))
	got := shown(&b)
	// Whether the bar was drawn between two steps depends on the clock; what is
	// left on the screen does not.
	if !strings.Contains(got, "<CLEAR>  …    fetch layers  0s  [############............] 50.0 kB of 100.0 kB  (+1)") {
		t.Errorf("no bar in %q", got)
	}
	var screen []string
	for line := range strings.Lines(got) {
		drawn := strings.Split(line, "<CLEAR>")
		screen = append(screen, drawn[len(drawn)-1])
	}
	want := "supply rebuilt\n  ok   build runc  0s\n  ok   fetch layers  0s  1 of 2 reused\n  FAIL inspect  0s\n"
	if left := strings.Join(screen, ""); left != want {
		t.Errorf("the screen shows\n%sexpected\n%s", left, want)
	}
}

func TestNoReporterPrintsNothing(t *testing.T) {
	var r *Reporter
	if err := work(r); err == nil || r.Timings() != nil {
		t.Errorf("error %v, timings %v", err, r.Timings())
	}
}

func TestManyGoroutinesMayReport(t *testing.T) {
	var b bytes.Buffer
	r := New(&b, true)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := r.Step(fmt.Sprint("step ", i))
			for n := range int64(100) {
				s.Progress(n, 100)
			}
			r.Note("note %d", i)
			_ = s.Done(nil)
		})
	}
	wg.Wait()
	if n := len(r.Timings()); n != 8 {
		t.Errorf("%d steps, expected 8", n)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_500_000: "1.5 MB", 2_340_000_000: "2.34 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %s, expected %s", n, got, want)
		}
	}
}

var digest = "sha256:" + strings.Repeat("ab", 32)

var summary = Summary{
	Image: "out/k8s-1.37@" + digest, Digest: digest, Kubernetes: "v1.37.2", KairosVersion: "v0.5.0+k8s.1.37.2.abc", Supply: "rebuilt", SupplyReason: "asked for",
	Tags: []string{"dev-k8s1.37", "latest"}, Rules: 12, PeakMemory: 90_000_000, Steps: []Timing{{"verify", 0.25}},
	Platforms: []Platform{{
		Platform: "linux/amd64", Digest: digest,
		Inputs: []Input{
			{Name: "etcd", Source: "registry.k8s.io/etcd:3.7.0-0", Digest: digest, Size: 2_000_000, Verified: lock.Verification{By: lock.BySignature, Identity: "a@example.com", Issuer: "https://example.com"}},
			{Name: "kube-proxy", Source: "registry.k8s.io/kube-proxy:v1.37.2", Digest: digest, Size: 10, Verified: lock.Verification{By: lock.ByException, Reason: "ours"}},
			{Name: "runc", Source: "https://example.com/runc", Digest: digest, Size: 1000, Verified: lock.Verification{By: lock.ByChecksum, Origin: "a list"}},
		},
		Resolved: []lock.Input{{Name: "base"}},
		Layers:   []Layer{{Name: "base", Digest: digest, Size: 4000, Reused: true}, {Name: "overlay", Digest: digest, Size: 10}},
	}},
}

func TestSummaryAsText(t *testing.T) {
	var b bytes.Buffer
	if err := summary.Text(&b); err != nil {
		t.Fatal(err)
	}
	want := `
linux/amd64  Kubernetes v1.37.2  supply rebuilt

  etcd                             2.0 MB  sha256:abababababab  signature of a@example.com
  kube-proxy                         10 B  sha256:abababababab  NOT VERIFIED: ours
  runc                             1.0 kB  sha256:abababababab  checksum from a list

  base                             4.0 kB  sha256:abababababab  ████████████████████ reused
  overlay                            10 B  sha256:abababababab  █                    
  in all                           4.0 kB

conformance: all 12 rules hold; peak memory 90.0 MB
`
	if b.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", &b, want)
	}
}

func TestSummaryAsMarkdown(t *testing.T) {
	var b bytes.Buffer
	if err := summary.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	want := "# Node image for Kubernetes v1.37.2\n\n`out/k8s-1.37@" + digest + "`\n\n" +
		"- supply: **rebuilt** (asked for)\n- KAIROS_VERSION: `v0.5.0+k8s.1.37.2.abc`\n- tags: dev-k8s1.37, latest\n- conformance: all 12 rules hold\n" +
		"\n## linux/amd64\n\n`" + digest + "`\n\n| input | size | verified by | digest |\n|---|---:|---|---|\n" +
		"| registry.k8s.io/etcd:3.7.0-0 | 2.0 MB | signature of a@example.com | `sha256:abababababab` |\n" +
		"| registry.k8s.io/kube-proxy:v1.37.2 | 10 B | NOT VERIFIED: ours | `sha256:abababababab` |\n" +
		"| https://example.com/runc | 1.0 kB | checksum from a list | `sha256:abababababab` |\n" +
		"\n1 packages were resolved from the distribution's signed archive; the JSON summary lists them with their digests.\n" +
		"\n| layer | size | | digest |\n|---|---:|---|---|\n" +
		"| base | 4.0 kB | `████████████████████` reused | `sha256:abababababab` |\n" +
		"| overlay | 10 B | `█` made | `sha256:abababababab` |\n" +
		"\n## Time\n\n| step | seconds |\n|---|---:|\n| verify | 0.25 |\n"
	if b.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", &b, want)
	}
}

func TestSummaryAsJSON(t *testing.T) {
	var b bytes.Buffer
	if err := summary.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Summary
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !reflect.DeepEqual(back, summary) {
		t.Errorf("reads as %+v, %v", back, err)
	}
	for _, key := range []string{"image", "digest", "kubernetes", "kairosVersion", "supply", "supplyReason", "tags", "platforms", "conformanceRules", "steps", "inputs", "layers", "resolved", "verified"} {
		if !bytes.Contains(b.Bytes(), []byte(`"`+key+`": `)) {
			t.Errorf("there is no %s", key)
		}
	}
}
