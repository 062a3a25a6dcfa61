package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

// DefaultPlace is the file that Kairos' SDK writes a cluster's stages to.
const DefaultPlace = "/usr/local/cloud-config/cluster.kairos.yaml"

// scanned are the folders whose files Kairos both merges into a cloud-config
// and runs at every stage.
var scanned = []string{"/usr/local/cloud-config", "/oem"}

// severity orders the reasons about the place; one of them fits into a status.
var severity = []status.Reason{
	status.ClusterConfigAncestorUnsafe,
	status.ClusterConfigAncestorMissing,
	status.ClusterConfigDirUnsafe,
	status.ClusterConfigDirCreateFailed,
	status.ClusterConfigTokenFileUnsafe,
	status.ClusterConfigOverrideRejected,
	status.ClusterConfigDirWritable,
	status.ClusterConfigNotPersistent,
}

// problem is something about the place, or on the way to it, that people have
// to know.
type problem struct {
	reason status.Reason
	text   string
}

func (p problem) Error() string { return p.text }

// summary makes one problem of several: the worst one's reason, and all texts.
func summary(found []problem) problem {
	if len(found) == 0 {
		return problem{}
	}
	slices.SortStableFunc(found, func(a, b problem) int { return slices.Index(severity, a.reason) - slices.Index(severity, b.reason) })
	var texts []string
	for _, p := range found {
		texts = append(texts, p.text)
	}
	return problem{found[0].reason, strings.Join(texts, "; ")}
}

// choose returns the place that an operator asked for if Kairos would run a
// file there, and otherwise the default.
func choose(override string) string {
	ext := path.Ext(override)
	if path.Clean(override) == override && slices.Contains(scanned, path.Dir(override)) && (ext == ".yaml" || ext == ".yml") && !strings.ContainsFunc(override, unicode.IsControl) {
		return override
	}
	return DefaultPlace
}

// inspect looks at all that decides who can read and change the file at place,
// and makes its folder when only that is missing: on a node with trusted boot
// nothing else has made it when it boots for the first time.
func (a Agent) inspect(place string) []problem {
	at, err := a.Root.OpenDir("/")
	if err != nil {
		return []problem{{status.ClusterConfigAncestorUnsafe, err.Error()}}
	}
	defer func() { _ = at.Close() }()
	parts := strings.Split(strings.TrimPrefix(path.Dir(place), "/"), "/")
	for i, part := range parts {
		last := i == len(parts)-1
		if why := cmp.Or(foreign(at.Self()), writable(at.Self())); why != "" {
			return []problem{{status.ClusterConfigAncestorUnsafe, at.Path() + " " + why}}
		}
		next, err := at.OpenDir(part)
		if errors.Is(err, fs.ErrNotExist) && last {
			// Kairos opens it to group admin later on.
			if err := at.Mkdir(part, 0o700); err != nil {
				return []problem{{status.ClusterConfigDirCreateFailed, err.Error()}}
			}
			next, err = at.OpenDir(part)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return []problem{{status.ClusterConfigAncestorMissing, err.Error()}}
		case err != nil && last:
			return []problem{{status.ClusterConfigDirUnsafe, err.Error()}}
		case err != nil:
			return []problem{{status.ClusterConfigAncestorUnsafe, err.Error()}}
		}
		_ = at.Close()
		at = next
	}

	var problems []problem
	dir := at.Self()
	if why := foreign(dir); why != "" {
		return []problem{{status.ClusterConfigDirUnsafe, at.Path() + " " + why}}
	}
	switch s, err := at.Stat(path.Base(place)); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		problems = append(problems, problem{status.ClusterConfigTokenFileUnsafe, err.Error()})
	default:
		why := cmp.Or(foreign(s), writable(s))
		if !s.Mode.IsRegular() {
			why = "is no regular file"
		} else if why == "" && s.Links > 1 {
			why = fmt.Sprintf("has %d names", s.Links)
		}
		if why != "" {
			problems = append(problems, problem{status.ClusterConfigTokenFileUnsafe, place + " " + why})
		}
	}
	// Kairos itself gives the folder to group admin at every boot.
	if why := writable(dir); why != "" {
		problems = append(problems, problem{status.ClusterConfigDirWritable, at.Path() + " " + why})
	}
	if dir.MountID == a.Root.Self().MountID {
		problems = append(problems, problem{status.ClusterConfigNotPersistent, at.Path() + " is on no mount of its own: the next boot will not find what is written there"})
	}
	return problems
}

// foreign and writable tell why others could change an entry, or "".
func foreign(s host.Stat) string {
	if s.UID == owner() {
		return ""
	}
	return fmt.Sprintf("belongs to user %d, expected %d", s.UID, owner())
}

func writable(s host.Stat) string {
	if s.Mode.Perm()&0o022 == 0 {
		return ""
	}
	return fmt.Sprintf("has mode %#o and group %d: others than its owner can write to it", s.Mode.Perm(), s.GID)
}

// forget removes the stages that earlier boots wrote, except at place: Kairos
// would go on running them. Files that aren't ours stay.
func (a Agent) forget(place string) error {
	var errs []error
	for _, folder := range scanned {
		dir, err := a.Root.OpenDir(folder)
		if err != nil {
			continue // there is nothing, or inspect says what is wrong
		}
		names, err := dir.Names()
		errs = append(errs, err)
		for _, name := range names {
			at := path.Join(folder, name)
			if b, err := status.ReadFile(a.Root, at, 4<<20); at != place && err == nil && bytes.HasPrefix(b, config(nil)) {
				errs = append(errs, dir.Unlink(name))
			}
		}
		_ = dir.Close()
	}
	if err := errors.Join(errs...); err != nil {
		return problem{status.ClusterConfigWrite, err.Error()}
	}
	return nil
}
