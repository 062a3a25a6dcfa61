// Package program looks at executables: whether one is static and for which
// architecture, and which version it reports or was built from. Nothing is
// executed unless it is for this machine and the caller asks for it.
package program

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/run"
)

// machines are the ELF machines of the platforms that Kubernetes is released for.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390, "riscv64": elf.EM_RISCV,
}

// NotStatic tells why a file is not a static executable for an architecture (in
// the terms of GOARCH); empty when it is one. A static position-independent
// executable has a dynamic section too, but neither an interpreter nor libraries.
func NotStatic(file, arch string) string {
	f, err := elf.Open(file)
	if err != nil {
		return "not an ELF executable"
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "an ELF file that is no executable"
	}
	if f.Machine != machines[arch] {
		return "an executable for " + strings.TrimPrefix(f.Machine.String(), "EM_")
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "a dynamically linked executable"
		}
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		return "an executable that needs " + strings.Join(libs, ", ")
	}
	return ""
}

var version = regexp.MustCompile(`\bv?([0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?)`)

// FirstVersion returns the first full version in a program's answer, without a
// leading v; empty when there is none.
func FirstVersion(out string) string {
	if m := version.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return ""
}

// ModuleVersion returns the version of a Go module that the program was built
// from, without a leading v; empty when the program does not record it.
func ModuleVersion(file, module string) string {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return FirstVersion(strings.TrimSuffix(m.Version, "+incompatible"))
	}
	return ""
}

// Runs tells whether this machine executes programs of an architecture.
func Runs(arch string) bool { return arch == runtime.GOARCH }

// ask bounds a program that only has to print something.
const ask = 60 * time.Second

// Output runs a program of an image with no environment and returns what it
// prints to standard output.
func Output(ctx context.Context, file string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ask, fmt.Errorf("no answer within %s", ask))
	defer cancel()
	out, err := run.Cmd{Path: file, Args: args, Env: []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}, Limit: 1 << 20}.Output(ctx)
	return string(out), err
}

// Temp makes a private folder for programs that are to be executed and returns
// it with its removal.
func Temp(parent string) (string, func(), error) {
	dir, err := os.MkdirTemp(parent, "programs-*")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}
