// Package units takes away the unit files that earlier releases put under
// /etc/systemd/system, where Kairos keeps them for ever and where they hide the
// units of the image. Only a file that is byte for byte what was shipped, and
// only a link that enabled it, is removed; everything else is kept and named,
// never its content, size or hash. What was removed is made known to systemd in
// the same boot. A run may be cut at any point: the next one finishes it.
package units

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// Deadline bounds a migration.
const Deadline = 20 * time.Second

// marker is there from before the first removal until systemd knows of all of
// them. Like what systemd has in memory, it does not outlive the boot.
const marker = "/run/provider-kubernetes-unit-migrate.pending"

// Migration removes what earlier releases left on a node.
type Migration struct {
	Root    *host.Root        // the node's file system
	Tools   host.Runner       // has systemctl
	History []overlay.Shipped // what earlier releases left: overlay.History
	Log     io.Writer         // one line for each entry that was removed or kept, and each override

	step func(name, path string) // of a test: called before each step
}

// Report counts what a migration did.
type Report struct {
	Outcome                  Outcome
	Removed, Kept, Overrides int
	Reloaded                 bool // systemd read its units anew
}

// String returns the line that sums the migration up, without a line end.
func (r Report) String() string {
	return fmt.Sprintf("unit-migrate: summary outcome=%s removed=%d kept=%d overrides=%d reloaded=%t",
		r.Outcome, r.Removed, r.Kept, r.Overrides, r.Reloaded)
}

// Exit returns the exit code: 0 for clean and migrated, 1 for the others.
func (r Report) Exit() int {
	if r.Outcome == Clean || r.Outcome == Migrated {
		return 0
	}
	return 1
}

// Run migrates and returns what came out, with all that went wrong on the way;
// the report is complete either way.
func (m Migration) Run(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	var (
		report  Report
		errs    []error
		reasons []Reason
		kept    = map[string]bool{}
	)
	// due is whether systemd has units in memory that are gone.
	due, err := m.pending()
	errs = append(errs, err)
	entries := scope(m.History)
	for _, e := range entries {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("look at %s: %w", e.path, context.Cause(ctx)))
			break
		}
		v, err := m.migrate(e)
		switch {
		case v.remove:
			report.Removed++
			due = due || e.kind != link
			m.logf("removed %q kind=%s", e.path, e.kind)
		case v.reason != "":
			kept[e.path] = true
			reasons = append(reasons, v.reason)
			m.logf("kept %q reason=%s", e.path, v.reason)
		}
		errs = append(errs, err)
	}
	report.Kept = len(reasons)

	overrides, err := m.overrides(entries, kept)
	for _, p := range overrides {
		m.logf("override %q", p)
	}
	report.Overrides = len(overrides)
	errs = append(errs, err)

	if due {
		report.Reloaded, err = m.reload(ctx, entries, kept)
		errs = append(errs, err)
	}
	if !due || err == nil {
		errs = append(errs, m.settle())
	}
	err = errors.Join(errs...)
	report.Outcome = outcome(reasons, report.Removed > 0 || report.Reloaded, err)
	return report, err
}

// migrate decides over one entry and removes it if that is the decision. The
// verdict is what became of it in the end; the error is why, if that was io.
func (m Migration) migrate(e entry) (verdict, error) {
	dir, err := m.Root.OpenDir(path.Dir(e.path))
	if err != nil {
		return because(classify(e, found{err: err}), err)
	}
	defer func() { _ = dir.Close() }()
	name := path.Base(e.path)
	f := m.look(dir, e)
	v := classify(e, f)
	if !v.remove {
		return because(v, f.err)
	}
	if e.kind != link {
		m.at("mark", e.path)
		if err := m.Root.WriteFile(marker, nil, 0o600, -1, -1); err != nil {
			return verdict{reason: IO}, err
		}
	}
	m.at("check", e.path)
	if f.err = same(dir, name, f.stat); f.err == nil {
		m.at("unlink", e.path)
		f.err = dir.Unlink(name)
	}
	return because(classify(e, f), f.err)
}

// because returns a verdict with the error that explains it, if it needs one.
func because(v verdict, err error) (verdict, error) {
	if v.reason == IO {
		return v, err
	}
	return v, nil
}

