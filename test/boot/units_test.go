package boot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/test/lab"
)

// allGone is what is said when everything that was shipped went.
var allGone = []string{
	`unit-migrate: removed "/etc/systemd/system/containerd.service" kind=fragment`,
	`unit-migrate: removed "/etc/systemd/system/kubelet.service" kind=fragment`,
	`unit-migrate: removed "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" kind=dropin`,
	`unit-migrate: removed "/etc/systemd/system/provider-kubernetes-image-import.service" kind=fragment`,
	`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link`,
	`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link`,
	`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" kind=link`,
	`unit-migrate: summary outcome=migrated removed=7 kept=0 overrides=0 reloaded=true`,
}

var nothingToDo = []string{`unit-migrate: summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false`}

// reloads counts how often systemd read its units anew in this boot.
func reloads(t *testing.T, n *lab.Node) (count int) {
	t.Helper()
	for _, line := range journal(t, n, "_PID=1") {
		if strings.HasPrefix(line, "Reloading") && !strings.HasPrefix(line, "Reloading finished") {
			count++
		}
	}
	return count
}

func TestTheFirstBootAfterAnOlderReleaseRunsTheImagesUnits(t *testing.T) {
	t.Parallel()
	before, image := older(t), checkout(t)
	n := lab.Make(t, lab.Options{Image: before, Files: member(t)})
	for step, b := range []struct {
		image   lab.Image
		said    []string
		reloads int
	}{
		{image: before},
		{image, allGone, 1},
		{image, nothingToDo, 0},
		{image: before}, // roll back
		{image, allGone, 1},
	} {
		what := fmt.Sprintf("boot %d", step+1)
		n.Swap(b.image)
		boot(t, n)
		if b.said == nil {
			for _, unit := range []string{"containerd.service", "kubelet.service"} {
				runsFrom(t, n, unit, unitDir+unit)
			}
		} else {
			lines, exit := said(t, n, migrateUnit, "unit-migrate: ")
			expect(t, what, lines, exit, b.said, "0")
			runsFromImage(t, n, "containerd.service", "50-provider-kubernetes-exec-path.conf")
			runsFromImage(t, n, "kubelet.service", "10-kubeadm.conf", "50-provider-kubernetes-exec-path.conf")
			runsFrom(t, n, importUnit, "/"+overlay.UnitDir+"/"+importUnit)
			if left := must(t, n, "find", unitDir, "-name", "*containerd*", "-o", "-name", "*kube*"); left != "/etc/systemd/system/kubelet.service.d" && left != "" {
				t.Errorf("%s: left are %s", what, left)
			}
			if got := reloads(t, n); got != b.reloads {
				t.Errorf("%s: systemd reloaded %d times, expected %d", what, got, b.reloads)
			}
		}
		if state := must(t, n, "systemctl", "is-system-running"); state != "running" {
			t.Errorf("%s: the system is %s", what, state)
		}
		powerOff(t, n)
	}
}

func TestWhatIsNotExactlyWhatWasShippedStays(t *testing.T) {
	t.Parallel()
	n := lab.Make(t, lab.Options{Image: checkout(t), Files: member(t)})
	const site = "[Service]\nEnvironment=SITE=1\n"
	edited := shipped[importUnit] + "# HTTPS_PROXY=http://operator:hunter2@proxy.example\n"
	etc := kept(t, n)
	etc.write("containerd.service", broken)
	etc.write(importUnit, edited)
	etc.link("kubelet.service", "/dev/null")
	etc.write("kubelet.service.d/20-site.conf", site)
	for name, target := range shippedLinks() {
		etc.link(name, target)
	}

	const stays = `unit-migrate: kept "/etc/systemd/system/provider-kubernetes-image-import.service" reason=modified`
	overrides := []string{
		`unit-migrate: override "/etc/systemd/system/kubelet.service"`,
		`unit-migrate: override "/etc/systemd/system/kubelet.service.d/20-site.conf"`,
	}
	for step, want := range [][]string{
		slices.Concat([]string{
			`unit-migrate: removed "/etc/systemd/system/containerd.service" kind=fragment`, stays,
			`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link`,
			`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link`,
			`unit-migrate: removed "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" kind=link`,
		}, overrides, []string{`unit-migrate: summary outcome=kept-modified removed=4 kept=1 overrides=2 reloaded=true`}),
		slices.Concat([]string{stays}, overrides, []string{`unit-migrate: summary outcome=kept-modified removed=0 kept=1 overrides=2 reloaded=false`}),
	} {
		what := fmt.Sprintf("boot %d", step+1)
		boot(t, n)
		lines, exit := said(t, n, migrateUnit, "unit-migrate: ")
		expect(t, what, lines, exit, want, "1")
		if failed := must(t, n, "systemctl", "--failed", "--plain", "--no-legend"); !strings.HasPrefix(failed, migrateUnit+" ") || strings.Contains(failed, "\n") {
			t.Errorf("%s: failed units are %q, expected %s alone", what, failed, migrateUnit)
		}
		// In the first boot only the migration can have started it.
		runsFromImage(t, n, "containerd.service", "50-provider-kubernetes-exec-path.conf")
		runsFrom(t, n, importUnit, unitDir+importUnit)
		if r := n.Run(t.Context(), "systemctl", "is-enabled", "kubelet.service"); strings.TrimSpace(r.Stdout) != "masked" || show(t, n, "kubelet.service", "ActiveState") != "inactive" {
			t.Errorf("%s: the masked kubelet is %s", what, r.Stdout)
		}
		for name, want := range map[string]string{importUnit: edited, "kubelet.service.d/20-site.conf": site} {
			if got := must(t, n, "cat", unitDir+name); got != strings.TrimSpace(want) {
				t.Errorf("%s: %s is now %q", what, name, got)
			}
		}
		powerOff(t, n)
	}
	all, err := n.Journal(t.Context(), "--output=cat", "--unit="+migrateUnit)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", fmt.Sprintf("%x", sha256.Sum256([]byte(edited))), strconv.Itoa(len(edited))} {
		if strings.Contains(all, secret) {
			t.Errorf("%q of a kept file is in the journal:\n%s", secret, all)
		}
	}
}

