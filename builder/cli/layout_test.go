package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/inspect"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

// tiny is an image with one file for two platforms.
type tiny struct {
	store  *store.Store
	index  finish.Document
	images []finish.Image
	key    *signing.Key
	pub    string // path of the public key
}

func makeTiny(c *terminal) tiny {
	c.t.Helper()
	ok := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	st, err := store.Open(filepath.Join(c.dir, "made"))
	ok(err)
	key, err := signing.LoadOrCreateKey(filepath.Join(c.dir, "keys"))
	ok(err)
	m := tiny{store: st, key: key, pub: filepath.Join(c.dir, "keys", "cosign.pub")}
	layer, err := (&rootfs.Writer{Store: st, Epoch: time.Unix(1, 0)}).Write(c.t.Context(), rootfs.Layer{Name: "layer", Files: []rootfs.File{{Path: "etc/os-release", Mode: 0o644, Data: []byte("ID=kairos\n")}}})
	ok(err)
	for _, p := range supported {
		img, err := finish.Append{Store: st}.Finish(c.t.Context(), finish.Spec{
			Base:   finish.Base{Config: []byte(`{"os":"linux","architecture":"` + p.Architecture + `","rootfs":{"type":"layers","diff_ids":[]}}`)},
			Layers: []rootfs.Built{layer}, Platform: finish.Platform(p), Created: time.Unix(1, 0), Labels: map[string]string{image.LabelMinor: "1.37"},
		})
		ok(err)
		m.images = append(m.images, img)
	}
	m.index, err = finish.Index(m.images, nil)
	ok(err)
	return m
}

// publish writes or pushes the image as the image command does and returns
// where it is.
func (m tiny) publish(c *terminal, f imageFlags) string {
	c.t.Helper()
	f.out = filepath.Join(c.dir, "out")
	row, err := c.app.row("1.37")
	if err != nil {
		c.t.Fatal(err)
	}
	at, err := c.app.publish(c.t.Context(), f, row, m.store, m.key, m.index, m.images, []string{"dev-k8s1.37"}, report.New(&c.stderr, false))
	if err != nil {
		c.t.Fatal(err)
	}
	return at
}

func TestVerifyALayout(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	layout := m.publish(c, imageFlags{})
	digest := m.index.Descriptor.Digest
	if layout != filepath.Join(c.dir, "out", "k8s-1.37") {
		t.Errorf("layout is at %s", layout)
	}
	for _, name := range []string{layout, layout + "@" + digest} {
		c.expect(ExitOK, []string{"verify", name, "--key", m.pub})
		if got, want := c.stdout.String(), "verified "+layout+"@"+digest+": signature in "; !strings.HasPrefix(got, want) {
			t.Errorf("verify says %q, expected %q", got, want)
		}
	}
	c.expect(ExitOK, []string{"verify", layout, "--key", m.pub, "--output", "json"})
	var res signing.Result
	if err := json.Unmarshal(c.stdout.Bytes(), &res); err != nil || res.Outcome != signing.Verified || res.Digest != digest {
		t.Errorf("result %+v, %v", res, err)
	}

	c.expect(ExitVerification, []string{"verify", layout + "@sha256:" + strings.Repeat("ab", 32), "--key", m.pub}, "unsigned", "sha256:abab")
	other := filepath.Join(c.dir, "other")
	if _, err := signing.LoadOrCreateKey(other); err != nil {
		t.Fatal(err)
	}
	c.expect(ExitVerification, []string{"verify", layout, "--key", filepath.Join(other, "cosign.pub")}, digest, "wrong-signer")
	if c.stdout.Len() > 0 {
		t.Errorf("a rejected signature has standard output %q", &c.stdout)
	}
}

func TestVerifyAnUnsignedLayout(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	layout := filepath.Join(c.dir, "layout")
	if err := publish.Layout(t.Context(), m.store, layout, publish.Release{Index: m.index, Images: m.images}, []string{"v1"}); err != nil {
		t.Fatal(err)
	}
	c.expect(ExitVerification, []string{"verify", layout, "--key", m.pub}, m.index.Descriptor.Digest, "unsigned")
}

