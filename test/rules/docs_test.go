package rules

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	makeCall   = regexp.MustCompile("(?m)(?:^\\s*|`|run: |&& )make ([a-z][a-z-]*)")
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	link       = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	exitCode   = regexp.MustCompile(`(?m)^\s+Exit\w+\s+= (\d+)`)
)

func TestPagesWorkflowsAndScriptsNameWhatExists(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllSubmatch(read(t, "Makefile"), -1) {
		targets[string(m[1])] = true
	}
	calls := 0
	for _, f := range checkout(t) {
		page := path.Ext(f.path) == ".md"
		if !page && !strings.HasPrefix(f.path, ".github/") && !strings.HasPrefix(f.path, ".ci/") {
			continue
		}
		for _, m := range makeCall.FindAllSubmatch(f.content, -1) {
			calls++
			if !targets[string(m[1])] {
				t.Errorf("%s: `make %s`: the Makefile has no such target", f.path, m[1])
			}
		}
		if !page {
			continue
		}
		for _, m := range link.FindAllSubmatch(f.content, -1) {
			if to := string(m[1]); !strings.Contains(to, "://") {
				if _, err := os.Stat(filepath.Join(root, path.Dir(f.path), to)); err != nil {
					t.Errorf("%s: link to %s: %v", f.path, to, err)
				}
			}
		}
	}
	if calls == 0 {
		t.Error("found no call of make, expected several")
	}
}

func TestTheArchitectureHasARowForEveryRoom(t *testing.T) {
	page := read(t, "ARCHITECTURE.md")
	for _, program := range []string{"builder", "runtime"} {
		rooms, err := filepath.Glob(filepath.Join(root, program, "*", "*.go"))
		if err != nil || len(rooms) == 0 {
			t.Errorf("found no room of %s: %v", program, err)
		}
		seen := map[string]bool{}
		for _, file := range rooms {
			room := program + "/" + filepath.Base(filepath.Dir(file))
			if !seen[room] && !bytes.Contains(page, []byte("\n| `"+room+"` | ")) {
				t.Errorf("ARCHITECTURE.md has no row for %s", room)
			}
			seen[room] = true
		}
	}
}

func TestTheReadmeListsEveryExitCode(t *testing.T) {
	readme := read(t, "README.md")
	codes := exitCode.FindAllSubmatch(read(t, "builder/cli/exit.go"), -1)
	if len(codes) == 0 {
		t.Fatal("found no exit code in builder/cli/exit.go")
	}
	for _, m := range codes {
		if row := fmt.Sprintf("\n| %s | ", m[1]); !bytes.Contains(readme, []byte(row)) {
			t.Errorf("README.md has no row for exit code %s", m[1])
		}
	}
}

func TestWorkflowsRunNothingOfOthersAndMayDoNothingByDefault(t *testing.T) {
	pinned := regexp.MustCompile(`^\s*(- )?uses: [\w./-]+@[0-9a-f]{40} # v\d`)
	workflows := 0
	for _, f := range checkout(t) {
		if !strings.HasPrefix(f.path, ".github/workflows/") {
			continue
		}
		workflows++
		if !bytes.Contains(f.content, []byte("\npermissions: {}\n")) {
			t.Errorf("%s: expected empty permissions at the top level", f.path)
		}
		for line := range strings.Lines(string(f.content)) {
			if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
				t.Errorf("%s: %q: expected a full commit SHA and the version as a comment", f.path, strings.TrimSpace(line))
			}
		}
	}
	if workflows == 0 {
		t.Error("found no workflow")
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
