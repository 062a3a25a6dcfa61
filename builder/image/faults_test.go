package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/cli"
	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

// is tells whether an error is or wraps an E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// rejected tells whether the first signature that was rejected was so for this.
func rejected(outcome signing.Outcome) func(error) bool {
	return func(err error) bool {
		r, ok := errors.AsType[*signing.Rejection](err)
		return ok && r.Result.Outcome == outcome
	}
}

// inspected is how an image of fixtures ends: it was made of verified inputs,
// and is not what a node image has to be.
var inspected = is[*image.NotConformant]

// fault is one thing that is wrong with the inputs or their servers.
type fault struct {
	name   string
	before func(*world) // changes what is published
	after  func(*world) // changes how it is served
	is     func(error) bool
	exit   int
	says   []string // in the error, with {etcd.digest} and the like; see world.text
}

func (f fault) run(t *testing.T) {
	t.Parallel()
	w := newWorld(t, signingtest.Config{})
	if f.before != nil {
		f.before(w)
	}
	w.publish()
	if f.after != nil {
		f.after(w)
	}
	made, err := image.Make(t.Context(), w.spec)
	w.check(made, err, f)
	w.nothingLeft()
}

func (w *world) check(made *image.Made, err error, f fault) {
	w.t.Helper()
	if made != nil || err == nil || !f.is(err) {
		w.t.Fatalf("got %v and error %T: %v", made, err, err)
	}
	if got := cli.ExitCode(err); got != f.exit {
		w.t.Errorf("exit code %d, expected %d, for %v", got, f.exit, err)
	}
	for _, s := range f.says {
		if s = w.text(s); !strings.Contains(err.Error(), s) {
			w.t.Errorf("error does not say %q:\n%v", s, err)
		}
	}
}

