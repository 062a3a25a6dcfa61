package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOnlyAWordThatIsNoVerbWithARequestIsAnEvent(t *testing.T) {
	root := &cobra.Command{}
	root.AddCommand(&cobra.Command{Use: "status"})
	const request = `{"name":"agent.boot","data":"","file":""}`
	for _, c := range []struct {
		args  []string
		stdin string
		event string // empty: none
	}{
		{[]string{"agent.boot"}, request, "agent.boot"},
		{nil, request, "agent.boot"},
		{[]string{"agent.boot"}, "broken", "agent.boot"},
		{[]string{"whatever"}, `{"name":"whatever"}`, "whatever"},
		{[]string{"whatever"}, request, ""},
		{[]string{"whatever"}, "", ""},
		{[]string{"agent.boot"}, "", ""},
		{nil, "", ""},
		{nil, "[1]", ""},
		{[]string{"status"}, `{"name":"status"}`, ""},
		{[]string{"help"}, `{"name":"help"}`, ""},
		{[]string{"--help"}, `{"name":"--help"}`, ""},
		{[]string{"agent.boot", "more"}, request, ""},
	} {
		name, got, ok := event(root, c.args, strings.NewReader(c.stdin))
		if ok != (c.event != "") || ok && (name != c.event || string(got) != c.stdin) {
			t.Errorf("%q with %q: got %q, %q, %v", c.args, c.stdin, name, got, ok)
		}
	}
}

func TestATerminalIsNotReadFrom(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if name, _, ok := event(&cobra.Command{}, []string{"agent.boot"}, null); ok {
		t.Errorf("got event %q from a character device", name)
	}
}

func TestAnEventIsAnsweredOnStdout(t *testing.T) {
	root := node(t)
	var stdout, stderr bytes.Buffer
	if code := answer(root, "init.provider.info", []byte("{}"), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), version) || stderr.Len() > 0 {
		t.Errorf("exit %d, %s, %s", code, &stdout, &stderr)
	}
	stdout.Reset()
	if code := answer(root, "agent.boot", []byte("{"), &stdout, &stderr); code != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "agent.boot") {
		t.Errorf("exit %d, %s, %s", code, &stdout, &stderr)
	}
	if code := answer(filepath.Join(root, "missing"), "agent.boot", nil, io.Discard, io.Discard); code != 1 {
		t.Errorf("exit %d without a file system", code)
	}
}
