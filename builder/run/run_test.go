package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const shell = "/bin/sh"

func TestNothingIsInherited(t *testing.T) {
	t.Setenv("SECRET", "of the builder")
	out, err := Cmd{Path: "/usr/bin/env"}.Output(t.Context())
	if err != nil || len(out) > 0 {
		t.Errorf("without environment: %q, %v", out, err)
	}
	out, err = Cmd{Path: "/usr/bin/env", Env: []string{"A=1", "B=two words"}}.Output(t.Context())
	if err != nil || string(out) != "A=1\nB=two words\n" {
		t.Errorf("with environment: %q, %v", out, err)
	}
	out, err = Cmd{Path: shell, Args: []string{"-c", "pwd -P; cat"}, Env: []string{"PATH=/usr/bin:/bin"}}.Output(t.Context())
	if err != nil || string(out) != "/\n" {
		t.Errorf("folder and standard input: %q, %v", out, err)
	}
	dir := t.TempDir()
	out, err = Cmd{Path: shell, Args: []string{"-c", "pwd; cat"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, Stdin: strings.NewReader("in")}.Output(t.Context())
	if err != nil || string(out) != dir+"\nin" {
		t.Errorf("given folder and standard input: %q, %v", out, err)
	}
}

func TestArgumentsGoThroughNoShell(t *testing.T) {
	out, err := Cmd{Path: "/bin/echo", Args: []string{"$HOME", "`id`", "a  b", ";", "*"}}.Output(t.Context())
	if err != nil || string(out) != "$HOME `id` a  b ; *\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestAFailureTellsExitCodeAndTheEndOfStandardError(t *testing.T) {
	long := strings.Repeat("x", 9000)
	out, err := Cmd{Path: shell, Args: []string{"-c", `echo out; printf '%s' "$1" >&2; echo 'the end' >&2; exit 7`, "sh", long}}.Output(t.Context())
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Exit != 7 || e.Path != shell || string(out) != "out\n" {
		t.Fatalf("%q, %v", out, err)
	}
	if len(e.Stderr) != 8<<10 || !strings.HasSuffix(e.Stderr, "xthe end\n") {
		t.Errorf("standard error has %d bytes and ends with %q", len(e.Stderr), e.Stderr[len(e.Stderr)-20:])
	}
	for _, say := range []string{shell + " -c echo out", "exit status 7", "the end"} {
		if !strings.Contains(err.Error(), say) {
			t.Errorf("error does not say %q", say)
		}
	}
	_, err = Cmd{Path: shell, Args: []string{"-c", `printf '\377' >&2; exit 1`}}.Output(t.Context())
	if e, ok := errors.AsType[*Error](err); !ok || e.Stderr != "?" {
		t.Errorf("standard error that is no text: %q", e.Stderr)
	}
	_, err = Cmd{Path: shell, Args: []string{"-c", "kill -TERM $$"}}.Output(t.Context())
	if e, ok := errors.AsType[*Error](err); !ok || e.Exit != -1 || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("a signal: %v", err)
	}
}

func TestWhatCanNotBeStarted(t *testing.T) {
	for _, path := range []string{"sh", "./sh", "", filepath.Join(t.TempDir(), "missing")} {
		out, err := Cmd{Path: path}.Output(t.Context())
		if e, ok := errors.AsType[*Error](err); !ok || e.Exit != -1 || len(out) > 0 || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%q: %q, %v", path, out, err)
		}
	}
}

func TestMoreOutputThanAllowedIsAnError(t *testing.T) {
	c := Cmd{Path: "/bin/echo", Args: []string{"12345"}, Limit: 6}
	if out, err := c.Output(t.Context()); err != nil || string(out) != "12345\n" {
		t.Errorf("%q, %v", out, err)
	}
	c.Limit = 5
	if out, err := c.Output(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 5 bytes") || string(out) != "12345" {
		t.Errorf("%q, %v", out, err)
	}
	var b bytes.Buffer
	c.Stdout = &b
	if out, err := c.Output(t.Context()); err != nil || len(out) > 0 || b.String() != "12345\n" {
		t.Errorf("to a writer: %q, %q, %v", out, &b, err)
	}
}

func TestADeadlineSaysWhatItWasFor(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("no answer within a minute"))
	defer cancel()
	_, err := Cmd{Path: "/bin/sleep", Args: []string{"1000"}}.Output(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within a minute") {
		t.Errorf("got %v", err)
	}
}

func TestACancelledCommandIsKilledWithItsChildren(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Cmd{Path: shell, Args: []string{"-c", "sleep 1000 & echo $! >" + file + ".new; mv " + file + ".new " + file + "; wait"}, Env: []string{"PATH=/usr/bin:/bin"}}.Output(ctx)
		ended <- err
	}()
	var child int
	until(t, "the child's number", func() bool {
		b, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(b), &child)
		}
		return err == nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	until(t, "the child's end", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || bytes.Contains(b, []byte(") Z ")) // dead, if nobody has asked for it yet
	})
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for tick := time.NewTicker(time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func TestLookFindsSystemToolsOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "our-own-tool"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if path, err := Look("our-own-tool"); err == nil || !strings.Contains(err.Error(), "our-own-tool is not installed") {
		t.Errorf("found %s, %v", path, err)
	}
	if path, err := Look("sh"); err != nil || path != "/usr/bin/sh" && path != "/bin/sh" {
		t.Errorf("found %s, %v", path, err)
	}
}
