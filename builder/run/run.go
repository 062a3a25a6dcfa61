// Package run starts processes for the builder and is its only importer of
// os/exec. A command is an absolute path, its arguments and exactly the
// environment that is given: nothing is inherited, nothing goes through a
// shell, and a command that outlives its context is killed with its children.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Cmd is one process to start.
type Cmd struct {
	Path   string   // absolute
	Args   []string // without the program's name
	Dir    string   // working folder; empty is "/"
	Env    []string // the whole environment, "NAME=value"
	Stdin  io.Reader
	Stdout io.Writer // nil: Output captures it
	Limit  int64     // bytes of standard output that Output keeps at most; 0 is 16 MiB
}

// Error is a command that could not be started or did not exit with 0.
type Error struct {
	Path   string
	Args   []string
	Exit   int    // -1 when it was not started or died from a signal
	Stderr string // the last 8 KiB
	Err    error
}

func (e *Error) Error() string {
	msg := fmt.Sprintf("%s: %v", strings.Join(append([]string{e.Path}, e.Args...), " "), e.Err)
	if s := strings.TrimSpace(e.Stderr); s != "" {
		msg += "\n" + s
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }

// Output runs the command and returns what it wrote to standard output. A
// non-zero exit is an *Error that carries the end of standard error.
func (c Cmd) Output(ctx context.Context) ([]byte, error) {
	out := &capped{limit: c.Limit}
	if out.limit == 0 {
		out.limit = 16 << 20
	}
	if c.Stdout == nil {
		c.Stdout = out
	}
	err := c.Run(ctx)
	if err == nil && out.over {
		err = &Error{Path: c.Path, Args: c.Args, Err: fmt.Errorf("printed more than %d bytes", out.limit)}
	}
	return out.buf.Bytes(), err
}

// Run runs the command; standard output goes to c.Stdout.
func (c Cmd) Run(ctx context.Context) error {
	fail := func(exit int, stderr string, err error) error {
		return &Error{Path: c.Path, Args: c.Args, Exit: exit, Stderr: stderr, Err: err}
	}
	if !filepath.IsAbs(c.Path) {
		return fail(-1, "", errors.New("program is not an absolute path"))
	}
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = c.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	stderr := &tail{limit: 8 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		if !errors.Is(err, ctx.Err()) { // the cause says why, Err tells callers what
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	exit := -1
	if cmd.ProcessState != nil {
		exit = cmd.ProcessState.ExitCode()
	}
	return fail(exit, stderr.String(), err)
}

// Look returns the absolute path of a host tool from the folders where the
// system keeps its own, never from PATH.
func Look(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: found in none of /usr/bin, /usr/sbin, /bin, /sbin", name)
}

type capped struct {
	buf   bytes.Buffer
	limit int64
	over  bool
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - int64(c.buf.Len()); int64(len(p)) > room {
		c.over = true
		c.buf.Write(p[:room])
		return len(p), nil
	}
	return c.buf.Write(p)
}

type tail struct {
	b     []byte
	limit int
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > t.limit {
		t.b = append([]byte(nil), t.b[len(t.b)-t.limit:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.ToValidUTF8(string(t.b), "?") }
