package images

import (
	"archive/tar"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

const pause = "registry.k8s.io/pause:3.10.2"

// dir is the end of every summary.
const dir = " dir=/system/provider-kubernetes/images\n"

func TestImportsAllThenNothing(t *testing.T) {
	n := newNode(t)
	s, log, why := n.doImport()
	if want := "image-import: summary outcome=success entries=3 imported=3 present=0 refused=0 failed=0 unlisted=0 readonly=false" + dir; log != want || why != "" || !s.OK() {
		t.Errorf("log %q, explained %q; expected %q", log, why, want)
	}
	first := n.load()
	if !sameImages(first.Images, n.all()) {
		t.Errorf("containerd holds %v: expected every image by its locked digest, pinned", first.Images)
	}

	s, log, _ = n.doImport()
	if want := "image-import: summary outcome=success entries=3 imported=0 present=3 refused=0 failed=0 unlisted=0 readonly=false" + dir; log != want || !s.OK() {
		t.Errorf("second run: log %q, expected %q", log, want)
	}
	for _, call := range n.load().Calls[len(first.Calls):] {
		if !strings.HasPrefix(call, "images ls -q ") {
			t.Errorf("second run: ctr %s", call)
		}
	}
}

func TestWhatContainerdHasDecidesWhatIsImported(t *testing.T) {
	n := newNode(t)
	n.fake.Images = n.all()
	n.fake.Images[references[0]].Digest = "sha256:" + sum([]byte("another"))
	n.fake.Images[references[1]].Labels = map[string]string{"io.cri-containerd.image": "managed"}
	n.fake.Images["registry.k8s.io/etcd:3.6.8-0"] = &fakeImage{Digest: "sha256:" + sum(nil)}
	n.save()
	_, log, _ := n.doImport()
	if !strings.Contains(log, "outcome=success entries=3 imported=1 present=2 refused=0 failed=0") {
		t.Error(log)
	}
	state := n.load()
	if got := state.Images[references[1]].Labels; len(got) != 2 || got[pinLabel] != pinValue {
		t.Errorf("labels are %v: expected the pin beside what was there", got)
	}
	if got := state.Images[references[0]].Digest; got != n.list[0].Digest {
		t.Errorf("digest is %s: expected the locked %s", got, n.list[0].Digest)
	}
	imports := slices.DeleteFunc(state.Calls, func(c string) bool { return !strings.Contains(c, " import ") })
	if len(imports) != 1 {
		t.Errorf("imports: %q", imports)
	}
}

func TestVerifyAsksNothingOfContainerd(t *testing.T) {
	n := newNode(t)
	must(os.Remove(filepath.Join(n.programs, "ctr")))
	s, log, why := n.doVerify()
	if want := "image-import: summary outcome=verified entries=3 imported=0 present=0 refused=0 failed=0 unlisted=0 readonly=false" + dir; log != want || why != "" || !s.OK() {
		t.Errorf("log %q, explained %q; expected %q", log, why, want)
	}
}

func TestFilesThatTheListDoesNotNameAreCountedAndLeft(t *testing.T) {
	n := newNode(t)
	n.archive("extra.tar", []byte("x"))
	n.archive(".hidden", []byte("x"))
	must(os.Mkdir(n.path(overlay.BundleDir+"/folder"), 0o755))
	s, _, _ := n.doImport()
	if s.Outcome != Success || s.Unlisted != 3 || len(n.load().Images) != 3 {
		t.Errorf("%v, containerd holds %v", s, n.load().Images)
	}
}

func TestWithoutABundleThereIsNothingToDo(t *testing.T) {
	for _, gone := range []string{overlay.BundleDir, filepath.Dir(overlay.BundleDir), "system"} {
		n := newNode(t)
		must(os.RemoveAll(n.path(gone)))
		s, log, _ := n.doImport()
		if want := "image-import: summary outcome=not-bundled entries=0 imported=0 present=0 refused=0 failed=0 unlisted=0 readonly=false" + dir; log != want || !s.OK() {
			t.Errorf("without %s: log %q, expected %q", gone, log, want)
		}
	}
}

// asRoot skips a test that gives files to other users or mounts.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("changes owners or mounts: needs root")
	}
}

