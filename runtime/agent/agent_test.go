package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mudler/go-pluggable"
	"github.com/mudler/yip/pkg/schema"

	"github.com/kairos-io/provider-kubernetes/runtime/cluster"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

const (
	token        = "2f1e0d9c8b7a69584736251403f2e1d0"
	kairosConfig = "#cloud-config\nusers: [{name: kairos}]\ncluster:\n  cluster_token: " + token + "\n  role: worker\n  control_plane_host: 10.0.0.1\n"
)

// node makes the folders that a node has at boot.
func node(t *testing.T) (Agent, string) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"run", "var/log", "etc", "usr/lib", "usr/local/cloud-config", "oem", "proc/sys/kernel/random"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir, "/proc/sys/kernel/random/boot_id", "9e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11\n")
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return Agent{Root: root, Version: "v1.2.3"}, dir
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// send sends one event with a cloud-kairosConfig, as Kairos does.
func send(t *testing.T, a Agent, event, cloudConfig string) pluggable.EventResponse {
	t.Helper()
	e, err := pluggable.NewEvent(pluggable.EventType(event), map[string]string{"config": cloudConfig})
	if err != nil {
		t.Fatal(err)
	}
	request, err := e.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := a.Answer(event, strings.NewReader(request), &out); err != nil {
		t.Fatal(err)
	}
	var r pluggable.EventResponse
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("answer %q: %v", &out, err)
	}
	return r
}

// steps loads what was written the way Kairos' executor does.
func steps(t *testing.T, dir, place string) []schema.Stage {
	t.Helper()
	c, err := schema.Load(read(t, dir, place), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Stages["network.after"]
}

func TestABootLeadsToOneStepAfterTheNetwork(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	a, dir := node(t)
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" || r.Data != "" {
		t.Fatalf("got %+v", r)
	}
	fi, err := os.Stat(filepath.Join(dir, DefaultPlace))
	if err != nil || fi.Mode() != 0o600 {
		t.Fatalf("%v, %v", fi, err)
	}
	if !strings.HasPrefix(read(t, dir, DefaultPlace), "#cloud-config\n") {
		t.Error("Kairos ignores a file without #cloud-config on top")
	}
	all := steps(t, dir, DefaultPlace)
	if len(all) != 1 {
		t.Fatalf("got %+v, expected one step", all)
	}
	s := all[0]
	want := []string{
		"/system/providers/agent-provider-kubernetes import-images",
		"/system/providers/agent-provider-kubernetes reconcile --cluster-file /run/provider-kubernetes/cluster.json",
	}
	if !slices.Equal(s.Commands, want) {
		t.Errorf("commands are %q", s.Commands)
	}
	if strings.Contains(fmt.Sprint(s.Commands, s.If), token) {
		t.Error("the token is on a command line")
	}
	if len(s.Directories) != 1 || s.Directories[0] != (schema.Directory{Path: "/run/provider-kubernetes", Permissions: 0o755}) {
		t.Errorf("folders are %+v", s.Directories)
	}
	for _, f := range s.Files {
		if f.Path != ClusterFile || f.Permissions != 0o600 || f.Owner != 0 || f.Group != 0 || f.Encoding != "" {
			t.Errorf("file %+v", f)
		}
	}
	if len(s.Files) != 2 || s.Files[0].Content != "" {
		t.Errorf("files are %+v, expected the empty one first", s.Files)
	}
	c, warnings, err := cluster.Parse([]byte(s.Files[1].Content))
	if err != nil || len(warnings) > 0 || string(c.Token) != token || c.Role != cluster.Worker {
		t.Errorf("cluster file is %+v, %v, %q", c, err, warnings)
	}
	d := status.Read(a.Root)
	if d.Phase != status.Reconciling || d.Role != "worker" || d.LastAction != "agent.boot" || d.Version != "v1.2.3" || d.Membership != status.MembershipUnknown {
		t.Errorf("status is %+v", d)
	}
}

