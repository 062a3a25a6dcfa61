package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

func TestVersionTellsTheWindow(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := Main([]string{"version"}, strings.NewReader(""), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit %d, %s", code, &stderr)
	}
	var got struct {
		Version string
		Window  []string
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, minor := range m.Window {
		want = append(want, minor.String())
	}
	if got.Version != version || !slices.Equal(got.Window, want) {
		t.Errorf("got %+v, expected version %s and window %v", got, version, want)
	}
}

func TestWrongUseIsExit2(t *testing.T) {
	for _, args := range [][]string{{"no-such-command"}, {"version", "extra"}, {"--no-such-flag"}, {"version", "--no-such-flag"}} {
		var stdout, stderr bytes.Buffer
		if code := Main(args, strings.NewReader(""), &stdout, &stderr); code != 2 || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "error: ") || !strings.Contains(stderr.String(), strings.TrimPrefix(args[len(args)-1], "--")) {
			t.Errorf("%v: exit %d, output %q, error %q", args, code, &stdout, &stderr)
		}
	}
}

func TestWithoutACommandTheHelpIsPrinted(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := Main(nil, strings.NewReader(""), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "agent-provider-kubernetes [command]") {
		t.Errorf("exit %d, %s%s", code, &stdout, &stderr)
	}
}
