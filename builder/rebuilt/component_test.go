package rebuilt

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

const checkout = "../.."

// each runs a test for the supply of every row, on this checkout.
func each(t *testing.T, test func(*testing.T, *Supply)) {
	t.Helper()
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range m.Rows {
		t.Run(row.Minor.String(), func(t *testing.T) {
			test(t, &Supply{Source: checkout, Row: row, Stack: m.Stack, Epoch: m.Epoch, Platform: fetch.Platform{OS: "linux", Architecture: "amd64"}})
		})
	}
}

func TestEveryProgramHasAnImageAndEveryImageItsPrograms(t *testing.T) {
	each(t, func(t *testing.T, s *Supply) {
		built := map[string]bool{"pause": true}
		for _, c := range components(s.Row, s.Stack) {
			for _, p := range c.programs {
				if built[p.name] {
					t.Errorf("%s is built twice", p.name)
				}
				built[p.name] = true
			}
		}
		used := map[string]bool{}
		targets := map[string]string{}
		var references []string
		for _, r := range s.recipes() {
			references = append(references, r.reference)
			for path, name := range r.files {
				used[name] = true
				if !built[name] {
					t.Errorf("image %s takes %s, which is not built", r.name, name)
				}
				if r.tools && targets[path] != "" {
					t.Errorf("both %s and %s bring /%s", targets[path], r.name, path)
				}
				targets[path] = r.name
			}
		}
		for name := range built {
			if !used[name] {
				t.Errorf("%s is built, and no image takes it", name)
			}
		}
		for _, img := range s.Row.Images() {
			if !slices.Contains(references, img.Reference) {
				t.Errorf("no image is made for %s", img.Reference)
			}
		}
		plugins := cniPrograms(components(s.Row, s.Stack))
		slices.Sort(plugins)
		if !slices.Equal(plugins, slices.Sorted(slices.Values(supply.CNIPlugins))) {
			t.Errorf("CNI plugins %v, expected %v", plugins, supply.CNIPlugins)
		}
	})
}

func TestEveryComponentHasItsToolsModule(t *testing.T) {
	each(t, func(t *testing.T, s *Supply) {
		for _, c := range components(s.Row, s.Stack) {
			dir := filepath.Join(checkout, "matrix", "modules", c.folder())
			b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err != nil {
				t.Error(err)
				continue
			}
			mod, err := modfile.Parse("go.mod", b, nil)
			if err != nil {
				t.Error(err)
				continue
			}
			var direct []string
			for _, r := range mod.Require {
				direct = append(direct, r.Mod.String())
			}
			for _, want := range c.requires {
				if !slices.Contains(direct, want) {
					t.Errorf("%s does not require %s", dir, want)
				}
			}
			tools, err := os.ReadFile(filepath.Join(dir, "tools.go"))
			if err != nil {
				t.Error(err)
			}
			for _, p := range c.programs {
				if !bytes.Contains(tools, []byte("\t_ \""+p.pkg+"\"\n")) {
					t.Errorf("%s does not name %s", dir, p.pkg)
				}
			}
		}
	})
}

func TestTheLocksOfThisCheckoutAreFresh(t *testing.T) {
	each(t, func(t *testing.T, s *Supply) {
		l, err := s.checkedLock()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range components(s.Row, s.Stack) {
			for _, req := range c.requires {
				if !slices.ContainsFunc(l.Inputs, func(in lock.Input) bool { return in.Source == req && in.Verified.By == lock.ByChecksumDB }) {
					t.Errorf("the lock does not say that the checksum database vouches for %s", req)
				}
			}
		}
	})
}

