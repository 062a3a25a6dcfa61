// Package rules holds the rules that the whole repository keeps, as tests: who
// may import what, what text may not appear, how large the node runtime may
// become. Every violation is reported at once, with the reason for the rule.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is this repository's module path. Patterns that begin with "./" are
// below it.
const module = "github.com/kairos-io/provider-kubernetes"

// importRule restricts what packages may import. Patterns are import paths; one
// that ends in "/..." also covers everything below, and "std" is the standard
// library.
type importRule struct {
	from   []string // packages that the rule is about
	except []string // of those, packages that it is not about
	forbid []string // what they may not import
	allow  []string // when set: the only things they may import
	whole  bool     // their dependencies and the dependencies of those, too
	reason string
}

// everywhere is all code of this repository but its tests and what only they use.
var everywhere = []string{"./builder/...", "./runtime/...", "./matrix/...", "./overlay/...", "./signing/..."}

var importRules = []importRule{
	{
		from: []string{"./builder/..."}, forbid: []string{"./runtime/..."}, whole: true,
		reason: "the builder lays the runtime's binary into the image and knows nothing else of it",
	},
	{
		from: []string{"./runtime/..."}, forbid: []string{"./builder/..."}, whole: true,
		reason: "a node has no use for what builds images",
	},
	{
		from: []string{"./runtime/..."}, whole: true,
		forbid: []string{"./signing/...", "github.com/sigstore/...", "github.com/google/go-containerregistry/...", "github.com/moby/buildkit/..."},
		reason: "the node binary stays small; images were verified when they were built",
	},
	{
		from: []string{"./matrix"}, allow: []string{"std", "go.yaml.in/yaml/v3"},
		reason: "builder and runtime decide by the same pure functions, so they cost nothing to import",
	},
	{
		from: []string{"./overlay"}, allow: []string{"std", "go.yaml.in/yaml/v3"},
		reason: "the overlay is files and tables",
	},
	{
		from: []string{"./matrix", "./overlay"}, forbid: []string{"os", "net/...", "os/exec"},
		reason: "both are pure: the same values give the same answer on every machine",
	},
	{
		from: []string{"./signing/..."}, forbid: []string{"./builder/...", "./runtime/...", "./matrix/...", "./overlay/..."},
		reason: "policy and verification stand alone: they are given references and digests",
	},
	{
		from: everywhere, except: []string{"./signing/..."}, forbid: []string{"github.com/sigstore/..."},
		reason: "cosign and sigstore stay behind package signing, so that their major can change in one place",
	},
	{
		from: everywhere, except: []string{"./builder/run", "./runtime/host"}, forbid: []string{"os/exec"},
		reason: "processes are started with an absolute path and a closed environment, in one package of each program",
	},
	{
		from: everywhere, except: []string{"./runtime/agent"}, forbid: []string{"github.com/kairos-io/kairos-sdk/...", "github.com/mudler/go-pluggable"},
		reason: "Kairos' event protocol stays behind package runtime/agent",
	},
	{
		from: everywhere, except: []string{"./runtime/etcd"}, forbid: []string{"go.etcd.io/..."},
		reason: "the etcd client stays behind package runtime/etcd",
	},
	{
		from: everywhere, except: []string{"./builder/finish"}, forbid: []string{"github.com/moby/buildkit/..."},
		reason: "BuildKit is one of finish's engines and no other package's concern",
	},
	{
		from: everywhere, except: []string{"./builder/cli", "./runtime/cli"}, forbid: []string{"github.com/spf13/...", "golang.org/x/term"},
		reason: "flags and terminals are the command line's business",
	},
	{
		from: []string{"./builder/..."}, except: []string{"./builder"}, forbid: []string{"./builder/cli"},
		reason: "data flows from the command line down; nothing reaches back into it",
	},
	{
		from: []string{"./builder/..."}, except: []string{"./builder", "./builder/cli"}, forbid: []string{"./builder/image"},
		reason: "image puts the steps together; a step knows nothing of the whole",
	},
	{
		from:   []string{"./builder/bundle", "./builder/fetch", "./builder/finish", "./builder/inspect", "./builder/layerfs", "./builder/publish", "./builder/rootfs"},
		forbid: []string{"./builder/supply", "./builder/rebuilt", "./builder/official"},
		reason: "the pipeline treats an input the same whichever supply it comes from",
	},
	{
		from:   []string{"./builder/store", "./builder/run"},
		allow:  []string{"std", "golang.org/x/sys/unix"},
		reason: "what everything stands on depends on nothing",
	},
	{
		from: []string{"./runtime/..."}, except: []string{"./runtime"}, forbid: []string{"./runtime/cli"},
		reason: "data flows from the command line down; nothing reaches back into it",
	},
	{
		from: everywhere, except: []string{"./signing/signingtest"}, forbid: []string{"testing", "./test/...", "./signing/signingtest"},
		reason: "what is shipped holds no test code",
	},
}

