// Package official is the supply of released inputs: the images of
// registry.k8s.io and a Kairos base image, signed by who the policy names;
// kubeadm and kubectl from dl.k8s.io with their detached signatures; runc, the
// CNI plugins and crictl from their projects' releases. kubelet and containerd
// come from the rebuilt supply, since the released ones need a C library that
// the musl base does not have.
//
// Relock resolves all of it on a connected machine and proves it. The lock keeps
// what proves a file again: signature, certificate and the transparency log's
// entry; the trusted root is kept beside it. Inputs then only reads the lock,
// and takes nothing by a tag or by a checksum that it is told.
//
// A checksum that lies beside a file comes from whoever could change the file.
// What has no signature must therefore also be recorded in matrix/official.yaml,
// with a source elsewhere; published checksum, record and bytes must all agree.
package official

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/rebuilt"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

// FromRebuilt are the images that the rebuilt supply gives.
var FromRebuilt = []string{"kubernetes-node", "containerd"}

// TrustedRootPath is where the trusted root that all locks share lies below a
// checkout.
const TrustedRootPath = "matrix/locks/trusted_root.json"

// rebuiltRoot is how the policy names the rebuilt supply's trusted root.
const rebuiltRoot = "rebuilt"

// Supply gives the inputs of one row for one platform. Inputs needs Rebuilt,
// Relock needs Upstream.
type Supply struct {
	Source   string // root of a checkout
	Row      matrix.Row
	Stack    matrix.Stack
	Platform fetch.Platform
	Rebuilt  supply.Supply // makes at least FromRebuilt
	Upstream Upstream
	Report   *report.Reporter
}

// Name returns "official".
func (s *Supply) Name() string { return supply.Official }

// Close ends what the rebuilt part started.
func (s *Supply) Close() error {
	if s.Rebuilt == nil {
		return nil
	}
	return s.Rebuilt.Close()
}

// LockPath is where this supply's lock lies.
func (s *Supply) LockPath() string {
	return lock.Path(s.Source, supply.Official, s.Row.Minor, s.Platform.String())
}

// RefreshCommand is what makes this supply's lock fresh.
func (s *Supply) RefreshCommand() string {
	return fmt.Sprintf("bin/builder lock --minor %s --supply official --platform %s", s.Row.Minor, s.Platform)
}

// Inputs reads the lock and adds what the rebuilt supply makes. A lock that is
// missing or is not for this matrix and these sources is *lock.Stale.
func (s *Supply) Inputs(ctx context.Context) (*supply.Inputs, error) {
	l, locked, trust, err := s.checkedLock()
	if err != nil {
		return nil, err
	}
	policy, err := s.policy()
	if err != nil {
		return nil, err
	}
	in := &supply.Inputs{Policy: policy, Trust: trust, Lock: l}
	for _, img := range s.Row.Images() {
		in.Bundle = append(in.Bundle, supply.Image{Name: img.Name, Reference: img.Reference, Digest: locked[img.Name].Digest})
	}
	in.Base = supply.Image{Name: baseName, Reference: locked[baseName].Source, Digest: locked[baseName].Digest}
	for _, r := range s.releases() {
		f, err := file(locked[r.name])
		if err != nil {
			return nil, s.stale(err.Error())
		}
		in.Files = append(in.Files, f)
		in.Tools = append(in.Tools, r.tools...)
	}
	return in, s.addRebuilt(ctx, in)
}

// addRebuilt adds the images FromRebuilt and their tools, except those that a
// release has already. Nothing that the rebuilt supply says about any other
// registry name or image is taken over.
func (s *Supply) addRebuilt(ctx context.Context, in *supply.Inputs) error {
	own, err := s.Rebuilt.Inputs(ctx)
	if err != nil {
		return fmt.Errorf("kubelet and containerd: %w", err)
	}
	in.Routes = map[string]string{rebuilt.Host: own.Routes[rebuilt.Host]}
	in.Roots = map[string][]byte{rebuiltRoot: own.Trust}
	in.Resolved = own.Resolved
	for _, name := range FromRebuilt {
		i := slices.IndexFunc(own.Others, func(img supply.Image) bool {
			return img.Name == name && strings.HasPrefix(img.Reference, rebuilt.Host+"/")
		})
		if i < 0 {
			return fmt.Errorf("the rebuilt supply has no image %s", name)
		}
		in.Others = append(in.Others, own.Others[i])
	}
	for _, t := range own.Tools {
		released := slices.ContainsFunc(in.Tools, func(o supply.Tool) bool { return o.Target == t.Target })
		if slices.Contains(FromRebuilt, t.Image) && !released {
			in.Tools = append(in.Tools, t)
		}
	}
	return nil
}

