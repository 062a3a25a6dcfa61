package official

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTableOfThisRepositoryIsValid(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "matrix", "official.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseTable(b); err != nil {
		t.Error(err)
	}
}

func TestTableReportsAllFindings(t *testing.T) {
	hex := strings.Repeat("ab", 32)
	_, err := ParseTable([]byte(`
base: quay.io/kairos/hadron
checksums:
- {name: bash, version: "1", arch: amd64, sha256: ` + hex + `, source: "https://example.org/a"}
- {name: runc, version: v1, arch: amd64, sha256: ` + hex + `, source: "https://example.org/a"}
- {name: runc, version: "2", arch: amd64, sha256: ABC, source: "https://example.org/a"}
- {name: runc, version: "3", arch: amd64, sha256: ` + hex + `, source: "https://GitHub.com/someone/else"}
- {name: runc, version: "4", arch: amd64, sha256: ` + hex + `, source: "https://raw.example.com/opencontainers/runc/main/sums"}
- {name: runc, version: "5", arch: amd64, sha256: ` + hex + `, source: "a colleague"}
- {name: runc, version: "5", arch: amd64, sha256: ` + hex + `, source: "https://example.org/a"}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"base is", "checksum 1 (bash 1 amd64): the name", "checksum 2 (runc v1 amd64): expected a version", `sha256 is "ABC"`,
		"checksum 4 (runc 3 amd64): source", "checksum 5 (runc 4 amd64): source", "is not an https URL", "checksum 7 (runc 5 amd64): is there twice",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("finding %q is missing from:\n%v", want, err)
		}
	}
	if _, err := ParseTable([]byte("base: a.example/b:c\nmore: 1\n")); err == nil {
		t.Error("an unknown key was accepted")
	}
}

func TestChecksumFiles(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for in, want := range map[string]string{
		a:                          a,
		strings.ToUpper(a) + "\n":  a,
		a + "  runc.amd64\n":       a,
		a + " *./out/runc.amd64\n": a,
		b + "  runc.arm64\n" + a + "  runc.amd64\n":                                   a,
		"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n" + a + "  runc.amd64\n": a,
		b + "  runc.amd64.asc\n":                                                      "",
		"":                                                                            "",
		"<html>":                                                                      "",
		a[:63]:                                                                        "",
		a + "0  runc.amd64":                                                           "",
		a + "  runc.amd64 and more":                                                   "",
	} {
		if got, err := published([]byte(in), "runc.amd64"); got != want || (err == nil) != (want != "") {
			t.Errorf("%q gives %q, %v; expected %q", in, got, err, want)
		}
	}
}

func FuzzChecksumFile(f *testing.F) {
	f.Add([]byte(strings.Repeat("a", 64)+"  runc.amd64\n"), "runc.amd64")
	f.Add([]byte("x"), "")
	f.Fuzz(func(t *testing.T, b []byte, file string) {
		if got, err := published(b, file); (err == nil) != isHex(got) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("base: quay.io/kairos/hadron:v1-{arch}\nchecksums: [{name: runc, version: \"1\", arch: amd64, sha256: " + strings.Repeat("a", 64) + ", source: \"https://example.org\"}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseTable(b)
		if err != nil {
			return
		}
		for _, r := range table.Checksums {
			if !isHex(r.SHA256) || !strings.HasPrefix(r.Source, "https://") || project(r.Name) == "" {
				t.Errorf("accepted %+v", r)
			}
		}
	})
}