func TestEachReasonForKeepingIsGivenInARunningNode(t *testing.T) {
	t.Parallel()
	n := lab.Start(t, lab.Options{Image: checkout(t)})
	put := func(name, content string) { t.Helper(); kept(t, n).write(name, content) }
	kubelet, containerd, dropIn := shipped["kubelet.service"], shipped["containerd.service"], shipped["kubelet.service.d/10-kubeadm.conf"]
	for _, c := range []struct {
		name   string
		files  map[string]string
		before string // done in the node, in the folder of the units
		after  string
		want   string // lines, without what all begin with, and exit code
	}{
		{
			name:   "the same bytes with another time and mode",
			files:  map[string]string{"kubelet.service": kubelet},
			before: "chmod 600 kubelet.service; touch kubelet.service",
			want: `removed "/etc/systemd/system/kubelet.service" kind=fragment
summary outcome=migrated removed=1 kept=0 overrides=0 reloaded=true
0`,
		},
		{
			name:  "other line ends, a byte order mark, a line end less",
			files: map[string]string{"kubelet.service": strings.ReplaceAll(kubelet, "\n", "\r\n"), "containerd.service": "\ufeff" + containerd, "kubelet.service.d/10-kubeadm.conf": strings.TrimSuffix(dropIn, "\n")},
			want: `kept "/etc/systemd/system/containerd.service" reason=modified
kept "/etc/systemd/system/kubelet.service" reason=modified
kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=modified
summary outcome=kept-modified removed=0 kept=3 overrides=0 reloaded=false
1`,
		},
		{
			name:   "another's file, a large one, a FIFO, an empty one",
			files:  map[string]string{"containerd.service": containerd, "kubelet.service": strings.Repeat("#", 64<<10+1), "kubelet.service.d/10-kubeadm.conf": ""},
			before: "chown 1000 containerd.service; mkfifo " + importUnit,
			want: `kept "/etc/systemd/system/containerd.service" reason=owner
kept "/etc/systemd/system/kubelet.service" reason=size
kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=modified
kept "/etc/systemd/system/provider-kubernetes-image-import.service" reason=not-regular
summary outcome=kept-modified removed=0 kept=4 overrides=0 reloaded=false
1`,
		},
		{
			name:   "links to elsewhere, and a file in the place of one",
			files:  map[string]string{"multi-user.target.wants/kubelet.service": ""},
			before: "ln -s /usr/lib/systemd/system/containerd.service multi-user.target.wants/; ln -s /etc/old/kubelet.service kubelet.service",
			want: `kept "/etc/systemd/system/multi-user.target.wants/containerd.service" reason=link-target
kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=link-target
override "/etc/systemd/system/kubelet.service"
summary outcome=kept-modified removed=0 kept=2 overrides=1 reloaded=false
1`,
		},
		{
			name:   "links alone, one of them dangling",
			before: "ln -s $PWD/containerd.service $PWD/kubelet.service multi-user.target.wants/",
			want: `removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link
removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link
summary outcome=migrated removed=2 kept=0 overrides=0 reloaded=false
0`,
		},
		{
			name:   "a folder that is a link",
			before: "mkdir /opt/d; echo > /opt/d/10-kubeadm.conf; rm -rf kubelet.service.d; ln -s /opt/d kubelet.service.d",
			after:  "rm -r kubelet.service.d /opt/d",
			want: `kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=walk-unsafe
override "/etc/systemd/system/kubelet.service.d"
summary outcome=failed removed=0 kept=1 overrides=1 reloaded=false
1`,
		},
		{
			name:   "an immutable file",
			files:  map[string]string{"containerd.service": containerd, "kubelet.service": kubelet},
			before: "chattr +i containerd.service",
			after:  "chattr -i containerd.service",
			want: `kept "/etc/systemd/system/containerd.service" reason=io
removed "/etc/systemd/system/kubelet.service" kind=fragment
summary outcome=failed removed=1 kept=1 overrides=0 reloaded=true
1`,
		},
		{
			name:   "a read-only file system",
			files:  map[string]string{"containerd.service": containerd},
			before: "mount --bind . .; mount -o remount,bind,ro " + unitDir,
			after:  "cd /; umount " + unitDir + "; cd " + unitDir,
			want: `kept "/etc/systemd/system/containerd.service" reason=io
summary outcome=failed removed=0 kept=1 overrides=0 reloaded=false
1`,
		},
		{
			name:   "overrides elsewhere",
			before: "mkdir -p /run/systemd/system/kubelet.service.d /usr/local/lib/systemd/system; echo > /run/systemd/system/kubelet.service.d/1.conf; echo > /usr/local/lib/systemd/system/kubelet.service; systemctl set-property containerd.service CPUWeight=50",
			after:  "rm -r /run/systemd/system/kubelet.service.d /usr/local/lib/systemd /etc/systemd/system.control/containerd.service.d",
			want: `override "/etc/systemd/system.control/containerd.service.d/50-CPUWeight.conf"
override "/run/systemd/system/kubelet.service.d/1.conf"
override "/usr/local/lib/systemd/system/kubelet.service"
summary outcome=clean removed=0 kept=0 overrides=3 reloaded=false
0`,
		},
		{name: "nothing", want: "summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false\n0"},
	} {
		const clean = "rm -rf containerd.service kubelet.service kubelet.service.d/* provider-kubernetes-image-import.service multi-user.target.wants/*kube* multi-user.target.wants/containerd.service; mkdir -p kubelet.service.d multi-user.target.wants\n"
		for name, content := range c.files {
			put(name, content)
		}
		must(t, n, "sh", "-ec", "cd "+unitDir+"; mkdir -p multi-user.target.wants\n"+c.before)
		r := n.Run(t.Context(), agent, "migrate-units")
		got := strings.ReplaceAll(r.Stdout, "unit-migrate: ", "") + strconv.Itoa(r.Code)
		if got != c.want {
			t.Errorf("%s: said\n%s\nexpected\n%s\n%s", c.name, got, c.want, r.Stderr)
		}
		must(t, n, "sh", "-ec", "cd "+unitDir+"\n"+c.after+"\n"+clean)
	}
	if r := n.Run(t.Context(), agent, "migrate-units", "--all"); r.Code != 2 {
		t.Errorf("with an argument: %+v, expected exit 2", r)
	}
	if active := show(t, n, "containerd.service", "ActiveState"); active != "active" {
		t.Errorf("containerd is %s after all that", active)
	}
}