func TestTheStepIsForThisBootOfAnInstalledSystem(t *testing.T) {
	a, dir := node(t)
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	condition := steps(t, dir, DefaultPlace)[0].If
	// The shell's verdict, with the node's paths moved below a folder.
	holds := func() bool {
		return exec.Command("sh", "-c", strings.NewReplacer("/proc/", dir+"/proc/", "/run/", dir+"/run/").Replace(condition)).Run() == nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "run/cos"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !holds() {
		t.Errorf("%s doesn't hold on an installed system", condition)
	}
	for _, mode := range []string{"recovery_mode", "live_mode", "autoreset_mode"} {
		name := filepath.Join("/run/cos", mode)
		put(t, dir, name, "1")
		if holds() {
			t.Errorf("%s holds in %s", condition, mode)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir, "/proc/sys/kernel/random/boot_id", "0e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11\n")
	if holds() {
		t.Errorf("%s holds in the next boot", condition)
	}
	if err := os.Remove(filepath.Join(dir, "/proc/sys/kernel/random/boot_id")); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); !strings.Contains(r.Error, "boot_id") {
		t.Errorf("got %+v, expected an error about the boot's identity", r)
	}
}

func TestATokenIsNoTemplate(t *testing.T) {
	a, dir := node(t)
	braces := "{{ .Values.os }}{{{{x}}}}" + token
	if r := send(t, a, "agent.boot", strings.Replace(kairosConfig, token, `"`+braces+`"`, 1)); r.Error != "" {
		t.Fatal(r.Error)
	}
	content := steps(t, dir, DefaultPlace)[0].Files[1].Content
	if strings.Contains(content, "{{") {
		t.Errorf("Kairos would expand %s", content)
	}
	if c, _, err := cluster.Parse([]byte(content)); err != nil || string(c.Token) != braces {
		t.Errorf("token is %q, %v", string(c.Token), err)
	}
}

func TestAnEarlierFileIsReplacedWhole(t *testing.T) {
	a, dir := node(t)
	put(t, dir, DefaultPlace, strings.Repeat("# long\n", 10000))
	if err := os.Chmod(filepath.Join(dir, DefaultPlace), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	fi, err := os.Stat(filepath.Join(dir, DefaultPlace))
	if err != nil || fi.Mode() != 0o600 || strings.Contains(read(t, dir, DefaultPlace), "# long") {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	names, err := os.ReadDir(filepath.Dir(filepath.Join(dir, DefaultPlace)))
	if err != nil || len(names) != 1 {
		t.Errorf("folder holds %v, %v", names, err)
	}
}

func TestWithoutABlockNothingRunsAnyMore(t *testing.T) {
	a, dir := node(t)
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	if r := send(t, a, "agent.boot", "#cloud-config\nusers: []\n"); r != (pluggable.EventResponse{}) {
		t.Errorf("got %+v", r)
	}
	if got := read(t, dir, DefaultPlace); got != "" {
		t.Errorf("our stages are still there:\n%s", got)
	}

	const others = "#cloud-config\nname: another provider\n"
	put(t, dir, DefaultPlace, others)
	if r := send(t, a, "agent.boot", "#cloud-config\n"); r != (pluggable.EventResponse{}) || read(t, dir, DefaultPlace) != others {
		t.Errorf("got %+v, file %q, expected another's file to stay", r, read(t, dir, DefaultPlace))
	}
}

func TestUnsafePlacesWithholdTheTokenAndSayWhy(t *testing.T) {
	path := func(dir, name string) string { return filepath.Join(dir, name) }
	mode := func(name string, m os.FileMode) func(string) error {
		return func(dir string) error { return os.Chmod(path(dir, name), m) }
	}
	link := func(name string) func(string) error {
		return func(dir string) error {
			return errors.Join(os.Rename(path(dir, name), path(dir, "elsewhere")), os.Symlink(path(dir, "elsewhere"), path(dir, name)))
		}
	}
	chown := func(name string) func(string) error {
		return func(dir string) error { return os.Chown(path(dir, name), 1000, -1) }
	}
	file := func(dir string) error {
		return os.WriteFile(path(dir, DefaultPlace), []byte("#cloud-config\nstages: {boot: [{commands: [old]}]}\n"), 0o600)
	}
	const folder = "/usr/local/cloud-config"
	for name, c := range map[string]struct {
		make   func(dir string) error
		reason status.Reason
		why    string
		root   bool
	}{
		"ancestor is a link": {link("/usr/local"), status.ClusterConfigAncestorUnsafe, "/usr/local is a link", false},
		"ancestor is a file": {func(dir string) error {
			return errors.Join(os.RemoveAll(path(dir, "usr/local")), os.WriteFile(path(dir, "usr/local"), nil, 0o600))
		}, status.ClusterConfigAncestorUnsafe, "/usr/local is no directory", false},
		"ancestor is writable":  {mode("/usr", 0o775), status.ClusterConfigAncestorUnsafe, "/usr has mode 0775", false},
		"root is writable":      {mode("/", 0o777), status.ClusterConfigAncestorUnsafe, "/ has mode 0777", false},
		"ancestor has an owner": {chown("/usr/local"), status.ClusterConfigAncestorUnsafe, "/usr/local belongs to user 1000", true},
		"folder is a link":      {link(folder), status.ClusterConfigDirUnsafe, folder + " is a link", false},
		"folder is a FIFO": {func(dir string) error {
			return errors.Join(os.Remove(path(dir, folder)), syscall.Mkfifo(path(dir, folder), 0o600))
		}, status.ClusterConfigDirUnsafe, folder + " is no directory", false},
		"folder has an owner":     {chown(folder), status.ClusterConfigDirUnsafe, folder + " belongs to user 1000", true},
		"file is a link":          {func(dir string) error { return errors.Join(file(dir), link(DefaultPlace)(dir)) }, status.ClusterConfigTokenFileUnsafe, DefaultPlace + " is no regular file", false},
		"file is a dangling link": {func(dir string) error { return os.Symlink(path(dir, "nowhere"), path(dir, DefaultPlace)) }, status.ClusterConfigTokenFileUnsafe, "no regular file", false},
		"file is a FIFO":          {func(dir string) error { return syscall.Mkfifo(path(dir, DefaultPlace), 0o600) }, status.ClusterConfigTokenFileUnsafe, "no regular file", false},
		"file is a folder":        {func(dir string) error { return os.Mkdir(path(dir, DefaultPlace), 0o700) }, status.ClusterConfigTokenFileUnsafe, "no regular file", false},
		"file is writable":        {func(dir string) error { return errors.Join(file(dir), mode(DefaultPlace, 0o620)(dir)) }, status.ClusterConfigTokenFileUnsafe, "has mode 0620", false},
		"file has two names": {func(dir string) error {
			return errors.Join(file(dir), os.Link(path(dir, DefaultPlace), path(dir, "second")))
		}, status.ClusterConfigTokenFileUnsafe, "has 2 names", false},
		"our own file has two names": {func(dir string) error {
			return errors.Join(os.WriteFile(path(dir, DefaultPlace), config(nil), 0o600), os.Link(path(dir, DefaultPlace), path(dir, "second")))
		}, status.ClusterConfigTokenFileUnsafe, "has 2 names", false},
		"file has an owner": {func(dir string) error { return errors.Join(file(dir), chown(DefaultPlace)(dir)) }, status.ClusterConfigTokenFileUnsafe, "belongs to user 1000", true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Getuid() != 0 {
				t.Skip("giving a file away needs root")
			}
			a, dir := node(t)
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
			r := send(t, a, "agent.boot", kairosConfig)
			if !strings.Contains(r.Error, "withheld") || !strings.Contains(r.Error, c.why) {
				t.Errorf("error is %q, expected %q", r.Error, c.why)
			}
			d := status.Read(a.Root)
			if d.Phase != status.Failed || d.Reason != c.reason || !strings.Contains(d.Message, c.why) {
				t.Errorf("status is %+v, expected %s", d, c.reason)
			}
			err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				b, err := os.ReadFile(name)
				if strings.Contains(string(b), token) || strings.Contains(string(b), "reconcile --cluster-file") {
					t.Errorf("%s holds what is to be withheld", name)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path(dir, "nowhere")); err == nil {
				t.Error("the link was followed")
			}
			if c.reason == status.ClusterConfigTokenFileUnsafe && name != "file is a folder" {
				if got := read(t, dir, DefaultPlace); strings.Contains(got, "old") || !strings.HasPrefix(got, "#cloud-config\n") {
					t.Errorf("Kairos would run what stood there: %q", got)
				}
			}
		})
	}
}

func TestAMissingFolderIsMadeAndItsAncestorsAreNot(t *testing.T) {
	a, dir := node(t)
	if err := os.Remove(filepath.Join(dir, "usr/local/cloud-config")); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	fi, err := os.Stat(filepath.Join(dir, "usr/local/cloud-config"))
	if err != nil || fi.Mode().Perm() != 0o700 || len(steps(t, dir, DefaultPlace)) != 1 {
		t.Errorf("folder %v, %v", fi, err)
	}

	a, dir = node(t)
	if err := os.RemoveAll(filepath.Join(dir, "usr/local")); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error == "" {
		t.Error("expected an error")
	}
	if d := status.Read(a.Root); d.Phase != status.Failed || d.Reason != status.ClusterConfigAncestorMissing {
		t.Errorf("status is %+v", d)
	}
	if _, err := os.Stat(filepath.Join(dir, "usr/local")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the ancestor was made: %v", err)
	}
}

func TestAFolderThatCannotBeMadeIsTold(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	a, dir := node(t)
	if err := errors.Join(os.Remove(filepath.Join(dir, "usr/local/cloud-config")), os.Chmod(filepath.Join(dir, "usr/local"), 0o555)); err != nil {
		t.Fatal(err)
	}
	r := send(t, a, "agent.boot", kairosConfig)
	if d := status.Read(a.Root); r.Error == "" || d.Reason != status.ClusterConfigDirCreateFailed || d.Phase != status.Failed {
		t.Errorf("got %+v, status %+v", r, d)
	}
}

func TestWhatIsOnlyReportedWithholdsNothing(t *testing.T) {
	a, dir := node(t)
	// As Kairos leaves the folder at every boot.
	if err := os.Chmod(filepath.Join(dir, "usr/local/cloud-config"), 0o770); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" || len(steps(t, dir, DefaultPlace)) != 1 {
		t.Fatalf("got %+v", r)
	}
	d := status.Read(a.Root)
	if d.Phase != status.Reconciling || d.Reason != status.ClusterConfigDirWritable || !strings.Contains(d.Message, "0770") || !strings.Contains(d.Message, "no mount of its own") {
		t.Errorf("status is %+v, expected both reports", d)
	}

	if err := status.Write(a.Root, status.Document{Phase: status.Converged, Membership: status.Member}); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	if d := status.Read(a.Root); d.Phase != status.Converged {
		t.Errorf("a report overwrote Converged: %+v", d)
	}
}

func TestAPlaceOfTheOperatorsChoiceIsUsedWhereKairosLooks(t *testing.T) {
	a, dir := node(t)
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" {
		t.Fatal(r.Error)
	}
	const other = "/oem/99_cluster.yaml"
	if r := send(t, a, "agent.boot", kairosConfig+"  cluster_config_path: "+other+"\n"); r.Error != "" || len(steps(t, dir, other)) != 1 {
		t.Errorf("got %+v", r)
	}
	if read(t, dir, DefaultPlace) != "" {
		t.Error("the stages in the default place would run, too")
	}
	if r := send(t, a, "agent.boot", kairosConfig); r.Error != "" || len(steps(t, dir, DefaultPlace)) != 1 || read(t, dir, other) != "" {
		t.Errorf("got %+v, expected the stages to move back", r)
	}

	for _, bad := range []string{"/etc/passwd", "/oem/../etc/x.yaml", "cluster.yaml", "/oem/a/b.yaml", "/oem/cluster", "/usr/local/cloud-config/../x.yaml", `"/oem/a\nb.yaml"`, "/tmp/x.yaml"} {
		a, dir := node(t)
		if r := send(t, a, "agent.boot", kairosConfig+"  cluster_config_path: "+bad+"\n"); r.Error != "" || len(steps(t, dir, DefaultPlace)) != 1 {
			t.Errorf("%s: got %+v", bad, r)
		}
		if d := status.Read(a.Root); d.Reason != status.ClusterConfigOverrideRejected || d.Phase != status.Reconciling {
			t.Errorf("%s: status is %+v", bad, d)
		}
	}
}

