package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// verified are the inputs of one platform, all of them verified and whole in
// the store.
type verified struct {
	images  map[string]*fetch.Image // by input name
	results map[string]signing.Result
	files   map[string]supply.File
	rows    []report.Input
}

// BadPolicy is a signing policy or a trusted root that can't be used.
type BadPolicy struct{ Err error }

func (e *BadPolicy) Error() string { return e.Err.Error() }
func (e *BadPolicy) Unwrap() error { return e.Err }

// fetchAll fetches every input by digest and verifies it. Signatures are checked
// as soon as the manifests are there, those of files by the digest they are to
// have; nothing else is fetched before every input has been accepted.
func (m *maker) fetchAll(ctx context.Context, in *supply.Inputs, client *fetch.Client) (*verified, error) {
	verifier, err := in.Verifier()
	if err != nil {
		return nil, &BadPolicy{err}
	}
	verifier.Transport, verifier.Keychain = client.RoundTripper(), client.Keychain
	all := in.Images()
	images := make([]*fetch.Image, len(all))
	results := make([]signing.Result, len(all))

	step := m.Report.Step(fmt.Sprintf("verify %d images and %d files", len(all), len(in.Files)))
	findings := make([]error, len(all))
	g := new(errgroup.Group)
	g.SetLimit(8)
	for i, want := range all {
		g.Go(func() error {
			findings[i] = func() error {
				img, err := client.ImageManifest(ctx, want.Reference+"@"+want.Digest, m.Platform)
				if err != nil {
					return fmt.Errorf("%s: %w", want.Reference, err)
				}
				images[i] = img
				res, err := verifier.Verify(ctx, signing.Subject{Reference: want.Reference, Repository: img.Repository, Digest: img.Top.Digest, Platform: img.Manifest.Digest})
				if err != nil {
					return err
				}
				results[i] = res
				return res.Err()
			}()
			return nil
		})
	}
	_ = g.Wait() // findings are collected, so that all are reported
	v := &verified{images: map[string]*fetch.Image{}, results: map[string]signing.Result{}, files: map[string]supply.File{}}
	for _, f := range in.Files {
		row, err := m.vouched(ctx, f, verifier)
		findings = append(findings, err)
		v.files[f.Name], v.rows = f, append(v.rows, row)
	}
	if err := step.Done(errors.Join(findings...)); err != nil {
		return nil, err
	}

	step = m.Report.Step("fetch layers")
	client.Progress = m.progress(step, images)
	var fetched int64
	for i, want := range all {
		if err := client.FetchBlobs(ctx, images[i]); err != nil {
			return nil, step.Done(fmt.Errorf("%s: %w", want.Reference, err))
		}
		var size int64
		for _, l := range images[i].Layers {
			size += l.Size
		}
		fetched += size
		v.images[want.Name], v.results[want.Name] = images[i], results[i]
		v.rows = append(v.rows, report.Input{Name: want.Name, Source: want.Reference, Digest: want.Digest, Size: size, Verified: supply.Vouched(results[i])})
	}
	step.Detail("%s", report.Bytes(fetched))
	_ = step.Done(nil)

	for _, f := range in.Files {
		step := m.Report.Step("fetch " + f.Name)
		_, err := client.File(ctx, f.URL, f.Descriptor)
		if err := step.Done(err); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(v.rows, func(a, b report.Input) int { return strings.Compare(a.Name, b.Name) })
	return v, nil
}

// progress shows how much of all layers has been fetched.
func (m *maker) progress(step *report.Step, images []*fetch.Image) func(name string, done, total int64) {
	var all int64
	for _, img := range images {
		for _, l := range img.Layers {
			all += l.Size
		}
	}
	var mu sync.Mutex
	var sum int64
	at := map[string]int64{}
	return func(name string, done, total int64) {
		mu.Lock()
		sum += done - at[name]
		at[name] = done
		step.Progress(sum, all)
		mu.Unlock()
		if m.Progress != nil {
			m.Progress(name, done, total)
		}
	}
}

// vouched checks the detached signature of a release file when it has one;
// otherwise the lock's independent checksum is what vouches.
func (m *maker) vouched(ctx context.Context, f supply.File, verifier *signing.Verifier) (report.Input, error) {
	row := report.Input{Name: f.Name, Source: f.URL, Digest: f.Digest, Size: f.Size, Verified: lock.Verification{By: lock.ByChecksum, Origin: f.Origin}}
	if f.Signature == nil {
		return row, nil
	}
	res, err := f.Verify(ctx, verifier)
	if err == nil {
		err = res.Err()
	}
	row.Verified = supply.Vouched(res)
	return row, err
}
