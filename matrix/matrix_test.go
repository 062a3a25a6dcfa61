package matrix

import (
	"reflect"
	"strings"
	"testing"
)

func TestEmbeddedMatrixIsValid(t *testing.T) {
	m, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Window) != 3 || len(m.Rows) != 3 {
		t.Fatalf("window %v with %d rows: expected the three newest minors with a row each", m.Window, len(m.Rows))
	}
	for _, r := range m.Rows {
		if len(r.Images()) != 7 {
			t.Errorf("row %s lists %d images, kubeadm asks for 7", r.Minor, len(r.Images()))
		}
	}
}

func TestImageNamesAreKubeadms(t *testing.T) {
	r := Row{Minor{1, 37}, Version{Major: 1, Minor: 37, Patch: 2}, "3.7.0-0", "v1.14.6", "3.10.2"}
	var got []string
	for _, i := range r.Images() {
		got = append(got, i.Reference)
	}
	want := []string{
		"registry.k8s.io/kube-apiserver:v1.37.2",
		"registry.k8s.io/kube-controller-manager:v1.37.2",
		"registry.k8s.io/kube-scheduler:v1.37.2",
		"registry.k8s.io/kube-proxy:v1.37.2",
		"registry.k8s.io/coredns/coredns:v1.14.6",
		"registry.k8s.io/pause:3.10.2",
		"registry.k8s.io/etcd:3.7.0-0",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if r.EtcdVersion() != "3.7.0" {
		t.Errorf("etcd version %s: the image revision is not part of it", r.EtcdVersion())
	}
}

func TestParseReportsAllFindingsTogether(t *testing.T) {
	_, err := Parse([]byte(`
window: ["1.35", "1.37", "x"]
rows:
  - {minor: "1.35", kubernetes: "1.36.1", etcd: "3.6.6-0", coredns: "v1", pause: "a b"}
  - {minor: "1.34", kubernetes: "1.34.1", etcd: "3.6.6-0", coredns: "v1", pause: "3"}
stack: {containerd: "2", runc: "1.5.2", cni-plugins: "1.9.1", crictl: "1.37.0"}
epoch: "2026-01-31T00:00:00Z"
`))
	for _, want := range []string{"1.37 follows 1.35", `minor "x"`, "kubernetes is v1.36.1", `pause is "a b"`, "row 1.34 is outside", "minor 1.37 of the window has no row", "containerd"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("finding %q is missing from: %v", want, err)
		}
	}
	if _, err := Parse([]byte("window: []\nextra: 1\n")); err == nil {
		t.Error("an unknown key was accepted")
	}
}

func TestVersionSpellings(t *testing.T) {
	for in, want := range map[string]string{
		"v1.36.4": "v1.36.4", "1.36.4": "v1.36.4", "v1.37.0-rc.1": "v1.37.0-rc.1", "v1.36.4+vendor.1": "v1.36.4+vendor.1",
		"v1.36.3-eks-cb19647": "v1.36.3-eks-cb19647",
		"v1.36":               "", "stable-1.36": "", "": "", "1.36": "", "v1.36.04": "", "v1.36.4+": "", "v1.36.4-": "", "v1.36.4-01": "", "v-1.2.3": "", "1.2.3.4": "", "vv1.2.3": "",
	} {
		v, err := ParseVersion(in)
		if (err != nil) != (want == "") || (err == nil && v.String() != want) {
			t.Errorf("ParseVersion(%q) = %v, %v; want %q", in, v, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), `"`+in+`"`) {
			t.Errorf("error %q does not show the text", err)
		}
	}
}

