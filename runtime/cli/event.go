package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/runtime/agent"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

const (
	requestLimit = 64 << 20         // bytes
	requestWait  = 10 * time.Second // for a request that is piped in
)

// event tells whether the program is called as a plugin: with one word that is
// no verb, or with nothing, and with a request for that event on stdin. It
// returns the event's name and the request.
func event(root *cobra.Command, args []string, stdin io.Reader) (name string, request []byte, ok bool) {
	if len(args) == 1 {
		name = args[0]
	}
	if len(args) > 1 || strings.HasPrefix(name, "-") || name == "help" {
		return "", nil, false
	}
	for _, verb := range root.Commands() {
		if verb.Name() == name {
			return "", nil, false
		}
	}
	// A person at a terminal isn't waited for.
	if f, isFile := stdin.(*os.File); isFile {
		if fi, err := f.Stat(); err != nil || fi.Mode()&os.ModeCharDevice != 0 {
			return "", nil, false
		}
	}
	read := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(stdin, requestLimit))
		read <- b
	}()
	select {
	case request = <-read:
	case <-time.After(requestWait):
		return "", nil, false
	}
	if requested := agent.EventName(request); name == "" {
		name = requested
		return name, request, name != ""
	} else if requested == name {
		return name, request, true
	}
	// Kairos' own events have a dot in their names: a broken request for one is
	// no mistyped verb.
	return name, request, strings.Contains(name, ".") && len(request) > 0
}

// answer answers an event for the file system at root.
func answer(root, event string, request []byte, stdout, stderr io.Writer) int {
	r, err := host.OpenRoot(root)
	if err == nil {
		defer func() { _ = r.Close() }()
		err = agent.Agent{Root: r, Version: version}.Answer(event, bytes.NewReader(request), stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}
