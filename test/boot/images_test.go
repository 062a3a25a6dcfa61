package boot

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/images"
	"github.com/kairos-io/provider-kubernetes/test/lab"
)

const bundleDir = "/" + overlay.BundleDir

// locked returns the list of images that an image brings.
func locked(t testing.TB, image lab.Image) []images.Image {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(image.Folders[len(image.Folders)-1], bundleDir, images.LockName))
	if err != nil {
		t.Fatal(err)
	}
	list, err := images.ParseLock(b)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// summary is the last line of an import of seven images.
func summary(outcome images.Outcome, imported, present, refused, unlisted int, readonly bool) string {
	return images.Summary{Outcome: outcome, Entries: 7, Imported: imported, Present: present, Refused: refused, Unlisted: unlisted, ReadOnly: readonly}.String()
}

// held returns what containerd has: name to digest, and the names that are
// pinned for the kubelet.
func held(t *testing.T, n *lab.Node) (digests map[string]string, pinned []string) {
	t.Helper()
	digests = map[string]string{}
	for line := range strings.Lines(must(t, n, "ctr", "-n", "k8s.io", "images", "ls")) {
		if f := strings.Fields(line); len(f) > 2 && strings.Contains(f[0], ":") && !strings.HasPrefix(f[0], "sha256:") {
			digests[f[0]] = f[2]
		}
	}
	var list struct {
		Images []struct {
			RepoTags []string
			Pinned   bool
		}
	}
	if err := json.Unmarshal([]byte(must(t, n, "crictl", "images", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, img := range list.Images {
		if img.Pinned {
			pinned = append(pinned, img.RepoTags...)
		}
	}
	slices.Sort(pinned)
	return digests, pinned
}

// holds checks that containerd has exactly these images, all pinned.
func holds(t *testing.T, what string, n *lab.Node, list []images.Image) {
	t.Helper()
	want := map[string]string{}
	for _, img := range list {
		want[img.Reference] = img.Digest
	}
	digests, pinned := held(t, n)
	if !maps.Equal(digests, want) {
		t.Errorf("%s: containerd has\n%v\nexpected\n%v", what, digests, want)
	}
	if names := slices.Sorted(maps.Keys(want)); !slices.Equal(pinned, names) {
		t.Errorf("%s: pinned are\n%v\nexpected\n%v", what, pinned, names)
	}
}

// printed is what the boot's import said, without the explanations, and its exit
// code.
func printed(t *testing.T, n *lab.Node) (lines []string, exit string) {
	t.Helper()
	lines, exit = said(t, n, importUnit, "image-import: ")
	return slices.DeleteFunc(lines, func(line string) bool {
		return !strings.HasPrefix(line, "image-import: refused ") && !strings.HasPrefix(line, "image-import: summary ")
	}), exit
}

func TestBuilderAndNodeReadTheSameList(t *testing.T) {
	for _, minor := range []string{"1.36", "1.37"} {
		image := stock(t, minor)
		b, err := os.ReadFile(filepath.Join(image.Folders[0], bundleDir, bundle.LockName))
		if err != nil {
			t.Fatal(err)
		}
		written, err := bundle.ParseLock(b)
		if err != nil {
			t.Fatal(err)
		}
		var want []images.Image
		for _, e := range written.Images {
			want = append(want, images.Image{Reference: e.Reference, Digest: e.Digest, Archive: e.Archive, Size: e.Size, SHA256: e.SHA256})
		}
		if got := locked(t, image); !slices.Equal(got, want) {
			t.Errorf("%s: the node reads\n%v\nthe builder wrote\n%v", minor, got, want)
		}
	}
}

func TestContainerdHoldsEveryBundledImage(t *testing.T) {
	t.Parallel()
	image := stock(t, "1.37")
	list := locked(t, image)
	n := lab.Start(t, lab.Options{Image: image})

	imported := func(what, want string) {
		t.Helper()
		lines, exit := printed(t, n)
		expect(t, what, lines, exit, []string{want}, "0")
		holds(t, what, n, list)
	}
	imported("first boot", summary(images.Success, 7, 0, 0, 0, true))
	var names []string
	for _, img := range list {
		names = append(names, img.Reference)
	}
	asked := strings.Fields(must(t, n, "sh", "-c", "kubeadm config images list --kubernetes-version $(kubeadm version -o short)"))
	if slices.Sort(asked); !slices.Equal(asked, names) {
		t.Errorf("kubeadm asks for\n%v\nbundled are\n%v", asked, names)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	boot(t, n)
	imported("boot after a power cut", summary(images.Success, 0, 7, 0, 0, true))

	run := func(what string, want images.Outcome, imported, present int, args ...string) {
		t.Helper()
		r := n.Run(t.Context(), append([]string{agent, "import-images"}, args...)...)
		if line := summary(want, imported, present, 0, 0, true) + "\n"; r.Stdout != line || r.Code != 0 {
			t.Errorf("%s: exit %d\n%sexpected\n%s%s", what, r.Code, r.Stdout, line, r.Stderr)
		}
		holds(t, what, n, list)
	}
	run("verification", images.Verified, 0, 0, "--verify-only")
	// What the kubelet's garbage collection, or an operator, may have done.
	must(t, n, "ctr", "-n", "k8s.io", "images", "rm", "--sync", names[0], names[6])
	must(t, n, "ctr", "-n", "k8s.io", "images", "label", names[2], "io.cri-containerd.pinned=")
	must(t, n, "ctr", "-n", "k8s.io", "images", "tag", "--force", names[3], names[4])
	run("after two were removed, one unpinned and one named differently", images.Success, 3, 4)

	// A containerd that is late is waited for.
	must(t, n, "systemctl", "stop", "containerd.service")
	cmd := n.Command(t.Context(), agent, "import-images")
	why, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const waits = "image-import: waiting for containerd"
	buf := make([]byte, len(waits))
	if _, err := io.ReadFull(why, buf); err != nil || string(buf) != waits {
		t.Errorf("said %q, %v, expected %q", buf, err, waits)
	}
	must(t, n, "systemctl", "start", "containerd.service")
	_, _ = io.Copy(io.Discard, why)
	if err := cmd.Wait(); err != nil || said.String() != summary(images.Success, 0, 7, 0, 0, true)+"\n" {
		t.Errorf("with a late containerd: %v\n%s", err, said.String())
	}

	refusals(t, n, image)
}

// refusals damages a copy of the bundle and of the node runtime in every way and
// lets it be seen in the place of the image's.
func refusals(t *testing.T, n *lab.Node, image lab.Image) {
	t.Helper()
	byArchive := map[string]images.Image{}
	for _, img := range locked(t, image) {
		byArchive[img.Archive] = img
	}
	refused := func(archive, reason string) string {
		return fmt.Sprintf("image-import: refused %s ref=%s reason=%s", archive, byArchive[archive].Reference, reason)
	}
	bundleRefused := func(reason string, entries int) []string {
		s := images.Summary{Outcome: images.Refused, Entries: entries}
		return []string{"image-import: bundle refused reason=" + reason, s.String()}
	}
	scratch := func(archive string, pick func(config, layer string) (name string)) string {
		at, config, layer := contents(t, filepath.Join(image.Folders[0], bundleDir, archive))
		return fmt.Sprintf("dd if=/dev/urandom of=%s bs=1 count=16 seek=%d conv=notrunc status=none; ", archive, at[pick(config, layer)])
	}
	for _, c := range []struct {
		name   string
		damage string // done in the folder of the copied bundle
		mount  string // done when the copy has taken the place of the image's
		want   []string
	}{
		{
			name: "archives that are no guarded files of the right size",
			damage: "rm coredns.tar; ln -sf pause.tar etcd.tar; rm kube-apiserver.tar; mkfifo kube-apiserver.tar; chown 1000 kube-controller-manager.tar; " +
				"chmod 666 kube-proxy.tar; truncate -s 20M kube-scheduler.tar",
			want: []string{
				refused("coredns.tar", "missing"), refused("etcd.tar", "symlink"), refused("kube-apiserver.tar", "not-regular"),
				refused("kube-controller-manager.tar", "owner"), refused("kube-proxy.tar", "mode"), refused("kube-scheduler.tar", "size"),
				summary(images.Partial, 0, 0, 6, 0, false),
			},
		},
		{
			name: "archives with other bytes, and one from elsewhere",
			damage: scratch("coredns.tar", func(_, layer string) string { return layer }) +
				scratch("etcd.tar", func(_, _ string) string { return "oci-layout" }) +
				scratch("kube-scheduler.tar", func(config, _ string) string { return config }) +
				"touch extra",
			mount: "mount --bind /opt/whole/provider-kubernetes/images/pause.tar " + bundleDir + "/pause.tar",
			want: []string{
				refused("coredns.tar", "manifest"), refused("etcd.tar", "tar-structure"), refused("kube-scheduler.tar", "config-digest"), refused("pause.tar", "device"),
				summary(images.Partial, 0, 0, 4, 1, false),
			},
		},
		{name: "no list", damage: "rm images.lock", want: bundleRefused("lock-missing", 0)},
		{name: "a list that can't be read", damage: "echo more >> images.lock", want: bundleRefused("lock-invalid", 0)},
		{name: "a list of another", damage: "chown 1000 images.lock", want: bundleRefused("owner", 0)},
		{name: "a folder that others may write to", damage: "chmod 777 ..", want: bundleRefused("dir-unsafe", 0)},
		{name: "a folder that is a link", damage: "mv ../images ../other; ln -s other ../images", want: bundleRefused("dir-unsafe", 0)},
		{name: "a node runtime that others may write to", damage: "chmod 775 ../../providers/agent-provider-kubernetes", want: bundleRefused("anchor-unsafe", 0)},
		{name: "a bundle that is a bind mount", mount: "mount --bind /opt/whole/provider-kubernetes/images " + bundleDir, want: bundleRefused("device", 0)},
		{
			name:  "a bundle on another file system",
			mount: "mount -t tmpfs -o mode=755 none " + bundleDir + "; cp /opt/whole/provider-kubernetes/images/images.lock " + bundleDir,
			want:  bundleRefused("device", 0),
		},
	} {
		must(t, n, "sh", "-ec", "cd /opt; [ -e whole ] || cp -a /system whole; rm -rf copy; cp -a whole copy; cd copy/provider-kubernetes/images; "+c.damage)
		r := n.Run(t.Context(), "unshare", "--mount", "sh", "-ec", "mount --bind /opt/copy /system\n"+c.mount+"\nexec "+agent+" import-images --verify-only")
		expect(t, c.name, strings.Split(strings.TrimSpace(r.Stdout), "\n"), strconv.Itoa(r.Code), c.want, "1")
	}
}

// contents returns where in an archive the content of each file begins, and the
// names of the image's configuration and of its first layer.
func contents(t *testing.T, file string) (at map[string]int64, config, layer string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at = map[string]int64{}
	var list []struct {
		Config string
		Layers []string
	}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			at[h.Name], err = f.Seek(0, io.SeekCurrent)
		}
		if err == nil && h.Name == "manifest.json" {
			err = json.NewDecoder(r).Decode(&list)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if len(list) != 1 || len(list[0].Layers) == 0 || at[list[0].Config] == 0 || at[list[0].Layers[0]] == 0 {
		t.Fatalf("%s: lists %v", file, list)
	}
	return at, list[0].Config, list[0].Layers[0]
}

func TestADamagedBundleNeverHoldsUpTheBoot(t *testing.T) {
	t.Parallel()
	image := stock(t, "1.37")
	list := locked(t, image)
	damaged := newLayer(t)
	damaged.write(bundleDir+"/etcd.tar", "cut off")
	damaged.hide(bundleDir + "/coredns.tar")
	pause, err := os.ReadFile(filepath.Join(image.Folders[0], bundleDir, "pause.tar"))
	if err != nil {
		t.Fatal(err)
	}
	pause[len(pause)/2] ^= 1
	damaged.write(bundleDir+"/pause.tar", string(pause))
	n := lab.Start(t, lab.Options{Image: image.With(damaged.dir), Files: member(t)})

	var want []string
	var sound []images.Image
	for _, img := range list {
		if reason, ok := map[string]string{"coredns.tar": "missing", "etcd.tar": "size", "pause.tar": "manifest"}[img.Archive]; ok {
			want = append(want, fmt.Sprintf("image-import: refused %s ref=%s reason=%s", img.Archive, img.Reference, reason))
		} else {
			sound = append(sound, img)
		}
	}
	lines, exit := printed(t, n)
	expect(t, "damaged", lines, exit, append(want, summary(images.Partial, 4, 0, 3, 0, true)), "1")
	holds(t, "damaged", n, sound)
	if failed := must(t, n, "systemctl", "--failed", "--plain", "--no-legend"); !strings.HasPrefix(failed, importUnit+" ") || strings.Contains(failed, "\n") {
		t.Errorf("failed units are %q, expected %s alone", failed, importUnit)
	}
	runsFromImage(t, n, "kubelet.service", "10-kubeadm.conf", "50-provider-kubernetes-exec-path.conf")

	powerOff(t, n)
	n.Swap(image)
	boot(t, n)
	lines, exit = printed(t, n)
	expect(t, "whole again", lines, exit, []string{summary(images.Success, 3, 4, 0, 0, true)}, "0")
	holds(t, "whole again", n, list)
}

func TestAContainerdThatIsDownHoldsUpTheBootForTheBoundOnly(t *testing.T) {
	t.Parallel()
	image := stock(t, "1.37")
	// With the bound that a node has, the test would take as long.
	layer, err := rebuilt("hasty", "runtime/images/images.go", "importLimit = 5 * time.Minute", "importLimit = 2 * time.Second")
	if err != nil {
		t.Fatal(err)
	}
	masked := newLayer(t)
	masked.link(unitDir+"containerd.service", "/dev/null")
	n := lab.Start(t, lab.Options{Image: image.With(layer).With(masked.dir), Files: member(t)})

	var want []string
	for _, img := range locked(t, image) {
		want = append(want, fmt.Sprintf("image-import: refused %s ref=%s reason=ctr-failed", img.Archive, img.Reference))
	}
	want = append(want, images.Summary{Outcome: images.Failed, Entries: 7, Failed: 7, ReadOnly: true}.String())
	lines, exit := printed(t, n)
	expect(t, "containerd down", lines, exit, want, "1")
	if show(t, n, "kubelet.service", "ExecMainStartTimestampMonotonic") == "0" {
		t.Error("the kubelet was not started")
	}
}
