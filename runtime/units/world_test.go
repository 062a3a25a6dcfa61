package units

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// shipped is what the earlier releases of these tests put under
// /etc/systemd/system. The second content of the import unit is its older one.
var shipped = []struct{ path, content string }{
	{"containerd.service", "[Service]\nExecStart=/opt/bin/containerd\n"},
	{"kubelet.service", "[Service]\nExecStart=/opt/bin/kubelet\n"},
	{"kubelet.service.d/10-kubeadm.conf", "[Service]\nEnvironment=KUBELET=1\n"},
	{"provider-kubernetes-image-import.service", "[Service]\nExecStart=/bin/import\n"},
	{"provider-kubernetes-image-import.service", "[Service]\nExecStart=/bin/import --all\n"},
}

func history() []overlay.Shipped {
	var h []overlay.Shipped
	for _, s := range shipped {
		sum := sha256.Sum256([]byte(s.content))
		h = append(h, overlay.Shipped{Path: s.path, Size: int64(len(s.content)), SHA256: hex.EncodeToString(sum[:])})
	}
	return h
}

// everything is the tree of a node that ran an earlier release.
const everything = `
	containerd.service                                                shipped
	kubelet.service                                                   shipped
	kubelet.service.d/10-kubeadm.conf                                 shipped
	provider-kubernetes-image-import.service                          shipped
	multi-user.target.wants/containerd.service                        -> /etc/systemd/system/containerd.service
	multi-user.target.wants/kubelet.service                           -> /etc/systemd/system/kubelet.service
	multi-user.target.wants/provider-kubernetes-image-import.service  -> /etc/systemd/system/provider-kubernetes-image-import.service
`

// allRemoved is the log of a migration that removes all of everything.
const allRemoved = `
	removed "/etc/systemd/system/containerd.service" kind=fragment
	removed "/etc/systemd/system/kubelet.service" kind=fragment
	removed "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" kind=dropin
	removed "/etc/systemd/system/provider-kubernetes-image-import.service" kind=fragment
	removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link
	removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link
	removed "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" kind=link
	summary outcome=migrated removed=7 kept=0 overrides=0 reloaded=true
`

// node is a file system with the units of an image and a systemctl that acts as
// if it spoke to systemd.
type node struct {
	t    testing.TB
	root string // of the file system
	bin  string // systemctl and what it writes down
}

// queued is what `systemctl show` says of a boot in which all units wait.
const queued = `Id=containerd.service
LoadState=loaded
ActiveState=inactive
Job=11

Id=kubelet.service
LoadState=loaded
ActiveState=inactive
Job=12

Id=provider-kubernetes-image-import.service
LoadState=loaded
ActiveState=inactive
Job=13
`

func newNode(t testing.TB, tree string) *node {
	t.Helper()
	n := &node{t, t.TempDir(), t.TempDir()}
	n.grow(`
		/run/                        folder
		/etc/systemd/system/         folder
	`)
	for _, u := range overlay.Units {
		n.grow("/usr/lib/systemd/system/" + u + " the image's\n/usr/lib/systemd/system/multi-user.target.wants/" + u + " -> ../" + u)
	}
	n.grow(tree)
	n.write("show", queued)
	// known holds the fragments and drop-ins under /etc that systemd has read.
	script := fmt.Sprintf(`#!/bin/sh
echo "$@" >> %[1]s/calls
if [ -e %[1]s/broken-$1 ]; then echo 'it is "broken"' >&2; exit 1; fi
case $1 in
show) cat %[1]s/show ;;
daemon-reload) cd %[2]s/etc/systemd/system/ && find . -type f | sort > %[1]s/known ;;
esac
`, n.bin, n.root)
	if err := os.WriteFile(filepath.Join(n.bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// grow makes the entries of a tree, one a line: a path, relative to
// /etc/systemd/system if it does not begin with a slash, and "shipped" with what
// follows it appended, "older", "-> target", "folder", "fifo" or the content.
// In it \n, \r and the like stand for what they do in Go.
func (n *node) grow(tree string) {
	n.t.Helper()
	for line := range strings.Lines(tree) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			continue
		}
		what, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.TrimSpace(what), `"`, `\"`) + `"`)
		if err != nil {
			n.t.Fatalf("%s: %v", line, err)
		}
		p := n.path(name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			n.t.Fatal(err)
		}
		target, isLink := strings.CutPrefix(what, "-> ")
		addition, isShipped := strings.CutPrefix(what, "shipped")
		switch {
		case isLink:
			err = os.Symlink(target, p)
		case isShipped:
			err = os.WriteFile(p, []byte(content(name)+addition), 0o644)
		case what == "older":
			err = os.WriteFile(p, []byte(shipped[len(shipped)-1].content), 0o644)
		case what == "folder":
			err = os.MkdirAll(p, 0o755)
		case what == "fifo":
			err = syscall.Mkfifo(p, 0o644)
		default:
			err = os.WriteFile(p, []byte(what), 0o644)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// content returns what was shipped under a name, also for a copy whose name
// goes on.
func content(name string) string {
	for _, s := range shipped {
		if strings.HasPrefix(path.Base(name), path.Base(s.path)) {
			return s.content
		}
	}
	panic(name + " was never shipped")
}

func (n *node) path(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = unitDir + "/" + name
	}
	return filepath.Join(n.root, name)
}

// migration is ready to run; its log goes to log.
func (n *node) migration(log *bytes.Buffer) Migration {
	r, err := host.OpenRoot(n.root)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = r.Close() })
	return Migration{Root: r, Tools: host.Runner{Dir: n.bin}, History: history(), Log: log}
}