func TestWhatMustNotPassDoesNotPass(t *testing.T) {
	sign := func(name string, change func(*signingtest.Options)) func(*world) {
		return func(w *world) { change(&w.images[name].options) }
	}
	etcd := func(files ...file) func(*world) {
		return func(w *world) {
			w.images["etcd"].files = append(files, file{name: "usr/local/bin/etcdutl", content: w.tool("etcdutl", w.row.EtcdVersion())})
		}
	}
	etcdctl := func(f file) func(*world) { f.name = "usr/local/bin/etcdctl"; return etcd(f) }
	badTool := func(found, want string) []string {
		return []string{"/usr/local/bin/etcdctl of {etcd}", "{etcd.manifest}", "found " + found, "expected " + want}
	}
	someDigest := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}
	version := newWorld(t, signingtest.Config{}).row.EtcdVersion()

	for _, f := range []fault{
		// Signatures.
		{
			name: "an unsigned image", before: func(w *world) { w.images["etcd"].signer = nil },
			is: rejected(signing.Unsigned), exit: cli.ExitVerification, says: []string{"{etcd}", "{etcd.digest}", "unsigned"},
		},
		{
			name: "a wrong signer", before: sign("kube-proxy", func(o *signingtest.Options) { o.Identity = "someone@example.org" }),
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{"{kube-proxy}", "{kube-proxy.digest}", "someone@example.org", imageSigner},
		},
		{
			name: "the right signer by another issuer", before: sign("pause", func(o *signingtest.Options) { o.Issuer = "https://accounts.example.org" }),
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{"{pause}", "https://accounts.example.org", issuer},
		},
		{
			name: "a look-alike identity by one character", before: sign("etcd", func(o *signingtest.Options) { o.Identity = "images@exampleXcom" }),
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{"{etcd}", "images@exampleXcom"},
		},
		{
			name: "a look-alike identity that holds the right one", before: sign("etcd", func(o *signingtest.Options) { o.Identity = "x-" + imageSigner + ".example.net" }),
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{"{etcd}", "x-" + imageSigner + ".example.net"},
		},
		{
			name: "the right names from another authority", before: func(w *world) { w.images["base"].signer = signingtest.New(w.t, signingtest.Config{}) },
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{"{base}", "{base.digest}"},
		},
		{
			name: "a signature for another digest", before: sign("coredns", func(o *signingtest.Options) { o.Digest = someDigest }),
			is: rejected(signing.WrongDigest), exit: cli.ExitVerification, says: []string{"{coredns}", "{coredns.digest}", someDigest.String()},
		},
		{
			name: "a trust root that ended before the image was signed",
			before: func(w *world) {
				ended := signingtest.New(w.t, signingtest.Config{CAEnd: time.Now().Add(-48 * time.Hour)})
				w.in.Trust = ended.TrustedRoot()
				for _, in := range w.images {
					in.signer = ended
				}
			},
			is: rejected(signing.TrustExpired), exit: cli.ExitVerification,
			says: []string{"{etcd}", "{base}", time.Now().UTC().Add(-48 * time.Hour).Format("2006-01-02T15")},
		},
		{
			name: "a signature that can't be read",
			after: func(w *world) {
				w.reg.Fail(standin.Fault{Path: strings.Replace(w.images["etcd"].digest, ":", "-", 1) + ".sig", Status: http.StatusServiceUnavailable})
			},
			is: rejected(signing.Unreachable), exit: cli.ExitUnreachable, says: []string{"{etcd}", "503"},
		},
		{
			name: "an image that no rule covers", before: func(w *world) {
				w.in.Policy = []byte(strings.Replace(policy, "inputs.example.com/**", "inputs.example.com/tools", 1))
			},
			is: func(err error) bool { return errors.Is(err, signing.ErrNoRule) }, exit: cli.ExitRefused, says: []string{"{base}", "add one"},
		},
		{
			name: "several bad inputs are all named",
			before: func(w *world) {
				w.images["etcd"].signer = nil
				w.images["pause"].options.Identity = "someone@example.org"
				w.images["kube-proxy"].platform = other.String()
				w.blob.Identity = "someone@example.org"
			},
			after: func(w *world) {
				w.reg.Fail(standin.Fault{Path: "/coredns/manifests/" + w.images["coredns"].digest, Status: http.StatusNotFound})
			},
			is: is[*signing.Rejection], exit: cli.ExitVerification,
			says: []string{"{etcd}", "{etcd.digest}", "{pause}", "someone@example.org", "{kube-proxy}", "{coredns}", "dl.k8s.io/release/kubectl"},
		},
		{
			name: "an exception for what must always verify", before: func(w *world) {
				w.in.Policy = []byte(policy + "exceptions:\n" +
					"- {reference: '" + w.images["etcd"].ref + "', reason: it hurts}\n" +
					"- {reference: '" + w.images["pause"].ref + "', reason: it hurts}\n" +
					"- {reference: '" + w.images["coredns"].ref + "', reason: it hurts}\n")
			},
			is: is[*image.BadPolicy], exit: cli.ExitUsage, says: []string{"{etcd}", "etcd must always verify", "pause must always verify", "coredns must always verify"},
		},
		{
			name: "a release file with a strange signer", before: func(w *world) { w.blob.Identity = imageSigner },
			is: rejected(signing.WrongSigner), exit: cli.ExitVerification, says: []string{kubectlURL[len("https://"):], imageSigner, fileSigner},
		},
		{
			name: "a release file with the signature of another", before: func(w *world) { w.blob.Digest = someDigest },
			is: rejected(signing.WrongDigest), exit: cli.ExitVerification, says: []string{kubectlURL[len("https://"):]},
		},

		// Bytes.
		{
			name: "a changed layer", after: func(w *world) { w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Flip: true}) },
			is: is[*store.DigestMismatch], exit: cli.ExitStale, says: []string{"{etcd}", "/blobs/{etcd.layer}", "content has digest sha256:", "expected {etcd.layer}"},
		},
		{
			name: "a changed index", after: func(w *world) { w.reg.Fail(standin.Fault{Path: "/manifests/" + w.images["etcd"].digest, Flip: true}) },
			is: is[*store.DigestMismatch], exit: cli.ExitStale, says: []string{"{etcd}", "expected {etcd.digest}"},
		},
		{
			name: "a changed release file", after: func(w *world) { w.web.Put(kubectlURL, []byte("kubect1")) },
			is: is[*store.DigestMismatch], exit: cli.ExitStale, says: []string{kubectlURL, "expected " + store.Digest([]byte("kubectl"))},
		},
		{
			name: "a layer that ends early every time", after: func(w *world) { w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Cut: 600}) },
			is: is[*fetch.Unreachable], exit: cli.ExitUnreachable, says: []string{"{etcd}", "/blobs/{etcd.layer}", "attempts: 5"},
		},
		{
			name: "a server that is always busy", after: func(w *world) {
				w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Status: http.StatusServiceUnavailable})
			},
			is: is[*fetch.Unreachable], exit: cli.ExitUnreachable, says: []string{"{etcd}", "registry.k8s.io/v2/etcd/blobs/{etcd.layer}", "503", "attempts: 5"},
		},
		{
			name: "a file that is gone", after: func(w *world) { w.web.Fail(standin.Fault{Path: "plugins.tgz", Status: http.StatusNotFound}) },
			is: is[*fetch.NotFound], exit: cli.ExitUnreachable, says: []string{pluginsURL},
		},
		{
			name: "a platform that is not offered", before: func(w *world) { w.images["coredns"].platform = other.String() },
			is: is[*fetch.NoPlatform], exit: cli.ExitStale, says: []string{"{coredns}", "no manifest for " + platform.String(), "offers " + other.String()},
		},

		// Tools.
		{
			name: "an etcd image without etcdutl", before: func(w *world) { w.images["etcd"].files = w.images["etcd"].files[:1] },
			is: is[*image.BadTool], exit: cli.ExitStale, says: []string{"/usr/local/bin/etcdutl of {etcd}", "{etcd.manifest}", "expected an executable file"},
		},
		{
			name: "an etcdctl of another version", before: func(w *world) {
				etcdctl(file{content: w.tool("etcdctl", "3.4.18")})(w)
			},
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool(`version "3.4.18"`, "version "+version),
		},
		{
			name: "an etcdctl for another architecture", before: etcdctl(file{content: string(foreign)}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("an executable for ", "a static executable for "+platform.String()),
		},
		{
			name: "an etcdctl that needs a C library", before: etcdctl(file{content: dynamic(native)}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("a dynamically linked executable", "a static executable for "+platform.String()),
		},
		{
			name: "an etcdctl that is a script", before: etcdctl(file{content: "#!/bin/sh\necho etcdctl version: " + version + "\n"}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("not an ELF executable", "a static executable for "+platform.String()),
		},
		{
			name: "an etcdctl that nobody may execute", before: etcdctl(file{mode: 0o644, content: "etcdctl"}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("mode -rw-r--r--", "an executable file"),
		},
		{
			name: "an etcdctl that is a folder", before: etcdctl(file{typeflag: '5'}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("", "an executable file"),
		},
		{
			name: "an etcdctl that fails", before: etcdctl(file{content: says(native)}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("", "that it reports version "+version),
		},
		{
			name: "an etcdctl that leads back to itself", before: etcdctl(file{symlink: "etcdctl"}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("", "an executable file")[:2],
		},
		{
			name: "an entry above the root", before: etcd(file{name: "../../usr/local/bin/etcdctl", content: "etcdctl"}),
			is: is[*layerfs.Escape], exit: cli.ExitStale, says: []string{"{etcd}", "../../usr/local/bin/etcdctl"},
		},
		{
			name: "a hard link to a file above the root", before: etcdctl(file{hard: "../../../../etc/shadow"}),
			is: is[*layerfs.Escape], exit: cli.ExitStale, says: []string{"{etcd}", "../../../../etc/shadow"},
		},
		{
			name: "a symlink to a file of the build host", before: etcdctl(file{symlink: "../../../../../../bin/sh"}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("nothing", "an executable file"),
		},
		{
			name: "a device in place of etcdctl", before: etcdctl(file{typeflag: '3'}),
			is: is[*image.BadTool], exit: cli.ExitStale, says: badTool("", "an executable file"),
		},
		{
			name: "a release file that lacks its member", before: func(w *world) { w.plugins = []file{{name: "dhcp", content: "dhcp"}} },
			is: is[*image.BadTool], exit: cli.ExitStale, says: []string{pluginsURL, "loopback"},
		},
		{
			name: "a member that is a link", before: func(w *world) { w.plugins = []file{{name: "loopback", symlink: "/bin/sh"}} },
			is: is[*image.BadTool], exit: cli.ExitStale, says: []string{pluginsURL, "loopback", "regular file"},
		},

		// The bundle.
		{
			name: "kubeadm asks for an image that is not bundled, and for another than is",
			before: func(w *world) {
				refs := []string{"registry.k8s.io/extra:v1"}
				for _, i := range w.row.Images()[1:] {
					refs = append(refs, i.Reference)
				}
				w.images["tools"].files[0].content = w.kubeadm(refs)
			},
			is: is[*image.InputMismatch], exit: cli.ExitStale,
			says: []string{"kubeadm asks for registry.k8s.io/extra:v1, which is not bundled", "{kube-apiserver} is bundled, but kubeadm does not ask for it"},
		},
		{
			name: "a name with an architecture in it is another name",
			before: func(w *world) {
				refs := []string{}
				for _, i := range w.row.Images() {
					refs = append(refs, strings.Replace(i.Reference, "kube-apiserver:", "kube-apiserver-amd64:", 1))
				}
				w.images["tools"].files[0].content = w.kubeadm(refs)
			},
			is: is[*image.InputMismatch], exit: cli.ExitStale, says: []string{"kubeadm asks for registry.k8s.io/kube-apiserver-amd64:"},
		},
	} {
		t.Run(f.name, f.run)
	}
}

func TestWhatIsInOrderOrPassesByReachesTheInspection(t *testing.T) {
	link := func(files ...file) func(*world) {
		return func(w *world) {
			for i := range files {
				if files[i].content == "etcdctl" {
					files[i].content = w.tool("etcdctl", w.row.EtcdVersion())
				}
			}
			w.images["etcd"].files = append(files, w.images["etcd"].files[1])
		}
	}
	for _, f := range []fault{
		{name: "all is in order"},
		{name: "etcdctl is an absolute symlink", before: link(file{name: "opt/etcdctl-3", content: "etcdctl"}, file{name: "usr/local/bin/etcdctl", symlink: "/opt/etcdctl-3"})},
		{name: "etcdctl is a symlink that climbs to the root", before: link(file{name: "opt/etcdctl", content: "etcdctl"}, file{name: "usr/local/bin/etcdctl", symlink: "../../../../opt/etcdctl"})},
		{name: "etcdctl is a hard link beside an old version", before: link(
			file{name: "usr/local/bin/etcdctl-3.4.18", content: "old"}, file{name: "usr/local/bin/etcdctl-new", content: "etcdctl"}, file{name: "usr/local/bin/etcdctl", hard: "usr/local/bin/etcdctl-new"})},
		{name: "a layer ends early once", after: func(w *world) {
			w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Cut: 600, Times: 2})
		}},
		{name: "a layer arrives changed once", after: func(w *world) {
			w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Flip: true, Times: 1})
		}},
		{name: "a server drops connections", after: func(w *world) { w.reg.Fail(standin.Fault{Drop: true, Times: 3}) }},
	} {
		f.is, f.exit = inspected, cli.ExitVerification
		t.Run(f.name, f.run)
	}
}

func TestProgramsForAnotherArchitectureAreReadAndNotRun(t *testing.T) {
	version := newWorld(t, signingtest.Config{}).row.EtcdVersion()
	etcdutl := built(t, other.Architecture, "etcdutl", version)
	for ctl, f := range map[string]fault{
		version:  {is: inspected, exit: cli.ExitVerification},
		"3.4.18": {is: is[*image.BadTool], exit: cli.ExitStale, says: []string{"/usr/local/bin/etcdctl of {etcd}", `version "3.4.18"`, "expected version " + version}},
	} {
		f.name = "etcdctl " + ctl
		f.before = func(w *world) {
			w.spec.Platform = other
			for _, in := range w.images {
				in.platform = other.String()
			}
			w.images["etcd"].files[0].content = built(w.t, other.Architecture, "etcdctl", ctl)
			w.images["etcd"].files[1].content = etcdutl
		}
		t.Run(f.name, f.run)
	}
}

func TestABusyServerGetsTheTimeItAsksFor(t *testing.T) {
	w := newWorld(t, signingtest.Config{})
	w.publish()
	w.reg.Fail(standin.Fault{
		Path: "/blobs/" + w.images["etcd"].layer, Times: 1,
		Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "17"},
	})
	made, err := image.Make(t.Context(), w.spec)
	w.check(made, err, fault{is: inspected, exit: cli.ExitVerification})
	if !slices.Equal(w.waits, []time.Duration{17 * time.Second}) {
		t.Errorf("waited %v, expected 17 s once", w.waits)
	}
}

func TestATagThatMovesIsNeverLookedAt(t *testing.T) {
	w := newWorld(t, signingtest.Config{})
	w.publish()
	w.reg.Push(w.images["etcd"].ref, standin.Image(t, platform.String(), 1))
	made, err := image.Make(t.Context(), w.spec)
	w.check(made, err, fault{is: inspected, exit: cli.ExitVerification})
	for _, r := range w.reg.Requests() {
		if _, id, ok := strings.Cut(r.Path, "/manifests/"); ok && r.Method == http.MethodGet && !strings.HasPrefix(id, "sha256") {
			t.Errorf("%s was asked for", r.Path)
		}
	}
	e := w.imagesLock(err)["etcd.tar"]
	if e.Digest != w.images["etcd"].manifest {
		t.Errorf("bundle holds etcd %s, expected %s", e.Digest, w.images["etcd"].manifest)
	}
}

func TestAnExceptionIsWrittenDownWithItsReason(t *testing.T) {
	w := newWorld(t, signingtest.Config{})
	w.images["kube-proxy"].signer = nil
	w.in.Policy = []byte(policy + "exceptions:\n- {reference: '" + w.images["kube-proxy"].ref + "', reason: built in this house}\n")
	w.publish()
	made, err := image.Make(t.Context(), w.spec)
	w.check(made, err, fault{is: inspected, exit: cli.ExitVerification})
	entries := w.imagesLock(err)
	if len(entries) != len(w.row.Images()) {
		t.Errorf("images.lock has %d images, expected %d", len(entries), len(w.row.Images()))
	}
	for name, e := range entries {
		want := bundle.Entry{Verified: true, Verification: lock.Verification{By: lock.BySignature, Identity: imageSigner, Issuer: issuer}}
		if name == "kube-proxy.tar" {
			want = bundle.Entry{Reason: "built in this house", Verification: lock.Verification{By: lock.ByException, Reason: "built in this house"}}
		}
		if e.Verified != want.Verified || e.Reason != want.Reason || e.Verification != want.Verification {
			t.Errorf("%s: verified %v, reason %q, by %+v", name, e.Verified, e.Reason, e.Verification)
		}
		in := w.images[strings.TrimSuffix(name, ".tar")]
		if e.Reference != in.ref || e.Digest != in.manifest {
			t.Errorf("%s is %s@%s, expected %s@%s", name, e.Reference, e.Digest, in.ref, in.manifest)
		}
	}
}

func TestTheSameInputsGiveTheSameImageAnywhere(t *testing.T) {
	w := newWorld(t, signingtest.Config{})
	w.publish()
	digest := func() string {
		t.Helper()
		made, err := image.Make(t.Context(), w.spec)
		w.check(made, err, fault{is: inspected, exit: cli.ExitVerification})
		report, _ := errors.AsType[*image.NotConformant](err)
		return report.Report.Digest
	}
	first := digest()

	fetched := w.reg.Count("", "/blobs/") - signatures(w)
	if again := digest(); again != first {
		t.Errorf("a warm build is %s, the first was %s", again, first)
	}
	if n := w.reg.Count("", "/blobs/") - 2*signatures(w); n != fetched {
		t.Errorf("a warm build fetched %d blobs of inputs again", n-fetched)
	}

	w.spec.Store = openStore(t, t.TempDir())
	old := syscall.Umask(0o077)
	elsewhere := digest()
	syscall.Umask(old)
	if elsewhere != first {
		t.Errorf("another store and umask give %s, expected %s", elsewhere, first)
	}
}

// signatures is how many blobs of signatures one build reads: one for each image.
func signatures(w *world) int { return len(w.images) }

func TestACancelledBuildLeavesNothing(t *testing.T) {
	w := newWorld(t, signingtest.Config{})
	w.publish()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.reg.Fail(standin.Fault{Path: "/blobs/" + w.images["etcd"].layer, Cut: 1000, Hang: true})
	w.spec.Progress = func(name string, done, _ int64) {
		if strings.HasPrefix(name, "etcd ") && done == 1000 {
			cancel()
		}
	}
	made, err := image.Make(ctx, w.spec)
	w.check(made, err, fault{is: func(err error) bool { return errors.Is(err, context.Canceled) }, exit: cli.ExitUnexpected, says: []string{"{etcd}"}})
	w.nothingLeft()

	w.reg.Heal()
	w.spec.Progress = nil
	made, err = image.Make(t.Context(), w.spec)
	w.check(made, err, fault{is: inspected, exit: cli.ExitVerification})
}

func TestAFullDiskLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	w := newWorld(t, signingtest.Config{})
	w.publish()
	w.spec.Store = openStore(t, dir)
	made, err := image.Make(t.Context(), w.spec)
	w.check(made, err, fault{is: func(err error) bool { return errors.Is(err, unix.ENOSPC) }, exit: cli.ExitUnexpected, says: []string{dir, "no space left on device"}})
	w.nothingLeft()
}

