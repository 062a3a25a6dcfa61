package rootfs

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Type is the kind of a file system entry.
type Type int

// The kinds of entry a layer can have.
const (
	Regular Type = iota
	Dir
	Symlink
)

// File is one entry of a layer. Owner and group are always root.
type File struct {
	Path    string // clean and relative to the image root: "usr/bin/kubeadm"
	Type    Type
	Mode    fs.FileMode      // permission, set-user-id and sticky bits; a symlink always has 0777
	Target  string           // of a symlink, kept as it is
	Content store.Descriptor // of a regular file
	Data    []byte           `json:"-"` // of a small regular file instead of Content
	// Open reads what Content describes when that is not in the store.
	Open func() (io.ReadCloser, error) `json:"-"`
}

// plan returns the entries of the layer as they are written: sorted by path,
// every parent directory once and before what is in it, Content set for every
// regular file. It returns all findings about files that can't be written.
func plan(l Layer) ([]File, []error) {
	var findings []error
	if l.Compression < Gzip || l.Compression > None {
		findings = append(findings, fmt.Errorf("unknown compression %d", l.Compression))
	}
	seen := map[string]File{}
	for _, f := range l.Files {
		problems := check(f)
		if _, ok := seen[f.Path]; ok {
			problems = append(problems, "is listed twice")
		}
		for _, p := range problems {
			findings = append(findings, fmt.Errorf("%q %s", f.Path, p))
		}
		switch {
		case f.Type == Symlink:
			f.Mode = 0o777
		case f.Type == Regular && f.Content.Digest == "":
			if f.Data == nil {
				f.Data = []byte{} // an empty file is in no store
			}
			f.Content = store.Descriptor{Digest: store.Digest(f.Data), Size: int64(len(f.Data))}
		}
		seen[f.Path] = f
	}
	if len(findings) > 0 {
		return nil, findings
	}
	for _, f := range l.Files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if p, ok := seen[dir]; !ok {
				seen[dir] = File{Path: dir, Type: Dir, Mode: 0o755}
			} else if p.Type != Dir {
				findings = append(findings, fmt.Errorf("%q is below %q, which is not a directory", f.Path, dir))
			}
		}
	}
	files := make([]File, 0, len(seen))
	for _, f := range seen {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, findings
}

// check returns what is wrong with one file by itself.
func check(f File) []string {
	var problems []string
	report := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	report(!fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsRune(f.Path, 0),
		"is not a clean path relative to the image root")
	// https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
	report(strings.HasPrefix(path.Base(f.Path), ".wh."), "would delete a file of a lower layer")
	report(f.Mode&^(fs.ModePerm|fs.ModeSetuid|fs.ModeSticky) != 0, "has mode %s, expected permission, set-user-id and sticky bits only", f.Mode)
	report(f.Mode == 0 && f.Type != Symlink, "has no mode")
	report(f.Type < Regular || f.Type > Symlink, "has unknown type %d", f.Type)
	report(f.Type == Symlink && (f.Target == "" || strings.ContainsRune(f.Target, 0)), "is a symlink to %q", f.Target)
	report(f.Type != Symlink && f.Target != "", "has target %q but is not a symlink", f.Target)
	report(f.Type != Regular && (f.Content.Digest != "" || f.Data != nil || f.Open != nil), "has content but is not a regular file")
	report(f.Content.Digest != "" && f.Data != nil, "has both data and a content digest")
	report(f.Content.Digest == "" && f.Open != nil, "can be opened but has no content digest")
	return problems
}
