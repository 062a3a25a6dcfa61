// Package lab boots node images with systemd as process 1, in namespaces and
// control groups of their own, as real as it gets without a virtual machine:
//
//   - The root is the image, read-only; /etc, /var and /srv take writes that are
//     gone after the boot; what Kairos keeps lies in a folder that outlives it,
//     and before each boot the image's content is added to that as Kairos does.
//   - The network is a namespace, alone or on a Switch with other nodes.
//   - Settings of the whole kernel are plain files, the rest of /proc/sys and
//     /sys is read-only, devices are the harmless ones.
//
// It takes folders that Prepare laid out of an OCI layout. It writes nowhere but
// in the user's cache (provider-kubernetes/lab), the folders it is given, and
// control groups named provider-kubernetes-lab-…. All else hangs on processes:
// a node ends with the process that booted it, whatever happens to that, and
// leaves nothing.
//
// A program that boots nodes calls Main first. Root is needed, and the tools
// that Check looks for.
package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

// Cgroups says which control groups a node sees.
type Cgroups string

// The views of control groups.
const (
	Machine Cgroups = ""        // the hierarchies of the machine, with their controllers
	Unified Cgroups = "unified" // the unified one alone, where it may have no controller
)

// Options say what a node is.
type Options struct {
	Image   Image
	Name    string  // host name; "node" when empty
	State   string  // folder that keeps what outlives a boot; when empty a temporary one that Close removes
	Cgroups Cgroups // what it sees of them
	Switch  *Switch // what eth0 is connected to; only loopback when nil
	Address string  // of eth0, in the switch's network: "10.77.0.11"
	// Files are written before every boot, as a cloud-config would: path to
	// content, with mode 0644.
	Files map[string]string
}

// Node is a machine that can be booted, again and again, one boot at a time.
// Its methods are for one goroutine, except Command, Run and Journal.
type Node struct {
	Name string

	options Options
	id      string
	dir     string // of this package, for this node
	state   string
	lock    *os.File // held while this process, or a keeper, uses dir

	pid    int // of process 1, seen from outside
	keeper *exec.Cmd
	life   io.WriteCloser // the keeper's standard input
	ended  chan struct{}  // closed after the keeper
}

const consoleFile = "console"