func TestVersionOrder(t *testing.T) {
	order := []string{"v1.36.9-alpha", "v1.36.9-alpha.1", "v1.36.9-beta", "v1.36.9-rc.1", "v1.36.9-rc.2", "v1.36.9-rc.10", "v1.36.9", "v1.36.10", "v1.37.0-rc.1", "v1.37.0", "v2.0.0"}
	for i, a := range order {
		for j, b := range order {
			va, _ := ParseVersion(a)
			vb, _ := ParseVersion(b)
			if got := va.Compare(vb); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s compared with %s gives %d", a, b, got)
			}
		}
	}
	a, _ := ParseVersion("v1.36.4+vendor.1")
	b, _ := ParseVersion("v1.36.4")
	if a.Compare(b) != 0 {
		t.Error("build metadata took part in the order")
	}
}

func TestStep(t *testing.T) {
	m, err := Parse([]byte(`
window: ["1.35", "1.36", "1.37"]
rows:
  - {minor: "1.35", kubernetes: "1.35.4", etcd: "3.6.6-0", coredns: "v1.13.1", pause: "3.10.1"}
  - {minor: "1.36", kubernetes: "1.36.3", etcd: "3.6.8-0", coredns: "v1.14.2", pause: "3.10.2"}
  - {minor: "1.37", kubernetes: "1.37.2", etcd: "3.7.0-0", coredns: "v1.14.6", pause: "3.10.2"}
stack: {containerd: "2.3.7", runc: "1.5.2", cni-plugins: "1.9.1", crictl: "1.37.0"}
epoch: "2026-01-31T00:00:00Z"
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to string
		kind     StepKind
		next     string
		hint     string
	}{
		{"v1.36.3", "v1.36.3", StepNone, "", ""},
		{"v1.36.3+vendor.1", "v1.36.3", StepNone, "", ""},
		{"v1.36.1", "v1.36.3", StepPatch, "", ""},
		{"v1.36.9", "v1.36.10", StepPatch, "", ""},
		{"v1.36.3", "v1.37.2", StepMinor, "", ""},
		{"v1.34.9", "v1.35.4", StepMinor, "", ""},
		{"v1.34.9", "v1.36.3", StepSkip, "1.35", ""},
		{"v1.33.1", "v1.37.2", StepSkip, "1.34", ""},
		{"v1.36.3", "v1.36.1", StepDowngrade, "", ""},
		{"v1.37.2", "v1.36.3", StepDowngrade, "", ""},
		{"v1.29.5", "v1.3.1", StepDowngrade, "", "v1.30.1"},
		{"v1.37.2", "v1.38.0", StepOutside, "", ""},
		{"v1.33.1", "v1.33.4", StepOutside, "", ""},
		{"v1.37.0-rc.1", "v1.37.0", StepUnstable, "", ""},
		{"v1.36.3", "v1.37.0-rc.1", StepUnstable, "", ""},
		{"v1.36.3", "v2.0.0", StepOutside, "", ""},
	} {
		from, _ := ParseVersion(c.from)
		to, _ := ParseVersion(c.to)
		s := m.Step(from, to)
		next := ""
		if s.Next != (Minor{}) {
			next = s.Next.String()
		}
		if s.Kind != c.kind || next != c.next || !strings.Contains(s.Reason, c.hint) || s.Reason == "" {
			t.Errorf("Step(%s, %s) = %+v; want %s next %q", c.from, c.to, s, c.kind, c.next)
		}
		allowed := c.kind == StepNone || c.kind == StepPatch || c.kind == StepMinor
		if s.Allowed() != allowed {
			t.Errorf("Step(%s, %s).Allowed() = %v", c.from, c.to, s.Allowed())
		}
	}
	from, _ := ParseVersion("v1.34.1")
	if got := m.Path(from, Minor{1, 37}); !reflect.DeepEqual(got, []Minor{{1, 35}, {1, 36}, {1, 37}}) {
		t.Errorf("path %v", got)
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, s := range []string{"v1.37.2", "1.36", "v1.37.0-rc.1+x", "stable"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseVersion(s)
		if err != nil {
			return
		}
		again, err := ParseVersion(v.String())
		if err != nil || again != v {
			t.Errorf("%q reads as %v, which reads as %v, %v", s, v, again, err)
		}
	})
}
