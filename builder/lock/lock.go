// Package lock holds the reviewable record of what an image is made from: for
// every input of one minor, platform and supply where it comes from, its
// digest, its size and how it was verified. It reads, writes and compares lock
// documents; resolving them is the supplies' job.
package lock

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/matrix"
	"go.yaml.in/yaml/v3"
)

// APIVersion is the only document version that is read and written.
const APIVersion = "provider-kubernetes.kairos.io/lock/v1"

// Kind says what an input is and so what its digest covers.
type Kind string

// The kinds of input.
const (
	Image    Kind = "image"    // Source is a reference with tag; Digest that of the top manifest or index
	File     Kind = "file"     // Source is a URL; Digest that of the file
	Module   Kind = "module"   // Source is path@version; Digest the module's h1: hash of go.sum
	Packages Kind = "packages" // Source names a distribution; resolved from its signed archive while building
)

// By says what vouched for an input.
type By string

// What can vouch for an input.
const (
	BySignature  By = "signature"         // a signature by Identity, which Issuer vouches for
	ByChecksum   By = "checksum"          // a checksum from Origin, which is independent of Source
	ByChecksumDB By = "go-checksum-db"    // the Go checksum database, through go.sum
	ByArchive    By = "archive-signature" // the distribution's signed package index
	ByException  By = "exception"         // a policy line; Reason says why
)

// Verification is how an input was verified.
type Verification struct {
	By       By     `yaml:"by" json:"by"`
	Identity string `yaml:"identity,omitempty" json:"identity,omitempty"`
	Issuer   string `yaml:"issuer,omitempty" json:"issuer,omitempty"`
	Origin   string `yaml:"origin,omitempty" json:"origin,omitempty"`
	Reason   string `yaml:"reason,omitempty" json:"reason,omitempty"`
}

// Input is one thing an image is made from. Size is in bytes.
type Input struct {
	Name     string       `yaml:"name" json:"name"`
	Kind     Kind         `yaml:"kind" json:"kind"`
	Source   string       `yaml:"source" json:"source"`
	Digest   string       `yaml:"digest,omitempty" json:"digest,omitempty"`
	Size     int64        `yaml:"size,omitempty" json:"size,omitempty"`
	Verified Verification `yaml:"verified" json:"verified"`
	Packages []string     `yaml:"packages,omitempty" json:"packages,omitempty"`

	// A file that a signature vouches for has all three, so that the signature
	// can be verified again without network. Each is base64: of the signature, of
	// the PEM certificate, and of the transparency log's entry as JSON.
	Signature   string `yaml:"signature,omitempty" json:"signature,omitempty"`
	Certificate string `yaml:"certificate,omitempty" json:"certificate,omitempty"`
	LogEntry    string `yaml:"logEntry,omitempty" json:"logEntry,omitempty"`
}

// Lock is the document. Matrix is the digest of the matrix values that it was
// resolved from: when those change the lock is stale.
type Lock struct {
	APIVersion string  `yaml:"apiVersion" json:"apiVersion"`
	Supply     string  `yaml:"supply" json:"supply"`
	Minor      string  `yaml:"minor" json:"minor"`
	Platform   string  `yaml:"platform" json:"platform"`
	Matrix     string  `yaml:"matrix" json:"matrix"`
	Inputs     []Input `yaml:"inputs" json:"inputs"`
}

// Stale reports that a lock does not belong to the matrix it is used with.
type Stale struct {
	Path     string
	Findings []string
	Command  string // what makes the lock fresh
}

func (e *Stale) Error() string {
	return fmt.Sprintf("lock %s is stale:\n  %s\nrefresh it with: %s", e.Path, strings.Join(e.Findings, "\n  "), e.Command)
}

// Path returns where the lock of a supply, minor and platform lies below the
// root of a checkout.
func Path(root, supply string, minor matrix.Minor, platform string) string {
	arch := strings.ReplaceAll(strings.TrimPrefix(platform, "linux/"), "/", "-")
	return filepath.Join(root, "matrix", "locks", fmt.Sprintf("%s-%s-%s.yaml", minor, arch, supply))
}

