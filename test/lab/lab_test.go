package lab

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// must runs a command that has to exit with 0, and returns what it printed.
func must(t *testing.T, n *Node, args ...string) string {
	t.Helper()
	r := n.Run(t.Context(), args...)
	if r.Code != 0 {
		t.Fatalf("%s in %s: exit %d\n%s%s", strings.Join(args, " "), n.Name, r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// properties returns what systemd knows of a unit.
func properties(t *testing.T, n *Node, unit string) map[string]string {
	t.Helper()
	p := map[string]string{}
	for line := range strings.Lines(must(t, n, "systemctl", "show", "--property=LoadState,ActiveState,FragmentPath,DropInPaths,NeedDaemonReload", unit)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		p[key] = value
	}
	return p
}

func TestTheImageBootsWithItsOwnUnits(t *testing.T) {
	n := Start(t, Options{Image: Checkout(t, "1.37")})
	dropins := map[string][]string{
		"containerd.service": {"50-provider-kubernetes-exec-path.conf"},
		"kubelet.service":    {"10-kubeadm.conf", "50-provider-kubernetes-exec-path.conf"},
	}
	states := map[string]string{}
	for _, unit := range overlay.Units {
		p := properties(t, n, unit)
		states[unit] = p["ActiveState"]
		// Where /lib is a link, either name may be told.
		fragment := must(t, n, "realpath", p["FragmentPath"])
		if want := "/" + overlay.UnitDir + "/" + unit; p["LoadState"] != "loaded" || fragment != want || p["NeedDaemonReload"] != "no" {
			t.Errorf("%s comes from %s (%v), expected %s", unit, fragment, p, want)
		}
		var want []string
		for _, name := range dropins[unit] {
			want = append(want, "/"+overlay.UnitDir+"/"+unit+".d/"+name)
		}
		if got := strings.Fields(p["DropInPaths"]); !slices.Equal(got, want) {
			t.Errorf("%s has drop-ins %v, expected %v", unit, got, want)
		}
		if enabled := must(t, n, "systemctl", "is-enabled", unit); enabled != "static" {
			t.Errorf("%s is %s, expected static", unit, enabled)
		}
	}
	want := map[string]string{
		"provider-kubernetes-unit-migrate.service": "active",
		"containerd.service":                       "active",
		"provider-kubernetes-image-import.service": "active",
		"kubelet.service":                          "inactive", // no kubeadm ran
	}
	if !reflect.DeepEqual(states, want) {
		t.Errorf("states are %v, expected %v\n%s", states, want, must(t, n, "systemctl", "status", "--no-pager", "--failed"))
	}
	if exe := must(t, n, "readlink", "/proc/"+must(t, n, "systemctl", "show", "--property=MainPID", "--value", "containerd.service")+"/exe"); exe != "/usr/bin/containerd" {
		t.Errorf("containerd runs from %s", exe)
	}
	if state := must(t, n, "systemctl", "is-system-running"); state != "running" {
		t.Errorf("the system is %s", state)
	}
}

func TestANodeIsShutOffFromTheMachine(t *testing.T) {
	machine := map[string]string{}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			t.Skipf("this kernel has no %s", name)
		}
		return strings.TrimSpace(string(b))
	}
	for _, name := range sysctls {
		machine[name] = read(name)
	}
	forward := read("net/ipv4/ip_forward")
	boot := read("kernel/random/boot_id")

	n := Start(t, Options{Image: Checkout(t, "1.37"), Name: "alone", Files: map[string]string{"/etc/example.d/a.conf": "hello"}})
	for _, name := range sysctls {
		must(t, n, "sh", "-c", "echo 7 > /proc/sys/"+name)
		if got := must(t, n, "cat", "/proc/sys/"+name); got != "7" {
			t.Errorf("%s is %s after 7 was written", name, got)
		}
		if now := read(name); now != machine[name] {
			t.Errorf("the machine's %s went from %s to %s", name, machine[name], now)
		}
	}
	must(t, n, "sysctl", "-w", "net.ipv4.ip_forward=1")
	if now := read("net/ipv4/ip_forward"); now != forward {
		t.Errorf("the machine's ip_forward went from %s to %s", forward, now)
	}
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/sys/kernel/uevent_helper", "/usr/bin/x", "/system/x", "/x"} {
		if r := n.Run(t.Context(), "sh", "-c", "echo 1 > "+file); r.Code == 0 {
			t.Errorf("%s was written", file)
		}
	}
	if id := must(t, n, "cat", "/proc/sys/kernel/random/boot_id"); id == boot || len(id) != len(boot) {
		t.Errorf("boot id is %q, the machine's %q", id, boot)
	}
	if got := must(t, n, "hostname") + " " + must(t, n, "cat", "/etc/hostname", "/etc/example.d/a.conf"); got != "alone alone\nhello" {
		t.Errorf("names and files are %q", got)
	}
	if got := must(t, n, "sh", "-c", "ls /sys/class/net; systemd-detect-virt"); got != "lo\ncontainer-other" {
		t.Errorf("network and container are %q", got)
	}
	host, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if ns := must(t, n, "readlink", "/proc/self/ns/pid"); ns == host {
		t.Error("commands run in the machine's process namespace")
	}
	r := n.Run(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 7")
	if want := (Result{"out\n", "err\n", 7}); r != want {
		t.Errorf("a command came to %+v, expected %+v", r, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := n.Run(ctx, "true"); r.Code != -1 || r.Stderr == "" {
		t.Errorf("a cancelled command came to %+v", r)
	}
}

func TestWhatKairosKeepsOutlivesPowerOffPowerCutAndSwap(t *testing.T) {
	first, second := Checkout(t, "1.37"), Checkout(t, "1.36")
	n := Start(t, Options{Image: first})
	kept := []string{"/etc/systemd/system/mine.service", "/var/lib/kubelet/mine", "/opt/mine", "/usr/local/mine", "/var/log/mine", "/oem/mine.yaml"}
	lost := []string{"/etc/mine", "/var/mine", "/run/mine", "/tmp/mine"}
	for _, name := range append(kept, lost...) {
		must(t, n, "sh", "-c", "echo '#' > "+name)
	}
	must(t, n, "sh", "-c", "echo changed > /etc/hostname")
	machine := must(t, n, "cat", "/etc/machine-id")
	boots := []string{must(t, n, "cat", "/proc/sys/kernel/random/boot_id")}

	again := func(what, version string) {
		t.Helper()
		if err := n.Boot(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range kept {
			if r := n.Run(t.Context(), "test", "-e", name); r.Code != 0 {
				t.Errorf("%s: %s is gone", what, name)
			}
		}
		for _, name := range lost {
			if r := n.Run(t.Context(), "test", "-e", name); r.Code == 0 {
				t.Errorf("%s: %s is still there", what, name)
			}
		}
		if name := must(t, n, "cat", "/etc/hostname"); name != "node" {
			t.Errorf("%s: host name is %q", what, name)
		}
		if id := must(t, n, "cat", "/etc/machine-id"); id != machine {
			t.Errorf("%s: machine id went from %s to %s", what, machine, id)
		}
		if got := must(t, n, "kubeadm", "version", "-o", "short"); !strings.HasPrefix(got, version) {
			t.Errorf("%s: kubeadm is %s, expected %s", what, got, version)
		}
		id := must(t, n, "cat", "/proc/sys/kernel/random/boot_id")
		if slices.Contains(boots, id) {
			t.Errorf("%s: boot id %s again", what, id)
		}
		boots = append(boots, id)
	}

	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := n.Run(t.Context(), "true"); r.Code != -1 {
		t.Errorf("a command in a node that is off came to %+v", r)
	}
	again("after power off", "v1.37.")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	again("after a power cut", "v1.37.")
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Swap(second)
	again("after a swap", "v1.36.")
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}

	journal, err := n.Journal(t.Context(), "--output=cat", "_PID=1")
	if err != nil || strings.Count(journal, "Reached target multi-user.target") != len(boots) {
		t.Errorf("the journal tells of %d boots, expected %d (%v)", strings.Count(journal, "Reached target multi-user.target"), len(boots), err)
	}
	one, err := n.Journal(t.Context(), "--output=cat", "_PID=1", "_BOOT_ID="+strings.ReplaceAll(boots[1], "-", ""))
	if err != nil || strings.Count(one, "Reached target multi-user.target") != 1 {
		t.Errorf("the second boot's journal is (%v)\n%s", err, one)
	}
}

func TestTheImagesContentIsOnlyAddedToWhatIsKept(t *testing.T) {
	older := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	layer := func(files map[string]string, at time.Time) string {
		dir := t.TempDir()
		for name, content := range files {
			put(t, filepath.Join(dir, name), content, at)
		}
		return dir
	}
	base := Checkout(t, "1.37")
	n := Make(t, Options{Image: base.With(layer(map[string]string{"etc/systemd/system/a": "one", "etc/systemd/system/b": "one", "opt/c": "one", "etc/d": "one"}, older))})
	touched, err := n.Kept("/etc/systemd/system/b")
	if err != nil {
		t.Fatal(err)
	}
	put(t, touched, "mine", older.Add(time.Hour))
	boot := func() {
		t.Helper()
		if err := n.Boot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		return must(t, n, "sh", "-c", "cd /etc/systemd/system; for f in a b /opt/c /etc/d; do echo $(cat $f 2>/dev/null); done")
	}
	boot()
	if got := read(); got != "one\nmine\none\none" {
		t.Errorf("first boot: files are %q", got)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	// A newer image changes one file without touching its time or size, brings
	// a newer one and lacks two.
	n.Swap(base.With(layer(map[string]string{"etc/systemd/system/a": "two", "etc/systemd/system/b": "two"}, older)))
	boot()
	if got := read(); got != "one\nmine\none" {
		t.Errorf("second boot: files are %q", got)
	}
	if _, err := n.Kept("/etc/hostname"); err == nil {
		t.Error("/etc/hostname counts as kept")
	}
}

func put(t *testing.T, name, content string, at time.Time) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestNodesOnASwitchReachEachOtherAndTheTest(t *testing.T) {
	image := Checkout(t, "1.37")
	if err := Check(); err != nil {
		t.Skip(err)
	}
	interfaces := func() (names []string) {
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			names = append(names, i.Name)
		}
		return names
	}
	before := interfaces()
	network, err := NewSwitch(Network)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	a := Start(t, Options{Image: image, Name: "a", Switch: network, Address: "10.77.0.11"})
	b := Start(t, Options{Image: image, Name: "b", Switch: network, Address: "10.77.0.12", Cgroups: Unified})

	// From the test to a node.
	serve := a.Command(t.Context(), "socat", "TCP-LISTEN:8080,fork,reuseaddr", "SYSTEM:hostname")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Cancel(); _ = serve.Wait() }()
	var answer []byte
	err = poll(10*time.Second, func() (bool, error) {
		c, err := network.Dial(t.Context(), "tcp", "10.77.0.11:8080")
		if err != nil {
			return false, nil // it does not listen yet
		}
		defer c.Close()
		answer, err = io.ReadAll(c)
		return true, err
	})
	if err != nil || string(answer) != "a\n" {
		t.Errorf("the node answered %q, %v", answer, err)
	}
	// From node to node.
	if got := must(t, b, "socat", "-u", "TCP:10.77.0.11:8080", "STDOUT"); got != "a" {
		t.Errorf("from node to node came %q", got)
	}
	// From a node to the test.
	l, err := network.Listen(t.Context(), "10.77.0.1:5000")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })}
	go server.Serve(l)
	defer server.Close()
	if got := must(t, b, "sh", "-c", `printf 'GET / HTTP/1.0\r\n\r\n' | socat - TCP:10.77.0.1:5000`); !strings.HasSuffix(got, "hello") {
		t.Errorf("the test's server answered %q", got)
	}
	// And the machine's network has no part in it.
	if now := interfaces(); !slices.Equal(now, before) {
		t.Errorf("the machine's interfaces went from %v to %v", before, now)
	}
	if got := must(t, b, "stat", "--file-system", "--format=%T", "/sys/fs/cgroup"); got != "cgroup2fs" {
		t.Errorf("control groups of the unified node are %s", got)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a node without image was made")
	}
	c := Make(t, Options{Image: image, Switch: network, Address: "192.0.2.1"})
	if err := c.Boot(t.Context()); err == nil {
		t.Error("a node with an address of another network was booted")
	}
	if _, err := network.Dial(t.Context(), "tcp", "a:8080"); err == nil {
		t.Error("a name was dialed")
	}
}

