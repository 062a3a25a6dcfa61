package units

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

// trees are nodes and the log of their migration. What the log does not call
// removed must be as it was.
var trees = []struct {
	name, tree, log string
}{
	{"nothing there", ``, `summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false`},
	{"everything that an earlier release left", everything, allRemoved},
	{
		"the older content of two", `
			provider-kubernetes-image-import.service older
		`, `
			removed "/etc/systemd/system/provider-kubernetes-image-import.service" kind=fragment
			summary outcome=migrated removed=1 kept=0 overrides=0 reloaded=true
		`,
	},
	{
		"links whose fragments are gone", `
			multi-user.target.wants/containerd.service  -> /etc/systemd/system/containerd.service
			multi-user.target.wants/kubelet.service     -> /etc/systemd/system/kubelet.service
		`, `
			removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link
			removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link
			summary outcome=migrated removed=2 kept=0 overrides=0 reloaded=false
		`,
	},
	{
		"only a drop-in, beside one of the site's", `
			kubelet.service.d/10-kubeadm.conf  shipped
			kubelet.service.d/20-site.conf     [Service]\n
			kubelet.service.d/20-site.conf~    is no drop-in
		`, `
			removed "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" kind=dropin
			override "/etc/systemd/system/kubelet.service.d/20-site.conf"
			summary outcome=migrated removed=1 kept=0 overrides=1 reloaded=true
		`,
	},
	{
		"other units", `
			containerd.service.bak                        shipped
			kubelet.service.d/10-kubeadm.conf/deep        is a folder's content
			sshd.service                                  -> /dev/null
			multi-user.target.wants/sshd.service          -> /etc/systemd/system/sshd.service
			graphical.target.wants/kubelet.service        -> /etc/systemd/system/kubelet.service
			service.d/10-all.conf                         [Service]\n
		`, `
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=not-regular
			summary outcome=kept-modified removed=0 kept=1 overrides=0 reloaded=false
		`,
	},
	{
		"an edited fragment, and the rest as it was shipped", `
			containerd.service                          shipped
			kubelet.service                             shippedEnvironment=HTTPS_PROXY=http://user:s3cr3t@proxy\n
			multi-user.target.wants/kubelet.service     -> /etc/systemd/system/kubelet.service
		`, `
			removed "/etc/systemd/system/containerd.service" kind=fragment
			kept "/etc/systemd/system/kubelet.service" reason=modified
			removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link
			summary outcome=kept-modified removed=2 kept=1 overrides=0 reloaded=true
		`,
	},
	{
		"the same text in other bytes", `
			containerd.service                        [Service]\r\nExecStart=/opt/bin/containerd\r\n
			kubelet.service                           [Service]\nExecStart=/opt/bin/kubelet
			kubelet.service.d/10-kubeadm.conf         \ufeff[Service]\nEnvironment=KUBELET=1\n
			provider-kubernetes-image-import.service
		`, `
			kept "/etc/systemd/system/containerd.service" reason=modified
			kept "/etc/systemd/system/kubelet.service" reason=modified
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=modified
			kept "/etc/systemd/system/provider-kubernetes-image-import.service" reason=modified
			summary outcome=kept-modified removed=0 kept=4 overrides=0 reloaded=false
		`,
	},
	{
		"what was shipped under another path", `
			containerd.service                 [Service]\nExecStart=/opt/bin/kubelet\n
			kubelet.service.d/10-kubeadm.conf  [Service]\nExecStart=/opt/bin/kubelet\n
		`, `
			kept "/etc/systemd/system/containerd.service" reason=modified
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=modified
			summary outcome=kept-modified removed=0 kept=2 overrides=0 reloaded=false
		`,
	},
	{
		"neither files nor links", `
			containerd.service/                       folder
			kubelet.service                           fifo
			kubelet.service.d/10-kubeadm.conf         fifo
			multi-user.target.wants/kubelet.service   fifo
		`, `
			kept "/etc/systemd/system/containerd.service" reason=not-regular
			kept "/etc/systemd/system/kubelet.service" reason=not-regular
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=not-regular
			kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=link-target
			summary outcome=kept-modified removed=0 kept=4 overrides=0 reloaded=false
		`,
	},
	{
		"links of the operator's at fragments and drop-ins", `
			containerd.service                 -> /dev/null
			kubelet.service                    -> /etc/old/kubelet.service
			kubelet.service.d/10-kubeadm.conf  -> nowhere
			/etc/old/kubelet.service           shipped
		`, `
			override "/etc/systemd/system/containerd.service"
			override "/etc/systemd/system/kubelet.service"
			override "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
			summary outcome=clean removed=0 kept=0 overrides=3 reloaded=false
		`,
	},
	{
		"links that enable something else", `
			containerd.service                                                shipped
			multi-user.target.wants/containerd.service                        -> ../containerd.service
			multi-user.target.wants/kubelet.service                           -> /usr/lib/systemd/system/kubelet.service
			multi-user.target.wants/provider-kubernetes-image-import.service  a file
		`, `
			removed "/etc/systemd/system/containerd.service" kind=fragment
			kept "/etc/systemd/system/multi-user.target.wants/containerd.service" reason=link-target
			kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=link-target
			kept "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" reason=link-target
			summary outcome=kept-modified removed=1 kept=3 overrides=0 reloaded=true
		`,
	},
	{
		"links to almost the fragment", `
			multi-user.target.wants/containerd.service                        -> /etc/systemd/system/./containerd.service
			multi-user.target.wants/kubelet.service                           -> /etc/systemd/system/containerd.service
			multi-user.target.wants/provider-kubernetes-image-import.service  -> /dev/null
		`, `
			kept "/etc/systemd/system/multi-user.target.wants/containerd.service" reason=link-target
			kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=link-target
			kept "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" reason=link-target
			summary outcome=kept-modified removed=0 kept=3 overrides=0 reloaded=false
		`,
	},
	{
		"a drop-in folder that is a link", `
			kubelet.service.d         -> /etc/drop
			/etc/drop/10-kubeadm.conf shipped
		`, `
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=walk-unsafe
			override "/etc/systemd/system/kubelet.service.d"
			summary outcome=failed removed=0 kept=1 overrides=1 reloaded=false
		`,
	},
	{
		"a wants folder that is a link", `
			containerd.service                            shipped
			multi-user.target.wants                       -> other.wants
			other.wants/containerd.service                -> /etc/systemd/system/containerd.service
		`, `
			removed "/etc/systemd/system/containerd.service" kind=fragment
			kept "/etc/systemd/system/multi-user.target.wants/containerd.service" reason=walk-unsafe
			kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=walk-unsafe
			kept "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" reason=walk-unsafe
			summary outcome=failed removed=1 kept=3 overrides=0 reloaded=true
		`,
	},
	{
		"a drop-in folder that is a file", `
			kubelet.service.d   a file
		`, `
			kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=walk-unsafe
			override "/etc/systemd/system/kubelet.service.d"
			summary outcome=failed removed=0 kept=1 overrides=1 reloaded=false
		`,
	},
	{
		"overrides wherever systemd reads before the image", `
			/etc/systemd/system.control/kubelet.service.d/50-CPUWeight.conf      [Service]\n
			/run/systemd/system.control/containerd.service.d/50-IOWeight.conf    [Service]\n
			containerd.service.d/50-provider-kubernetes-exec-path.conf           [Service]\n
			/etc/systemd/system.attached/kubelet.service                         [Service]\n
			/run/systemd/system/kubelet.service                                  -> /dev/null
			/run/systemd/system.attached/kubelet.service                         [Service]\n
			/usr/local/lib/systemd/system/containerd.service                     shipped
			/usr/local/lib/systemd/system/provider-kubernetes-image-import.service.d -> /usr/local/drop
			/usr/local/lib/systemd/system/sshd.service                           [Service]\n
		`, `
			override "/etc/systemd/system.control/kubelet.service.d/50-CPUWeight.conf"
			override "/run/systemd/system.control/containerd.service.d/50-IOWeight.conf"
			override "/etc/systemd/system/containerd.service.d/50-provider-kubernetes-exec-path.conf"
			override "/etc/systemd/system.attached/kubelet.service"
			override "/run/systemd/system/kubelet.service"
			override "/run/systemd/system.attached/kubelet.service"
			override "/usr/local/lib/systemd/system/containerd.service"
			override "/usr/local/lib/systemd/system/provider-kubernetes-image-import.service.d"
			summary outcome=clean removed=0 kept=0 overrides=8 reloaded=false
		`,
	},
	{
		"a folder of overrides that is a link", `
			/usr/local/lib               -> lib64
			/usr/local/lib64/            folder
			/etc/systemd/system.attached -> system.control
		`, `
			override "/etc/systemd/system.attached"
			override "/usr/local/lib"
			summary outcome=clean removed=0 kept=0 overrides=2 reloaded=false
		`,
	},
	{
		"a name that would forge a line", `
			kubelet.service.d/a\"\nb.conf [Service]\n
		`, `
			override "/etc/systemd/system/kubelet.service.d/a\\\"\\nb.conf"
			summary outcome=clean removed=0 kept=0 overrides=1 reloaded=false
		`,
	},
}