// Check tells why nodes can't be booted here, with nil when they can.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("lab: nodes need root")
	}
	var errs []error
	for _, name := range []string{"ip", "journalctl", "nsenter", "rsync"} {
		if _, err := exec.LookPath(name); err != nil {
			errs = append(errs, err)
		}
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		errs = append(errs, fmt.Errorf("namespaces: %w", err))
	}
	all, err := hierarchies()
	if err != nil {
		errs = append(errs, err)
	}
	for _, h := range all {
		if err := unix.Access(h.mount, unix.W_OK); err != nil {
			errs = append(errs, fmt.Errorf("control groups in %s: %w", h.mount, err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("lab: nodes can't be booted here: %w", errors.Join(errs...))
	}
	return nil
}

// Start boots a node for a test, which is skipped where nodes can't be booted,
// and closes it afterwards. Of a test that failed the journal's end is logged.
func Start(t testing.TB, o Options) *Node {
	t.Helper()
	n := Make(t, o)
	if err := n.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// Make is Start without the boot.
func Make(t testing.TB, o Options) *Node {
	t.Helper()
	if err := Check(); err != nil {
		t.Skip(err)
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			journal, err := n.Journal(ctx, "--lines=80")
			t.Logf("the end of %s's journal (error: %v):\n%s", n.Name, err, journal)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// New makes a node without booting it, after it has cleaned up behind processes
// that could not. Close it.
func New(o Options) (*Node, error) {
	if os.Getenv(roleVariable) != "" {
		return nil, errors.New("lab: this process is part of a node: the program must call lab.Main first, in TestMain")
	}
	if len(o.Image.Folders) == 0 {
		return nil, errors.New("lab: a node needs an image, see Prepare")
	}
	if o.Name == "" {
		o.Name = "node"
	}
	if err := Sweep(); err != nil {
		return nil, err
	}
	nodes, err := folder("nodes")
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(filepath.Join(nodes, ".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	n := &Node{Name: o.Name, options: o, id: fmt.Sprintf("%s-%x", o.Name, random)}
	n.dir = filepath.Join(nodes, n.id)
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, err
	}
	if n.state = o.State; n.state == "" {
		n.state = filepath.Join(n.dir, "state")
	}
	if n.state, err = filepath.Abs(n.state); err != nil {
		return nil, err
	}
	n.lock, err = hold(n.dir, unix.LOCK_EX)
	return n, err
}

// Boot boots the node and returns when systemd says that it is running, or
// degraded (a unit failed). It has until ctx ends and at most six minutes: the
// image import may take five.
func (n *Node) Boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	if n.running() {
		return fmt.Errorf("boot %s: it is running", n.Name)
	}
	err := n.start(ctx)
	if err == nil {
		err = n.wait(ctx)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("boot %s: %w", n.Name, err)
	if b, _ := os.ReadFile(filepath.Join(n.dir, consoleFile)); len(b) > 0 {
		err = fmt.Errorf("%w\nconsole:\n%s", err, b[max(0, len(b)-4096):])
	}
	return errors.Join(err, n.Kill())
}

// start starts a keeper, which starts process 1.
func (n *Node) start(ctx context.Context) error {
	p := plan{ID: n.id, Name: n.Name, State: n.state, Image: n.options.Image.Folders, Cgroups: n.options.Cgroups, Files: n.options.Files}
	ns := os.DevNull
	if s := n.options.Switch; s != nil {
		ns = fmt.Sprintf("/proc/self/fd/%d", s.ns.Fd())
		address, err := netip.ParseAddr(n.options.Address)
		if err != nil || !s.address.Contains(address) {
			return fmt.Errorf("address %q is not one of %s", n.options.Address, s.address)
		}
		p.Address, p.Gateway = netip.PrefixFrom(address, s.address.Bits()).String(), s.address.Addr().String()
	}
	network, err := os.Open(ns)
	if err != nil {
		return err
	}
	defer network.Close()
	if err := p.write(n.dir); err != nil {
		return err
	}
	// Their images are not tidied away while they are in use.
	var inUse []*os.File
	for _, dir := range p.Image {
		f, err := hold(dir, unix.LOCK_SH)
		if err != nil {
			return err
		}
		inUse = append(inUse, f)
	}
	var complaints bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=keeper:" + n.dir, "PATH=" + searchPath}
	cmd.ExtraFiles = append([]*os.File{network, n.lock}, inUse...)
	cmd.Stderr = &complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of the terminal are for this process
	life, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.keeper, n.life, n.ended = cmd, life, make(chan struct{})
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(answer).ReadString('\n')
		said <- strings.TrimSpace(line)
		_ = cmd.Wait() // the state tells
		for _, f := range inUse {
			f.Close()
		}
		close(n.ended)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-said:
		if n.pid, err = strconv.Atoi(line); err != nil {
			<-n.ended
			return fmt.Errorf("%s%s", line, complaints.String())
		}
		return nil
	}
}

// wait waits for the end of the boot.
func (n *Node) wait(ctx context.Context) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		// It fails until systemd listens, and then answers when all jobs are done.
		r := n.Run(ctx, "systemctl", "is-system-running", "--wait")
		switch strings.TrimSpace(r.Stdout) {
		case "running", "degraded":
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("systemd is %q: %w", strings.TrimSpace(r.Stdout+r.Stderr), ctx.Err())
		case <-n.ended:
			return errors.New("systemd ended")
		case <-again.C:
		}
	}
}

func (n *Node) running() bool {
	if n.ended == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Command returns a command that runs in the node, as root, with its
// environment and nothing of this process'. What is still running of it when
// the node ends, ends too.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(n.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = slices.Clone(environment)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// Result is what a command came to.
type Result struct {
	Stdout, Stderr string
	Code           int // exit code; -1 when it did not run, or was killed
}

// Run runs a command in the node, whose PATH it is looked up in, and waits for
// it. Why there is no exit code is added to Stderr.
func (n *Node) Run(ctx context.Context, args ...string) Result {
	if !n.running() {
		return Result{Stderr: n.Name + " is not running", Code: -1}
	}
	var stdout, stderr bytes.Buffer
	cmd := n.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	if err != nil && r.Code < 0 {
		r.Stderr += err.Error()
	}
	return r
}

// Swap makes the next boot one of another image. What is persistent stays.
func (n *Node) Swap(image Image) { n.options.Image = image }

// Kept returns where a path lies outside of the node, if Kairos keeps it: what
// is written there between two boots, the next one has.
func (n *Node) Kept(path string) (string, error) {
	path = strings.TrimPrefix(filepath.Clean("/"+path), "/")
	for _, dir := range overlay.PersistentDirs {
		if rest, ok := strings.CutPrefix(path+"/", dir+"/"); ok {
			return filepath.Join(persistentSource(n.state, dir), rest), nil
		}
	}
	return "", fmt.Errorf("/%s is under no folder that Kairos keeps", path)
}

// Journal returns what the node logged, in all boots up to now, whether it runs
// or not. Options are journalctl's.
func (n *Node) Journal(ctx context.Context, options ...string) (string, error) {
	dir, err := n.Kept("var/log/journal")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "journalctl", append([]string{"--directory=" + dir, "--no-pager", "--quiet"}, options...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("journal of %s: %w: %s", n.Name, err, strings.TrimSpace(stderr.String()))
	}
	return string(b), err
}

// PowerOff powers the node off from inside. A node that has not stopped cleanly
// when ctx ends, or after two minutes, is killed; that is an error.
func (n *Node) PowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if !n.running() {
		return fmt.Errorf("power off %s: it is not running", n.Name)
	}
	r := n.Run(ctx, "systemctl", "poweroff") // it may lose its connection on the way
	select {
	case <-n.ended:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("power off %s: %w\n%s", n.Name, ctx.Err(), r.Stderr), n.Kill())
	}
	if code := n.keeper.ProcessState.ExitCode(); code != endedOff {
		return fmt.Errorf("power off %s: process 1 did not do so (%d)", n.Name, code)
	}
	return nil
}

// Kill cuts the power: all processes end at once. It does nothing to a node that
// is off.
func (n *Node) Kill() error {
	if !n.running() {
		return nil
	}
	if _, err := n.life.Write([]byte{'k'}); err != nil && n.running() {
		return fmt.Errorf("kill %s: %w", n.Name, err)
	}
	return n.awaitEnd()
}

func (n *Node) awaitEnd() error {
	select {
	case <-n.ended:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s did not end within 30 s of being killed", n.Name)
	}
}

// Close kills the node if it is running and removes all that is left of it,
// except a state folder that was given.
func (n *Node) Close() error {
	if n.running() {
		n.life.Close()
		if err := n.awaitEnd(); err != nil {
			return err
		}
	}
	defer n.lock.Close()
	return remove(n.dir)
}

// remove removes the rest of a node that is not running.
func remove(dir string) error {
	if err := removeGroups(filepath.Base(dir)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Sweep removes what is left of nodes whose processes were all killed at once.
func Sweep() error {
	nodes, err := folder("nodes")
	if err != nil {
		return err
	}
	unlock, err := lockFile(filepath.Join(nodes, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	list, err := os.ReadDir(nodes)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range list {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(nodes, e.Name())
		f, err := hold(dir, unix.LOCK_EX)
		if errors.Is(err, errHeld) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = remove(dir)
			f.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