// A refused bundle is refused by import and verification alike, and nothing is imported.
func TestABundleThatCannotBeTrustedIsRefused(t *testing.T) {
	bundle, provider := overlay.BundleDir, overlay.Provider
	list := bundle + "/" + LockName
	chmod := func(name string, mode fs.FileMode) func(*node) {
		return func(n *node) { must(os.Chmod(n.path(name), mode)) }
	}
	moved := func(name string) func(*node) { // and linked to where it was
		return func(n *node) {
			must(os.Rename(n.path(name), n.path("elsewhere")), os.Symlink(n.path("elsewhere"), n.path(name)))
		}
	}
	tests := []struct {
		name   string
		damage func(*node)
		root   bool
		reason reason
	}{
		{"root writable by others", chmod(".", 0o777), false, dirUnsafe},
		{"system writable by the group", chmod("system", 0o775), false, dirUnsafe},
		{"folder writable by the group", chmod(bundle, 0o775), false, dirUnsafe},
		{"folder above writable by others", chmod(filepath.Dir(bundle), 0o757), false, dirUnsafe},
		{"folder is a link", moved(bundle), false, dirUnsafe},
		{"folder above is a link", moved(filepath.Dir(bundle)), false, dirUnsafe},
		{"folder is a file", func(n *node) { must(os.RemoveAll(n.path(bundle))); n.write(bundle, nil, 0o644) }, false, dirUnsafe},
		{"folder of another user", func(n *node) { must(os.Chown(n.path(bundle), 1, 0)) }, true, dirUnsafe},
		{"provider missing", func(n *node) { must(os.Remove(n.path(provider))) }, false, anchorUnsafe},
		{"provider is a link", moved(provider), false, anchorUnsafe},
		{"provider is a folder", func(n *node) { must(os.Remove(n.path(provider)), os.Mkdir(n.path(provider), 0o755)) }, false, anchorUnsafe},
		{"provider writable by others", chmod(provider, 0o757), false, anchorUnsafe},
		{"provider's folder writable by the group", chmod(filepath.Dir(provider), 0o775), false, anchorUnsafe},
		{"provider's folder is a link", moved(filepath.Dir(provider)), false, anchorUnsafe},
		{"provider of another user", func(n *node) { must(os.Chown(n.path(provider), 1, 0)) }, true, anchorUnsafe},
		{"no list", func(n *node) { must(os.Remove(n.path(list))) }, false, lockMissing},
		{"list is no list", func(n *node) { n.lock("images: []\n") }, false, lockInvalid},
		{"list is a link", moved(list), false, symlink},
		{"list is a folder", func(n *node) { must(os.Remove(n.path(list)), os.Mkdir(n.path(list), 0o755)) }, false, notRegular},
		{"list is a pipe", func(n *node) { must(os.Remove(n.path(list)), syscall.Mkfifo(n.path(list), 0o644)) }, false, notRegular},
		{"list writable by the group", chmod(list, 0o664), false, badMode},
		{"list of another user", func(n *node) { must(os.Chown(n.path(list), 1, 0)) }, true, badOwner},
		{"list is empty", func(n *node) { n.lock("") }, false, badSize},
		{"list is too large", func(n *node) { n.lock(lockText(n.list) + strings.Repeat("#", lockLimit)) }, false, badSize},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.root {
				asRoot(t)
			}
			n := newNode(t)
			test.damage(n)
			for verb, do := range map[string]func() (Summary, string, string){"import": n.doImport, "verify": n.doVerify} {
				s, log, why := do()
				want := fmt.Sprintf("image-import: bundle refused reason=%s\nimage-import: summary outcome=refused entries=0 imported=0 present=0 refused=0 failed=0 ", test.reason)
				if !strings.HasPrefix(log, want) || s.OK() || !strings.HasPrefix(why, "image-import: bundle: ") {
					t.Errorf("%s: log %q, explained %q; expected %q", verb, log, why, want)
				}
			}
			if calls := n.load().Calls; len(calls) > 0 {
				t.Errorf("ctr was run: %q", calls)
			}
		})
	}
}