// pkg is what `go list -json` tells of a package.
type pkg struct {
	ImportPath string
	Imports    []string
	Error      *struct{ Err string }
}

func TestImportsKeepTheRules(t *testing.T) {
	graph := map[string]pkg{}
	out := goCommand(t, "list", "-e", "-deps", "-json=ImportPath,Imports,Error", "./...")
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		}
		graph[p.ImportPath] = p
	}
	for _, want := range []string{"./builder", "./runtime", "./matrix", "./overlay", "./signing"} {
		if _, ok := graph[absolute(want)]; !ok {
			t.Errorf("package %s is missing", want)
		}
	}
	for _, v := range violations(graph, importRules) {
		t.Error(v)
	}
}

// violations returns one line for every import that a rule forbids.
func violations(graph map[string]pkg, rules []importRule) []string {
	var found []string
	for _, r := range rules {
		for path := range graph {
			if !matches(path, r.from) || matches(path, r.except) {
				continue
			}
			bad := func(p string) bool {
				return matches(p, r.forbid) || r.allow != nil && !matches(p, r.allow)
			}
			for _, chain := range chains(graph, path, bad, r.whole) {
				found = append(found, fmt.Sprintf("%s\n\t%s", strings.ReplaceAll(strings.Join(chain, " imports "), module+"/", ""), r.reason))
			}
		}
	}
	slices.Sort(found)
	return found
}

// chains returns how a package reaches packages that are bad: by the shortest
// way, and no further than the first bad one. Without whole only its own
// imports count.
func chains(graph map[string]pkg, from string, bad func(string) bool, whole bool) [][]string {
	var found [][]string
	seen := map[string]bool{from: true}
	for queue := [][]string{{from}}; len(queue) > 0; queue = queue[1:] {
		chain := queue[0]
		for _, p := range graph[chain[len(chain)-1]].Imports {
			if seen[p] {
				continue
			}
			seen[p] = true
			next := append(slices.Clone(chain), p)
			if bad(p) {
				found = append(found, next)
			} else if whole {
				queue = append(queue, next)
			}
		}
	}
	return found
}

// matches tells whether one of the patterns covers an import path.
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if pattern == "std" {
			first, _, _ := strings.Cut(path, "/")
			return !strings.Contains(first, ".")
		}
		prefix, below := strings.CutSuffix(absolute(pattern), "/...")
		return path == prefix || below && strings.HasPrefix(path, prefix+"/")
	})
}

func absolute(pattern string) string {
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		return module + "/" + rest
	}
	return pattern
}

func TestViolationsNameTheChainAndTheReason(t *testing.T) {
	graph := map[string]pkg{}
	for path, imports := range map[string][]string{
		"./runtime":     {"./runtime/cli", "os"},
		"./runtime/cli": {"example.com/a", "fmt"},
		"example.com/a": {"github.com/sigstore/cosign/v2/pkg/cosign"},
		"./matrix":      {"strings", "go.yaml.in/yaml/v3", "example.com/a"},
		"./builder/run": {"os/exec"},
		"./builder/x":   {"os/exec", "./builder/cli"},
	} {
		p := pkg{ImportPath: absolute(path)}
		for _, i := range imports {
			p.Imports = append(p.Imports, absolute(i))
		}
		graph[p.ImportPath] = p
	}
	got := strings.Join(violations(graph, importRules), "\n")
	for _, want := range []string{
		"runtime imports " + module + "/runtime/cli imports example.com/a imports github.com/sigstore/cosign/v2/pkg/cosign\n\tthe node binary stays small",
		"matrix imports example.com/a\n",
		"builder/x imports os/exec\n",
		"builder/x imports builder/cli\n",
	} {
		want = strings.ReplaceAll(want, module+"/", "")
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, wrong := range []string{"builder/run imports", "matrix imports strings", "runtime imports os\n"} {
		if strings.Contains(got, wrong) {
			t.Errorf("%q is no violation, but is in\n%s", wrong, got)
		}
	}
}

// runtimeLimit bounds the node runtime's binary, in bytes. Every node downloads
// it with every image; what makes it grow beyond this is an import that does not
// belong there.
const runtimeLimit = 25_000_000

func TestTheNodeRuntimeStaysSmall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent-provider-kubernetes")
	goCommand(t, "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./runtime")
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Size() > runtimeLimit {
		t.Errorf("the node runtime has %d bytes, expected at most %d: see with `go list -deps ./runtime` what it takes in", fi.Size(), runtimeLimit)
	}
}

// root is the top of the checkout.
const root = "../.."

// goCommand runs the go command at the top of the checkout, for a node's
// operating system and without what the user's environment adds.
func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	// What a child process reads is unknown to `go test`, which would take the
	// result from its cache after a change. Reading it here tells.
	checkout(t)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}