// look reads what classify needs to know of an entry.
func (m Migration) look(dir *host.Dir, e entry) (f found) {
	name := path.Base(e.path)
	if f.stat, f.err = dir.Stat(name); f.err != nil {
		return f
	}
	m.at("read", e.path)
	switch {
	case f.stat.Mode.Type() == fs.ModeSymlink:
		f.target, f.err = dir.Readlink(name)
	case f.stat.Mode.IsRegular() && f.stat.Size <= MaxSize:
		f.sha256, f.err = digest(dir, name, f.stat)
	}
	if f.err != nil {
		// What can't be read may be something else by now.
		if err := same(dir, name, f.stat); err != nil {
			f.err = err
		}
	}
	return f
}

// digest hashes the file called name, which must be the one that was seen.
func digest(dir *host.Dir, name string, seen host.Stat) (string, error) {
	file, err := dir.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if now, err := host.StatFile(file); err != nil {
		return "", err
	} else if now != seen {
		return "", errRace
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(file, MaxSize+1)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// same is an error if the entry called name is not the one that was seen, or
// was changed since.
func same(dir *host.Dir, name string, seen host.Stat) error {
	now, err := dir.Stat(name)
	if err == nil && now != seen {
		err = errRace
	}
	return err
}

// pending tells whether an earlier run in this boot was cut off.
func (m Migration) pending() (bool, error) {
	run, err := m.Root.OpenDir(path.Dir(marker))
	if err == nil {
		defer func() { _ = run.Close() }()
		_, err = run.Stat(path.Base(marker))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// settle notes that systemd knows of every removal.
func (m Migration) settle() error {
	run, err := m.Root.OpenDir(path.Dir(marker))
	if err == nil {
		defer func() { _ = run.Close() }()
		m.at("settle", marker)
		err = run.Unlink(path.Base(marker))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reload makes systemd read its units anew and starts what should run.
func (m Migration) reload(ctx context.Context, entries []entry, kept map[string]bool) (reloaded bool, err error) {
	m.at("reload", "")
	if _, err := m.systemctl(ctx, "daemon-reload"); err != nil {
		return false, err
	}
	m.at("start", "")
	return true, m.start(ctx, entries, kept)
}

// start starts the units that the image enables and that neither run nor wait
// for it. systemd decided what this boot starts before the removal: a unit that
// it could not load then is missing from that. A unit of which something was
// kept is left as systemd has it.
func (m Migration) start(ctx context.Context, entries []entry, kept map[string]bool) error {
	wants, err := m.Root.OpenDir(overlay.WantsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = wants.Close() }()
	unsettled := map[string]bool{}
	for _, e := range entries {
		if kept[e.path] {
			unsettled[e.unit] = true
		}
	}
	var enabled []string
	for _, e := range entries {
		if e.kind != fragment || unsettled[e.unit] {
			continue
		}
		if _, err := wants.Stat(e.unit); err == nil {
			enabled = append(enabled, e.unit)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(enabled) == 0 {
		return nil
	}
	states, err := m.systemctl(ctx, append([]string{"show", "--property=Id,LoadState,ActiveState,Job", "--"}, enabled...)...)
	if err != nil {
		return err
	}
	idle := missing(states, enabled)
	if len(idle) == 0 {
		return nil
	}
	// Without waiting: they are ordered after this program.
	_, err = m.systemctl(ctx, append([]string{"start", "--no-block", "--"}, idle...)...)
	return err
}

// systemctl returns what systemctl prints.
func (m Migration) systemctl(ctx context.Context, args ...string) ([]byte, error) {
	out, err := m.Tools.Run(ctx, host.Command{Name: "systemctl", Args: args, Timeout: Deadline})
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w", args[0], err)
		if said := bytes.TrimSpace(out.Stderr); len(said) > 0 {
			err = fmt.Errorf("%w: %.300q", err, said)
		}
	}
	return out.Stdout, err
}

func (m Migration) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(m.Log, "unit-migrate: "+format+"\n", args...)
}

func (m Migration) at(step, path string) {
	if m.step != nil {
		m.step(step, path)
	}
}