func TestMigration(t *testing.T) {
	for _, c := range trees {
		t.Run(c.name, func(t *testing.T) { checkMigration(t, newNode(t, c.tree), c.log) })
	}
}

// checkMigration migrates a node and holds the result against the log: what the
// log calls removed is gone, everything else as it was, systemd knows of the
// removal, nothing of what was kept is told, and a second run does nothing.
func checkMigration(t *testing.T, n *node, table string) {
	t.Helper()
	want := lines(table)
	before := n.snapshot()
	got, err := n.migrate(nil)
	if got != want {
		t.Fatalf("log is\n%s, expected\n%s, error %v", got, want, err)
	}
	calls := n.calls()
	if reloaded := strings.Contains(got, "reloaded=true"); reloaded != strings.Contains(calls, "daemon-reload\n") {
		t.Errorf("systemctl was called with %q", calls)
	} else if reloaded && n.known() != n.files() {
		t.Errorf("systemd knows\n%s, there is\n%s", n.known(), n.files())
	}
	for _, p := range removedPaths(got) {
		if _, ok := before[p]; !ok {
			t.Errorf("%s was never there", p)
		}
		delete(before, p)
	}
	after := n.snapshot()
	for p, e := range before {
		if after[p] != e {
			t.Errorf("%s was %+v and is %+v", p, e, after[p])
		}
		sum := sha256.Sum256([]byte(e.content))
		for _, secret := range []string{strings.TrimSpace(e.content), hex.EncodeToString(sum[:]), hex.EncodeToString(sum[:6]), strconv.Itoa(len(e.content))} {
			if e.mode.IsRegular() && len(secret) > 2 && (strings.Contains(got, secret) || err != nil && strings.Contains(err.Error(), secret)) {
				t.Errorf("%s: %q is told", p, secret)
			}
		}
	}
	if len(after) != len(before) {
		t.Errorf("there is %v, expected %v", after, before)
	}
	if names, _ := filepath.Glob(filepath.Join(n.root, "run/*provider*")); len(names) > 0 {
		t.Errorf("left over: %v", names)
	}

	again, _ := n.migrate(nil)
	var rest strings.Builder
	for line := range strings.Lines(got) {
		if !strings.Contains(line, " removed \"") && !strings.Contains(line, " summary ") {
			rest.WriteString(line)
		}
	}
	if body, _, _ := strings.Cut(again, "unit-migrate: summary"); body != rest.String() || !strings.Contains(again, "removed=0 ") || !strings.Contains(again, "reloaded=false") {
		t.Errorf("a second run says\n%s", again)
	}
	if calls := n.calls(); calls != "" {
		t.Errorf("a second run called systemctl %q", calls)
	}
}

