// Command lab boots a node image and gives a shell in it.
//
//	lab [-state DIR] LAYOUT [COMMAND...]   LAYOUT as in out/k8s-1.37
//
// When the shell, or the command in its place, ends, the node is powered off.
// With -state what a Kairos node keeps is kept for the next time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/test/lab"
)

func main() {
	lab.Main()
	state := flag.String("state", "", "folder that keeps what outlives a boot (default a temporary one)")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: lab [-state DIR] LAYOUT [COMMAND...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	command := flag.Args()[1:]
	if len(command) == 0 {
		command = []string{"bash", "--login"}
	}
	code, err := run(flag.Arg(0), *state, command)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(layout, state string, command []string) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// Ctrl-C is for the shell.
	signal.Ignore(os.Interrupt)
	if err := lab.Check(); err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "laying out", layout)
	image, err := lab.Prepare(ctx, layout)
	if err != nil {
		return 1, err
	}
	network, err := lab.NewSwitch(lab.Network)
	if err != nil {
		return 1, err
	}
	defer network.Close()
	node, err := lab.New(lab.Options{Image: image, State: state, Switch: network, Address: lab.Network.Addr().Next().String()})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	start := time.Now()
	if err := node.Boot(ctx); err != nil {
		return 1, err
	}
	failed := node.Run(ctx, "systemctl", "list-units", "--failed", "--plain", "--no-legend").Stdout
	fmt.Fprintf(os.Stderr, "booted in %.1f s; failed units: %s\n", time.Since(start).Seconds(), failed)

	cmd := node.Command(ctx, command...)
	cmd.SysProcAttr.Setpgid = false // in the terminal's foreground
	cmd.Env = append(cmd.Env, "TERM="+os.Getenv("TERM"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	code = cmd.ProcessState.ExitCode()
	return code, node.PowerOff(ctx)
}