func TestALockIsStaleWhenTheCheckoutSaysOtherwise(t *testing.T) {
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	row, _ := m.Row(m.Newest())
	runc := "github.com/opencontainers/runc@v" + m.Stack.Runc
	sum := "matrix/modules/runc-" + m.Stack.Runc + "/go.sum"
	edit := func(name, old, new string) func(*testing.T, *Supply) {
		return func(t *testing.T, s *Supply) {
			name := filepath.Join(s.Source, name)
			b, err := os.ReadFile(name)
			if err != nil || !bytes.Contains(b, []byte(old)) {
				t.Fatalf("no %q in %s: %v", old, name, err)
			}
			if err := os.WriteFile(name, bytes.ReplaceAll(b, []byte(old), []byte(new)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	lockFile := "matrix/locks/" + row.Minor.String() + "-amd64-rebuilt.yaml"
	line := "github.com/opencontainers/runc v" + m.Stack.Runc + " h1:"
	for name, tt := range map[string]struct {
		change func(*testing.T, *Supply)
		say    string
	}{
		"another hash in go.sum":      {edit(sum, line, line+"0"), "module " + runc + " is h1:"},
		"no hash in go.sum":           {edit(sum, line, "github.com/opencontainers/runc v0 h1:"), "has no line for " + runc},
		"another version in the lock": {edit(lockFile, runc, runc+"0"), "module " + runc + " of runc is not in the lock"},
		"another matrix":              {func(_ *testing.T, s *Supply) { s.Row.Pause = "3.0" }, "matrix digest is sha256:"},
		"another platform":            {edit(lockFile, "platform: linux/amd64", "platform: linux/arm64"), "platform is linux/arm64, expected linux/amd64"},
		"another list of packages":    {edit(lockFile, "      - base-files\n", ""), "packages of base are \"base-passwd"},
		"no lock":                     {func(t *testing.T, s *Supply) { s.Row.Minor.Minor = 99 }, "it does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Supply{Source: t.TempDir(), Row: row, Stack: m.Stack, Platform: fetch.Platform{OS: "linux", Architecture: "amd64"}}
			for _, c := range components(row, m.Stack) {
				copyFile(t, s.Source, filepath.Join("matrix", "modules", c.folder(), "go.sum"))
			}
			copyFile(t, s.Source, lockFile)
			if _, err := s.checkedLock(); err != nil {
				t.Fatal(err)
			}
			tt.change(t, s)
			_, err := s.Inputs(t.Context())
			stale, ok := errors.AsType[*lock.Stale](err)
			if !ok || stale.Path != s.LockPath() || !strings.Contains(err.Error(), tt.say) ||
				!strings.Contains(err.Error(), "bin/builder lock --minor "+s.Row.Minor.String()+" --supply rebuilt --platform linux/amd64") {
				t.Errorf("got %v, expected %q", err, tt.say)
			}
		})
	}
}

func copyFile(t *testing.T, to, name string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(checkout, name))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, name), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyWhatIsTakenIsBuilt(t *testing.T) {
	each(t, func(t *testing.T, s *Supply) {
		s.Only = []string{"kubernetes-node", "containerd"}
		var names []string
		for _, c := range s.needed() {
			for _, p := range c.programs {
				names = append(names, p.name)
			}
		}
		if want := []string{"kubeadm", "kubelet", "kubectl", "containerd", "containerd-shim-runc-v2", "ctr"}; !slices.Equal(names, want) {
			t.Errorf("builds %v, expected %v", names, want)
		}
		if s.makes("pause") || !s.makes("containerd") {
			t.Error("makes the wrong images")
		}
	})
}

func TestStagingModulesAreReplacedByTheirReleases(t *testing.T) {
	name := filepath.Join(t.TempDir(), "go.mod")
	if err := os.WriteFile(name, []byte(`module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26
godebug (
	winsymlink=0
)

require (
	example.com/other v0.0.0
	k8s.io/klog/v2 v2.130.1
	k8s.io/kubelet v0.0.0
	k8s.io/api v0.0.0 // indirect
)

replace k8s.io/api => ./staging/src/k8s.io/api
`), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := staging(name, "v1.37.2")
	want := `godebug default=go1.26
godebug winsymlink=0
replace k8s.io/api => k8s.io/api v0.37.2
replace k8s.io/kubelet => k8s.io/kubelet v0.37.2
`
	if err != nil || got != want {
		t.Errorf("got\n%s%v\nexpected\n%s", got, err, want)
	}
	if _, err := staging(filepath.Join(t.TempDir(), "missing"), "v1.37.2"); err == nil {
		t.Error("a go.mod that is not there was read")
	}
}

func TestBinariesAreFoundUnderTheNameThatGoGivesThem(t *testing.T) {
	for pkg, want := range map[string]string{
		"k8s.io/kubernetes/cmd/kubeadm":                            "kubeadm",
		"go.etcd.io/etcd/etcdctl/v3":                               "etcdctl",
		"github.com/containerd/containerd/v2/cmd/ctr":              "ctr",
		"github.com/coredns/coredns":                               "coredns",
		"github.com/containernetworking/plugins/plugins/main/vlan": "vlan",
		"github.com/containernetworking/plugins/plugins/meta/vrf":  "vrf",
		"./pause": "pause",
		"v3":      "v3",
	} {
		if got := goName(pkg); got != want {
			t.Errorf("%s is built as %s, expected %s", pkg, got, want)
		}
	}
}
