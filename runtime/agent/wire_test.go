package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mudler/go-pluggable"

	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

const maxProgram = 25 << 20 // bytes

// TestTheProgramIsAPlugin builds the program and calls it as Kairos does: the
// event as its only argument, one JSON request on stdin, one JSON answer on
// stdout.
func TestTheProgramIsAPlugin(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	bin := t.TempDir()
	program := filepath.Join(bin, "agent-provider-kubernetes")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/kairos-io/provider-kubernetes/runtime")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if fi, err := os.Stat(program); err != nil || fi.Size() > maxProgram {
		t.Errorf("%v, %d bytes, expected at most %d", err, fi.Size(), maxProgram)
	}

	t.Run("found and asked by Kairos' own plugin manager", func(t *testing.T) {
		t.Setenv("PATH", bin)
		for event, want := range map[pluggable.EventType]string{"init.provider.info": `"provider":"kubernetes"`, "agent.install": "", "some.day": ""} {
			m := pluggable.NewManager([]pluggable.EventType{event}).Autoload("agent-provider").Register()
			if len(m.Plugins) != 1 || m.Plugins[0].Name != "kubernetes" {
				t.Fatalf("plugins are %+v", m.Plugins)
			}
			answers := 0
			m.Response(event, func(_ *pluggable.Plugin, r *pluggable.EventResponse) {
				answers++
				if r.Error != "" || !strings.Contains(r.Data, want) || want == "" && *r != (pluggable.EventResponse{}) {
					t.Errorf("%s: got %+v", event, r)
				}
			})
			// Larger than what goes through stdin.
			if _, err := m.Publish(event, map[string]string{"config": strings.Repeat("# long\n", 4096)}); err != nil || answers != 1 {
				t.Errorf("%s: %v, %d answers", event, err, answers)
			}
		}
	})

	// From here on the program writes: it gets a file system of its own.
	a, dir := node(t)
	inside := filepath.Join(dir, "agent")
	if err := os.Link(program, inside); err != nil {
		t.Fatal(err)
	}
	call := func(t *testing.T, stdin string, args ...string) (string, error) {
		t.Helper()
		cmd := exec.Command("/agent", args...)
		cmd.Dir = "/"
		cmd.Stdin = strings.NewReader(stdin)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if errors.Is(err, syscall.EPERM) {
			t.Skip("this machine lets nobody but root change root")
		}
		if strings.Contains(stderr.String(), "panic") {
			t.Errorf("%q: %s", args, &stderr)
		}
		return string(out), err
	}
	request := func(t *testing.T, e pluggable.Event) string {
		t.Helper()
		s, err := e.JSON()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	payload, err := json.Marshal(map[string]string{"config": kairosConfig + strings.Repeat("# a real cloud-config is long\n", 1000)})
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "/payload", string(payload))
	const empty = `{"state":"","data":"","error":"","log":""}`

	for name, c := range map[string]struct {
		event pluggable.Event
		args  []string
	}{
		"a payload on stdin":                      {pluggable.Event{Name: "agent.boot", Data: string(payload)}, []string{"agent.boot"}},
		"a payload in a file":                     {pluggable.Event{Name: "agent.boot", File: "/payload"}, []string{"agent.boot"}},
		"the event's name in the request only":    {pluggable.Event{Name: "agent.boot", File: "/payload"}, nil},
		"an event that is only known to others":   {pluggable.Event{Name: "agent.bootstrap", Data: "{}"}, []string{"agent.bootstrap"}},
		"an event without a dot and with no data": {pluggable.Event{Name: "whatever"}, []string{"whatever"}},
	} {
		t.Run(name, func(t *testing.T) {
			boots := c.event.Name == "agent.boot"
			_ = os.Remove(filepath.Join(dir, DefaultPlace))
			out, err := call(t, request(t, c.event), c.args...)
			if err != nil || out != empty {
				t.Errorf("%v, answer %q, expected %s", err, out, empty)
			}
			if written := strings.Contains(read(t, dir, DefaultPlace), "reconcile --cluster-file"); written != boots {
				t.Errorf("stages are written: %v, expected %v", written, boots)
			}
		})
	}
	t.Run("the status is told by a verb", func(t *testing.T) {
		out, err := call(t, "", "status", "--output", "json")
		var d status.Document
		if err != nil || json.Unmarshal([]byte(out), &d) != nil || d.Phase != status.Reconciling || d != status.Read(a.Root) {
			t.Errorf("%v, %s", err, out)
		}
	})
	t.Run("without an argument and a request it shows its help", func(t *testing.T) {
		if out, err := call(t, ""); err != nil || !strings.Contains(out, "reconcile") {
			t.Errorf("%v, %q", err, out)
		}
	})
	t.Run("a broken request is an error", func(t *testing.T) {
		for _, stdin := range []string{"{", `{"name":"agent.boot","file":"/missing"}`} {
			out, err := call(t, stdin, "agent.boot")
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || out != "" {
				t.Errorf("%q: %v, %q, expected exit code 1", stdin, err, out)
			}
		}
	})
}