func TestANodeThatCanNotBootSaysWhy(t *testing.T) {
	if err := Check(); err != nil {
		t.Skip(err)
	}
	n := Make(t, Options{Image: Image{[]string{t.TempDir()}}})
	before := trace(t, n)
	err := n.Boot(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("error is %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	before.gone(t)
}

// traces are what a node would leave behind.
type traces struct {
	n      *Node
	mounts string
	spaces map[string]bool // its namespaces, as links in /proc/*/ns
	keeper int
}

func trace(t *testing.T, n *Node) traces {
	t.Helper()
	tr := traces{n: n, mounts: mounts(t), spaces: map[string]bool{}}
	if n.running() {
		tr.keeper = n.keeper.Process.Pid
		tr.spaces = spaces(t, n.pid)
	}
	return tr
}

func spaces(t *testing.T, pid int) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, kind := range []string{"mnt", "pid", "net", "cgroup", "uts", "ipc"} {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		if own, _ := os.Readlink("/proc/self/ns/" + kind); own == ns {
			t.Errorf("the node has the machine's %s namespace", kind)
		}
		found[ns] = true
	}
	return found
}

func mounts(t *testing.T) string {
	t.Helper()
	base, err := folder("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	// Other programs mount and unmount at the same time.
	var of []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, base) {
			of = append(of, line)
		}
	}
	return strings.Join(of, "")
}