func TestADamagedArchiveIsRefused(t *testing.T) {
	archive := overlay.BundleDir + "/pause.tar"
	remade := func(change func(*packed)) func(*node) {
		return func(n *node) {
			p := pack(pause, []byte("the program of "+pause))
			change(&p)
			n.replace(p)
		}
	}
	// The list keeps size and sha256 of the sound archive.
	bytes := func(change func(sound packed, b []byte) []byte) func(*node) {
		return func(n *node) {
			p := pack(pause, []byte("the program of "+pause))
			n.archive("pause.tar", change(p, p.bytes()))
		}
	}
	flip := func(what func(p packed) []byte) func(*node) {
		return bytes(func(p packed, b []byte) []byte {
			at := strings.LastIndex(string(b), string(what(p)))
			b[at+len(what(p))/2] ^= 1
			return b
		})
	}
	add := func(p *packed, e entry) { p.entries = append(p.entries, e) }
	tests := []struct {
		name   string
		damage func(*node)
		root   bool
		reason reason
	}{
		{"missing", func(n *node) { must(os.Remove(n.path(archive))) }, false, missing},
		{"link", func(n *node) {
			must(os.Rename(n.path(archive), n.path("elsewhere")), os.Symlink("../../../elsewhere", n.path(archive)))
		}, false, symlink},
		{"folder", func(n *node) { must(os.Remove(n.path(archive)), os.Mkdir(n.path(archive), 0o755)) }, false, notRegular},
		{"pipe", func(n *node) { must(os.Remove(n.path(archive)), syscall.Mkfifo(n.path(archive), 0o644)) }, false, notRegular},
		{"socket", func(n *node) {
			must(os.Remove(n.path(archive)), syscall.Mknod(n.path(archive), syscall.S_IFSOCK|0o644, 0))
		}, false, notRegular},
		{"writable by the group", func(n *node) { must(os.Chmod(n.path(archive), 0o664)) }, false, badMode},
		{"writable by others", func(n *node) { must(os.Chmod(n.path(archive), 0o646)) }, false, badMode},
		{"of another user", func(n *node) { must(os.Chown(n.path(archive), 1, 0)) }, true, badOwner},
		{"cut", bytes(func(_ packed, b []byte) []byte { return b[:len(b)*6/10] }), false, badSize},
		{"longer", bytes(func(_ packed, b []byte) []byte { return append(b, make([]byte, 512)...) }), false, badSize},
		{"empty", bytes(func(packed, []byte) []byte { return nil }), false, badSize},

		{"one byte of the layer changed", flip(func(p packed) []byte { return p.layer }), false, badManifest},
		{"one byte of the manifest changed", flip(func(p packed) []byte { return p.manifest }), false, badManifest},
		{"one byte of the config changed", flip(func(p packed) []byte { return p.config }), false, badConfig},
		{"one byte of a name changed", flip(func(p packed) []byte { return []byte(blobDir + sum(p.layer)) }), false, badTar},
		{"one byte of the padding changed", bytes(func(_ packed, b []byte) []byte { b[512+100] = 1; return b }), false, badTar},
		{"one byte behind the end changed", bytes(func(_ packed, b []byte) []byte { b[len(b)-1] = 1; return b }), false, badTar},
		{"zeroes", bytes(func(_ packed, b []byte) []byte { clear(b); return b }), false, badTar},
		{"cut, listed so", func(n *node) {
			i := slices.IndexFunc(n.list, func(img Image) bool { return img.Reference == pause })
			b, err := os.ReadFile(n.path(archive))
			must(err)
			b = b[:len(b)-1024-500]
			n.list[i].Size, n.list[i].SHA256 = int64(len(b)), sum(b)
			n.archive("pause.tar", b)
			n.lock(lockText(n.list))
		}, false, badTar},

		{"extra file", remade(func(p *packed) { add(p, file("etc/passwd", []byte("x"))) }), false, badTar},
		{"extra blob", remade(func(p *packed) { add(p, file(blobDir+sum([]byte("x")), []byte("x"))) }), false, badTar},
		{"blob with a path for a name", remade(func(p *packed) { add(p, file(blobDir+"../x", []byte("x"))) }), false, badTar},
		{"blob twice", remade(func(p *packed) { add(p, file(blobDir+sum(p.layer), p.layer)) }), false, badTar},
		{"index twice", remade(func(p *packed) { add(p, *p.at(indexName)) }), false, badTar},
		{"index under a second spelling", remade(func(p *packed) { add(p, file("./"+indexName, p.index(nil))) }), false, badTar},
		{"link", remade(func(p *packed) {
			add(p, entry{tar.Header{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "/etc", Format: tar.FormatUSTAR}, nil})
		}), false, badTar},
		{"layer is a hard link", remade(func(p *packed) {
			p.at(blobDir + sum(p.layer)).Header = tar.Header{Name: blobDir + sum(p.layer), Typeflag: tar.TypeLink, Linkname: indexName, Format: tar.FormatUSTAR}
			p.at(blobDir + sum(p.layer)).body = nil
		}), false, badTar},
		{"other folder", remade(func(p *packed) { add(p, folder("blobs/sha512/")) }), false, badTar},
		{"PAX header", remade(func(p *packed) {
			p.at(indexName).Format, p.at(indexName).PAXRecords = tar.FormatPAX, map[string]string{"comment": "x"}
		}), false, badTar},
		{"GNU header", remade(func(p *packed) { p.at(indexName).Format = tar.FormatGNU }), false, badTar},
		{"no oci-layout", remade(func(p *packed) { p.entries = p.entries[1:] }), false, badTar},
		{"no index", remade(func(p *packed) { p.entries = slices.Delete(p.entries, 1, 2) }), false, badTar},
		{"no manifest.json", remade(func(p *packed) { p.entries = slices.Delete(p.entries, 2, 3) }), false, badTar},
		{"other layout version", remade(func(p *packed) { p.at(layoutName).body = []byte(`{"imageLayoutVersion":"2.0.0"}`) }), false, badTar},
		{"huge index", remade(func(p *packed) { p.at(indexName).body = make([]byte, documentLimit+1) }), false, badTar},

		{"other name", remade(func(p *packed) {
			p.at(indexName).body = p.index(func(d *descriptor) { d.Annotations[containerdName] = "registry.k8s.io/pause:latest" })
		}), false, badManifest},
		{"other name for other tools", remade(func(p *packed) {
			p.at(indexName).body = p.index(func(d *descriptor) { d.Annotations[referenceName] = "3.10.2" })
		}), false, badManifest},
		{"no name", remade(func(p *packed) { p.at(indexName).body = p.index(func(d *descriptor) { d.Annotations = nil }) }), false, badManifest},
		{"further annotation", remade(func(p *packed) {
			p.at(indexName).body = p.index(func(d *descriptor) { d.Annotations["x"] = "y" })
		}), false, badManifest},
		{"other name in manifest.json", remade(func(p *packed) {
			p.at(dockerName).body = []byte(strings.ReplaceAll(string(p.docker()), pause, "registry.k8s.io/pause:latest"))
		}), false, badManifest},
		{"manifest.json is none", remade(func(p *packed) { p.at(dockerName).body = []byte("[]") }), false, badManifest},
		{"index with two manifests", remade(func(p *packed) {
			p.at(indexName).body = []byte(strings.ReplaceAll(string(p.index(nil)), `"manifests":[`, `"manifests":[`+string(marshal(describe("", nil)))+","))
		}), false, badManifest},
		{"index with an unknown key", remade(func(p *packed) {
			p.at(indexName).body = []byte(`{"subject":{},` + string(p.index(nil)[1:]))
		}), false, badManifest},
		{"two indexes in one file", remade(func(p *packed) { p.at(indexName).body = append(p.index(nil), p.index(nil)...) }), false, badManifest},
		{"index is no JSON", remade(func(p *packed) { p.at(indexName).body = []byte("x") }), false, badManifest},
		{"another manifest", remade(func(p *packed) { *p = pack(pause, []byte("another program")) }), false, badManifest},
		{"wrong size in the index", remade(func(p *packed) { p.at(indexName).body = p.index(func(d *descriptor) { d.Size++ }) }), false, badManifest},
		{"layer missing", remade(func(p *packed) {
			p.entries = slices.DeleteFunc(p.entries, func(e entry) bool { return e.Name == blobDir+sum(p.layer) })
		}), false, badManifest},
		{"manifest missing", remade(func(p *packed) {
			p.entries = slices.DeleteFunc(p.entries, func(e entry) bool { return e.Name == blobDir+sum(p.manifest) })
		}), false, badManifest},
		{"config missing", remade(func(p *packed) {
			p.entries = slices.DeleteFunc(p.entries, func(e entry) bool { return e.Name == blobDir+sum(p.config) })
		}), false, badConfig},
		{"other bytes, sound image", remade(func(p *packed) { p.at("blobs/").Mode = 0o700 }), false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.root {
				asRoot(t)
			}
			n := newNode(t)
			test.damage(n)
			want := fmt.Sprintf("image-import: refused pause.tar ref=%s reason=%s\nimage-import: summary outcome=partial entries=3 imported=0 present=0 refused=1 failed=0 unlisted=0 readonly=false", pause, test.reason) + dir
			if test.reason == "" { // a list that agrees makes it right
				want = "image-import: summary outcome=verified entries=3 imported=0 present=0 refused=0 failed=0 unlisted=0 readonly=false" + dir
			}
			if s, log, why := n.doVerify(); log != want || s.OK() != (test.reason == "") || (why == "") != (test.reason == "") {
				t.Errorf("log %q, explained %q; expected %q", log, why, want)
			}
		})
	}
}

