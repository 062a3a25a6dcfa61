package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one tree of control groups of the machine.
type hierarchy struct {
	mount       string // where it is mounted
	controllers string // "cpu,cpuacct", "name=systemd"; empty for the unified one
}

// hierarchies lists the control group trees that the machine has mounted.
func hierarchies() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	found := parseHierarchies(string(b))
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted")
	}
	return found, nil
}

// parseHierarchies reads proc_pid_mountinfo(5).
func parseHierarchies(mountinfo string) []hierarchy {
	var found []hierarchy
	for line := range strings.Lines(mountinfo) {
		where, what, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(where), strings.Fields(what)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		h := hierarchy{mount: left[4]}
		switch right[0] {
		case "cgroup":
			h.controllers = strings.Join(slices.DeleteFunc(strings.Split(right[2], ","), func(o string) bool {
				name, _, _ := strings.Cut(o, "=")
				return slices.Contains([]string{"rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods", "release_agent"}, name)
			}), ",")
		case "cgroup2":
		default:
			continue
		}
		if !slices.ContainsFunc(found, func(o hierarchy) bool { return o.controllers == h.controllers }) {
			found = append(found, h)
		}
	}
	return found
}

// groupPrefix marks the control groups of this package.
const groupPrefix = "provider-kubernetes-lab-"

// makeGroups makes a group for a node in every hierarchy.
func makeGroups(id string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.mount, groupPrefix+id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if !slices.Contains(strings.Split(h.controllers, ","), "cpuset") {
			continue
		}
		// A new group of this controller has neither, and nothing can run in it.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(filepath.Join(h.mount, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// joinGroups moves the calling process into a node's groups.
func joinGroups(id string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := os.WriteFile(filepath.Join(h.mount, groupPrefix+id, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeGroups kills what still runs in a node's groups and removes them.
func removeGroups(id string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		dir := filepath.Join(h.mount, groupPrefix+id)
		// A group is busy until its last process is gone for good.
		err := poll(10*time.Second, func() (bool, error) {
			if err := emptyGroups(dir); err != nil {
				return false, err
			}
			_, err := os.Stat(dir)
			return errors.Is(err, fs.ErrNotExist), nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// emptyGroups kills what runs in a group and those below it and removes those
// that are empty.
func emptyGroups(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range list {
		if e.IsDir() {
			if err := emptyGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	for pid := range strings.FieldsSeq(string(b)) {
		if n, err := strconv.Atoi(pid); err == nil && n > 1 && n != os.Getpid() {
			_ = unix.Kill(n, unix.SIGKILL) // it may have ended by itself
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// poll asks again and again, 20 ms apart, until it is told that it is done.
func poll(limit time.Duration, done func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not done after %v", limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
