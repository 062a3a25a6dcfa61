package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tool makes a program out of a shell script.
func tool(t *testing.T, script string) Runner {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return Runner{Dir: dir}
}

func TestAProgramGetsOnlyWhatItIsGiven(t *testing.T) {
	t.Setenv("SECRET", "inherited")
	r := tool(t, `/usr/bin/env; pwd; echo "$@"; cat; cat <&3; echo warned >&2`)
	r.Env = []string{"HTTPS_PROXY=http://proxy:3128", "no_proxy=10.0.0.0/8"}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("from 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, err := r.Run(t.Context(), Command{Name: "tool", Args: []string{"a b", "$HOME"}, Stdin: strings.NewReader("from 0\n"), Files: []*os.File{f}})
	if err != nil || out.Exit != 0 || string(out.Stderr) != "warned\n" {
		t.Fatalf("exit %d, %q, %v", out.Exit, out.Stderr, err)
	}
	got := string(out.Stdout)
	for _, want := range []string{"HTTPS_PROXY=http://proxy:3128\n", "no_proxy=10.0.0.0/8\n", "PATH=/usr/sbin:/usr/bin:/sbin:/bin\n", "\n/\n", "a b $HOME\nfrom 0\nfrom 3\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, wrong := range []string{"SECRET", "HOME="} {
		if strings.Contains(got, wrong) {
			t.Errorf("%q in\n%s", wrong, got)
		}
	}
}

func TestAProgramThatFailsIsAnErrorWithItsOutput(t *testing.T) {
	out, err := tool(t, "echo out; echo secret >&2; exit 3").Run(t.Context(), Command{Name: "tool", Args: []string{"argument"}})
	if err == nil || out.Exit != 3 || string(out.Stdout) != "out\n" || string(out.Stderr) != "secret\n" {
		t.Fatalf("%+v, %v", out, err)
	}
	if s := err.Error(); !strings.HasSuffix(s, "/tool: exit status 3") {
		t.Errorf("error is %q", s)
	}
}

func TestAProgramIsKilledWithItsChildren(t *testing.T) {
	alive, given, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		// The child is there; from now on only it and the program hold the pipe.
		_, _ = io.ReadFull(alive, make([]byte, len("up\n")))
		_ = given.Close()
		cancel()
	}()
	out, err := tool(t, "sleep 1000 & echo up >&3; wait").Run(ctx, Command{Name: "tool", Files: []*os.File{given}})
	if !errors.Is(err, context.Canceled) || out.Exit != -1 {
		t.Errorf("%+v, %v", out, err)
	}
	_ = alive.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := alive.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the child lives on: %v", err)
	}
}

func TestAProgramHasADeadline(t *testing.T) {
	r := tool(t, "exec sleep 1000")
	if out, err := r.Run(t.Context(), Command{Name: "tool", Timeout: time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) || out.Exit != -1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	r := tool(t, "printf 123456789; printf abcdefghi >&2")
	out, err := r.Run(t.Context(), Command{Name: "tool", Limit: 4})
	if err == nil || string(out.Stdout) != "1234" || string(out.Stderr) != "fghi" || out.Exit != 0 {
		t.Errorf("%q, %q, exit %d, %v", out.Stdout, out.Stderr, out.Exit, err)
	}
	if out, err := r.Run(t.Context(), Command{Name: "tool", Limit: 9}); err != nil || string(out.Stdout) != "123456789" {
		t.Errorf("%q, %v", out.Stdout, err)
	}
}

func TestWhatIsNoProgramOrNoProxyVariableIsRefused(t *testing.T) {
	r := tool(t, "exit 0")
	for _, name := range []string{"", ".", "..", "../tool", "/bin/sh", "a/b"} {
		if _, err := r.Run(t.Context(), Command{Name: name}); err == nil {
			t.Errorf("%q was run", name)
		}
	}
	if _, err := r.Run(t.Context(), Command{Name: "none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
	if _, err := (Runner{Dir: "bin"}).Run(t.Context(), Command{Name: "sh"}); err == nil {
		t.Error("a relative folder was taken")
	}
	for _, v := range []string{"KUBECONFIG=/x", "PATH=/x", "LD_PRELOAD=/x", "=x", ""} {
		r.Env = []string{v}
		if _, err := r.Run(t.Context(), Command{Name: "tool"}); err == nil {
			t.Errorf("%q was taken", v)
		}
	}
}