func TestOneArchiveIsRefusedAndTheOthersAreImported(t *testing.T) {
	n := newNode(t)
	must(os.Remove(n.path(overlay.BundleDir + "/coredns.tar")))
	p := pack(pause, []byte("another program"))
	n.replace(p)
	s, log, _ := n.doImport()
	want := "image-import: refused coredns.tar ref=registry.k8s.io/coredns/coredns:v1.14.6 reason=missing\n" +
		"image-import: refused pause.tar ref=registry.k8s.io/pause:3.10.2 reason=manifest\n" +
		"image-import: summary outcome=partial entries=3 imported=1 present=0 refused=2 failed=0 unlisted=0 readonly=false" + dir
	if log != want || s.OK() {
		t.Errorf("log %q, expected %q", log, want)
	}
	if got := n.load().Images; len(got) != 1 || got[references[0]] == nil {
		t.Errorf("containerd holds %v", got)
	}
}

func TestAnImageThatIsThereIsNotReadButItsArchiveMustBeSafe(t *testing.T) {
	n := newNode(t)
	n.fake.Images = n.all()
	n.save()
	n.replace(pack(pause, []byte("another program")))
	must(os.Chmod(n.path(overlay.BundleDir+"/coredns.tar"), 0o666))
	if _, log, _ := n.doImport(); !strings.HasPrefix(log, "image-import: refused coredns.tar ref="+references[1]+" reason=mode\n") || !strings.Contains(log, " imported=0 present=2 refused=1 failed=0 ") {
		t.Error(log)
	}
}

