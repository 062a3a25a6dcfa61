package images

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon is a real containerd with everything of its own in a temporary folder.
type daemon struct {
	t             *testing.T
	programs, dir string
	cmd           *exec.Cmd
}

// realContainerd makes the node's ctr a real one, which talks to a containerd
// that is not started yet. The folder with both comes from PK_CONTAINERD_DIR.
func realContainerd(t *testing.T, n *node) *daemon {
	t.Helper()
	programs := os.Getenv("PK_CONTAINERD_DIR")
	if programs == "" {
		t.Skip("PK_CONTAINERD_DIR is not set: it names a folder with containerd and ctr, an image's /usr/bin for example")
	}
	asRoot(t)
	dir, err := os.MkdirTemp("", "containerd") // short: a socket's path has 107 bytes at most
	must(err)
	d := &daemon{t: t, programs: programs, dir: dir}
	t.Cleanup(func() {
		d.stop()
		must(os.RemoveAll(dir))
	})
	config := fmt.Sprintf(`version = 3
root = '%[1]s/root'
state = '%[1]s/state'
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri']
[grpc]
  address = '%[1]s/sock'
[ttrpc]
  address = '%[1]s/sock.ttrpc'
`, dir)
	must(os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600))
	ctr := fmt.Sprintf("#!/bin/sh\nexec '%s/ctr' --address '%s/sock' \"$@\"\n", programs, dir)
	must(os.Remove(filepath.Join(n.programs, "ctr")), os.WriteFile(filepath.Join(n.programs, "ctr"), []byte(ctr), 0o755))
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(filepath.Join(d.programs, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	d.cmd.Env = []string{"PATH=" + d.programs + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	d.cmd.Stdout, d.cmd.Stderr = io.Discard, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(d.cmd.Start())
}

func (d *daemon) stop() {
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
		d.cmd = nil
	}
}

// ctr runs ctr and returns what it printed.
func (d *daemon) ctr(args ...string) string {
	d.t.Helper()
	out, err := exec.Command(filepath.Join(d.programs, "ctr"), append([]string{"--address", d.dir + "/sock", "-n", "k8s.io"}, args...)...).Output()
	if err != nil {
		d.t.Fatalf("ctr %q: %v", args, err)
	}
	return string(out)
}

// holds compares what containerd has with the list.
func (d *daemon) holds(list []Image) {
	d.t.Helper()
	table := d.ctr("images", "ls")
	for _, img := range list {
		found := false
		for line := range strings.Lines(table) {
			f := strings.Fields(line)
			found = found || f[0] == img.Reference && f[2] == img.Digest && strings.Contains(f[len(f)-1], "io.cri-containerd.pinned=pinned")
		}
		if !found {
			d.t.Errorf("%s is not there with %s and pinned:\n%s", img.Reference, img.Digest, table)
		}
	}
	if ready := d.ctr("images", "check", "-q"); strings.Count(ready, "registry.k8s.io/") != len(list) {
		d.t.Errorf("complete and unpacked are only\n%s", ready)
	}
}

func TestARealContainerdHoldsEveryImageUnderItsLockedNameAndDigest(t *testing.T) {
	n := newNode(t)
	d := realContainerd(t, n)
	expect := func(when, want string) {
		t.Helper()
		if _, log, why := n.doImport(); !strings.Contains(log, want) {
			t.Fatalf("%s: log %s, explained %s; expected %s", when, log, why, want)
		}
	}

	n.bound = 300 * time.Millisecond
	expect("containerd is down", "outcome=failed entries=3 imported=0 present=0 refused=0 failed=3")
	n.bound = time.Minute
	d.start() // and the import waits for it
	expect("first run", "outcome=success entries=3 imported=3 present=0 refused=0 failed=0")
	d.holds(n.list)
	expect("second run", "outcome=success entries=3 imported=0 present=3 refused=0 failed=0")

	d.ctr("images", "rm", "--sync", references[0])
	d.ctr("images", "label", references[1], "io.cri-containerd.pinned=")
	expect("one removed, one unpinned", "outcome=success entries=3 imported=1 present=2 refused=0 failed=0")
	d.holds(n.list)

	d.ctr("images", "rm", references[1])
	d.ctr("images", "tag", references[0], references[1])
	expect("another image under the name", "outcome=success entries=3 imported=1 present=2 refused=0 failed=0")
	d.holds(n.list)

	d.stop()
	d.start()
	expect("containerd was restarted", "outcome=success entries=3 imported=0 present=3 refused=0 failed=0")
	d.holds(n.list)
}
