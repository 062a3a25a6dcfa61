package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// checkUnits compares fragments and drop-ins with the overlay byte by byte.
func checkUnits(_ context.Context, s *subject) error {
	for _, f := range s.Overlay {
		if !f.Mode.IsRegular() || !strings.HasPrefix(f.Path, overlay.UnitDir+"/") {
			continue
		}
		b, ok := s.small[f.Path]
		if ok && !bytes.Equal(b, f.Content) {
			s.find(f.Path, fmt.Sprintf("%d bytes that are not the overlay's", len(b)), fmt.Sprintf("the overlay's %d bytes", len(f.Content)),
				"restore the unit; put changes into a drop-in of another name")
		}
		if ok && hasInstall(b) {
			s.find(f.Path, "an [Install] section", "none: a wants link under /usr/lib enables the unit",
				"drop the section: systemctl enable would put a link into /etc/systemd, which outlives the image")
		}
	}
	return nil
}

func hasInstall(unit []byte) bool {
	for line := range bytes.Lines(unit) {
		if bytes.EqualFold(bytes.TrimSpace(line), []byte("[Install]")) {
			return true
		}
	}
	return false
}

// checkWants proves that a node with an empty /etc starts the units, and one
// whose /etc comes from an older image does so too.
func checkWants(_ context.Context, s *subject) error {
	for _, unit := range overlay.Units {
		name, want := overlay.WantsDir+"/"+unit, "symlink to ../"+unit+", owner 0:0"
		e, ok := s.lstat(name)
		switch {
		case !ok:
			s.find(name, "missing", want, "add the link; one in /etc/systemd is not enough")
		case e.Type != layerfs.Symlink || e.Target != "../"+unit || e.UID != 0 || e.GID != 0:
			s.find(name, describe(e), want, "replace it by the relative link")
		}
	}
	return nil
}

// checkSystemd has systemd itself judge the image's units. An ordering cycle is
// printed, but does not fail the verification.
func checkSystemd(ctx context.Context, s *subject) error {
	analyze, err := run.Look("systemd-analyze")
	if err != nil {
		return fmt.Errorf("%w: install systemd on this machine", err)
	}
	systemctl, err := run.Look("systemctl")
	if err != nil {
		return fmt.Errorf("%w: install systemd on this machine", err)
	}
	var present []string
	for _, unit := range overlay.Units {
		if e, err := s.FS.Stat(overlay.UnitDir + "/" + unit); err == nil && e.Type == layerfs.Regular {
			present = append(present, unit)
		}
	}
	if len(present) == 0 {
		return nil
	}
	// A program that is missing is the finding of another rule.
	for _, name := range []string{"usr/bin/containerd", "usr/bin/kubelet", overlay.Provider} {
		if p := filepath.Join(s.dir, name); !exists(p) {
			if err := errors.Join(os.MkdirAll(path.Dir(p), 0o755), os.WriteFile(p, nil, 0o755)); err != nil {
				return err
			}
		}
	}
	verify := func(recursive string, units ...string) (string, error) {
		args := append([]string{"-c", `exec "$@" 2>&1`, "sh", // what it objects to is on standard error
			analyze, "verify", "--root=" + s.dir, "--man=no", "--recursive-errors=" + recursive}, units...)
		out, err := s.output(ctx, "/bin/sh", args...)
		return s.message(out, err), err
	}
	message, err := verify("yes", append(present, "multi-user.target")...)
	baseOnly := false
	if err != nil && linesAbout(message, overlay.Units) == "" {
		// The base may be made for a newer systemd than this machine's.
		_, alone := verify("no", present...)
		baseOnly = alone == nil
	}
	switch {
	case ctx.Err() != nil:
		return err
	case strings.Contains(message, "Found ordering cycle"):
		s.find(overlay.UnitDir, message, "units without an ordering cycle", "correct the order of the units that the message names")
	case baseOnly:
		s.note("this machine's systemd objects to other units of the image:\n%s", message)
	case err != nil:
		s.find(overlay.UnitDir, cmp.Or(linesAbout(message, overlay.Units), message), "systemd-analyze verify without a word", "correct the unit that the message names")
	}
	// One line for each unit; the exit code is that of the worst.
	out, err := s.output(ctx, systemctl, append([]string{"--root=" + s.dir, "is-enabled"}, present...)...)
	if ctx.Err() != nil {
		return err
	}
	states := strings.Fields(string(out))
	if len(states) != len(present) {
		s.find(overlay.UnitDir, "systemctl is-enabled: "+s.message(out, err), "static for every unit", "correct the unit that the message names")
		return nil
	}
	for i, unit := range present {
		if states[i] != "static" {
			s.find(overlay.UnitDir+"/"+unit, "systemctl is-enabled says "+states[i], "static",
				"drop what enables, links or masks it under /etc/systemd, and its [Install] section")
		}
	}
	return nil
}

// linesAbout returns the lines that name one of the units.
func linesAbout(message string, units []string) string {
	var lines []string
	for line := range strings.SplitSeq(message, "\n") {
		if slices.ContainsFunc(units, func(u string) bool { return strings.Contains(line, u) }) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// message is what a failed program said, without the name of the folder in
// which the image's files lie for now.
func (s *subject) message(out []byte, err error) string {
	m := strings.TrimSpace(strings.ToValidUTF8(string(out), "?"))
	if m == "" && err != nil {
		m = err.Error()
	}
	return strings.ReplaceAll(m, s.dir, "")
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