// cut boots the node and cuts the power as soon as a condition holds.
func cut(t *testing.T, n *lab.Node, when func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Boot(ctx) }()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !when() {
		select {
		case err := <-ended:
			t.Fatalf("the boot was over before the power was cut: %v", err)
		case <-again.C:
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// hold makes the node runtime, and nobody else, wait when it opens a file, until
// release. It tells whether it does wait.
func hold(t *testing.T, file string) (waits func() bool, release func()) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "fanotify")
	release = func() { _ = events.Close() }
	t.Cleanup(release)
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, file); err != nil {
		t.Fatal(err)
	}
	var waiting atomic.Bool
	go func() {
		for {
			var e unix.FanotifyEventMetadata
			if err := binary.Read(events, binary.NativeEndian, &e); err != nil {
				return // closed
			}
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
			if strings.HasSuffix(exe, agent) {
				waiting.Store(true)
			} else {
				_ = binary.Write(events, binary.NativeEndian, unix.FanotifyResponse{Fd: e.Fd, Response: unix.FAN_ALLOW})
			}
			_ = unix.Close(int(e.Fd))
		}
	}()
	return waiting.Load, release
}

func TestAMigrationThatWasCutOffIsFinishedByTheNextBoot(t *testing.T) {
	t.Parallel()
	image := checkout(t)
	// systemd runs generators when it reloads, and waits for them.
	stuck := newLayer(t)
	generator := "usr/lib/systemd/system-generators/stuck"
	stuck.write(generator, "#!/bin/sh\n[ ! -e /run/provider-kubernetes-unit-migrate.pending ] || exec sleep infinity\n")
	stuck.must(os.Chmod(filepath.Join(stuck.dir, generator), 0o755))
	n := lab.Make(t, lab.Options{Image: image, Files: member(t)})
	etc := kept(t, n)
	for _, c := range []struct {
		name  string
		image lab.Image
		at    string // entry at which the power is cut, before it is removed
		done  int    // entries that are removed by then
	}{
		{"before the first removal", image, "containerd.service", 0},
		{"after the first fragment", image, "kubelet.service", 1},
		{"after two", image, "kubelet.service.d/10-kubeadm.conf", 2},
		{"after a drop-in", image, importUnit, 3},
		{"while systemd reloads", image.With(stuck.dir), "", 7},
	} {
		for name, content := range shipped {
			etc.write(name, content)
		}
		links := slices.Sorted(maps.Keys(shippedLinks()))
		for _, name := range links {
			_ = os.Remove(etc.path(name)) // the boot before may not have come to it
			etc.link(name, unitDir+strings.TrimPrefix(name, "multi-user.target.wants/"))
		}
		when, release := func() bool {
			_, err := os.Lstat(etc.path(links[len(links)-1]))
			return errors.Is(err, fs.ErrNotExist)
		}, func() {}
		if c.at != "" {
			when, release = hold(t, etc.path(c.at))
		}
		n.Swap(c.image)
		cut(t, n, when)
		release()

		n.Swap(image)
		boot(t, n)
		want := slices.Clone(allGone[c.done:])
		want[len(want)-1] = fmt.Sprintf("unit-migrate: summary outcome=migrated removed=%d kept=0 overrides=0 reloaded=true", 7-c.done)
		if c.done == 7 {
			want = nothingToDo
		}
		lines, exit := said(t, n, migrateUnit, "unit-migrate: ")
		expect(t, "power cut "+c.name, lines, exit, want, "0")
		runsFromImage(t, n, "containerd.service", "50-provider-kubernetes-exec-path.conf")
		runsFromImage(t, n, "kubelet.service", "10-kubeadm.conf", "50-provider-kubernetes-exec-path.conf")
		if state := must(t, n, "systemctl", "is-system-running"); state != "running" {
			t.Errorf("power cut %s: the system is %s", c.name, state)
		}
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASwappedFileStaysAndWhatAKilledMigrationRemovedIsMadeKnown(t *testing.T) {
	t.Parallel()
	n := lab.Start(t, lab.Options{Image: checkout(t)})
	etc := kept(t, n)
	// begin starts a migration that comes as far as reading a file.
	begin := func(name string) (cmd *exec.Cmd, said *strings.Builder, release func()) {
		t.Helper()
		waits, release := hold(t, etc.path(name))
		said = new(strings.Builder)
		cmd = n.Command(t.Context(), agent, "migrate-units")
		cmd.Stdout = said
		etc.must(cmd.Start())
		for end := time.Now().Add(20 * time.Second); !waits(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the migration does not read " + name)
			}
		}
		return cmd, said, release
	}
	const mine = "[Service]\nExecStart=/opt/mine\n"
	etc.write("kubelet.service", shipped["kubelet.service"])
	cmd, said, release := begin("kubelet.service")
	etc.write("mine", mine)
	etc.must(os.Rename(etc.path("mine"), etc.path("kubelet.service")))
	release()
	_ = cmd.Wait() // the exit code is compared
	expect(t, "swapped", strings.Split(strings.TrimSpace(said.String()), "\n"), strconv.Itoa(cmd.ProcessState.ExitCode()), []string{
		`unit-migrate: kept "/etc/systemd/system/kubelet.service" reason=race`,
		`unit-migrate: summary outcome=failed removed=0 kept=1 overrides=0 reloaded=false`,
	}, "1")
	if got := must(t, n, "cat", unitDir+"kubelet.service"); got != strings.TrimSpace(mine) {
		t.Errorf("the file that was put there is %q", got)
	}

	etc.write("containerd.service", shipped["containerd.service"])
	etc.write("kubelet.service", shipped["kubelet.service"])
	must(t, n, "systemctl", "daemon-reload")
	runsFrom(t, n, "containerd.service", unitDir+"containerd.service")
	cmd, _, release = begin("kubelet.service")
	etc.must(cmd.Cancel())
	if err := cmd.Wait(); err == nil {
		t.Fatal("the migration was not killed")
	}
	release()
	// Nothing is left to remove, but systemd doesn't know.
	etc.must(os.Remove(etc.path("kubelet.service")))
	r := n.Run(t.Context(), agent, "migrate-units")
	expect(t, "killed", strings.Split(strings.TrimSpace(r.Stdout), "\n"), strconv.Itoa(r.Code), []string{
		`unit-migrate: summary outcome=migrated removed=0 kept=0 overrides=0 reloaded=true`,
	}, "0")
	runsFrom(t, n, "containerd.service", "/"+overlay.UnitDir+"/containerd.service")
}