func (s *Supply) policy() ([]byte, error) {
	return os.ReadFile(filepath.Join(s.Source, "signing", "policies", "official.yaml"))
}

func (s *Supply) stale(found ...string) error {
	return &lock.Stale{Path: s.LockPath(), Findings: found, Command: s.RefreshCommand()}
}

// checkedLock returns the lock, its inputs by name, and the trusted root beside
// it, once the lock is for exactly this matrix and these sources.
func (s *Supply) checkedLock() (l lock.Lock, locked map[string]lock.Input, trust []byte, err error) {
	table, err := s.table()
	if err != nil {
		return l, nil, nil, err
	}
	b, err := os.ReadFile(s.LockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil, nil, s.stale("it does not exist; making it needs a connected machine")
	}
	if err != nil {
		return l, nil, nil, err
	}
	if l, err = lock.Parse(b); err != nil {
		return l, nil, nil, s.stale(strings.Split(err.Error(), "\n")...)
	}
	found := l.Check(supply.Official, s.Row, s.Stack, s.Platform.String())
	locked, wrong := s.match(l, table)
	found = append(found, wrong...)
	trust, err = os.ReadFile(filepath.Join(s.Source, TrustedRootPath))
	if errors.Is(err, fs.ErrNotExist) {
		found, err = append(found, TrustedRootPath+" does not exist"), nil
	}
	if err == nil && len(found) > 0 {
		err = s.stale(found...)
	}
	return l, locked, trust, err
}

// match compares a lock's inputs with what this supply takes today: sources,
// and what has to vouch for each. It returns them by name and all differences.
func (s *Supply) match(l lock.Lock, table Table) (locked map[string]lock.Input, found []string) {
	differ := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	sources := map[string]string{}
	for _, img := range s.images(table) {
		sources[img.Name] = img.Reference
	}
	releases := map[string]release{}
	for _, r := range s.releases() {
		sources[r.name], releases[r.name] = r.url, r
	}
	locked = map[string]lock.Input{}
	for _, in := range l.Inputs {
		want, known := sources[in.Name]
		if _, twice := locked[in.Name]; twice || !known {
			differ("%s from %s is not one of the inputs", in.Name, in.Source)
			continue
		}
		locked[in.Name] = in
		r, isFile := releases[in.Name]
		kind := lock.Image
		if isFile {
			kind = lock.File
		}
		if in.Source != want || in.Kind != kind {
			differ("%s is the %s %s, expected the %s %s", in.Name, in.Kind, in.Source, kind, want)
			continue
		}
		switch {
		case r.signed && in.Verified.By != lock.BySignature:
			differ("%s is vouched for by %s, expected a signature", in.Name, in.Verified.By)
		case isFile && !r.signed:
			rec, ok := table.record(r, s.Platform.Architecture)
			if !ok || in.Digest != rec.digest() || in.Verified != rec.verification() {
				differ("%s is %s by %s %s, and matrix/official.yaml says otherwise", in.Name, in.Digest, in.Verified.By, in.Verified.Origin)
			}
		case !isFile && in.Verified.By != lock.BySignature && in.Verified.By != lock.ByException:
			differ("%s is vouched for by %s, expected a signature", in.Name, in.Verified.By)
		}
	}
	for _, img := range s.images(table) {
		if _, ok := locked[img.Name]; !ok {
			differ("%s from %s is not in the lock", img.Name, img.Reference)
		}
	}
	for _, r := range s.releases() {
		if _, ok := locked[r.name]; !ok {
			differ("%s from %s is not in the lock", r.name, r.url)
		}
	}
	return locked, found
}

// file returns a locked release file with what proves it.
func file(in lock.Input) (supply.File, error) {
	f := supply.File{Name: in.Name, URL: in.Source, Descriptor: store.Descriptor{Digest: in.Digest, Size: in.Size}, Origin: in.Verified.Origin}
	if in.Signature == "" {
		return f, nil
	}
	f.Signature, f.Certificate = []byte(in.Signature), []byte(in.Certificate)
	entry, err := base64.StdEncoding.DecodeString(in.LogEntry)
	if err == nil {
		err = json.Unmarshal(entry, &f.LogEntry)
	}
	if err != nil {
		return f, fmt.Errorf("%s has an unreadable log entry: %w", in.Name, err)
	}
	return f, nil
}
