// Package cli is the builder's command line: it reads flags and files, calls
// the packages that do the work, prints what they return, and turns errors into
// the documented exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

// app is what all commands share.
type app struct {
	stdout, stderr io.Writer
	matrix         matrix.Matrix
	source         string // root of the checkout
	cache          string
	registry       string // base URL of where kubeadm's images come from
	pushing        string // repository that is being pushed to
}

// Main runs the command line and returns its exit code. Results go to stdout,
// progress and errors to stderr.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	m, err := matrix.Load()
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return ExitUsage
	}
	a := &app{stdout: stdout, stderr: stderr, matrix: m, registry: "https://" + matrix.Registry}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return ExitOK
	case ctx.Err() == nil:
	case a.pushing != "":
		err = fmt.Errorf("interrupted while pushing to %s, where tags move last: %w", a.pushing, err)
	default:
		err = fmt.Errorf("interrupted; nothing was published: %w", err)
	}
	fmt.Fprintln(a.stderr, "error:", err)
	return ExitCode(err)
}

func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "builder",
		Short:         "Make, inspect and verify node images: one signed image per Kubernetes minor",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no command %s; `builder --help` lists them", args[0])
			}
			return nil
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	f := cmd.PersistentFlags()
	f.StringVar(&a.source, "source", ".", "root of the checkout: locks, tools modules and signing policies")
	f.StringVar(&a.cache, "cache", defaultCache(), "folder of everything that is kept between runs")
	cmd.AddCommand(a.matrixCommand(), a.lockCommand(), a.imageCommand(), a.inspectCommand(), a.verifyCommand())
	for _, c := range cmd.Commands() {
		run, positional := c.RunE, c.Args
		c.Args = func(c *cobra.Command, args []string) error {
			if err := positional(c, args); err != nil {
				return usage("%w", err)
			}
			return nil
		}
		c.RunE = func(c *cobra.Command, args []string) error {
			var err error
			if a.source, err = filepath.Abs(a.source); err != nil {
				return err
			}
			if a.cache, err = filepath.Abs(a.cache); err != nil {
				return err
			}
			return run(c, args)
		}
	}
	return cmd
}

// reporter prints progress to standard error: a bar on a terminal, else lines.
func (a *app) reporter() *report.Reporter {
	f, ok := a.stderr.(*os.File)
	return report.New(a.stderr, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("CI") == "")
}

// row returns the row of a minor given as text.
func (a *app) row(minor string) (matrix.Row, error) {
	if minor == "" {
		return matrix.Row{}, usage("no minor is given: use --minor with one of %s", a.window())
	}
	m, err := matrix.ParseMinor(minor)
	if err != nil {
		return matrix.Row{}, usage("%w: use one of %s", err, a.window())
	}
	row, ok := a.matrix.Row(m)
	if !ok {
		return matrix.Row{}, usage("minor %s is outside the supported window: use one of %s", m, a.window())
	}
	return row, nil
}

func (a *app) window() string {
	var s []string
	for _, m := range a.matrix.Window {
		s = append(s, m.String())
	}
	return strings.Join(s, ", ")
}

func defaultCache() string {
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "provider-kubernetes")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".cache", "provider-kubernetes")
	}
	return filepath.Join(os.TempDir(), "provider-kubernetes")
}

// output checks the value of an --output flag.
func output(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return usage("--output %s is unknown: use one of %s", value, strings.Join(allowed, ", "))
}

// usageError is a wrong use of the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

var errDrift = errors.New("the lock is not what the matrix and the upstream give today: run the same without --check, and review the change")