func TestAnInvalidPayloadIsAFailureThatShowsNothing(t *testing.T) {
	a, _ := node(t)
	for cloudConfig, reason := range map[string]status.Reason{
		"cluster: *" + token:                status.ConfigInvalid,
		"cluster: [\n" + token:              status.ConfigInvalid,
		"- " + token:                        status.ConfigInvalid,
		"cluster: {a: 1, a: " + token + "}": status.ConfigInvalid,
	} {
		r := send(t, a, "agent.boot", cloudConfig)
		d := status.Read(a.Root)
		if r.Error == "" || d.Phase != status.Failed || d.Reason != reason || strings.Contains(fmt.Sprint(r, d), token) {
			t.Errorf("%q: got %+v, status %+v", cloudConfig, r, d)
		}
	}
	for _, data := range []string{"", "null x", `{"config": 1}`} {
		request, err := json.Marshal(pluggable.Event{Name: "agent.boot", Data: data})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := a.Answer("agent.boot", bytes.NewReader(request), &out); err != nil {
			t.Fatal(err)
		}
		if d := status.Read(a.Root); !strings.Contains(out.String(), `"error":"payload of agent.boot`) || d.Reason != status.EventInvalid {
			t.Errorf("%q: got %s, status %+v", data, &out, d)
		}
	}
	for _, request := range []string{"", "x", "[]"} {
		if err := a.Answer("agent.boot", strings.NewReader(request), &bytes.Buffer{}); err == nil {
			t.Errorf("%q: expected an error", request)
		}
	}
}

