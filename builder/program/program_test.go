package program

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/builder/run"
)

const etcdctl = "go.etcd.io/etcd/etcdctl/v3"

// built returns the path of a static program that a module at some version
// depends on and that prints its arguments.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                         "module example.com/build\n\ngo 1.26\n\nrequire " + etcdctl + " v3.7.0-rc.1\n",
		"tools.go":                       "//go:build tools\n\npackage build\n\nimport _ \"" + etcdctl + "\"\n",
		"vendor/modules.txt":             "# " + etcdctl + " v3.7.0-rc.1\n## explicit\n" + etcdctl + "\n",
		"vendor/" + etcdctl + "/main.go": "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(os.Args[1]) }\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "etcdctl")
	cmd := exec.Command("go", "build", "-mod=vendor", "-trimpath", "-o", out, etcdctl)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func TestAProgramIsToldFromItsFile(t *testing.T) {
	file := built(t)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := map[bool]string{false: "arm64", true: "amd64"}[runtime.GOARCH == "arm64"]
	// change returns the program with some bytes of its 64-bit ELF header, or of
	// its last program header, replaced.
	change := func(change func(header, last []byte)) []byte {
		b := bytes.Clone(good)
		headers, size, count := int(b[32]), int(b[54]), int(b[56])
		change(b, b[headers+size*(count-1):])
		return b
	}
	for _, tt := range []struct {
		name    string
		content []byte
		arch    string
		why     string
	}{
		{"static", good, runtime.GOARCH, ""},
		{"static and position independent", change(func(h, _ []byte) { binary.LittleEndian.PutUint16(h[16:], uint16(elf.ET_DYN)) }), runtime.GOARCH, ""},
		{"with an interpreter", change(func(_, last []byte) { binary.LittleEndian.PutUint32(last, uint32(elf.PT_INTERP)) }), runtime.GOARCH, "a dynamically linked executable"},
		{"asked for another architecture", good, other, "an executable for "},
		{"of another architecture", change(func(h, _ []byte) { binary.LittleEndian.PutUint16(h[18:], uint16(machines[other])) }), runtime.GOARCH, "an executable for " + strings.TrimPrefix(machines[other].String(), "EM_")},
		{"asked for an architecture that nobody knows", good, "mips", "an executable for "},
		{"an object file", change(func(h, _ []byte) { binary.LittleEndian.PutUint16(h[16:], uint16(elf.ET_REL)) }), runtime.GOARCH, "no executable"},
		{"a script", []byte("#!/bin/sh\n"), runtime.GOARCH, "not an ELF executable"},
		{"cut off", good[:100], runtime.GOARCH, "not an ELF executable"},
		{"empty", nil, runtime.GOARCH, "not an ELF executable"},
	} {
		name := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(name, tt.content, 0o644); err != nil {
			t.Fatal(err)
		}
		if why := NotStatic(name, tt.arch); !strings.Contains(why, tt.why) || (why == "") != (tt.why == "") {
			t.Errorf("%s: %q, expected %q", tt.name, why, tt.why)
		}
	}
	if why := NotStatic(filepath.Join(t.TempDir(), "missing"), runtime.GOARCH); why == "" {
		t.Error("a file that is not there is a static executable")
	}

	if v := ModuleVersion(file, etcdctl); v != "3.7.0-rc.1" {
		t.Errorf("version %q of the module, expected 3.7.0-rc.1", v)
	}
	for _, module := range []string{"go.etcd.io/etcd/etcdutl/v3", "example.com/build", "std"} {
		if v := ModuleVersion(file, module); v != "" {
			t.Errorf("version %q of %s, expected none", v, module)
		}
	}
	if v := ModuleVersion("/etc/hostname", etcdctl); v != "" {
		t.Errorf("version %q of a text file", v)
	}
	if out, err := Output(t.Context(), file, "version"); err != nil || out != "version" {
		t.Errorf("output %q, %v", out, err)
	}
}

func TestFirstVersion(t *testing.T) {
	for out, want := range map[string]string{
		"etcdctl version: 3.7.0\nAPI version: 3.7\n": "3.7.0",
		"v1.37.2": "1.37.2",
		"containerd github.com/containerd/containerd/v2 v2.3.7 unknown":       "2.3.7",
		"runc version 1.5.2\ngo: go1.26.8\n":                                  "1.5.2",
		"crictl version v1.37.0":                                              "1.37.0",
		"Kubernetes v1.37.0-rc.1+build.7":                                     "1.37.0-rc.1+build.7",
		"go1.26.8 built etcd 3.6.6":                                           "3.6.6",
		"CNI loopback plugin version unknown\nCNI protocol versions: 0.1.0\n": "0.1.0",
		"API version: 3.7":                                                    "",
		"":                                                                    "",
	} {
		if got := FirstVersion(out); got != want {
			t.Errorf("%q has version %q, expected %q", out, got, want)
		}
	}
}

func TestAProgramGetsNothingOfTheBuildersEnvironment(t *testing.T) {
	t.Setenv("SECRET", "of the builder")
	out, err := Output(t.Context(), "/usr/bin/env")
	if err != nil || out != "PATH=/usr/bin:/bin\nHOME=/nonexistent\n" {
		t.Errorf("environment %q, %v", out, err)
	}
	_, err = Output(t.Context(), "/bin/sh", "-c", "exit 3")
	if e, ok := errors.AsType[*run.Error](err); !ok || e.Exit != 3 {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheOwnArchitectureRuns(t *testing.T) {
	if !Runs(runtime.GOARCH) || Runs("mips") {
		t.Error("this machine runs its own architecture and no other")
	}
}

func TestTempIsPrivateAndGoes(t *testing.T) {
	parent := t.TempDir()
	dir, remove, err := Temp(parent)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode() != fs.ModeDir|0o700 || filepath.Dir(dir) != parent {
		t.Errorf("%s has mode %v, %v", dir, fi.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "program"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	remove()
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
