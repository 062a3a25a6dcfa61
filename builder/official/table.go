package official

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
)

// Table is matrix/official.yaml: what this supply takes besides the versions of
// the matrix.
type Table struct {
	// Base is the base image's reference with tag; {arch} stands for the
	// architecture.
	Base      string   `yaml:"base"`
	Checksums []Record `yaml:"checksums"`
}

// Record is what a second place says about a release file.
type Record struct {
	Name    string `yaml:"name"`    // of the release, such as "runc"
	Version string `yaml:"version"` // as in the matrix
	Arch    string `yaml:"arch"`
	SHA256  string `yaml:"sha256"` // 64 hex
	Source  string `yaml:"source"` // https URL of the place
}

func (r Record) digest() string { return "sha256:" + r.SHA256 }

func (r Record) verification() lock.Verification {
	return lock.Verification{By: lock.ByChecksum, Origin: r.Source}
}

func (s *Supply) table() (Table, error) {
	b, err := os.ReadFile(filepath.Join(s.Source, "matrix", "official.yaml"))
	if err != nil {
		return Table{}, err
	}
	return ParseTable(b)
}

// ParseTable reads the document strictly; all findings come together. A source
// on the host that serves the releases is refused: it would be no second place.
func ParseTable(b []byte) (Table, error) {
	var t Table
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&t); err != nil {
		return Table{}, fmt.Errorf("matrix/official.yaml: %w", err)
	}
	var errs []error
	find := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("matrix/official.yaml: "+format, a...))
	}
	if _, err := name.NewTag(t.base("amd64"), name.StrictValidation); err != nil {
		find("base is %q: expected registry/repository:tag: %w", t.Base, err)
	}
	seen := map[Record]bool{}
	for i, r := range t.Checksums {
		at := fmt.Sprintf("checksum %d (%s %s %s)", i+1, r.Name, r.Version, r.Arch)
		if project(r.Name) == "" {
			find("%s: the name is none of runc, cni-plugins, crictl", at)
		}
		if r.Version == "" || strings.HasPrefix(r.Version, "v") || r.Arch == "" {
			find("%s: expected a version as in matrix.yaml, without v, and an architecture", at)
		}
		if !isHex(r.SHA256) {
			find("%s: sha256 is %q: expected 64 hex digits", at, r.SHA256)
		}
		if err := r.independent(); err != nil {
			find("%s: source %q %w", at, r.Source, err)
		}
		key := Record{Name: r.Name, Version: r.Version, Arch: r.Arch}
		if seen[key] {
			find("%s: is there twice", at)
		}
		seen[key] = true
	}
	return t, errors.Join(errs...)
}

// independent refuses a source that is the project's own place.
func (r Record) independent() error {
	u, err := url.Parse(r.Source)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "":
		return errors.New("is not an https URL")
	case strings.EqualFold(u.Hostname(), releaseHost) || strings.Contains(strings.ToLower(u.Path), "/"+project(r.Name)+"/"):
		return fmt.Errorf("is where the release itself comes from; name a record that others keep elsewhere")
	}
	return nil
}

func (t Table) base(arch string) string { return strings.ReplaceAll(t.Base, "{arch}", arch) }

// record returns what the table says about a release.
func (t Table) record(r release, arch string) (Record, bool) {
	for _, c := range t.Checksums {
		if c.Name == r.name && c.Version == r.version && c.Arch == arch {
			return c, true
		}
	}
	return Record{}, false
}

func isHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }
