package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/run"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

const (
	kubeletUnit    = overlay.UnitDir + "/kubelet.service"
	containerdUnit = overlay.UnitDir + "/containerd.service"
	kubeletDropIn  = overlay.UnitDir + "/kubelet.service.d/10-kubeadm.conf"
	pause          = "registry.k8s.io/pause:3.10.2"
	etcdImage      = "registry.k8s.io/etcd:3.7.0-0"
)

func TestAnImageThatKeepsEveryPromisePasses(t *testing.T) {
	i := goodImage(t)
	r := i.inspect(t)
	if !r.OK() || len(r.Checks) != len(rules) {
		t.Errorf("report is %+v", r)
	}
	for _, c := range r.Checks {
		if !c.Passed || len(c.Notes) > 0 {
			t.Errorf("%+v", c)
		}
	}
	if want := len(programs) + 2; i.calls != want { // two more questions to kubeadm and containerd
		t.Errorf("%d programs of the image were run, expected %d", i.calls, want)
	}
}

// Each case breaks one promise and must bring exactly the findings it names, as
// "rule path: part of what was found".
func TestABrokenPromiseIsFound(t *testing.T) {
	remove := func(name string) func(*testing.T, *image) {
		return func(t *testing.T, i *image) { i.edit(t, name, func(*node) {}); delete(i.tree, name) }
	}
	mode := func(name string, m fs.FileMode) func(*testing.T, *image) {
		return func(t *testing.T, i *image) { i.edit(t, name, func(n *node) { n.mode = m }) }
	}
	add := func(name string, n node) func(*testing.T, *image) {
		return func(_ *testing.T, i *image) { i.tree[name] = n }
	}
	replace := func(name, old, new string) func(*testing.T, *image) {
		return func(t *testing.T, i *image) { i.replace(t, name, old, new) }
	}
	answer := func(key, out string) func(*testing.T, *image) {
		return func(_ *testing.T, i *image) { i.answers[key] = out }
	}
	lock := func(change func(*bundle.Lock)) func(*testing.T, *image) {
		return func(_ *testing.T, i *image) { change(&i.lock) }
	}
	locked := func(reference string, change func(*bundle.Entry)) func(*testing.T, *image) {
		return lock(func(l *bundle.Lock) {
			at := slices.IndexFunc(l.Images, func(i bundle.Entry) bool { return i.Reference == reference })
			change(&l.Images[at])
		})
	}
	rearchive := func(change func(*testing.T, entries) entries) func(*testing.T, *image) {
		return func(t *testing.T, i *image) {
			e, digest := ociEntries(t, pause, i.want.Platform.Architecture)
			i.bundle("pause", pause, change(t, e).archive(t, digest))
		}
	}
	file := node{mode: 0o644}
	dynamic := func(t *testing.T, i *image) {
		i.edit(t, "usr/bin/runc", func(n *node) { n.content = elfFile(i.want.Platform.Architecture, true) })
	}

	for name, c := range map[string]struct {
		break_ func(*testing.T, *image)
		want   []string
	}{
		"program is missing":                {remove("usr/bin/crictl"), []string{"paths /usr/bin/crictl: missing"}},
		"provider is missing":               {remove(overlay.Provider), []string{"paths /system/providers: missing", "paths /system/providers/agent-provider-kubernetes: missing"}},
		"lock is missing":                   {func(_ *testing.T, i *image) { i.tree[lockPath] = node{mode: fs.ModeDir | 0o755} }, []string{"paths /system/provider-kubernetes/images/images.lock: directory"}},
		"program is not executable":         {mode("usr/bin/ctr", 0o644), []string{"paths /usr/bin/ctr: mode 0644"}},
		"program is setuid":                 {mode("usr/bin/runc", 0o755|fs.ModeSetuid), []string{"paths /usr/bin/runc: mode 4755"}},
		"program belongs to a user":         {func(t *testing.T, i *image) { i.edit(t, "usr/bin/kubelet", func(n *node) { n.uid = 1000 }) }, []string{"paths /usr/bin/kubelet: owner 1000:0"}},
		"folder belongs to a group":         {add("usr/bin", node{mode: fs.ModeDir | 0o755, gid: 50}), []string{"paths /usr/bin: owner 0:50"}},
		"folder is closed":                  {add("system/providers", node{mode: fs.ModeDir | 0o700}), []string{"paths /system/providers: mode 0700"}},
		"unit is executable":                {mode(kubeletUnit, 0o755), []string{"paths /usr/lib/systemd/system/kubelet.service: mode 0755"}},
		"archive is closed":                 {mode(overlay.BundleDir+"/etcd.tar", 0o600), []string{"paths /system/provider-kubernetes/images/etcd.tar: mode 0600"}},
		"empty folder of containerd is not": {remove("etc/containerd/conf.d"), []string{"paths /etc/containerd/conf.d: missing"}},
		"plugin is a link": {add(overlay.CNIDir+"/bridge", node{mode: fs.ModeSymlink, target: "loopback"}),
			[]string{"paths /usr/lib/provider-kubernetes/cni/bin/bridge: symlink to loopback"}},

		"file is group-writable":           {add("etc/x", node{mode: 0o664}), []string{"writable /etc/x: mode 0664"}},
		"folder is open to everybody":      {add("srv", node{mode: fs.ModeDir | 0o777}), []string{"writable /srv: mode 0777"}},
		"folder under /var is open to all": {add("var/x", node{mode: fs.ModeDir | 0o757}), []string{"writable /var/x: mode 0757"}},
		"sticky bit does not excuse files": {add("var/y", node{mode: 0o646 | fs.ModeSticky}), []string{"writable /var/y: mode 1646"}},

		"unit is in /etc too":              {add("etc/systemd/system/kubelet.service", node{mode: 0o644, content: "[Service]\nExecStart=/usr/bin/kubelet\n"}), []string{"persistent /etc/systemd/system/kubelet.service: regular file under /etc/systemd"}},
		"drop-in is in /etc":               {add("etc/systemd/system/kubelet.service.d/20-site.conf", file), []string{"persistent /etc/systemd/system/kubelet.service.d/20-site.conf: under /etc/systemd"}},
		"enabled in /etc too":              {add("etc/systemd/system/multi-user.target.wants/kubelet.service", node{mode: fs.ModeSymlink, target: "/usr/lib/systemd/system/kubelet.service"}), []string{"persistent /etc/systemd/system/multi-user.target.wants/kubelet.service: symlink", "systemd /usr/lib/systemd/system/kubelet.service: enabled"}},
		"unit is masked":                   {add("etc/systemd/system/containerd.service", node{mode: fs.ModeSymlink, target: "/dev/null"}), []string{"persistent /etc/systemd/system/containerd.service: symlink", "systemd /usr/lib/systemd/system: masked", "systemd /usr/lib/systemd/system/containerd.service: masked"}},
		"program is under /opt too":        {add("opt/kubeadm/bin/kubelet", file), []string{"persistent /opt/kubeadm/bin/kubelet: regular file under /opt"}},
		"plugin is under /opt":             {add("opt/tools/loopback", file), []string{"persistent /opt/tools/loopback: under /opt"}},
		"cluster's file is in the image":   {add("etc/kubernetes/admin.conf", node{mode: 0o600}), []string{"persistent /etc/kubernetes/admin.conf: under /etc/kubernetes"}},
		"provider is under /usr/local too": {add("usr/local/system/providers/agent-provider-kubernetes", file), []string{"persistent /usr/local/system/providers/agent-provider-kubernetes: under /usr/local"}},

		"program is found before ours":  {add("usr/sbin/runc", node{mode: 0o755}), []string{"shadow /usr/sbin/runc: regular file"}},
		"provider is found before ours": {add("usr/bin/agent-provider-kubernetes", node{mode: 0o755}), []string{"shadow /usr/bin/agent-provider-kubernetes: regular file"}},

		"unit was changed":    {replace(containerdUnit, "RestartSec=5", "RestartSec=6"), []string{"units /usr/lib/systemd/system/containerd.service: not the overlay's"}},
		"unit is huge":        {replace(containerdUnit, "[Service]", strings.Repeat("# x\n", 1<<18)+"[Service]"), []string{"units /usr/lib/systemd/system/containerd.service: not the overlay's"}},
		"drop-in was changed": {replace(kubeletDropIn, "config.yaml", "config.yml"), []string{"units /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf: not the overlay's"}},
		"unit has an [Install] section": {replace(containerdUnit, "[Service]", "[Install]\nWantedBy=multi-user.target\n[Service]"),
			[]string{"units /usr/lib/systemd/system/containerd.service: not the overlay's", "units /usr/lib/systemd/system/containerd.service: [Install]", "systemd /usr/lib/systemd/system/containerd.service: disabled"}},

		"wants link is missing": {remove(overlay.WantsDir + "/kubelet.service"), []string{"wants /usr/lib/systemd/system/multi-user.target.wants/kubelet.service: missing"}},
		"wants link is absolute": {func(t *testing.T, i *image) {
			i.edit(t, overlay.WantsDir+"/kubelet.service", func(n *node) { n.target = "/" + kubeletUnit })
		}, []string{"wants /usr/lib/systemd/system/multi-user.target.wants/kubelet.service: symlink to /usr/lib"}},
		"wants link is a copy": {add(overlay.WantsDir+"/kubelet.service", file), []string{"wants /usr/lib/systemd/system/multi-user.target.wants/kubelet.service: regular file"}},

		"systemd does not know a key":           {add(overlay.UnitDir+"/containerd.service.d/60-x.conf", node{mode: 0o644, content: "[Service]\nRestartSecs=1\n"}), []string{"systemd /usr/lib/systemd/system: RestartSecs"}},
		"systemd finds no such program":         {add(overlay.UnitDir+"/containerd.service.d/60-x.conf", node{mode: 0o644, content: "[Service]\nExecStartPre=/usr/bin/nowhere\n"}), []string{"systemd /usr/lib/systemd/system: /usr/bin/nowhere"}},
		"systemd finds a required unit missing": {add(overlay.UnitDir+"/containerd.service.d/60-x.conf", node{mode: 0o644, content: "[Unit]\nRequires=nowhere.service\n"}), []string{"systemd /usr/lib/systemd/system: nowhere.service"}},
		"systemd finds an ordering cycle":       {add(overlay.UnitDir+"/containerd.service.d/60-x.conf", node{mode: 0o644, content: "[Unit]\nAfter=kubelet.service\n"}), []string{"systemd /usr/lib/systemd/system: Found ordering cycle"}},

		"containerd's file is no TOML":      {replace(overlay.ContainerdConfig, "version = 3", "version : 3"), []string{"containerd /etc/containerd/config.toml: not TOML"}},
		"containerd's file is of version 2": {replace(overlay.ContainerdConfig, "version = 3", "version = 2"), []string{"containerd /etc/containerd/config.toml: version = 2"}},
		"sandbox is not kubeadm's":          {replace(overlay.ContainerdConfig, "pause:3.10.2", "pause:3.10"), []string{"containerd /etc/containerd/config.toml: sandbox: registry.k8s.io/pause:3.10"}},
		"cgroup driver is not systemd":      {replace(overlay.ContainerdConfig, "SystemdCgroup = true", "SystemdCgroup = false"), []string{"containerd /etc/containerd/config.toml: SystemdCgroup: false"}},
		"runc is looked up":                 {replace(overlay.ContainerdConfig, "  BinaryName = '/usr/bin/runc'\n", ""), []string{"containerd /etc/containerd/config.toml: BinaryName: not set"}},
		"shim is looked up":                 {replace(overlay.ContainerdConfig, "'/usr/bin/containerd-shim-runc-v2'", "''"), []string{"containerd /etc/containerd/config.toml: runtime_path"}},
		"opt plugin is on":                  {replace(overlay.ContainerdConfig, "  'io.containerd.internal.v1.opt',\n", ""), []string{"containerd /etc/containerd/config.toml: disabled_plugins"}},
		"image's plugins are not searched":  {replace(overlay.ContainerdConfig, "'/usr/lib/provider-kubernetes/cni/bin', ", ""), []string{"containerd /etc/containerd/config.toml: bin_dirs: [/opt/cni/bin]"}},
		"operators can't add settings":      {replace(overlay.ContainerdConfig, "imports", "required_plugins"), []string{"containerd /etc/containerd/config.toml: imports: not set"}},
		"NRI starts what lies in /opt":      {replace(overlay.ContainerdConfig, "  plugin_path = '/usr/lib/provider-kubernetes/nri/plugins'\n", ""), []string{"containerd /etc/containerd/config.toml: plugin_path: not set"}},
		"NRI plugin is in the image":        {add(nriDir+"/10-x", node{mode: 0o755}), []string{"containerd /usr/lib/provider-kubernetes/nri/plugins/10-x: regular file"}},
		"image verifier is in the image":    {add(verifierDir+"/x", node{mode: 0o755}), []string{"containerd /usr/lib/provider-kubernetes/image-verifier/bin/x: regular file"}},
		"containerd does not know a key": {func(_ *testing.T, i *image) {
			i.answers["containerd config"] = strings.Replace(i.answers["containerd config"], "bin_dir =", "bindir =", 1)
		}, []string{"containerd /etc/containerd/config.toml: bin_dir as containerd reads it: not set"}},
		"containerd refuses the file": {func(_ *testing.T, i *image) { delete(i.answers, "containerd config") }, []string{"containerd /usr/bin/containerd: no answer"}},

		"mount leads out of the image": {func(t *testing.T, i *image) {
			i.edit(t, "usr/bin/mount", func(n *node) { n.target = "../../../nowhere" })
		}, []string{"names : mount is in none of /usr/sbin"}},
		"cp is not executable": {mode("usr/bin/cp", 0o644), []string{"names : cp is in none of"}},
		"no CNI plugin":        {remove(overlay.CNIDir + "/loopback"), []string{"names /usr/lib/provider-kubernetes/cni/bin/loopback: missing"}},

		"program is for another architecture": {func(t *testing.T, i *image) {
			i.edit(t, "usr/bin/etcdctl", func(n *node) { n.content = elfFile("s390x", false) })
		}, []string{"programs /usr/bin/etcdctl: an executable for S390"}},
		"program is a script":           {func(t *testing.T, i *image) { i.edit(t, overlay.Provider, func(n *node) { n.content = "#!/bin/sh\n" }) }, []string{"programs /system/providers/agent-provider-kubernetes: not an ELF executable"}},
		"program is dynamically linked": {dynamic, []string{"programs /usr/bin/runc: dynamically linked"}},
		"etcdctl is of another version": {answer("etcdctl", "etcdctl version: 3.6.8\nAPI version: 3.6\n"), []string{"programs /usr/bin/etcdctl: version 3.6.8"}},
		"kubelet is a pre-release":      {answer("kubelet", "Kubernetes v1.37.2-rc.0\n"), []string{"programs /usr/bin/kubelet: version 1.37.2-rc.0"}},
		"kubectl has build metadata":    {answer("kubectl", "Client Version: v1.37.2+vendor1\n"), []string{"programs /usr/bin/kubectl: version 1.37.2+vendor1"}},
		"runc tells no version":         {answer("runc", "runc\n"), []string{"programs /usr/bin/runc: version runc"}},
		"ctr fails":                     {func(_ *testing.T, i *image) { delete(i.answers, "ctr") }, []string{"programs /usr/bin/ctr: no answer"}},

		"kubeadm asks for another image": {func(_ *testing.T, i *image) {
			i.answers["kubeadm config"] = strings.Replace(i.answers["kubeadm config"], "pause:3.10.2", "pause:3.11", 1)
		}, []string{"bundle /usr/bin/kubeadm: asks for registry.k8s.io/pause:3.11", "bundle /usr/bin/kubeadm: does not ask for registry.k8s.io/pause:3.10.2"}},
		"kubeadm refuses":              {func(_ *testing.T, i *image) { delete(i.answers, "kubeadm config") }, []string{"bundle /usr/bin/kubeadm: no answer"}},
		"lock is not YAML":             {add(lockPath, node{mode: 0o644, content: "images: [}"}), []string{"bundle /system/provider-kubernetes/images/images.lock: yaml"}},
		"lock has an unknown field":    {add(lockPath, node{mode: 0o644, content: "image: []"}), []string{"bundle /system/provider-kubernetes/images/images.lock: field image not found"}},
		"lock is of another version":   {lock(func(l *bundle.Lock) { l.KubernetesVersion = "v1.36.3" }), []string{`bundle /system/provider-kubernetes/images/images.lock: kubernetesVersion: "v1.36.3"`}},
		"lock is for another platform": {lock(func(l *bundle.Lock) { l.Platform = "linux/s390x" }), []string{`bundle /system/provider-kubernetes/images/images.lock: platform: "linux/s390x"`}},
		"lock lists one twice":         {lock(func(l *bundle.Lock) { l.Images = append(l.Images, l.Images[0]) }), []string{"bundle /system/provider-kubernetes/images/images.lock: is there twice"}},
		"image has another name than kubeadm's": {locked(pause, func(l *bundle.Entry) { l.Reference = "registry.k8s.io/pause-amd64:3.10.2" }), []string{
			"bundle /system/provider-kubernetes/images/images.lock: does not list registry.k8s.io/pause:3.10.2", "bundle /system/provider-kubernetes/images/images.lock: lists registry.k8s.io/pause-amd64:3.10.2",
			"bundle /system/provider-kubernetes/images/pause.tar: annotation io.containerd.image.name", "bundle /system/provider-kubernetes/images/pause.tar: annotation org.opencontainers.image.ref.name",
			"bundle /system/provider-kubernetes/images/pause.tar: manifest.json names"}},
		"image is not verified and no reason": {locked("registry.k8s.io/kube-proxy:v1.37.2", func(l *bundle.Entry) { l.Verified = false }), []string{"bundle /system/provider-kubernetes/images/images.lock: no reason is given"}},
		"etcd can't be an exception":          {locked(etcdImage, func(l *bundle.Entry) { l.Verified, l.Reason = false, "because" }), []string{"bundle /system/provider-kubernetes/images/images.lock: etcd:3.7.0-0 is not verified"}},
		"lock does not say who verified":      {locked(pause, func(l *bundle.Entry) { l.Verification.By = "" }), []string{"bundle /system/provider-kubernetes/images/images.lock: was verified by"}},
		"archive is elsewhere":                {locked(pause, func(l *bundle.Entry) { l.Archive = "../pause.tar" }), []string{`bundle /system/provider-kubernetes/images/images.lock: archive "../pause.tar"`}},
		"archive is missing":                  {remove(overlay.BundleDir + "/etcd.tar"), []string{"bundle /system/provider-kubernetes/images/etcd.tar: missing"}},
		"archive that no line lists":          {add(overlay.BundleDir+"/x.tar", file), []string{"bundle /system/provider-kubernetes/images/x.tar: not listed"}},
		"archive has another size": {func(t *testing.T, i *image) {
			i.edit(t, overlay.BundleDir+"/etcd.tar", func(n *node) { n.content += "x" })
		}, []string{"bundle /system/provider-kubernetes/images/etcd.tar: bytes"}},
		"archive has another sum":      {locked(pause, func(l *bundle.Entry) { l.SHA256 = strings.Repeat("0", 64) }), []string{"bundle /system/provider-kubernetes/images/pause.tar: sha256 "}},
		"archive has another manifest": {locked(pause, func(l *bundle.Entry) { l.Digest = "sha256:" + strings.Repeat("0", 64) }), []string{"bundle /system/provider-kubernetes/images/pause.tar: manifest sha256:"}},
		"archive is no tar": {func(t *testing.T, i *image) {
			i.bundle("pause", pause, archive{bytes.Repeat([]byte("x"), 1024), "sha256:" + strings.Repeat("0", 64)})
		}, []string{"bundle /system/provider-kubernetes/images/pause.tar: a broken tar"}},
		"archive is for another architecture": {func(t *testing.T, i *image) { i.bundle("pause", pause, ociArchive(t, pause, "s390x")) }, []string{`bundle /system/provider-kubernetes/images/pause.tar: an image for "linux"/"s390x"`}},
		"archive names no architecture":       {func(t *testing.T, i *image) { i.bundle("pause", pause, ociArchive(t, pause, "")) }, []string{`bundle /system/provider-kubernetes/images/pause.tar: an image for "linux"/""`}},
		"archive has no index": {rearchive(func(_ *testing.T, e entries) entries {
			return slices.DeleteFunc(e, func(f [2]string) bool { return f[0] == "index.json" })
		}), []string{"bundle /system/provider-kubernetes/images/pause.tar: does not list one manifest"}},
		"archive has RepoTags null": {rearchive(func(_ *testing.T, e entries) entries { return e.with("manifest.json", `[{"RepoTags":null}]`) }), []string{"bundle /system/provider-kubernetes/images/pause.tar: manifest.json names [{[]}]"}},
		"archive has an architecture suffix": {rearchive(func(_ *testing.T, e entries) entries {
			return e.with("manifest.json", `[{"RepoTags":["registry.k8s.io/pause-amd64:3.10.2"]}]`)
		}), []string{"bundle /system/provider-kubernetes/images/pause.tar: manifest.json names [{[registry.k8s.io/pause-amd64:3.10.2]}]"}},
		"archive has a file too many":           {rearchive(func(_ *testing.T, e entries) entries { return append(e, [2]string{"../etc/passwd", ""}) }), []string{`bundle /system/provider-kubernetes/images/pause.tar: entry "../etc/passwd"`}},
		"archive has one twice":                 {rearchive(func(_ *testing.T, e entries) entries { return append(e, e[0]) }), []string{`bundle /system/provider-kubernetes/images/pause.tar: entry "oci-layout" twice`}},
		"archive has a blob with other content": {rearchive(func(_ *testing.T, e entries) entries { e[1][1] = strings.ToUpper(e[1][1]); return e }), []string{"bundle /system/provider-kubernetes/images/pause.tar: has digest", "bundle /system/provider-kubernetes/images/pause.tar: 0 bytes"}},

		"image is for another platform":  {func(_ *testing.T, i *image) { i.config.Architecture = "s390x" }, []string{"identity : the image is for linux/s390x"}},
		"label is missing":               {func(_ *testing.T, i *image) { delete(i.config.Config.Labels, "org.opencontainers.image.version") }, []string{`identity : label org.opencontainers.image.version is ""`}},
		"label has another value":        {func(_ *testing.T, i *image) { i.config.Config.Labels["example.com/minor"] = "1.36" }, []string{`identity : label example.com/minor is "1.36"`}},
		"os-release has another version": {replace("usr/lib/os-release", "v1.37.2", "v1.36.3"), []string{"identity /etc/os-release: BUNDLED_KUBERNETES_VERSION=v1.36.3"}},
		"build is not told apart":        {remove("etc/kairos-release"), []string{"identity /etc/kairos-release: KAIROS_VERSION is not set"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := goodImage(t)
			c.break_(t, i)
			r := i.inspect(t)
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s %s: %s", f.Rule, f.Path, f.Found))
				if f.Want == "" || f.Next == "" {
					t.Errorf("%+v does not say what is expected or what to do", f)
				}
			}
			match := len(got) == len(c.want)
			for n := 0; match && n < len(got); n++ {
				where, part, _ := strings.Cut(c.want[n], ": ")
				match = strings.HasPrefix(got[n], where+": ") && strings.Contains(got[n], part)
			}
			if !match {
				t.Errorf("found\n  %s\nexpected\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
			for _, check := range r.Checks {
				failed := slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == check.Rule })
				if check.Passed == failed {
					t.Errorf("rule %s: passed is %v", check.Rule, check.Passed)
				}
			}
		})
	}
}

func TestAllFindingsComeAtOnceAndAlwaysInTheSameOrder(t *testing.T) {
	i := goodImage(t)
	delete(i.tree, "usr/bin/ctr")
	i.edit(t, kubeletUnit, func(n *node) { n.mode = 0o666 })
	i.answers["runc"] = "runc version 1.1.5\n"
	i.lock.Images = i.lock.Images[:1]
	var first bytes.Buffer
	if err := i.inspect(t).JSON(&first); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(first.Bytes(), &r); err != nil || len(r.Findings) != 4+2*6 {
		t.Fatalf("%d findings, %v: %s", len(r.Findings), err, first.String())
	}
	for range 3 {
		var again bytes.Buffer
		if err := i.inspect(t).JSON(&again); err != nil || again.String() != first.String() {
			t.Errorf("another report: %s", again.String())
		}
	}
}

func TestForAnotherPlatformVersionsAreReadAndNothingOfTheImageIsRun(t *testing.T) {
	i := goodImage(t)
	i.want.Platform.Architecture, i.config.Architecture, i.lock.Platform = "s390x", "s390x", "linux/s390x"
	i.lock.Images = nil
	for _, img := range i.want.Row.Images() {
		i.bundle(img.Name, img.Reference, ociArchive(t, img.Reference, "s390x"))
	}
	for _, p := range append(programs, promised{path: overlay.Provider}) {
		record := p.module
		if p.version != nil {
			record += " v" + p.version(i.want)
		}
		i.edit(t, p.path, func(n *node) { n.content = elfFile("s390x", false, record) })
	}
	loopback := overlay.CNIDir + "/loopback" // records no version
	i.edit(t, loopback, func(n *node) { n.content = elfFile("s390x", false, "example.com/x v1.0.0") })

	r := i.inspect(t)
	if !r.OK() || i.calls != 0 {
		t.Errorf("%d programs were run, findings %v", i.calls, r.Findings)
	}
	var notes []string
	for _, c := range r.Checks {
		notes = append(notes, c.Notes...)
	}
	if len(notes) != 3 || !strings.Contains(notes[1], "github.com/containernetworking/plugins") {
		t.Errorf("notes are %q", notes)
	}

	i.edit(t, loopback, func(n *node) { n.content = elfFile("s390x", false, "github.com/containernetworking/plugins v1.8.0") })
	i.edit(t, "usr/bin/etcdutl", func(n *node) { n.content = elfFile("s390x", false, "go.etcd.io/etcd/etcdutl/v3 v3.6.8") })
	r = i.inspect(t)
	if len(r.Findings) != 2 || r.Findings[0].Found != "version 3.6.8" || r.Findings[1].Found != "version 1.8.0" {
		t.Errorf("findings are %+v", r.Findings)
	}
}

