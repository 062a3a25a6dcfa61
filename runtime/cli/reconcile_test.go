package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

const (
	clusterFile = "/run/cluster.json"
	token       = "2f1e0d9c8b7a69584736251403f2e1d0"
	block       = `{"cluster_token":"` + token + `","role":"worker","control_plane_host":"10.0.0.1"}`
)

// node makes the folders of a booted node that is not a member.
func node(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"run", "var/log", "etc/kubernetes", "proc/sys/kernel/random"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir, "/proc/sys/kernel/random/boot_id", "9e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11\n")
	put(t, dir, clusterFile, block)
	return dir
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func lastStatus(t *testing.T, dir string) status.Document {
	t.Helper()
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	return status.Read(root)
}

func TestReconcileTellsWhatItSees(t *testing.T) {
	kubelet := func(code int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				code = http.StatusNotFound
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/healthz"
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	member := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "etc/kubernetes/kubelet.conf"), []byte("kind: Config\n"), 0o600)
	}
	for name, c := range map[string]struct {
		make       func(dir string) error
		healthz    string
		exit       exitCode
		phase      status.Phase
		membership status.Membership
		reason     status.Reason
		message    string
	}{
		"no member":        {nil, kubelet(200), 0, status.Reconciling, status.NotMember, status.NotAMember, "no kubelet.conf"},
		"a healthy member": {member, kubelet(200), 0, status.Converged, status.Member, "", "healthy"},
		"an ill kubelet":   {member, kubelet(500), 7, status.Degraded, status.Member, status.KubeletUnhealthy, "500"},
		"a redirect":       {member, kubelet(302), 7, status.Degraded, status.Member, status.KubeletUnhealthy, "302"},
		"no kubelet":       {member, gone.URL + "/healthz", 7, status.Degraded, status.Member, status.KubeletUnhealthy, "refused"},
		"an empty kubeconfig": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "etc/kubernetes/kubelet.conf"), nil, 0o600)
		}, kubelet(200), 1, status.Failed, status.MembershipUnknown, status.MembershipUnclear, "is empty"},
		"a kubeconfig that is a FIFO": {func(dir string) error {
			return syscall.Mkfifo(filepath.Join(dir, "etc/kubernetes/kubelet.conf"), 0o600)
		}, kubelet(200), 1, status.Failed, status.MembershipUnknown, status.MembershipUnclear, "not a regular file"},
		"an invalid block": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, clusterFile), []byte(`{"cluster_token":"`+token+`","role":"master"}`), 0o600)
		}, kubelet(200), 2, status.Failed, status.MembershipUnknown, status.ConfigInvalid, "2 finding(s)"},
		"no block": {func(dir string) error {
			return os.Remove(filepath.Join(dir, clusterFile))
		}, kubelet(200), 2, status.Failed, status.MembershipUnknown, status.ConfigUnreadable, "cluster file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := node(t)
			if c.make != nil {
				if err := c.make(dir); err != nil {
					t.Fatal(err)
				}
			}
			var stdout, stderr bytes.Buffer
			if got := reconcile(t.Context(), dir, clusterFile, c.healthz, &stdout, &stderr); got != c.exit || stderr.Len() > 0 {
				t.Errorf("exit %d, expected %d, %s", got, c.exit, &stderr)
			}
			d := lastStatus(t, dir)
			if d.Phase != c.phase || d.Membership != c.membership || d.Reason != c.reason || !strings.Contains(d.Message, c.message) || d.LastAction != "reconcile" {
				t.Errorf("status is %+v", d)
			}
			log, err := os.ReadFile(filepath.Join(dir, reconcileLog))
			if err != nil || !strings.Contains(string(log), "phase="+string(c.phase)) || !strings.Contains(stdout.String(), "phase="+string(c.phase)) {
				t.Errorf("%v, log %q, output %q", err, log, &stdout)
			}
			if strings.Contains(string(log)+stdout.String()+d.Message, token) {
				t.Error("the token shows")
			}

			var out bytes.Buffer
			if code := printStatus(dir, "json", &out, &stderr); code != c.exit {
				t.Errorf("status: exit %d, expected %d", code, c.exit)
			}
			var told status.Document
			if err := json.Unmarshal(out.Bytes(), &told); err != nil || told != d {
				t.Errorf("%v, %s", err, &out)
			}
		})
	}
}

func TestEveryFindingHasALineInTheLog(t *testing.T) {
	dir := node(t)
	put(t, dir, clusterFile, `{"cluster_token":"`+token+`","role":"master","tokn":"x"}`)
	reconcile(t.Context(), dir, clusterFile, "", io.Discard, io.Discard)
	reconcile(t.Context(), dir, clusterFile, "", io.Discard, io.Discard)
	log, err := os.ReadFile(filepath.Join(dir, reconcileLog))
	if err != nil || strings.Count(string(log), " reconcile: finding: ") != 4 || strings.Count(string(log), " reconcile: warning: ") != 2 {
		t.Errorf("%v, log of two passes:\n%s", err, log)
	}
}

func TestALogThatCannotBeWrittenStopsNothing(t *testing.T) {
	dir := node(t)
	if err := os.Symlink("elsewhere", filepath.Join(dir, reconcileLog)); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := reconcile(t.Context(), dir, clusterFile, "", io.Discard, &stderr); code != 0 || !strings.Contains(stderr.String(), "reconcile log") {
		t.Errorf("exit %d, %s", code, &stderr)
	}
	if _, err := os.Lstat(filepath.Join(dir, "var/log/elsewhere")); err == nil {
		t.Error("the link was followed")
	}
}

func TestAStatusThatCannotBeWrittenIsAFailure(t *testing.T) {
	dir := node(t)
	put(t, dir, "/run/provider-kubernetes", "no folder")
	var stderr bytes.Buffer
	if code := reconcile(t.Context(), dir, clusterFile, "", io.Discard, &stderr); code != 1 || !strings.Contains(stderr.String(), "write status") {
		t.Errorf("exit %d, %s", code, &stderr)
	}
	var stdout bytes.Buffer
	if code := printStatus(dir, "yaml", &stdout, &stderr); code != 1 || !strings.Contains(stdout.String(), "phase: Unknown\n") {
		t.Errorf("exit %d, %s", code, &stdout)
	}
}

func TestWrongUseOfStatusAndReconcileIsExit2(t *testing.T) {
	for _, args := range [][]string{{"status", "more"}, {"status", "--output", "xml"}, {"reconcile"}, {"reconcile", "--cluster-file"}, {"reconcile", "more", "--cluster-file", "x"}} {
		var stdout, stderr bytes.Buffer
		if code := Main(args, strings.NewReader(""), &stdout, &stderr); code != 2 || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "error: ") {
			t.Errorf("%v: exit %d, %q, %q", args, code, &stdout, &stderr)
		}
	}
}

func TestARefusalHasItsOwnExitCode(t *testing.T) {
	for d, want := range map[status.Document]exitCode{
		{Phase: status.Failed, Reason: status.UpgradeRefused}: 3,
		{Phase: status.Failed}:                                1,
		{Phase: status.Unknown}:                               1,
		{Phase: status.Reset}:                                 0,
	} {
		if got := exitOf(d); got != want {
			t.Errorf("%+v: exit %d, expected %d", d, got, want)
		}
	}
}
