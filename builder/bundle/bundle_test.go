package bundle

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
)

var hex64 = strings.Repeat("ab", 32)

func sample() Lock {
	signed := lock.Verification{By: lock.BySignature, Identity: "a@example.com", Issuer: "https://example.com"}
	return Lock{APIVersion: APIVersion, Kind: Kind, KubernetesVersion: "v1.37.2", Platform: "linux/amd64", Images: []Entry{
		{Reference: "registry.k8s.io/pause:3.10.2", Digest: "sha256:" + hex64, Archive: "pause.tar", Size: 7, SHA256: hex64, Verified: true, Verification: signed},
		{Reference: "registry.k8s.io/coredns/coredns:v1.14.6", Digest: "sha256:" + hex64, Archive: "coredns.tar", Size: 8, SHA256: hex64, Verified: true, Verification: signed},
		{Reference: "registry.k8s.io/kube-proxy:v1.37.2", Digest: "sha256:" + hex64, Archive: "kube-proxy.tar", Size: 9, SHA256: hex64,
			Verification: lock.Verification{By: lock.ByException, Reason: "ours"}, Reason: "ours"},
	}}
}

func TestTheListHasOneText(t *testing.T) {
	want := `apiVersion: provider-kubernetes.kairos.io/v1
kind: ImagesLock
kubernetesVersion: v1.37.2
platform: linux/amd64
images:
  - reference: registry.k8s.io/coredns/coredns:v1.14.6
    digest: sha256:` + hex64 + `
    archive: coredns.tar
    size: 8
    sha256: ` + hex64 + `
    verified: true
    verification:
      by: signature
      identity: a@example.com
      issuer: https://example.com
  - reference: registry.k8s.io/kube-proxy:v1.37.2
    digest: sha256:` + hex64 + `
    archive: kube-proxy.tar
    size: 9
    sha256: ` + hex64 + `
    verified: false
    verification:
      by: exception
      reason: ours
    reason: ours
  - reference: registry.k8s.io/pause:3.10.2
    digest: sha256:` + hex64 + `
    archive: pause.tar
    size: 7
    sha256: ` + hex64 + `
    verified: true
    verification:
      by: signature
      identity: a@example.com
      issuer: https://example.com
`
	l := sample()
	got := l.Marshal()
	if string(got) != want {
		t.Errorf("got\n%s\nexpected\n%s", got, want)
	}
	if l.Images[0].Archive != "pause.tar" {
		t.Error("the list itself was sorted")
	}
	back, err := ParseLock(got)
	if err != nil || !reflect.DeepEqual(back.Marshal(), got) {
		t.Errorf("the text reads as %+v, %v", back, err)
	}
}

func TestAListThatANodeCouldNotTrustIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Lock)
		say    string
	}{
		"other kind":                {func(l *Lock) { l.Kind = "List" }, "is List of"},
		"no version":                {func(l *Lock) { l.KubernetesVersion = "" }, `kubernetesVersion is ""`},
		"no platform":               {func(l *Lock) { l.Platform = "" }, `platform ""`},
		"no images":                 {func(l *Lock) { l.Images = nil }, "lists no image"},
		"no reference":              {func(l *Lock) { l.Images[0].Reference = "" }, "no reference"},
		"digest of another kind":    {func(l *Lock) { l.Images[0].Digest = "sha512:" + hex64 }, "pause:3.10.2: digest"},
		"digest in capitals":        {func(l *Lock) { l.Images[0].Digest = "sha256:" + strings.ToUpper(hex64) }, "pause:3.10.2: digest"},
		"short sha256":              {func(l *Lock) { l.Images[0].SHA256 = hex64[1:] }, "pause:3.10.2: digest"},
		"sha256 with its kind":      {func(l *Lock) { l.Images[0].SHA256 = "sha256:" + hex64 }, "pause:3.10.2: digest"},
		"no size":                   {func(l *Lock) { l.Images[0].Size = 0 }, "size 0"},
		"archive elsewhere":         {func(l *Lock) { l.Images[0].Archive = "../pause.tar" }, `archive "../pause.tar"`},
		"archive at an absolute":    {func(l *Lock) { l.Images[0].Archive = "/etc/pause.tar" }, `archive "/etc/pause.tar"`},
		"archive without a name":    {func(l *Lock) { l.Images[0].Archive = ".tar" }, `archive ".tar"`},
		"archive of another kind":   {func(l *Lock) { l.Images[0].Archive = "pause.tgz" }, `archive "pause.tgz"`},
		"an image twice":            {func(l *Lock) { l.Images[1].Reference = l.Images[0].Reference }, "is there twice"},
		"an archive twice":          {func(l *Lock) { l.Images[1].Archive = l.Images[0].Archive }, "is there twice"},
		"unverified without reason": {func(l *Lock) { l.Images[2].Reason = "" }, "kube-proxy:v1.37.2 is not verified and no reason"},
	} {
		l := sample()
		tt.change(&l)
		// Marshal corrects the head, which is for the test to spoil.
		text := strings.Replace(string(l.Marshal()), "kind: "+Kind, "kind: "+l.Kind, 1)
		if _, err := ParseLock([]byte(text)); err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v, expected %q", name, err, tt.say)
		}
	}
	text := string(sample().Marshal())
	for name, text := range map[string]string{"unknown field": text + "more: 1\n", "second document": text + "---\n" + text, "nothing": "", "no YAML": "\t"} {
		if l, err := ParseLock([]byte(text)); err == nil {
			t.Errorf("%s: read as %+v", name, l)
		}
	}
	all := sample()
	all.Platform, all.Images[0].Size, all.Images[1].Archive = "", 0, "x"
	_, err := ParseLock(all.Marshal())
	for _, say := range []string{"platform", "pause", "coredns"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("finding about %s is missing from %v", say, err)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add(sample().Marshal())
	f.Add([]byte("apiVersion: " + APIVersion + "\nkind: " + Kind + "\nimages: [{}]\n"))
	f.Add([]byte("images: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLock(b)
		if err != nil {
			return
		}
		for _, e := range l.Images {
			if strings.ContainsRune(e.Archive, '/') || e.Size <= 0 || e.Reference == "" || !e.Verified && e.Reason == "" {
				t.Errorf("accepted %+v", e)
			}
		}
		again, err := ParseLock(l.Marshal())
		if err != nil || !reflect.DeepEqual(again.Marshal(), l.Marshal()) {
			t.Errorf("accepted list does not round-trip: %v", err)
		}
	})
}

func TestCompareNamesExactly(t *testing.T) {
	for _, tt := range []struct {
		name       string
		have, want []string
		findings   []string
	}{
		{"equal in another order", []string{"a:1", "b:2"}, []string{"b:2", "a:1"}, nil},
		{"an architecture in the name", []string{"registry.k8s.io/kube-apiserver-amd64:v1"}, []string{"registry.k8s.io/kube-apiserver:v1"}, []string{
			"kubeadm asks for registry.k8s.io/kube-apiserver:v1, which is not bundled",
			"registry.k8s.io/kube-apiserver-amd64:v1 is bundled, but kubeadm does not ask for it",
		}},
		{"a path element less", []string{"registry.k8s.io/coredns:v1"}, []string{"registry.k8s.io/coredns/coredns:v1"}, []string{
			"kubeadm asks for registry.k8s.io/coredns/coredns:v1, which is not bundled",
			"registry.k8s.io/coredns:v1 is bundled, but kubeadm does not ask for it",
		}},
		{"another tag", []string{"registry.k8s.io/etcd:3.7.0"}, []string{"registry.k8s.io/etcd:3.7.0-0"}, []string{
			"kubeadm asks for registry.k8s.io/etcd:3.7.0-0, which is not bundled",
			"registry.k8s.io/etcd:3.7.0 is bundled, but kubeadm does not ask for it",
		}},
		{"kubeadm says nothing", []string{"a:1"}, nil, []string{"a:1 is bundled, but kubeadm does not ask for it"}},
	} {
		if got := Compare(tt.have, tt.want); !reflect.DeepEqual(got, tt.findings) {
			t.Errorf("%s: %q, expected %q", tt.name, got, tt.findings)
		}
	}
}
