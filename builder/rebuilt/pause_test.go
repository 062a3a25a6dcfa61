package rebuilt

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	programs "github.com/kairos-io/provider-kubernetes/builder/program"
)

// buildPause builds the sandbox program as the supply does and returns its path.
func buildPause(t *testing.T) (*Supply, string) {
	t.Helper()
	s, _ := workshop(t)
	goPath, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	// A setting of the user that would end every build, were it taken over.
	config := filepath.Join(t.TempDir(), "go", "env")
	if err := errors.Join(os.MkdirAll(filepath.Dir(config), 0o755), os.WriteFile(config, []byte("GOFLAGS=-no-such-flag\nGOARCH=mips\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s.Platform.Architecture = runtime.GOARCH
	s.Go = Go{Path: goPath, Env: []string{"HOME=" + os.Getenv("HOME"), "XDG_CONFIG_HOME=" + filepath.Dir(filepath.Dir(config)), "GOCACHE=" + goEnv(t, "GOCACHE")}}
	if s.goVersion, err = s.toolchain(t.Context()); err != nil || !strings.HasPrefix(s.goVersion, "go1.") {
		t.Fatalf("toolchain %q: %v", s.goVersion, err)
	}
	bins, err := s.pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	content, err := s.Upstream.ReadAll(bins["pause"].Digest, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(file, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return s, file
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestPause(t *testing.T) {
	s, file := buildPause(t)
	if why := programs.NotStatic(file, runtime.GOARCH); why != "" {
		t.Errorf("pause is %s", why)
	}
	if out, err := programs.Output(t.Context(), file, "-v"); err != nil || !strings.HasPrefix(out, "pause") {
		t.Errorf("pause -v says %q, %v", out, err)
	}

	t.Run("is built once", func(t *testing.T) {
		first, err := s.pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again := *s
		again.Go.Path = "/nonexistent/go"
		if got, err := again.pause(t.Context()); err != nil || got["pause"] != first["pause"] {
			t.Errorf("got %v, %v", got, err)
		}
		again.goVersion = "go1.99"
		if _, err := again.pause(t.Context()); err == nil || !strings.Contains(err.Error(), "build pause: /nonexistent/go") {
			t.Errorf("another toolchain: %v", err)
		}
		if left, err := os.ReadDir(filepath.Join(s.Upstream.Dir(), "tmp")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})

	t.Run("reaps what is left to it and ends when told to", func(t *testing.T) {
		// The shell starts a child that lives until the pipe ends, and then becomes
		// pause, which so has a child that it knows nothing of.
		life, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer end.Close()
		cmd := exec.Command("/bin/sh", "-c", "cat <&3 & echo $!; exec "+file)
		cmd.ExtraFiles = []*os.File{life}
		r, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill() }()
		var child int
		if _, err := fmt.Fscan(r, &child); err != nil {
			t.Fatal(err)
		}
		until(t, "the shell to become pause", func() bool {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
			return err == nil && exe == file
		})
		if err := errors.Join(life.Close(), end.Close()); err != nil {
			t.Fatal(err)
		}
		until(t, "pause to reap the child", func() bool {
			// It misses what it is told before it listens, so tell it again.
			if err := cmd.Process.Signal(syscall.SIGCHLD); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(fmt.Sprintf("/proc/%d", child))
			return errors.Is(err, os.ErrNotExist)
		})
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("pause ended with %v", err)
		}
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
