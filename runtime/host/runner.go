package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Runner starts the node's programs. Nothing is inherited and nothing goes
// through a shell; a program that outlives its deadline is killed with its
// children.
type Runner struct {
	Dir string   // the programs' folder, absolute; empty is /usr/bin
	Env []string // proxy variables, "HTTPS_PROXY=http://…"; anything else is refused
}

// Command is one program to run.
type Command struct {
	Name    string // file in the Runner's folder
	Args    []string
	Stdin   io.Reader     // nil is /dev/null
	Files   []*os.File    // descriptors 3, 4, …
	Timeout time.Duration // 0 is one minute
	Limit   int64         // bytes kept of each output; 0 is 1 MiB
}

// Output is what a program left behind. It is raw: callers sanitise what they
// print of it.
type Output struct {
	Stdout []byte // the first Command.Limit bytes
	Stderr []byte // the last Command.Limit bytes
	Exit   int    // -1 when it was not started or died from a signal
}

// environment is what every program gets besides proxy variables. kubeadm looks
// for its own helpers by name: they are found in the image only.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}

// Run runs a program to its end. Any end but exit code 0, and more standard
// output than the limit, is an error; the Output is filled as far as it goes
// either way. The error wraps the context's when time was up, and never holds
// arguments or output.
func (r Runner) Run(ctx context.Context, c Command) (Output, error) {
	out := Output{Exit: -1}
	dir := r.Dir
	if dir == "" {
		dir = "/usr/bin"
	}
	path := filepath.Join(dir, c.Name)
	if c.Name == "" || filepath.Base(path) != c.Name || !filepath.IsAbs(path) {
		return out, fmt.Errorf("run %q in %q: expected a file name in an absolute folder", c.Name, dir)
	}
	for _, v := range r.Env {
		if name, _, _ := strings.Cut(v, "="); !proxyVariable(name) {
			return out, fmt.Errorf("run %s: environment has %s, expected proxy variables only", path, name)
		}
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Limit == 0 {
		c.Limit = 1 << 20
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()

	stdout, stderr := &head{limit: c.Limit}, &tail{limit: c.Limit}
	cmd := exec.CommandContext(ctx, path, c.Args...)
	cmd.Dir = "/"
	cmd.Env = slices.Concat(environment, r.Env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, stdout, stderr
	cmd.ExtraFiles = c.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// For a child that keeps the output open after the program's end.
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	out.Stdout, out.Stderr = stdout.buf.Bytes(), stderr.b
	if cmd.ProcessState != nil {
		out.Exit = cmd.ProcessState.ExitCode()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && stdout.over:
		err = fmt.Errorf("printed more than %d bytes", c.Limit)
	}
	if err != nil {
		if pe := (*os.PathError)(nil); errors.As(err, &pe) { // it names the path, too
			err = pe.Err
		}
		return out, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// proxyVariable tells whether name configures a proxy.
func proxyVariable(name string) bool {
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
		return true
	}
	return false
}

// head keeps the first bytes and swallows the rest.
type head struct {
	buf   bytes.Buffer
	limit int64
	over  bool
}

func (h *head) Write(p []byte) (int, error) {
	room := h.limit - int64(h.buf.Len())
	if int64(len(p)) > room {
		h.over = true
		h.buf.Write(p[:room])
		return len(p), nil
	}
	return h.buf.Write(p)
}

// tail keeps the last bytes.
type tail struct {
	b     []byte
	limit int64
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := int64(len(t.b)) - t.limit; over > 0 {
		t.b = slices.Clone(t.b[over:])
	}
	return len(p), nil
}