// gone waits until nothing is left, which takes a moment when a process was
// killed.
func (tr traces) gone(t *testing.T) {
	t.Helper()
	var left []string
	_ = poll(20*time.Second, func() (bool, error) {
		left = tr.left(t)
		return len(left) == 0, nil
	})
	for _, what := range left {
		t.Error(what)
	}
	if now := mounts(t); now != "" || tr.mounts != "" {
		t.Errorf("mounts in the machine's namespace, before:\n%safter:\n%s", tr.mounts, now)
	}
}

func (tr traces) left(t *testing.T) (found []string) {
	if _, err := os.Stat(tr.n.dir); err == nil {
		found = append(found, tr.n.dir+" is left")
	}
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		_ = filepath.WalkDir(h.mount, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.Contains(name, tr.n.id) {
				found = append(found, name+" is left")
			}
			return nil // groups of others come and go
		})
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		links, _ := filepath.Glob(p + "/ns/*")
		for _, l := range links {
			if ns, _ := os.Readlink(l); tr.spaces[ns] {
				found = append(found, p+" is in "+ns)
			}
		}
		if pid, _ := strconv.Atoi(filepath.Base(p)); pid == tr.keeper && pid != 0 {
			found = append(found, p+", the keeper, runs")
		}
	}
	return found
}