func TestFoldersAreWalkedWithoutFollowingALink(t *testing.T) {
	const log = `
		kept "/etc/systemd/system/containerd.service" reason=walk-unsafe
		kept "/etc/systemd/system/kubelet.service" reason=walk-unsafe
		kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=walk-unsafe
		kept "/etc/systemd/system/provider-kubernetes-image-import.service" reason=walk-unsafe
		kept "/etc/systemd/system/multi-user.target.wants/containerd.service" reason=walk-unsafe
		kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=walk-unsafe
		kept "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" reason=walk-unsafe
		override "COMPONENT"
		summary outcome=failed removed=0 kept=7 overrides=1 reloaded=false
	`
	for _, component := range []string{"/etc", "/etc/systemd", "/etc/systemd/system"} {
		t.Run(component, func(t *testing.T) {
			n := newNode(t, everything)
			moved := n.path("/moved")
			if err := errors.Join(os.Rename(n.path(component), moved), os.Symlink(moved, n.path(component))); err != nil {
				t.Fatal(err)
			}
			checkMigration(t, n, strings.Replace(log, "COMPONENT", component, 1))
		})
	}
}

func TestMetadataDoesNotMatter(t *testing.T) {
	n := newNode(t, everything)
	p := n.path("kubelet.service")
	if err := errors.Join(os.Chtimes(p, time.Unix(1, 0), time.Unix(4e9, 0)), os.Chmod(p, 0o600), os.Chmod(n.path("containerd.service"), 0o777)); err != nil {
		t.Fatal(err)
	}
	checkMigration(t, n, allRemoved)
}

