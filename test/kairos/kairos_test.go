// Package kairos proves that a stock Kairos agent and the node runtime work
// together in a booted node of this checkout's image: the agent finds the
// provider and hands it the operator's cluster: block, and its executor runs
// the stages that come back. The agent is built from test/tools/kairos-agent.
package kairos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/agent"
	"github.com/kairos-io/provider-kubernetes/runtime/cluster"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
	"github.com/kairos-io/provider-kubernetes/test/images"
	"github.com/kairos-io/provider-kubernetes/test/lab"
)

const (
	token    = "5d2f7c1e9b3a4860a7d4e6f8c0b21935"
	folder   = "/usr/local/cloud-config"
	ours     = agent.DefaultPlace
	theirs   = "/oem/99_cluster.yaml"
	provider = "/" + overlay.Provider
	log      = "/var/log/provider-kubernetes-reconcile.log"

	cloudConfig = "#cloud-config\ncluster:\n  cluster_token: " + token + "\n  role: worker\n  control_plane_host: 10.77.0.11\n"
)

// long is a cloud-config of more than 8 KiB, which goes to plugins in a file.
var long = cloudConfig + "write_files:\n- path: /etc/motd\n  content: " + strings.Repeat("a real one is long ", 600) + "\n"

func TestMain(m *testing.M) {
	lab.Main()
	syscall.Umask(0o022) // of what is laid over images
	os.Exit(m.Run())
}

// stock builds the agent and returns where it is. Go's cache has the rest.
var stock = sync.OnceValues(func() (string, error) {
	root, err := images.Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(root, "bin", "kairos-agent")
	cmd := exec.Command("go", "build", "-C", filepath.Join(root, "test", "tools", "kairos-agent"), "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "github.com/kairos-io/kairos-agent/v2")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build kairos-agent: %w\n%s", err, b)
	}
	return out, nil
})

// units do what Kairos does: on a real node the event is sent before systemd
// starts, with everything mounted, and the network stage after the network.
var units = []struct{ name, wantedBy, order, command string }{
	{"notify.service", "sysinit.target", "DefaultDependencies=no\nAfter=local-fs.target\nBefore=sysinit.target", "notify agent.boot"},
	{"cos-setup-network.service", "multi-user.target", "After=network-online.target", "run-stage network"},
}

// image returns this checkout's image with the stock agent in it.
func image(t *testing.T) lab.Image {
	t.Helper()
	if err := lab.Check(); err != nil {
		t.Skip(err)
	}
	img := lab.Checkout(t, "1.37")
	program, err := stock()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	layer := t.TempDir()
	put := func(name string, mode fs.FileMode, content []byte) {
		name = filepath.Join(layer, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, mode)); err != nil {
			t.Fatal(err)
		}
	}
	put("usr/bin/kairos-agent", 0o755, b)
	put("system/oem/.keep", 0o644, nil) // in every Kairos image
	for _, u := range units {
		const dir = "usr/lib/systemd/system/"
		put(dir+u.name, 0o644, fmt.Appendf(nil, "[Unit]\n%s\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/kairos-agent %s\n", u.order, u.command))
		// What is wanted by a target is a link in this folder; its name counts.
		wants := filepath.Join(layer, dir, u.wantedBy+".wants")
		if err := errors.Join(os.MkdirAll(wants, 0o755), os.Symlink("../"+u.name, filepath.Join(wants, u.name))); err != nil {
			t.Fatal(err)
		}
	}
	return img.With(layer)
}

// node is a node with what tests do in it.
type node struct {
	*lab.Node
	t *testing.T
}