func TestAStatusThatCannotBeWrittenIsInTheAnswer(t *testing.T) {
	a, dir := node(t)
	if err := os.Remove(filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	if r := send(t, a, "agent.boot", kairosConfig); !strings.Contains(r.Error, "write status") || len(steps(t, dir, DefaultPlace)) != 1 {
		t.Errorf("got %+v, expected the stages and an error", r)
	}
}

func TestOtherEvents(t *testing.T) {
	a, dir := node(t)
	if r := send(t, a, "agent.install", kairosConfig); r != (pluggable.EventResponse{}) {
		t.Errorf("got %+v, expected an empty answer", r)
	}
	for release, want := range map[string]string{"": "v1.2.3", "ID=debian\n": "v1.2.3", "BUNDLED_KUBERNETES_VERSION=v1.37.2\n": "v1.37.2"} {
		put(t, dir, "/usr/lib/os-release", release)
		r := send(t, a, "init.provider.info", "")
		if r.Error != "" || r.State != "success" || r.Data != `{"provider":"kubernetes","version":"`+want+`"}` {
			t.Errorf("got %+v, expected version %s", r, want)
		}
	}
	if r := send(t, a, "cluster.reset", kairosConfig); !strings.Contains(r.Error, "kubeadm reset") || r.State != "error" {
		t.Errorf("got %+v", r)
	}
	if read(t, dir, DefaultPlace) != "" || read(t, dir, status.Path) != "" {
		t.Error("an event other than agent.boot wrote something")
	}
}

func FuzzTheBlockArrivesAsItWasWritten(f *testing.F) {
	f.Add(kairosConfig)
	f.Add("cluster: {cluster_config_path: [x]}")
	f.Add("cluster: {role: \"{{ x }}{{{\", env: {'{{': '\\{{'}}")
	f.Add("cluster: \"\\x00\\u2028\\r\"")
	f.Add("a: &a {b: *a}")
	f.Fuzz(func(t *testing.T, cloudConfig string) {
		block, err := cluster.Extract([]byte(cloudConfig))
		if err != nil || block == nil {
			return
		}
		c, err := schema.Load(string(stages("boot", block)), nil, nil, nil)
		if err != nil {
			t.Fatalf("Kairos can't read the stages: %v", err)
		}
		got := c.Stages["network.after"][0].Files[1].Content
		var want, have any
		if err := errors.Join(json.Unmarshal(block, &want), json.Unmarshal([]byte(got), &have)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, "{{") || !reflect.DeepEqual(have, want) {
			t.Errorf("%s became %s", block, got)
		}
	})
}