// imagesLock returns the entries of images.lock, by archive, of the image that
// an inspection turned down.
func (w *world) imagesLock(err error) map[string]bundle.Entry {
	w.t.Helper()
	report, ok := errors.AsType[*image.NotConformant](err)
	if !ok {
		w.t.Fatal(err)
	}
	read := func(digest string, v any) {
		b, err := w.spec.Store.ReadAll(digest, 1<<20)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var manifest struct {
		Config store.Descriptor
		Layers []store.Descriptor
	}
	read(report.Report.Digest, &manifest)
	var config v1.ConfigFile
	read(manifest.Config.Digest, &config)
	var layers []layerfs.Layer
	for i, d := range manifest.Layers {
		layers = append(layers, layerfs.Layer{Descriptor: d, DiffID: config.RootFS.DiffIDs[i].String(), Open: func() (io.ReadCloser, error) { return w.spec.Store.Open(d.Digest) }})
	}
	fsys, err := layerfs.New(w.t.Context(), layers)
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := fsys.ReadFile(w.t.Context(), filepath.Join(overlay.BundleDir, bundle.LockName), 1<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := bundle.ParseLock(b)
	if err != nil {
		w.t.Fatal(err)
	}
	entries := map[string]bundle.Entry{}
	for _, e := range list.Images {
		entries[e.Archive] = e
	}
	return entries
}