func TestAClosedNodeLeavesNothing(t *testing.T) {
	state := t.TempDir()
	n := Start(t, Options{Image: Checkout(t, "1.37"), State: state})
	left := n.Command(t.Context(), "sleep", "1000")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	tr := trace(t, n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	tr.gone(t)
	if err := left.Wait(); err == nil {
		t.Error("a command went on after its node")
	}
	if _, err := os.Stat(filepath.Join(state, "persistent", ".state", "etc-systemd.bind")); err != nil {
		t.Errorf("the state folder that was given: %v", err)
	}
}

// holdVariable makes the test below boot a node, tell about it and hang.
const holdVariable = "LAB_TEST_HOLD"

func TestHold(t *testing.T) {
	folder := os.Getenv(holdVariable)
	if folder == "" {
		t.Skip("is a part of the tests below")
	}
	n := Start(t, Options{Image: Image{[]string{folder}}})
	fmt.Printf("\nnode %s %s %d %d\n", n.id, n.dir, n.pid, n.keeper.Process.Pid)
	select {}
}

// holder is another process with a node.
func holder(t *testing.T) (*exec.Cmd, traces) {
	t.Helper()
	image := Checkout(t, "1.37")
	if err := Check(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHold$", "-test.v")
	cmd.Env = append(os.Environ(), holdVariable+"="+image.Folders[0])
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	tr := traces{n: &Node{}, mounts: mounts(t)}
	var said strings.Builder
	buf := make([]byte, 4096)
	for {
		k, err := out.Read(buf)
		said.Write(buf[:k])
		if _, line, ok := strings.Cut(said.String(), "\nnode "); ok && strings.Contains(line, "\n") {
			var pid int
			if _, err := fmt.Sscan(line, &tr.n.id, &tr.n.dir, &pid, &tr.keeper); err != nil {
				t.Fatal(err)
			}
			tr.spaces = spaces(t, pid)
			return cmd, tr
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
	}
}

func TestANodeEndsWithTheProcessThatBootedItAndLeavesNothing(t *testing.T) {
	cmd, tr := holder(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	tr.gone(t)
}

func TestWhatIsLeftWhenTheKeeperIsKilledTooIsSweptAway(t *testing.T) {
	cmd, tr := holder(t)
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tr.n.dir); err != nil {
		t.Fatalf("a node in use was swept away: %v", err)
	}
	if err := unix.Kill(tr.keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	err := poll(10*time.Second, func() (bool, error) {
		err := Sweep()
		_, there := os.Stat(tr.n.dir)
		return there != nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.gone(t)
}

func TestHierarchiesAreReadFromMountInfo(t *testing.T) {
	const info = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
34 31 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
35 31 0:29 /a /elsewhere rw - cgroup cgroup rw,cpu,cpuacct
torn line - cgroup
`
	want := []hierarchy{{"/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/systemd", "name=systemd"}, {"/sys/fs/cgroup/unified", ""}}
	if got := parseHierarchies(info); !slices.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
}