func TestUnitsOfTheBaseThatThisSystemdDoesNotUnderstandAreANote(t *testing.T) {
	i := goodImage(t)
	i.replace(t, overlay.UnitDir+"/basic.target", "[Unit]", "[Unit]\nFromTheFuture=yes")
	r := i.inspect(t)
	at := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Rule == "systemd" })
	if !r.OK() || len(r.Checks[at].Notes) != 1 || !strings.Contains(r.Checks[at].Notes[0], "FromTheFuture") {
		t.Errorf("%+v", r)
	}
}

func TestAMissingOptionalProgramIsANote(t *testing.T) {
	i := goodImage(t)
	delete(i.tree, "usr/bin/iptables")
	r := i.inspect(t)
	at := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Rule == "names" })
	if !r.OK() || len(r.Checks[at].Notes) != 1 || !strings.Contains(r.Checks[at].Notes[0], "iptables") {
		t.Errorf("%+v", r)
	}
}

func TestAProgramThatCannotBeAskedInTimeStopsTheInspection(t *testing.T) {
	i := goodImage(t)
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	_, err := Run(ctx, i.image(t), i.want, Tools{TempDir: dir, Output: func(context.Context, run.Cmd) ([]byte, error) {
		cancel()
		return nil, ctx.Err()
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("left behind %v", left)
	}
}

func TestTextShowsRulesFindingsAndNextSteps(t *testing.T) {
	r := Report{
		Image: "oci:x", Digest: "sha256:0", Platform: "linux/amd64",
		Checks:   []Check{{"paths", "paths are right", false, nil}, {"names", "names are there", true, []string{"nft is missing"}}},
		Findings: []Finding{{"paths", "/usr/bin/ctr", "missing\nindeed", "a file", "add it"}},
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	want := `oci:x
linux/amd64 sha256:0

✗ paths      paths are right
✓ names      names are there
    note: nft is missing

✗ paths /usr/bin/ctr
    found     missing
              indeed
    expected  a file
    next      add it

1 finding
`
	if b.String() != want {
		t.Errorf("text is\n%s", b.String())
	}
	b.Reset()
	if err := (Report{Checks: r.Checks[1:]}).Text(&b); err != nil || !strings.HasSuffix(b.String(), "\nall 1 rules hold\n") {
		t.Errorf("text is\n%s", b.String())
	}
}

func FuzzArchive(f *testing.F) {
	f.Add(ociArchive(f, pause, "amd64").tar)
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range readArchive(bytes.NewReader(b), bundle.Entry{Reference: pause}, v1.Platform{OS: "linux", Architecture: "amd64"}) {
			if p.found == "" || p.want == "" {
				t.Errorf("%+v", p)
			}
		}
	})
}
