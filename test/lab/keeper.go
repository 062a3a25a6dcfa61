package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Three processes make a node: the harness (a test, or the command) starts a
// keeper, the keeper starts what becomes the node's process 1. All are the same
// program; this variable tells the second and the third what they are.
const roleVariable = "PROVIDER_KUBERNETES_LAB"

// Main is to be called first in a program that boots nodes: in TestMain of a
// test. It returns at once, except in the processes that this package starts
// from the program itself.
func Main() {
	role, dir, ok := strings.Cut(os.Getenv(roleVariable), ":")
	if !ok {
		return
	}
	// A process that was started by a thread gets a signal when that thread
	// ends, and namespaces are a thread's too.
	runtime.LockOSThread()
	var err error
	switch role {
	case "keeper":
		err = keep(dir)
	case "init":
		err = boot(dir)
	default:
		err = fmt.Errorf("%s=%s: expected keeper or init", roleVariable, role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// plan is what a node's keeper and process 1 are told, in a file of its folder.
type plan struct {
	ID       string
	Name     string
	State    string   // folder of what outlives a boot
	Image    []string // folders, topmost first
	Cgroups  Cgroups
	Address  string // on the switch, with prefix length; empty without a switch
	Gateway  string
	Files    map[string]string
	Terminal string // the keeper sets it: device of the console
}

const planFile = "plan.json"

func (p plan) write(dir string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, planFile), b, 0o600)
}

func readPlan(dir string) (p plan, err error) {
	b, err := os.ReadFile(filepath.Join(dir, planFile))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// How a keeper ends tells how its node did.
const (
	endedOff     = 10 // powered off by itself
	endedReboot  = 11
	endedAborted = 12 // killed, or broken
)

// Descriptors above standard error. The keeper's others are locks, that end with
// it.
const (
	switchFD = 3 // keeper and process 1; /dev/null without a switch
	reportFD = 4 // process 1: the pipe that it reports errors of its setup on
)

// inheritNothing keeps the descriptors that this process was given from those
// that it starts.
func inheritNothing() error {
	return unix.CloseRange(3, 1<<20, unix.CLOSE_RANGE_CLOEXEC)
}

// keep runs one boot of the node in dir and cleans up after it. Standard output
// gets one line: the number of the node's process 1, or why there is none. A
// byte on standard input is a power cut. Its end is one too, and that of the
// node: nobody is left who would boot it again.
func keep(dir string) error {
	if err := inheritNothing(); err != nil {
		return err
	}
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	console, err := openConsole(filepath.Join(dir, consoleFile))
	if err != nil {
		return err
	}
	p.Terminal = console.device
	if err := p.write(dir); err != nil {
		return err
	}
	reports, report, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=init:" + dir, "PATH=" + searchPath}
	cmd.ExtraFiles = []*os.File{os.NewFile(switchFD, "switch"), report}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	if err = makeGroups(p.ID); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return errors.Join(err, removeGroups(p.ID))
	}
	report.Close()

	var orphaned atomic.Bool
	go func() {
		_, err := os.Stdin.Read(make([]byte, 1))
		orphaned.Store(err != nil)
		_ = cmd.Process.Kill() // it may have ended by itself
	}()
	if b, err := io.ReadAll(reports); err != nil || len(b) > 0 {
		fmt.Printf("%s\n", b)
	} else {
		fmt.Println(cmd.Process.Pid)
	}
	_ = cmd.Wait() // how it ended is read below
	console.Close()
	if err := removeGroups(p.ID); err != nil {
		return err
	}
	if orphaned.Load() {
		return os.RemoveAll(dir)
	}
	os.Exit(ended(cmd.ProcessState))
	return nil
}

// ended tells how the node's process 1 ended: the kernel reports a power off of
// a process namespace as SIGINT and a reboot as SIGHUP, see reboot(2).
func ended(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		switch w.Signal() {
		case syscall.SIGINT:
			return endedOff
		case syscall.SIGHUP:
			return endedReboot
		}
	}
	return endedAborted
}

// console is a terminal whose output goes to a file.
type console struct {
	device string
	slave  *os.File
	copied sync.WaitGroup
}

func openConsole(log string) (*console, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	c := &console{device: fmt.Sprintf("/dev/pts/%d", n)}
	// While this end is open, reading the other one goes on after the node has
	// closed it.
	if c.slave, err = os.OpenFile(c.device, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	c.copied.Go(func() {
		_, _ = io.Copy(out, master) // ends with EIO
		master.Close()
		out.Close()
	})
	return c, nil
}

// Close ends the use of the console after the node has ended.
func (c *console) Close() {
	c.slave.Close()
	c.copied.Wait()
}