// sh runs a script that has to succeed, and returns what it printed.
func (n node) sh(script string) string {
	n.t.Helper()
	r := n.Run(n.t.Context(), "sh", "-ec", script)
	if r.Code != 0 {
		n.t.Fatalf("%s: exit %d\n%s%s", script, r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

func (n node) exists(name string) bool {
	return n.Run(n.t.Context(), "test", "-e", name).Code == 0
}

// configure writes the operator's cloud-config.
func (n node) configure(content string) {
	n.t.Helper()
	n.feed(content, "sh", "-c", "cat > "+theirs)
}

// feed runs a command with that input. Its exit code has to be 0.
func (n node) feed(stdin string, args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	cmd := n.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	b, err := cmd.Output()
	if err != nil {
		n.t.Fatalf("%v: %v", args, err)
	}
	return string(b)
}

// send makes the agent send agent.boot, and returns its exit code and output.
func (n node) send() (int, string) {
	n.t.Helper()
	r := n.Run(n.t.Context(), "kairos-agent", "notify", "agent.boot")
	if strings.Contains(r.Stdout+r.Stderr, token) {
		n.t.Errorf("the agent printed the token: %s%s", r.Stdout, r.Stderr)
	}
	return r.Code, r.Stdout + r.Stderr
}

// pass is agent.boot and the network stage, which both have to succeed.
func (n node) pass() {
	n.t.Helper()
	if code, out := n.send(); code != 0 {
		n.t.Fatalf("agent.boot: exit %d\n%s", code, out)
	}
	n.stage()
}

func (n node) stage() {
	n.t.Helper()
	n.sh("kairos-agent run-stage network")
}

// expect compares what the provider says about itself.
func (n node) expect(phase status.Phase, reason status.Reason, action string) status.Document {
	n.t.Helper()
	r := n.Run(n.t.Context(), provider, "status", "--output", "json")
	var d status.Document
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
		n.t.Fatalf("status: %v\n%s%s", err, r.Stdout, r.Stderr)
	}
	if d.Phase != phase || d.Reason != reason || d.LastAction != action {
		n.t.Errorf("status is %+v, expected %s %s after %s", d, phase, reason, action)
	}
	return d
}

// passed checks what a whole boot or pass comes to on this node, which is no
// member of any cluster.
func (n node) passed() {
	n.t.Helper()
	c, warnings, err := cluster.Parse([]byte(n.sh("cat " + agent.ClusterFile)))
	if err != nil || len(warnings) > 0 || string(c.Token) != token || c.Role != cluster.Worker || c.ControlPlane.Host != "10.77.0.11" {
		n.t.Errorf("cluster file holds %+v, %v, %q", c, err, warnings)
	}
	if d := n.expect(status.Reconciling, status.NotAMember, "reconcile"); d.Role != "worker" || d.Membership != status.NotMember || d.Terminal {
		n.t.Errorf("status is %+v", d)
	}
	for name, want := range map[string]string{
		ours:                           "600 root:root 1 regular file",
		agent.ClusterFile:              "600 root:root 1 regular file",
		status.Path:                    "640 root:adm 1 regular file",
		status.Mirror:                  "640 root:adm 1 regular file",
		log:                            "640 root:root 1 regular file",
		"/run/provider-kubernetes":     "755 root:root 2 directory",
		"/var/log/provider-kubernetes": "755 root:root 2 directory",
	} {
		if got := n.sh("stat -c '%a %U:%G %h %F' " + name); got != want {
			n.t.Errorf("%s is %q, expected %q", name, got, want)
		}
	}
	if got := n.sh("stat -f -c %T " + agent.ClusterFile); got != "tmpfs" {
		n.t.Errorf("%s is on %s", agent.ClusterFile, got)
	}
	if document, mirror := n.sh("cat "+status.Path), n.sh("cat "+status.Mirror); document != mirror {
		n.t.Errorf("document and mirror differ:\n%s\n%s", document, mirror)
	}
}

// noLeak checks that the token is where it has to be and nowhere else.
func (n node) noLeak() {
	n.t.Helper()
	// The exit code is 2 when a file vanishes meanwhile.
	r := n.Run(n.t.Context(), "grep", "-rlsaF", "--exclude-dir=*containerd*", token, "/etc", "/home", "/oem", "/root", "/run", "/tmp", "/usr/local", "/var")
	got, want := strings.Fields(r.Stdout), []string{theirs, agent.ClusterFile, ours}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		n.t.Errorf("the token is in %v, expected %v", got, want)
	}
	journal, err := n.Journal(n.t.Context(), "--output=export")
	if err != nil || !strings.Contains(journal, "kairos-agent") || strings.Contains(journal, token) {
		n.t.Errorf("the journal lacks the agent or has the token (%v)", err)
	}
}

func TestTheStockAgentHandsTheBlockOverAndRunsTheStages(t *testing.T) {
	n := node{lab.Start(t, lab.Options{Image: image(t), Files: map[string]string{theirs: long}}), t}
	// Trusted boot makes no folder before the first one.
	if got := n.sh("stat -c '%a %U:%G' " + folder); got != "700 root:root" {
		t.Errorf("%s is %s, expected one that the provider made", folder, got)
	}
	for _, u := range units {
		if got := n.sh("systemctl show --property=ActiveState --value " + u.name); got != "active" {
			t.Errorf("%s is %s", u.name, got)
		}
	}
	n.passed()
	n.noLeak()

	run := func(name string, f func(n node)) {
		t.Run(name, func(t *testing.T) { f(node{n.Node, t}) })
	}
	run("a short cloud-config", func(n node) {
		n.configure(cloudConfig)
		n.sh("rm " + agent.ClusterFile)
		n.pass()
		n.passed()
	})
	run("the stage imports what is missing", func(n node) {
		const find = "ctr -n k8s.io images ls -q | grep /pause:"
		name := n.sh(find)
		n.sh("ctr -n k8s.io images rm --sync " + name)
		n.stage()
		if got := n.sh(find); got != name {
			n.t.Errorf("images are %q, expected %s", got, name)
		}
	})
	run("an invalid block", func(n node) {
		n.configure(strings.Replace(cloudConfig, "role: worker", "role: boss", 1) + "  config: {}\n")
		n.pass()
		n.expect(status.Failed, status.ConfigInvalid, "reconcile")
		if got := n.sh("grep -c finding: " + log); got == "0" || got == "1" {
			n.t.Errorf("%s has %s findings", log, got)
		}
		n.noLeak()
	})
	run("a member without a kubelet", func(n node) {
		n.configure(cloudConfig)
		n.sh("echo kubeconfig > /etc/kubernetes/kubelet.conf")
		n.pass()
		n.expect(status.Degraded, status.KubeletUnhealthy, "reconcile")
		n.sh("rm /etc/kubernetes/kubelet.conf")
	})
	run("no block any more", func(n node) {
		n.configure("#cloud-config\nusers: []\n")
		n.sh("rm " + agent.ClusterFile)
		n.pass()
		if n.exists(ours) || n.exists(agent.ClusterFile) {
			n.t.Error("stages of an earlier boot ran")
		}
	})
	run("a folder that group admin may write to, as Kairos leaves it", func(n node) {
		n.configure(cloudConfig)
		n.sh("chmod 0770 " + folder)
		if code, out := n.send(); code != 0 {
			n.t.Errorf("agent.boot: exit %d\n%s", code, out)
		}
		n.expect(status.Reconciling, status.ClusterConfigDirWritable, "agent.boot")
		n.stage()
		n.passed()
		n.sh("chmod 0700 " + folder + "; rm " + ours)
	})
	run("events of others, and a question", func(n node) {
		n.configure(cloudConfig)
		for event, want := range map[string]string{
			"agent.install":      "{   }", // an empty answer
			"init.provider.info": `{success {"provider":"kubernetes","version":"` + n.sh("kubeadm version -o short") + `"}  }`,
		} {
			out := n.sh("BUS_DEBUG=true kairos-agent notify " + event)
			if !strings.Contains(out, "kubernetes at "+provider+" &"+want) {
				n.t.Errorf("%s: the agent got %s, expected %s", event, out, want)
			}
		}
		if n.exists(ours) {
			n.t.Error("another event than agent.boot wrote stages")
		}
	})
	for name, c := range places {
		run(name, c.test)
	}
	n.pass()
	n.noLeak()
}

// place is a state that a place for a secret may be found in.
type place struct {
	arrange, repair string
	reason          status.Reason
	terminal        bool
	direct          bool // sent to the provider by hand: the agent itself waits for ever
}

const victim = "/usr/local/victim"

var places = map[string]place{
	"others can write to an ancestor": {arrange: "chmod 0775 /usr/local", repair: "chmod 0755 /usr/local", reason: status.ClusterConfigAncestorUnsafe, terminal: true},
	"the folder is a link":            {arrange: "mv " + folder + " /usr/local/elsewhere; ln -s elsewhere " + folder, repair: "rm -r " + folder + " /usr/local/elsewhere", reason: status.ClusterConfigDirUnsafe, terminal: true},
	"the folder is a file":            {arrange: "rm -r " + folder + "; touch " + folder, repair: "rm " + folder, reason: status.ClusterConfigDirUnsafe, terminal: true},
	"the folder is a user's":          {arrange: "chown 1000 " + folder, repair: "chown 0 " + folder, reason: status.ClusterConfigDirUnsafe, terminal: true},
	"the file is a link":              {arrange: "ln -sf " + victim + " " + ours, reason: status.ClusterConfigTokenFileUnsafe},
	"the file has two names":          {arrange: "ln -f " + victim + " " + ours, reason: status.ClusterConfigTokenFileUnsafe},
	"the file is a user's":            {arrange: "chown 1000 " + ours, reason: status.ClusterConfigTokenFileUnsafe},
	"others can write to the file":    {arrange: "chmod 0622 " + ours, reason: status.ClusterConfigTokenFileUnsafe},
	"the file is a FIFO":              {arrange: "rm " + ours + "; mkfifo " + ours, reason: status.ClusterConfigTokenFileUnsafe, direct: true},
}

// test sends a boot into that state, after one that was well, and the next one
// after the repair.
func (p place) test(n node) {
	n.configure(cloudConfig)
	n.sh("echo precious > " + victim)
	n.pass()
	n.sh("rm " + agent.ClusterFile)
	n.sh(p.arrange)
	n.anotherBoot()
	if p.direct {
		data, err := json.Marshal(map[string]string{"config": cloudConfig})
		if err != nil {
			n.t.Fatal(err)
		}
		request, err := json.Marshal(map[string]string{"name": "agent.boot", "data": string(data)})
		if err != nil {
			n.t.Fatal(err)
		}
		if out := n.feed(string(request), provider, "agent.boot"); !strings.Contains(out, "withheld") || strings.Contains(out, token) {
			n.t.Errorf("the provider answered %s", out)
		}
	} else if code, out := n.send(); code != 1 || !strings.Contains(out, "token and commands are withheld") {
		n.t.Errorf("agent.boot: exit %d\n%s", code, out)
	}
	n.stage()
	n.withheld(p.reason, p.terminal)
	if p.reason == status.ClusterConfigTokenFileUnsafe && n.Run(n.t.Context(), "grep", "-q", "cluster", ours).Code != 1 {
		n.t.Errorf("%s is not a file that says nothing", ours)
	}
	if got := n.sh("cat " + victim); got != "precious" {
		n.t.Errorf("%s is now %q", victim, got)
	}
	n.sh("rm " + victim + "; " + p.repair)
	n.anotherBoot()
	n.pass()
	n.passed()
}

// anotherBoot makes what follows a boot of its own, as far as this program and
// Kairos' executor can tell.
func (n node) anotherBoot() {
	n.t.Helper()
	n.sh("cat /proc/sys/kernel/random/uuid > /proc/sys/kernel/random/boot_id")
}

// withheld checks that nothing was handed over, and that the status says why.
func (n node) withheld(reason status.Reason, terminal bool) {
	n.t.Helper()
	if n.exists(agent.ClusterFile) {
		n.t.Error("the stages ran")
	}
	if d := n.expect(status.Failed, reason, "agent.boot"); d.Terminal != terminal || !strings.Contains(d.Message, "withheld") {
		n.t.Errorf("status is %+v", d)
	}
}

func TestABootWithAnUnsafePlaceHandsNothingOverAndTheNextOneAfterRepairDoes(t *testing.T) {
	n := node{lab.Make(t, lab.Options{Image: image(t), Files: map[string]string{theirs: cloudConfig}}), t}
	at, err := n.Kept(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink("elsewhere", at), os.Mkdir(filepath.Join(filepath.Dir(at), "elsewhere"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := n.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.withheld(status.ClusterConfigDirUnsafe, true)
	if got := n.sh("ls /usr/local/elsewhere; systemctl is-failed notify.service"); got != "failed" {
		t.Errorf("files and the unit's state are %q", got)
	}
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := n.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.passed()
	n.noLeak()
}