// migrate runs a migration and returns its lines, the summary last.
func (n *node) migrate(step func(name, path string)) (string, error) {
	n.t.Helper()
	var log bytes.Buffer
	m := n.migration(&log)
	m.step = step
	report, err := m.Run(n.t.Context())
	return log.String() + report.String() + "\n", err
}

func (n *node) write(name, content string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.bin, name), []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// calls returns how systemctl was called, one a line, and forgets it.
func (n *node) calls() string {
	p := filepath.Join(n.bin, "calls")
	b, _ := os.ReadFile(p)
	_ = os.Remove(p)
	return string(b)
}

// files returns the regular files under /etc/systemd/system as `find . | sort`
// prints them.
func (n *node) files() string {
	var names []string
	for name, e := range n.snapshot() {
		if rel, ok := strings.CutPrefix(name, unitDir); ok && e.mode.IsRegular() {
			names = append(names, "."+rel+"\n")
		}
	}
	slices.Sort(names)
	return strings.Join(names, "")
}

// known returns the files of which systemd knows since its last reload.
func (n *node) known() string {
	b, _ := os.ReadFile(filepath.Join(n.bin, "known"))
	return string(b)
}

type snapshotEntry struct {
	mode    fs.FileMode
	content string // or target of a link
}

// snapshot returns all entries outside of /run that are not folders.
func (n *node) snapshot() map[string]snapshotEntry {
	n.t.Helper()
	entries := map[string]snapshotEntry{}
	err := filepath.WalkDir(n.root, func(p string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(p, n.root)
		if err != nil || d.IsDir() || strings.HasPrefix(rel, "/run/provider") {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		e := snapshotEntry{mode: fi.Mode()}
		switch {
		case fi.Mode().IsRegular():
			var b []byte
			b, err = os.ReadFile(p)
			e.content = string(b)
		case fi.Mode()&fs.ModeSymlink != 0:
			e.content, err = os.Readlink(p)
		}
		entries[rel] = e
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return entries
}

// lines is a log as a table has it: without indentation, and with the prefix
// that all lines have.
func lines(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString("unit-migrate: " + line + "\n")
		}
	}
	return b.String()
}

// removedPaths returns the paths that a log says were removed.
func removedPaths(log string) (paths []string) {
	for s := bufio.NewScanner(strings.NewReader(log)); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), `unit-migrate: removed "`); ok {
			p, _, _ := strings.Cut(rest, `"`)
			paths = append(paths, p)
		}
	}
	return paths
}

// The tests' own program is also what they kill, and what runs in a mount
// namespace: with childRoot in its environment it migrates that node.
const (
	childRoot     = "UNITS_TEST_ROOT"
	childBin      = "UNITS_TEST_BIN"
	childKillAt   = "UNITS_TEST_KILL_AT"  // number of the step at which to die
	childReadOnly = "UNITS_TEST_READONLY" // path that is made read-only
)

func TestMain(m *testing.M) {
	if os.Getenv(childRoot) != "" {
		os.Exit(child())
	}
	if os.Getuid() == 0 {
		os.Exit(m.Run())
	}
	// Only root's files are removed: be root of a user namespace.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child() int {
	if p := os.Getenv(childReadOnly); p != "" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount(p, p, "", unix.MS_BIND, "")
		}
		if err == nil {
			err = unix.Mount("", p, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "mount:", err)
			return 100
		}
	}
	r, err := host.OpenRoot(os.Getenv(childRoot))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 100
	}
	m := Migration{Root: r, Tools: host.Runner{Dir: os.Getenv(childBin)}, History: history(), Log: os.Stdout}
	if s := os.Getenv(childKillAt); s != "" {
		left, _ := strconv.Atoi(s)
		m.step = func(string, string) {
			if left--; left < 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	report, err := m.Run(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fmt.Println(report)
	return report.Exit()
}

// child runs the migration of this node in a process of its own.
func (n *node) child(flags uintptr, env ...string) (stdout, stderr string, state *os.ProcessState) {
	n.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(n.t.Context(), "/proc/self/exe")
	cmd.Env = append([]string{childRoot + "=" + n.root, childBin + "=" + n.bin}, env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if err := cmd.Run(); cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState
}
