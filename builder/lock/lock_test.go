package lock

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/matrix"
)

var hex64 = strings.Repeat("ab", 32)

func sample(t testing.TB) (Lock, matrix.Row, matrix.Stack) {
	t.Helper()
	m, err := matrix.Load()
	if err != nil {
		t.Fatal(err)
	}
	row := m.Rows[0]
	return Lock{
		APIVersion: APIVersion, Supply: "official", Minor: row.Minor.String(), Platform: "linux/amd64", Matrix: MatrixDigest(row, m.Stack),
		Inputs: []Input{
			{Name: "etcd", Kind: Image, Source: "registry.k8s.io/etcd:" + row.Etcd, Digest: "sha256:" + hex64, Size: 7, Verified: Verification{By: BySignature, Identity: "a@b", Issuer: "https://c"}},
			{Name: "base", Kind: Packages, Source: "debian bookworm", Packages: []string{"systemd"}, Verified: Verification{By: ByArchive}},
			{Name: "coredns", Kind: Module, Source: "x@v1", Digest: "h1:abc=", Size: 3, Verified: Verification{By: ByChecksumDB}},
			{Name: "kubeadm", Kind: File, Source: "https://x/kubeadm", Digest: "sha256:" + hex64, Size: 9, Verified: Verification{By: BySignature, Identity: "a@b", Issuer: "https://c"},
				Signature: "c2ln", Certificate: "Y2VydA==", LogEntry: "e30="},
		},
	}, row, m.Stack
}

func TestTextRoundTripsAndIsCanonical(t *testing.T) {
	l, _, _ := sample(t)
	text := l.Marshal()
	back, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if back.Inputs[0].Name != "base" {
		t.Errorf("first input is %s: expected them sorted", back.Inputs[0].Name)
	}
	if !reflect.DeepEqual(back.Marshal(), text) {
		t.Error("marshalling again gave other bytes")
	}
}

func TestParseReportsAllFindings(t *testing.T) {
	_, err := Parse([]byte(`
apiVersion: v0
supply: ""
minor: "1"
platform: linux/amd64
matrix: sha256:zz
inputs:
- {name: a, kind: image, source: s, digest: md5:1, size: 0, verified: {by: signature}}
- {name: a, kind: image, source: s, digest: "sha256:` + hex64 + `", size: 1, verified: {by: checksum}}
- {name: b, kind: tape, source: s, verified: {by: hope}}
- {name: c, kind: module, source: s, digest: x, size: 1, verified: {by: exception}}
- {name: d, kind: packages, source: s, verified: {by: archive-signature}}
- {name: e, kind: file, source: s, digest: "sha256:` + hex64 + `", size: 1, verified: {by: signature, identity: i, issuer: j}, signature: "!", certificate: Y2VydA==}
- {name: f, kind: file, source: s, digest: "sha256:` + hex64 + `", size: 1, verified: {by: checksum, origin: o}, logEntry: e30=}
`))
	for _, want := range []string{"apiVersion", "minor", "supply", "matrix is", "md5:1", "identity and issuer", "there twice", "origin", `kind "tape"`, `"hope"`, "h1: hash", "reason", "no packages", `(e): signature is "!"`, `(e): logEntry is ""`, `(f): logEntry is "e30="`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("finding %q is missing from:\n%v", want, err)
		}
	}
	if _, err := Parse([]byte("apiVersion: " + APIVersion + "\nmore: 1\n")); err == nil {
		t.Error("an unknown key was accepted")
	}
}

func TestStaleWhenAnyVersionOfTheMatrixChanges(t *testing.T) {
	l, row, stack := sample(t)
	if f := l.Check("official", row, stack, "linux/amd64"); len(f) != 0 {
		t.Fatalf("fresh lock has findings %v", f)
	}
	other := row
	other.Pause = "9"
	if f := l.Check("official", other, stack, "linux/amd64"); len(f) != 1 || !strings.Contains(f[0], "matrix digest") {
		t.Errorf("changed pause: findings %v", f)
	}
	stack.Runc = "9.9.9"
	if f := l.Check("rebuilt", row, stack, "linux/arm64"); len(f) != 3 {
		t.Errorf("changed runc, supply and platform: findings %v", f)
	}
}

func TestDiffShowsOnlyWhatChanged(t *testing.T) {
	old, _, _ := sample(t)
	if d := Diff(old, old); d != "" {
		t.Errorf("no change gave %q", d)
	}
	new, _, _ := sample(t)
	new.Inputs[0].Size = 8
	new.Inputs = append(new.Inputs[:1:1], new.Inputs[2:]...)
	new.Inputs[2].LogEntry = "eyB9"
	got := Diff(old, new)
	want := "- base debian bookworm: packages by archive-signature systemd\n" +
		"- etcd " + old.Inputs[0].Source + ": image sha256:" + hex64 + " 7 by signature a@b https://c\n" +
		"+ etcd " + old.Inputs[0].Source + ": image sha256:" + hex64 + " 8 by signature a@b https://c\n"
	signed := "kubeadm https://x/kubeadm: file sha256:" + hex64 + " 9 by signature a@b https://c detached signature "
	if rest, ok := strings.CutPrefix(got, want); !ok || strings.Count(rest, signed) != 2 || strings.Count(rest, "\n") != 2 {
		t.Errorf("got\n%swant\n%sand a change of the detached signature", got, want)
	}
}

func FuzzParse(f *testing.F) {
	l, _, _ := sample(f)
	f.Add(l.Marshal())
	f.Add([]byte("inputs: [{}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(l.Marshal())
		if err != nil || !reflect.DeepEqual(again.Marshal(), l.Marshal()) {
			t.Errorf("accepted lock does not round-trip: %v", err)
		}
	})
}
