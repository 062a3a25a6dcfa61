package units

import (
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

func TestTheScopeIsWhatEarlierReleasesShipped(t *testing.T) {
	var got []string
	for _, e := range scope(overlay.History) {
		got = append(got, string(e.kind)+" "+e.unit+" "+e.path)
		var known []string
		for _, s := range overlay.History {
			if unitDir+"/"+s.Path == e.path {
				known = append(known, s.SHA256)
			}
		}
		if !slices.Equal(e.known, known) {
			t.Errorf("%s: known are %v", e.path, e.known)
		}
		if e.kind == link && e.target != "/etc/systemd/system/"+e.unit {
			t.Errorf("%s leads to %s", e.path, e.target)
		}
	}
	want := []string{
		"fragment containerd.service /etc/systemd/system/containerd.service",
		"fragment kubelet.service /etc/systemd/system/kubelet.service",
		"dropin kubelet.service /etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
		"fragment provider-kubernetes-image-import.service /etc/systemd/system/provider-kubernetes-image-import.service",
		"link containerd.service /etc/systemd/system/multi-user.target.wants/containerd.service",
		"link kubelet.service /etc/systemd/system/multi-user.target.wants/kubelet.service",
		"link provider-kubernetes-image-import.service /etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service",
	}
	if !slices.Equal(got, want) {
		t.Errorf("scope is %q", got)
	}
}

func TestClassify(t *testing.T) {
	regular := host.Stat{Mode: 0o644, Size: MaxSize}
	symlink := host.Stat{Mode: fs.ModeSymlink | 0o777}
	remove, leave := verdict{remove: true}, verdict{}
	keep := func(r Reason) verdict { return verdict{reason: r} }
	with := func(s host.Stat, f func(*host.Stat)) host.Stat { f(&s); return s }

	fragment := entry{kind: fragment, known: []string{"one", "two"}}
	wants := entry{kind: link, target: "/etc/systemd/system/x.service"}
	for name, c := range map[string]struct {
		entry entry
		found found
		want  verdict
	}{
		"shipped":               {fragment, found{stat: regular, sha256: "one"}, remove},
		"shipped by another":    {fragment, found{stat: regular, sha256: "two"}, remove},
		"never shipped":         {fragment, found{stat: regular, sha256: "three"}, keep(Modified)},
		"not hashed":            {fragment, found{stat: regular}, keep(Modified)},
		"missing":               {fragment, found{err: syscall.ENOENT}, leave},
		"a mask":                {fragment, found{stat: symlink, target: "/dev/null"}, leave},
		"a link of another's":   {fragment, found{stat: with(symlink, func(s *host.Stat) { s.UID = 1 })}, leave},
		"a folder":              {fragment, found{stat: host.Stat{Mode: fs.ModeDir | 0o755}}, keep(NotRegular)},
		"a device of another's": {fragment, found{stat: host.Stat{Mode: fs.ModeDevice | 0o600, UID: 1}}, keep(NotRegular)},
		"another user's":        {fragment, found{stat: with(regular, func(s *host.Stat) { s.UID = 1 }), sha256: "one"}, keep(Owner)},
		"another group's":       {fragment, found{stat: with(regular, func(s *host.Stat) { s.GID = 1 }), sha256: "one"}, remove},
		"too large":             {fragment, found{stat: with(regular, func(s *host.Stat) { s.Size++ }), sha256: "one"}, keep(Size)},
		"too large, another's":  {fragment, found{stat: with(regular, func(s *host.Stat) { s.Size, s.UID = MaxSize+1, 1 })}, keep(Owner)},
		"unreadable":            {fragment, found{stat: regular, err: syscall.EIO}, keep(IO)},
		"not even a stat":       {fragment, found{err: syscall.EIO}, keep(IO)},
		"changed":               {fragment, found{stat: regular, sha256: "one", err: errRace}, keep(Race)},
		"behind a link":         {fragment, found{err: &host.WalkUnsafe{}}, keep(WalkUnsafe)},

		"our link":                {wants, found{stat: symlink, target: wants.target}, remove},
		"our link, another's":     {wants, found{stat: with(symlink, func(s *host.Stat) { s.UID = 1 }), target: wants.target}, remove},
		"a link to elsewhere":     {wants, found{stat: symlink, target: "/usr/lib/systemd/system/x.service"}, keep(LinkTarget)},
		"a relative link":         {wants, found{stat: symlink, target: "../x.service"}, keep(LinkTarget)},
		"a file in a link's name": {wants, found{stat: regular, sha256: "one"}, keep(LinkTarget)},
		"no link":                 {wants, found{err: syscall.ENOENT}, leave},
		"a link that changed":     {wants, found{stat: symlink, target: wants.target, err: errRace}, keep(Race)},
		"a link that stays":       {wants, found{stat: symlink, target: wants.target, err: syscall.EROFS}, keep(IO)},
		"a link behind a link":    {wants, found{err: &host.WalkUnsafe{}}, keep(WalkUnsafe)},
	} {
		if got := classify(c.entry, c.found); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, expected %+v", name, got, c.want)
		}
	}
}

func TestOutcomeAndExitCode(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		kept []Reason
		done bool
		err  error
		want Outcome
		exit int
	}{
		{nil, false, nil, Clean, 0},
		{nil, true, nil, Migrated, 0},
		{[]Reason{Modified}, true, nil, KeptModified, 1},
		{[]Reason{NotRegular, Owner, Size, LinkTarget}, false, nil, KeptModified, 1},
		{[]Reason{Modified, WalkUnsafe}, true, nil, Failed, 1},
		{[]Reason{Race}, true, nil, Failed, 1},
		{[]Reason{IO}, true, nil, Failed, 1},
		{nil, true, broken, Failed, 1},
		{[]Reason{Modified}, true, broken, Failed, 1},
	} {
		got := outcome(c.kept, c.done, c.err)
		if exit := (Report{Outcome: got}).Exit(); got != c.want || exit != c.exit {
			t.Errorf("%v, %v, %v: %s with exit code %d, expected %s with %d", c.kept, c.done, c.err, got, exit, c.want, c.exit)
		}
	}
}