func TestABundleOfDamagedArchivesOnlyIsRefused(t *testing.T) {
	n := newNode(t)
	for _, img := range n.list {
		must(os.Remove(n.path(overlay.BundleDir + "/" + img.Archive)))
	}
	for _, do := range []func() (Summary, string, string){n.doImport, n.doVerify} {
		if s, log, _ := do(); s.Outcome != Refused || s.Refused != 3 {
			t.Error(log)
		}
	}
}

func TestCtrsFailures(t *testing.T) {
	tests := []struct {
		name    string
		state   fakeState
		prepare func(*node)
		outcome Outcome
		failed  int
		reason  reason
	}{
		{"containerd is still starting", fakeState{Down: 3}, nil, Success, 0, ""},
		{"two imports break off", fakeState{FailImports: 2}, nil, Success, 0, ""},
		{"one image can't be imported", fakeState{FailImports: importTries}, nil, Partial, 1, ctrFailed},
		{"no image can be imported", fakeState{FailImports: -1}, nil, Failed, 3, ctrFailed},
		{"an import never ends", fakeState{Hang: true}, func(n *node) { n.bound = 300 * time.Millisecond }, Failed, 3, deadline},
		{"ctr is missing", fakeState{}, func(n *node) { must(os.Remove(filepath.Join(n.programs, "ctr"))) }, Failed, 3, ctrFailed},
		{"ctr prints something else", fakeState{Noise: "REF TYPE DIGEST\n"}, nil, Failed, 3, ctrFailed},
		{"ctr prints a name that was not asked for", fakeState{Noise: "registry.k8s.io/etcd:3.7.0-0\n"}, nil, Failed, 3, ctrFailed},
		{"the store has another digest afterwards", fakeState{Loses: "digest"}, nil, Failed, 3, ctrFailed},
		{"the store has no pin afterwards", fakeState{Loses: "pin"}, nil, Failed, 3, ctrFailed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.fake = test.state
			n.fake.Images = map[string]*fakeImage{}
			n.save()
			if test.prepare != nil {
				test.prepare(n)
			}
			s, log, why := n.doImport()
			if s.Outcome != test.outcome || s.Failed != test.failed || s.Imported != 3-test.failed || s.Refused != 0 ||
				strings.Count(log, fmt.Sprintf("reason=%s\n", test.reason)) != test.failed {
				t.Errorf("log %s\nexplained %s", log, why)
			}
		})
	}
}