// MatrixDigest is the digest of the values of the matrix that an image of this
// row is made from.
func MatrixDigest(row matrix.Row, stack matrix.Stack) string {
	b, err := json.Marshal(struct {
		Row   matrix.Row
		Stack matrix.Stack
	}{row, stack})
	if err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// Parse reads a lock document strictly; all findings come together.
func Parse(b []byte) (Lock, error) {
	var l Lock
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&l); err != nil {
		return Lock{}, fmt.Errorf("lock: %w", err)
	}
	var errs []error
	find := func(format string, a ...any) { errs = append(errs, fmt.Errorf("lock: "+format, a...)) }
	if l.APIVersion != APIVersion {
		find("apiVersion is %q: expected %q", l.APIVersion, APIVersion)
	}
	if _, err := matrix.ParseMinor(l.Minor); err != nil {
		find("%w", err)
	}
	if l.Supply == "" || l.Platform == "" {
		find("supply is %q and platform %q: both must be set", l.Supply, l.Platform)
	}
	if !isSHA256(l.Matrix) {
		find("matrix is %q: expected sha256:<64 hex>", l.Matrix)
	}
	seen := map[string]bool{}
	for i, in := range l.Inputs {
		at := fmt.Sprintf("input %d (%s)", i+1, in.Name)
		if in.Name == "" || in.Source == "" {
			find("%s: name and source must be set", at)
		}
		if key := in.Name + " " + in.Source; seen[key] {
			find("%s is there twice", at)
		} else {
			seen[key] = true
		}
		switch in.Kind {
		case Image, File:
			if !isSHA256(in.Digest) || in.Size <= 0 {
				find("%s: digest %q with size %d: expected sha256:<64 hex> and a positive size", at, in.Digest, in.Size)
			}
		case Module:
			if !strings.HasPrefix(in.Digest, "h1:") || in.Size <= 0 {
				find("%s: digest %q with size %d: expected a module's h1: hash and a positive size", at, in.Digest, in.Size)
			}
		case Packages:
			if len(in.Packages) == 0 {
				find("%s: no packages are named", at)
			}
		default:
			find("%s: kind %q is unknown", at, in.Kind)
		}
		signed := in.Kind == File && in.Verified.By == BySignature
		for _, f := range []struct{ name, value string }{{"signature", in.Signature}, {"certificate", in.Certificate}, {"logEntry", in.LogEntry}} {
			if _, err := base64.StdEncoding.DecodeString(f.value); err != nil || (f.value != "") != signed {
				find("%s: %s is %q: expected base64 when a signature vouches for a file, else nothing", at, f.name, f.value)
			}
		}
		switch v := in.Verified; v.By {
		case BySignature:
			if v.Identity == "" || v.Issuer == "" {
				find("%s: a signature needs identity and issuer", at)
			}
		case ByChecksum:
			if v.Origin == "" {
				find("%s: a checksum needs its origin", at)
			}
		case ByException:
			if v.Reason == "" {
				find("%s: an exception needs a reason", at)
			}
		case ByChecksumDB, ByArchive:
		default:
			find("%s: verified by %q is unknown", at, v.By)
		}
	}
	if len(errs) > 0 {
		return Lock{}, errors.Join(errs...)
	}
	return l, nil
}

// Marshal returns the canonical text of a lock: inputs sorted by name and source.
func (l Lock) Marshal() []byte {
	l.Inputs = slices.Clone(l.Inputs)
	slices.SortFunc(l.Inputs, func(a, b Input) int { return strings.Compare(a.Name+" "+a.Source, b.Name+" "+b.Source) })
	var buf bytes.Buffer
	buf.WriteString("# Written by `builder lock`; every change is meant to be reviewed.\n")
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(l), enc.Close()); err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	return buf.Bytes()
}

// Input returns the input of that name.
func (l Lock) Input(name string) (Input, bool) {
	for _, in := range l.Inputs {
		if in.Name == name {
			return in, true
		}
	}
	return Input{}, false
}

// Check compares a lock with what it is used for and returns what is wrong.
func (l Lock) Check(supply string, row matrix.Row, stack matrix.Stack, platform string) []string {
	var found []string
	differ := func(what, got, want string) {
		if got != want {
			found = append(found, fmt.Sprintf("%s is %s, expected %s", what, got, want))
		}
	}
	differ("supply", l.Supply, supply)
	differ("minor", l.Minor, row.Minor.String())
	differ("platform", l.Platform, platform)
	differ("matrix digest", l.Matrix, MatrixDigest(row, stack))
	return found
}

// Diff returns the changes from old to new as lines that begin with "- " and
// "+ ", by whole inputs and head fields; empty when nothing changed.
func Diff(old, new Lock) string {
	var out strings.Builder
	line := func(sign, key, val string) {
		if val != "" {
			fmt.Fprintf(&out, "%s %s: %s\n", sign, key, val)
		}
	}
	change := func(key, a, b string) {
		if a != b {
			line("-", key, a)
			line("+", key, b)
		}
	}
	change("matrix", old.Matrix, new.Matrix)
	keys := map[string][2]string{}
	for i, l := range []Lock{old, new} {
		for _, in := range l.Inputs {
			kv := keys[in.Name+" "+in.Source]
			kv[i] = describe(in)
			keys[in.Name+" "+in.Source] = kv
		}
	}
	sorted := make([]string, 0, len(keys))
	for k := range keys {
		sorted = append(sorted, k)
	}
	slices.Sort(sorted)
	for _, k := range sorted {
		change(k, keys[k][0], keys[k][1])
	}
	return out.String()
}

func describe(in Input) string {
	v := in.Verified
	parts := []string{string(in.Kind), in.Digest, fmt.Sprint(in.Size), "by", string(v.By), v.Identity, v.Issuer, v.Origin, v.Reason, strings.Join(in.Packages, ",")}
	if in.Signature != "" {
		h := sha256.Sum256([]byte(in.Signature + " " + in.Certificate + " " + in.LogEntry))
		parts = append(parts, "detached signature "+hex.EncodeToString(h[:6]))
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" || s == "0" }), " ")
}

func isSHA256(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}
