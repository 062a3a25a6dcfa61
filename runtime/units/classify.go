package units

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// Reason says why an entry was kept. The set is closed.
type Reason string

// Reasons for keeping an entry.
const (
	Modified   Reason = "modified"    // content that no release shipped
	NotRegular Reason = "not-regular" // a folder, a FIFO, a socket or a device
	Owner      Reason = "owner"       // not root's
	Size       Reason = "size"        // larger than MaxSize
	LinkTarget Reason = "link-target" // not the link that enabled our fragment
	WalkUnsafe Reason = "walk-unsafe" // a folder on its path is a link or no folder
	Race       Reason = "race"        // changed while it was looked at
	IO         Reason = "io"          // could not be read or removed
)

// Outcome is the result of a migration. The set is closed.
type Outcome string

// Outcomes of a migration.
const (
	Clean        Outcome = "clean"         // nothing to do
	Migrated     Outcome = "migrated"      // what earlier releases left is gone, and systemd knows
	KeptModified Outcome = "kept-modified" // something is there that is not ours to remove
	Failed       Outcome = "failed"        // something could not be looked at, removed, reloaded or started
)

// MaxSize is the size in bytes up to which a file is looked into.
const MaxSize = 64 << 10

// unitDir is where earlier releases put their units: a folder that Kairos keeps
// for ever and that systemd reads before the image's.
const unitDir = "/etc/systemd/system"

const wantsDir = unitDir + "/multi-user.target.wants"

// kind is what an entry is to systemd.
type kind string

const (
	fragment kind = "fragment"
	dropIn   kind = "dropin"
	link     kind = "link"
)

// entry is one path of the scope.
type entry struct {
	path   string // absolute
	kind   kind
	unit   string   // that it belongs to
	known  []string // of a fragment or drop-in: the SHA-256 of each content that was shipped
	target string   // of a link: where ours pointed to
}

// scope returns every path that a migration may remove: what was shipped, and
// for each fragment the link that enabled it.
func scope(history []overlay.Shipped) []entry {
	var entries, links []entry
	for _, s := range history {
		p := path.Join(unitDir, s.Path)
		i := slices.IndexFunc(entries, func(e entry) bool { return e.path == p })
		if i < 0 {
			i = len(entries)
			if unit, ok := strings.CutSuffix(path.Dir(s.Path), ".d"); ok {
				entries = append(entries, entry{path: p, kind: dropIn, unit: unit})
			} else {
				entries = append(entries, entry{path: p, kind: fragment, unit: s.Path})
				links = append(links, entry{path: path.Join(wantsDir, s.Path), kind: link, unit: s.Path, target: p})
			}
		}
		entries[i].known = append(entries[i].known, s.SHA256)
	}
	return append(entries, links...)
}

// found is what the walk saw at an entry's path.
type found struct {
	stat   host.Stat
	target string // of a link
	sha256 string // of a regular file of at most MaxSize, lower-case hex
	err    error  // why the above is not complete
}

// errRace is an entry that changed while it was looked at.
var errRace = errors.New("changed while it was looked at")

// verdict is what to do with an entry.
type verdict struct {
	remove bool
	reason Reason // set: keep it, and say so. Neither: leave it alone
}

// classify decides over one entry from what was found there.
func classify(e entry, f found) verdict {
	keep := func(r Reason) verdict { return verdict{reason: r} }
	switch {
	case errors.Is(f.err, fs.ErrNotExist):
		return verdict{}
	case errors.As(f.err, new(*host.WalkUnsafe)):
		return keep(WalkUnsafe)
	case errors.Is(f.err, errRace):
		return keep(Race)
	}
	isLink := f.stat.Mode.Type() == fs.ModeSymlink
	if e.kind == link {
		switch {
		case f.err != nil:
			return keep(IO)
		case !isLink || f.target != e.target:
			return keep(LinkTarget)
		}
		return verdict{remove: true}
	}
	switch {
	case isLink: // a mask, or the operator's own: an override
		return verdict{}
	case !f.stat.Mode.IsRegular():
		return keep(NotRegular)
	case f.stat.UID != 0:
		return keep(Owner)
	case f.stat.Size > MaxSize:
		return keep(Size)
	case f.err != nil:
		return keep(IO)
	case !slices.Contains(e.known, f.sha256):
		return keep(Modified)
	}
	return verdict{remove: true}
}

// outcome sums a migration up: the reasons of what was kept, whether something
// was done, whether something went wrong.
func outcome(kept []Reason, done bool, err error) Outcome {
	broken := func(r Reason) bool { return r == WalkUnsafe || r == Race || r == IO }
	switch {
	case err != nil || slices.ContainsFunc(kept, broken):
		return Failed
	case len(kept) > 0:
		return KeptModified
	case done:
		return Migrated
	}
	return Clean
}