// onWrite is a writer that does something at each line.
type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

func TestAContainerdThatStaysDownIsCtrsFailureAndNotTheDeadlines(t *testing.T) {
	n := newNode(t)
	n.fake.Down = -1
	n.save()
	i, log, _ := n.importer()
	ctx, cancel := context.WithCancel(t.Context())
	i.Why = onWrite(cancel) // time is up when it says that it waits
	if s := i.Import(ctx); s.Outcome != Failed || s.Failed != 3 || strings.Count(log.String(), "reason=ctr-failed\n") != 3 {
		t.Error(log)
	}
}

func TestArchivesThatFailAndArchivesThatAreRefusedMakeAFailedImport(t *testing.T) {
	n := newNode(t)
	must(os.Remove(n.path(overlay.BundleDir + "/pause.tar")))
	n.fake.FailImports = -1
	n.save()
	if s, log, _ := n.doImport(); s.Outcome != Failed || s.Refused != 1 || s.Failed != 2 {
		t.Error(log)
	}
}

func TestCtrsWordsAreQuoted(t *testing.T) {
	n := newNode(t)
	n.fake.Noise = "\x1b[31mred\nimage-import: summary outcome=success\n"
	n.save()
	if _, log, why := n.doImport(); strings.Contains(why, "\x1b") || strings.Contains(log+why, "\nimage-import: summary outcome=success") {
		t.Errorf("%q %q", log, why)
	}
}

// mounted runs a test in a mount namespace of its own.
func mounted(t *testing.T, test func()) {
	t.Helper()
	asRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			test()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("no mount namespace here: %v", err)
	}
}

func TestAMountInTheBundleIsRefused(t *testing.T) {
	tests := []struct {
		name, at string
		tmpfs    bool
		refused  string
	}{
		{"file system over the folder", overlay.BundleDir, true, "image-import: bundle refused reason=device\n"},
		{"bind mount over the folder", overlay.BundleDir, false, "image-import: bundle refused reason=device\n"},
		{"bind mount over the folder above", filepath.Dir(overlay.BundleDir), false, "image-import: bundle refused reason=device\n"},
		{"bind mount over the list", overlay.BundleDir + "/" + LockName, false, "image-import: bundle refused reason=device\n"},
		{"bind mount over an archive", overlay.BundleDir + "/pause.tar", false, "image-import: refused pause.tar ref=" + pause + " reason=device\n"},
		{"bind mount over the provider", overlay.Provider, false, "image-import: bundle refused reason=device\n"},
		{"bind mount over both", "system", false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			mounted(t, func() {
				at := n.path(test.at)
				var err error
				if test.tmpfs {
					err = unix.Mount("tmpfs", at, "tmpfs", 0, "mode=0755")
				} else {
					err = unix.Mount(at, at, "", unix.MS_BIND, "")
				}
				if err != nil {
					t.Error(err)
					return
				}
				if _, log, why := n.doVerify(); !strings.HasPrefix(log, test.refused) || (test.refused == "") != strings.Contains(log, "outcome=verified") {
					t.Errorf("log %q, explained %q", log, why)
				}
			})
		})
	}
}

func TestTheSummaryTellsAReadOnlyImage(t *testing.T) {
	n := newNode(t)
	mounted(t, func() {
		at := n.path("system")
		if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
			t.Error(err)
		}
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Error(err)
		}
		if s, log, _ := n.doVerify(); !s.ReadOnly || !strings.Contains(log, "readonly=true") {
			t.Error(log)
		}
	})
}

// Everything is there: two questions to ctr and no content read.
func BenchmarkImportWithEverythingPresent(b *testing.B) {
	n := newNode(b)
	n.fake.Images = n.all()
	n.save()
	for b.Loop() {
		if s, log, _ := n.doImport(); s.Present != 3 {
			b.Fatal(log)
		}
	}
}