func TestVerifyADamagedLayout(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	layout := m.publish(c, imageFlags{})
	for what, digest := range map[string]string{
		"index": m.index.Descriptor.Digest, "manifest": m.images[0].Manifest.Descriptor.Digest,
		"config": m.images[1].Config.Descriptor.Digest, "layer": m.images[0].Layers[0].Descriptor.Digest,
	} {
		blob := filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
		good, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		for _, b := range [][]byte{bad, good[:len(good)-1]} {
			if err := store.WriteFile(blob, b, 0o644); err != nil {
				t.Fatal(err)
			}
			c.expect(ExitVerification, []string{"verify", layout, "--key", m.pub}, "damaged", digest)
			if c.stdout.Len() > 0 {
				t.Errorf("a changed %s passes: %s", what, &c.stdout)
			}
		}
		if err := os.Remove(blob); err != nil {
			t.Fatal(err)
		}
		c.expect(ExitVerification, []string{"verify", layout, "--key", m.pub}, "damaged", digest)
		if err := store.WriteFile(blob, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(ExitOK, []string{"verify", layout, "--key", m.pub})
}

func TestVerifyInARegistry(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	reg := standin.NewRegistry(t, standin.Options{Referrers: true})
	repo := reg.Host() + "/node"
	if at := m.publish(c, imageFlags{push: repo}); at != repo {
		t.Errorf("pushed to %s", at)
	}
	digest := m.index.Descriptor.Digest
	for _, ref := range []string{repo + ":dev-k8s1.37", repo + "@" + digest, repo + ":other@" + digest} {
		before := reg.Count("GET", "/manifests/dev-k8s1.37")
		c.expect(ExitOK, []string{"verify", ref, "--key", m.pub})
		if want := "verified " + repo + "@" + digest + ": "; !strings.HasPrefix(c.stdout.String(), want) {
			t.Errorf("verify %s says %q, expected %q", ref, &c.stdout, want)
		}
		if n := reg.Count("GET", "/manifests/dev-k8s1.37") - before; n > 1 {
			t.Errorf("verify %s looked the tag up %d times", ref, n)
		}
	}
	c.expect(ExitUnreachable, []string{"verify", repo + ":v0", "--key", m.pub}, "/node/manifests/v0: not found")
}

func TestInspectReportsEveryFindingInEveryForm(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	layout := m.publish(c, imageFlags{})
	reg := standin.NewRegistry(t, standin.Options{Referrers: true})
	m.publish(c, imageFlags{push: reg.Host() + "/node"})
	archive := filepath.Join(c.dir, "layout.tar")
	if _, err := (run.Cmd{Path: "/usr/bin/tar", Args: []string{"-cf", archive, "-C", layout, "."}}).Output(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{layout, layout + "@" + m.index.Descriptor.Digest, archive, reg.Host() + "/node:dev-k8s1.37", reg.Host() + "/node@" + m.index.Descriptor.Digest} {
		c.expect(ExitVerification, []string{"inspect", name, "--platform", "linux/arm64", "--output", "json"}, "finding(s)")
		var r inspect.Report
		if err := json.Unmarshal(c.stdout.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Image != name || r.Digest != m.images[1].Manifest.Descriptor.Digest || r.Platform != "linux/arm64" || len(r.Findings) < 10 {
			t.Errorf("inspect %s: image %s, digest %s, platform %s, %d findings", name, r.Image, r.Digest, r.Platform, len(r.Findings))
		}
	}
	c.expect(ExitVerification, []string{"inspect", layout, "--platform", "linux/amd64"})
	for _, want := range []string{layout, m.images[0].Manifest.Descriptor.Digest, "✗ paths /usr/bin/kubeadm"} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	c.expect(ExitUsage, []string{"inspect", layout, "--minor", "1.20"}, "1.20 is outside")
	c.expect(ExitUsage, []string{"inspect", layout + "@sha256:" + strings.Repeat("ab", 32)}, "does not list sha256:abab")
}

func TestInspectRefusesWhatItCanNotRead(t *testing.T) {
	c := open(t)
	m := makeTiny(c)
	one, err := finish.Index(m.images[:1], nil)
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(c.dir, "layout")
	if err := publish.Layout(t.Context(), m.store, layout, publish.Release{Index: one, Images: m.images[:1]}, []string{"v1"}); err != nil {
		t.Fatal(err)
	}
	c.expect(ExitStale, []string{"inspect", layout, "--platform", "linux/arm64"}, "no manifest for linux/arm64", "offers linux/amd64")

	layer := m.images[0].Layers[0].Descriptor
	b, err := m.store.ReadAll(layer.Digest, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := store.WriteFile(filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(layer.Digest, "sha256:")), b, 0o644); err != nil {
		t.Fatal(err)
	}
	if code := c.run("inspect", layout, "--platform", "linux/amd64"); code == ExitOK || !strings.Contains(c.stderr.String(), layer.Digest) || c.stdout.Len() > 0 {
		t.Errorf("a changed layer: exit %d, %s%s", code, &c.stdout, &c.stderr)
	}
}

func TestTheOnlyImageOfALayout(t *testing.T) {
	image := func(digest, annotations string) string {
		return `{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"` + digest + `","size":1,"annotations":{` + annotations + `}}`
	}
	const ref = `"org.opencontainers.image.ref.name":`
	for _, tt := range []struct {
		name, manifests, want, say string
	}{
		{"one without a name", image("sha256:a", ""), "sha256:a", ""},
		{"several names", image("sha256:a", ref+`"v1"`) + "," + image("sha256:a", ref+`"latest"`), "sha256:a", ""},
		{"signatures beside it", image("sha256:a", ref+`"v1"`) + "," + image("sha256:b", ref+`"sha256-a.sig"`) + "," + image("sha256:c", `"kind":"dev.cosignproject.cosign/sigs"`) + "," + image("sha256:d", ""), "sha256:a", ""},
		{"two images", image("sha256:a", ref+`"v1"`) + "," + image("sha256:b", ref+`"v2"`), "", "holds 2 images (sha256:a, sha256:b)"},
		{"nothing", "", "", "holds 0 images"},
	} {
		got, err := onlyIndex([]byte(`{"manifests":[` + tt.manifests + `]}`))
		if got.Digest != tt.want || (err == nil) != (tt.say == "") || err != nil && (!strings.Contains(err.Error(), tt.say) || ExitCode(err) != ExitUsage) {
			t.Errorf("%s: %q, %v", tt.name, got.Digest, err)
		}
	}
	if _, err := onlyIndex([]byte("{")); err == nil {
		t.Error("a torn index.json was read")
	}
}

func TestTheSummaryLiesBesideTheImage(t *testing.T) {
	c := open(t)
	row, err := c.app.row("1.37")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(c.dir, "out")
	if err := c.app.summarise(imageFlags{out: out}, row, report.Summary{Image: "x@sha256:a", Kubernetes: "v1.37.2"}); err != nil {
		t.Fatal(err)
	}
	var back report.Summary
	b, err := os.ReadFile(filepath.Join(out, "k8s-1.37.json"))
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || back.Image != "x@sha256:a" {
		t.Errorf("%+v, %v", back, err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "k8s-1.37.md")); err != nil || !bytes.HasPrefix(b, []byte("# Node image for Kubernetes v1.37.2\n")) {
		t.Errorf("%s, %v", b, err)
	}
}
