package e2e

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A run that ends in the middle, by Ctrl-C or by a lost machine, publishes
// nothing, and the next one makes the image as if nothing had been.
func TestInterruptedAndKilledRunsLeaveNothingBehind(t *testing.T) {
	p := tools(t)
	minor := loadMatrix(t).Newest().String()
	digest := made(t, minor).digest
	cache, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	// What was built stays; the store of fetched and written blobs is empty.
	must(t, "/", nil, "cp", "-al", filepath.Join(cacheDir(t), "rebuilt"), cache)

	args := []string{"image", "--source", p.source, "--cache", cache, "--minor", minor, "--supply", "rebuilt", "--provider", p.provider, "--out", out}
	stop := func(step string, signal syscall.Signal) (stderr string, state *os.ProcessState) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), p.builder, args...)
		pipe, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var lines []string
		reached := false
		for sc := bufio.NewScanner(pipe); sc.Scan(); {
			lines = append(lines, sc.Text())
			if !reached && strings.Contains(sc.Text(), "…") && strings.Contains(sc.Text(), step) {
				reached = true
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if !reached {
			t.Fatalf("the run never came to %q:\n%s", step, strings.Join(lines, "\n"))
		}
		return strings.Join(lines, "\n"), cmd.ProcessState
	}
	nothing := func() {
		t.Helper()
		if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
			t.Errorf("%s holds %v", out, entries)
		}
	}

	stderr, state := stop("fetch layers", syscall.SIGINT)
	if state.ExitCode() != 1 || !strings.Contains(stderr, "interrupted; nothing was published") {
		t.Errorf("exit %d:\n%s", state.ExitCode(), stderr)
	}
	nothing()
	if left, err := os.ReadDir(filepath.Join(cache, "store", "tmp")); err != nil || len(left) > 0 {
		t.Errorf("temporary files after an interrupt: %v %v", left, err)
	}

	if _, state = stop("write ", syscall.SIGKILL); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the run ended by itself: %v", state)
	}
	nothing()

	again := p.build(t, nil, minor, out, "--cache", cache)
	if again.digest != digest {
		t.Errorf("after the interrupted runs the digest is %s, expected %s", again.digest, digest)
	}
}