func TestOnlyTheNameOfAHardLinkIsRemoved(t *testing.T) {
	n := newNode(t, `kubelet.service shipped`)
	if err := os.Link(n.path("kubelet.service"), n.path("/etc/backup")); err != nil {
		t.Fatal(err)
	}
	checkMigration(t, n, `
		removed "/etc/systemd/system/kubelet.service" kind=fragment
		summary outcome=migrated removed=1 kept=0 overrides=0 reloaded=true
	`)
}

func TestAFileOfAnotherUserIsKept(t *testing.T) {
	n := newNode(t, everything)
	for _, name := range []string{"kubelet.service", "kubelet.service.d/10-kubeadm.conf"} {
		if err := os.Chown(n.path(name), 1000, 0); errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPERM) {
			t.Skip("there is no other user to give a file to")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	checkMigration(t, n, `
		removed "/etc/systemd/system/containerd.service" kind=fragment
		kept "/etc/systemd/system/kubelet.service" reason=owner
		kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=owner
		removed "/etc/systemd/system/provider-kubernetes-image-import.service" kind=fragment
		removed "/etc/systemd/system/multi-user.target.wants/containerd.service" kind=link
		removed "/etc/systemd/system/multi-user.target.wants/kubelet.service" kind=link
		removed "/etc/systemd/system/multi-user.target.wants/provider-kubernetes-image-import.service" kind=link
		summary outcome=kept-modified removed=5 kept=2 overrides=0 reloaded=true
	`)
}

func TestAFileThatIsTooLargeIsNotReadAndKept(t *testing.T) {
	n := newNode(t, "")
	for name, size := range map[string]int{"containerd.service": MaxSize, "kubelet.service": MaxSize + 1, "kubelet.service.d/10-kubeadm.conf": 1 << 30} {
		n.grow(name + " x")
		if err := os.Truncate(n.path(name), int64(size)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := n.migrate(nil)
	want := lines(`
		kept "/etc/systemd/system/containerd.service" reason=modified
		kept "/etc/systemd/system/kubelet.service" reason=size
		kept "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf" reason=size
		summary outcome=kept-modified removed=0 kept=3 overrides=0 reloaded=false
	`)
	if got != want || err != nil {
		t.Errorf("log is\n%s, error %v", got, err)
	}
}

func TestNothingIsToldOfAFileThatIsKept(t *testing.T) {
	n := newNode(t, "kubelet.service.d/10-kubeadm.conf shipped")
	for name, size := range map[string]int{"containerd.service": 12345, "kubelet.service": 71234} {
		n.grow(name + " " + strings.Repeat("s3cr3t", size)[:size])
	}
	var secrets []string
	for _, e := range n.snapshot() {
		if e.mode.IsRegular() && len(e.content) > 20 {
			sum := sha256.Sum256([]byte(e.content))
			secrets = append(secrets, e.content[:6], hex.EncodeToString(sum[:4]), strconv.Itoa(len(e.content)))
		}
	}
	immutable(t, n.path("kubelet.service.d/10-kubeadm.conf"))
	got, err := n.migrate(nil)
	for _, reason := range []Reason{Modified, Size, IO} {
		if !strings.Contains(got, "reason="+string(reason)+"\n") {
			t.Errorf("nothing was kept for %s:\n%s", reason, got)
		}
	}
	for _, s := range secrets {
		if strings.Contains(got, s) || strings.Contains(err.Error(), s) {
			t.Errorf("%q is told: %s%v", s, got, err)
		}
	}
}

func TestAnEntryThatChangesWhileItIsLookedAtIsKept(t *testing.T) {
	const unit = "kubelet.service"
	replace := func(n *node, tree string) {
		if err := os.Remove(n.path(unit)); err != nil {
			n.t.Fatal(err)
		}
		n.grow(tree)
	}
	const (
		race = `
			kept "/etc/systemd/system/kubelet.service" reason=race
			summary outcome=failed removed=0 kept=1 overrides=0 reloaded=false
		`
		nothing = `summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false`
	)
	for name, change := range map[string]struct {
		do  func(n *node)
		log string
	}{
		"another file with the same content": {
			func(n *node) { n.grow(unit + ".new shipped"); _ = os.Rename(n.path(unit+".new"), n.path(unit)) },
			race,
		},
		"edited in place": {
			func(n *node) { n.grow(unit + " shippedX") },
			race,
		},
		"a mask": {
			func(n *node) { replace(n, unit+" -> /dev/null") },
			race,
		},
		"a FIFO": {
			func(n *node) { replace(n, unit+" fifo") },
			race,
		},
		"a folder": {
			func(n *node) { replace(n, unit+"/ folder") },
			race,
		},
		"gone": {
			func(n *node) { replace(n, "") },
			nothing,
		},
	} {
		for _, step := range []string{"read", "check"} {
			t.Run(name+" before "+step, func(t *testing.T) {
				n := newNode(t, unit+" shipped")
				var after map[string]snapshotEntry
				got, _ := n.migrate(func(s, p string) {
					if s == step && path.Base(p) == unit {
						change.do(n)
						after = n.snapshot()
					}
				})
				if got != lines(change.log) || n.calls() != "" {
					t.Errorf("log is\n%s, expected\n%s", got, lines(change.log))
				}
				if pending, err := n.migration(nil).pending(); pending || err != nil {
					t.Errorf("the next run would reload: %v", err)
				}
				if left := n.snapshot(); len(left) != len(after) || left[unitDir+"/"+unit] != after[unitDir+"/"+unit] {
					t.Errorf("there was %+v, there is %+v", after, left)
				}
			})
		}
	}
}

func TestALinkThatChangesWhileItIsLookedAtIsKept(t *testing.T) {
	const wants = "multi-user.target.wants/kubelet.service"
	n := newNode(t, wants+" -> /etc/systemd/system/kubelet.service")
	got, _ := n.migrate(func(step, p string) {
		if step == "check" {
			if err := os.Remove(n.path(wants)); err != nil {
				t.Error(err)
			}
			n.grow(wants + " -> ../site.service")
		}
	})
	if want := lines(`
		kept "/etc/systemd/system/multi-user.target.wants/kubelet.service" reason=race
		summary outcome=failed removed=0 kept=1 overrides=0 reloaded=false
	`); got != want {
		t.Errorf("log is\n%s", got)
	}
	if target, err := os.Readlink(n.path(wants)); target != "../site.service" {
		t.Errorf("link to %q, %v", target, err)
	}
}

func TestAFolderThatIsExchangedForALinkIsNotFollowed(t *testing.T) {
	n := newNode(t, `
		kubelet.service.d/10-kubeadm.conf  shipped
		/etc/drop/10-kubeadm.conf          shipped
	`)
	if _, err := n.migrate(func(step, p string) {
		if step == "read" {
			if err := errors.Join(os.Rename(n.path("kubelet.service.d"), n.path("old.d")), os.Symlink("/etc/drop", n.path("kubelet.service.d"))); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.path("/etc/drop/10-kubeadm.conf")); err != nil {
		t.Errorf("the link was followed: %v", err)
	}
}

func TestAnImmutableFileIsKept(t *testing.T) {
	n := newNode(t, everything)
	immutable(t, n.path("kubelet.service"))
	got, err := n.migrate(nil)
	if want := `kept "/etc/systemd/system/kubelet.service" reason=io`; !strings.Contains(got, want) ||
		!strings.HasSuffix(got, "summary outcome=failed removed=6 kept=1 overrides=0 reloaded=true\n") || !errors.Is(err, syscall.EPERM) {
		t.Errorf("log is\n%s, error %v", got, err)
	}
	if n.known() != n.files() {
		t.Errorf("systemd knows\n%s, there is\n%s", n.known(), n.files())
	}
}

// immutable sets a file's immutable flag, and takes it away in the end.
func immutable(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	set := func(add, remove int) error {
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^remove|add)
	}
	if err := set(unix.STATX_ATTR_IMMUTABLE, 0); err != nil {
		t.Skipf("the file system of the temporary folder, or the user, can't make a file immutable: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(set(0, unix.STATX_ATTR_IMMUTABLE), f.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestAFileOnAReadOnlyFileSystemIsKept(t *testing.T) {
	n := newNode(t, everything)
	before := n.snapshot()
	got, stderr, state := n.child(syscall.CLONE_NEWNS, childReadOnly+"="+n.path("/etc"))
	want := strings.ReplaceAll(lines(allRemoved), " removed ", " kept ")
	for _, kind := range []string{"fragment", "dropin", "link"} {
		want = strings.ReplaceAll(want, "kind="+kind, "reason=io")
	}
	want = strings.Replace(want, "outcome=migrated removed=7 kept=0 overrides=0 reloaded=true", "outcome=failed removed=0 kept=7 overrides=0 reloaded=false", 1)
	if got != want || state.ExitCode() != 1 || !strings.Contains(stderr, "read-only file system") {
		t.Errorf("exit %d, log is\n%s\nerror %s", state.ExitCode(), got, stderr)
	}
	if after := n.snapshot(); len(after) != len(before) {
		t.Errorf("there is %v", after)
	}
}

func TestAFileThatCannotBeUnlinkedIsKept(t *testing.T) {
	n := newNode(t, "kubelet.service shipped")
	got, err := n.migrate(func(step, p string) {
		if step == "unlink" {
			if err := errors.Join(os.Remove(n.path("kubelet.service")), os.Mkdir(n.path("kubelet.service"), 0o755)); err != nil {
				t.Error(err)
			}
		}
	})
	if want := lines(`
		kept "/etc/systemd/system/kubelet.service" reason=io
		summary outcome=failed removed=0 kept=1 overrides=0 reloaded=false
	`); got != want || !errors.Is(err, syscall.EISDIR) {
		t.Errorf("log is\n%s, error %v", got, err)
	}
}

func TestNothingIsRemovedThatSystemdMightNotHearOf(t *testing.T) {
	n := newNode(t, everything)
	if err := os.Remove(n.path("/run/")); err != nil {
		t.Fatal(err)
	}
	got, err := n.migrate(nil)
	if err == nil || !strings.HasSuffix(got, "summary outcome=failed removed=3 kept=4 overrides=0 reloaded=false\n") || strings.Count(got, "reason=io") != 4 {
		t.Errorf("log is\n%s, error %v", got, err)
	}
}

func TestKilledAtAnyStepTheNextRunFinishes(t *testing.T) {
	steps := 0
	if _, err := newNode(t, everything).migrate(func(string, string) { steps++ }); err != nil {
		t.Fatal(err)
	}
	if steps < 20 {
		t.Fatalf("only %d steps", steps)
	}
	for _, next := range []string{"in the same boot", "after the next boot"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			for i := range steps {
				n := newNode(t, everything)
				n.write("known", n.files())
				before, _, state := n.child(0, childKillAt+"="+strconv.Itoa(i))
				if status := state.Sys().(syscall.WaitStatus); !status.Signaled() {
					t.Fatalf("step %d: %v", i, state)
				}
				if next == "after the next boot" {
					if err := os.RemoveAll(n.path("/run/")); err != nil {
						t.Fatal(err)
					}
					n.grow("/run/ folder")
					n.write("known", n.files())
				}
				got, err := n.migrate(nil)
				if err != nil || !strings.Contains(got, "outcome=migrated") && !strings.Contains(got, "outcome=clean") {
					t.Errorf("step %d: log is\n%s, error %v", i, got, err)
				}
				// A removal that is not in the first log is not in the second either.
				if removed := len(removedPaths(before + got)); removed < 6 || removed > 7 {
					t.Errorf("step %d: removed %d entries:\n%s%s", i, removed, before, got)
				}
				if n.files() != "" || n.known() != "" {
					t.Errorf("step %d: systemd knows %q, there is %q", i, n.known(), n.files())
				}
				if last, _ := n.migrate(nil); last != lines("summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false") {
					t.Errorf("step %d: the run after that says\n%s", i, last)
				}
			}
		})
	}
}

func TestAReloadThatFailsIsDoneByTheNextRun(t *testing.T) {
	for _, verb := range []string{"daemon-reload", "show"} {
		t.Run(verb, func(t *testing.T) {
			n := newNode(t, everything)
			n.write("broken-"+verb, "")
			got, err := n.migrate(nil)
			want := "summary outcome=failed removed=7 kept=0 overrides=0 reloaded=" + strconv.FormatBool(verb == "show") + "\n"
			if !strings.HasSuffix(got, want) {
				t.Errorf("log is\n%s", got)
			}
			if err == nil || !strings.Contains(err.Error(), "systemctl "+verb+": ") || !strings.Contains(err.Error(), `"it is \"broken\""`) {
				t.Errorf("error is %v", err)
			}
			if err := os.Remove(filepath.Join(n.bin, "broken-"+verb)); err != nil {
				t.Fatal(err)
			}
			if again, err := n.migrate(nil); again != lines("summary outcome=migrated removed=0 kept=0 overrides=0 reloaded=true") || err != nil {
				t.Errorf("the next run says\n%s, error %v", again, err)
			}
			if last, _ := n.migrate(nil); last != lines("summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false") {
				t.Errorf("the run after that says\n%s", last)
			}
		})
	}
}

func TestWhatThisBootDoesNotStartIsStarted(t *testing.T) {
	const idle = "Id=containerd.service\nLoadState=loaded\nActiveState=inactive\n\nId=kubelet.service\nLoadState=loaded\nActiveState=inactive\n\n" +
		"Id=provider-kubernetes-image-import.service\nLoadState=loaded\nActiveState=inactive\nJob=7\n"
	const show = "show --property=Id,LoadState,ActiveState,Job -- "
	for name, c := range map[string]struct{ tree, show, calls string }{
		"all wait": {everything, queued, "daemon-reload\n" + show + "containerd.service kubelet.service provider-kubernetes-image-import.service\n"},
		"two are missing": {
			everything, idle,
			"daemon-reload\n" + show + "containerd.service kubelet.service provider-kubernetes-image-import.service\nstart --no-block -- containerd.service kubelet.service\n",
		},
		"one of them was kept in part": {
			"containerd.service shipped\nkubelet.service.d/10-kubeadm.conf shippedX", idle,
			"daemon-reload\n" + show + "containerd.service provider-kubernetes-image-import.service\nstart --no-block -- containerd.service\n",
		},
		"one of them is switched off by a link of the operator's": {
			"containerd.service shipped\nmulti-user.target.wants/kubelet.service -> /dev/null", idle,
			"daemon-reload\n" + show + "containerd.service provider-kubernetes-image-import.service\nstart --no-block -- containerd.service\n",
		},
		"only a link went":  {"multi-user.target.wants/kubelet.service -> /etc/systemd/system/kubelet.service", idle, ""},
		"nothing was there": {"", idle, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.tree)
			n.write("show", c.show)
			if _, err := n.migrate(nil); err != nil {
				t.Error(err)
			}
			if calls := n.calls(); calls != c.calls {
				t.Errorf("systemctl was called with\n%s, expected\n%s", calls, c.calls)
			}
		})
	}
	t.Run("one of them is not enabled in the image", func(t *testing.T) {
		n := newNode(t, everything)
		n.write("show", idle)
		if err := os.Remove(n.path("/" + overlay.WantsDir + "/kubelet.service")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.migrate(nil); err != nil {
			t.Error(err)
		}
		if calls := n.calls(); !strings.HasSuffix(calls, "\nstart --no-block -- containerd.service\n") {
			t.Errorf("systemctl was called with\n%s", calls)
		}
	})
	t.Run("the start is refused", func(t *testing.T) {
		n := newNode(t, everything)
		n.write("show", idle)
		n.write("broken-start", "")
		if got, err := n.migrate(nil); err == nil || !strings.HasSuffix(got, "outcome=failed removed=7 kept=0 overrides=0 reloaded=true\n") {
			t.Errorf("log is\n%s, error %v", got, err)
		}
	})
}

func TestAMigrationOutOfTimeFails(t *testing.T) {
	n := newNode(t, everything)
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	m := n.migration(&log)
	m.step = func(step, p string) {
		if step == "unlink" {
			cancel()
		}
	}
	report, err := m.Run(ctx)
	// The three that were not looked at still hide the image's.
	if want := (Report{Outcome: Failed, Removed: 1, Overrides: 3}); report != want || !errors.Is(err, context.Canceled) || report.Exit() != 1 {
		t.Errorf("%+v, error %v", report, err)
	}
	if got, err := n.migrate(nil); err != nil || !strings.HasSuffix(got, "outcome=migrated removed=6 kept=0 overrides=0 reloaded=true\n") {
		t.Errorf("the next run says\n%s, error %v", got, err)
	}
}

func BenchmarkNothingToDo(b *testing.B) {
	n := newNode(b, `
		kubelet.service.d/20-site.conf   [Service]\n
		multi-user.target.wants/ssh.service  -> /usr/lib/systemd/system/ssh.service
		/usr/local/lib/systemd/system/   folder
	`)
	m := n.migration(new(bytes.Buffer))
	b.ReportAllocs()
	for b.Loop() {
		if report, err := m.Run(b.Context()); err != nil || report.Outcome != Clean {
			b.Fatal(report, err)
		}
	}
}
