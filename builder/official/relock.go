package official

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// Upstream is what a connected machine resolves with.
type Upstream struct {
	Client *fetch.Client
	Log    signing.TransparencyLog
	// TrustedRoot returns the trusted_root.json to judge by and to keep.
	TrustedRoot func(context.Context) ([]byte, error)
}

// NoChecksum is a release file that has no signature and no record elsewhere.
type NoChecksum struct {
	Name, Version, Arch, Published string
}

func (e *NoChecksum) Error() string {
	return fmt.Sprintf("%s %s for %s has no independent checksum: compare the published one, %s, with a record that others keep elsewhere, and add it to matrix/official.yaml", e.Name, e.Version, e.Arch, e.Published)
}

// BadChecksum is a published checksum that can't be read or is not the one that
// is recorded.
type BadChecksum struct {
	URL, Found, Want string
}

func (e *BadChecksum) Error() string {
	return fmt.Sprintf("%s: found %s, expected %s; find out which is right before locking it", e.URL, e.Found, e.Want)
}

// Relock resolves every input again and verifies it. It returns the lock and the
// files to write, by path below the checkout; it writes nothing there itself.
// All findings are reported together. Errors: *NoChecksum, *BadChecksum,
// *signing.Rejection, *store.DigestMismatch, *fetch.NotFound,
// *fetch.Unreachable, *fetch.NoPlatform.
func (s *Supply) Relock(ctx context.Context) (lock.Lock, map[string][]byte, error) {
	fail := func(err error) (lock.Lock, map[string][]byte, error) { return lock.Lock{}, nil, err }
	table, err := s.table()
	if err != nil {
		return fail(err)
	}
	policy, err := s.policy()
	if err != nil {
		return fail(err)
	}
	step := s.Report.Step("read the trusted root")
	trust, err := s.Upstream.TrustedRoot(ctx)
	if err := step.Done(err); err != nil {
		return fail(err)
	}
	verifier, err := (&supply.Inputs{Policy: policy, Trust: trust}).Verifier()
	if err != nil {
		return fail(err)
	}
	verifier.Transport, verifier.Keychain = s.Upstream.Client.RoundTripper(), s.Upstream.Client.Keychain

	var work []func() (lock.Input, error)
	for _, img := range s.images(table) {
		work = append(work, func() (lock.Input, error) { return s.lockImage(ctx, verifier, img) })
	}
	for _, r := range s.releases() {
		work = append(work, func() (lock.Input, error) { return s.lockFile(ctx, verifier, table, r) })
	}
	inputs, findings := make([]lock.Input, len(work)), make([]error, len(work))
	step = s.Report.Step(fmt.Sprintf("resolve and verify %d inputs", len(work)))
	g := new(errgroup.Group)
	g.SetLimit(8)
	for i, do := range work {
		g.Go(func() error {
			inputs[i], findings[i] = do()
			return nil
		})
	}
	_ = g.Wait() // findings are collected, so that all are reported
	if err := step.Done(errors.Join(findings...)); err != nil {
		return fail(err)
	}
	return lock.Lock{
		APIVersion: lock.APIVersion, Supply: supply.Official, Minor: s.Row.Minor.String(), Platform: s.Platform.String(),
		Matrix: lock.MatrixDigest(s.Row, s.Stack), Inputs: inputs,
	}, map[string][]byte{TrustedRootPath: trust}, nil
}

// lockImage asks once what a tag names and verifies that digest.
func (s *Supply) lockImage(ctx context.Context, v *signing.Verifier, want matrix.Image) (in lock.Input, err error) {
	top, err := s.Upstream.Client.Resolve(ctx, want.Reference)
	if err != nil {
		return in, err
	}
	img, err := s.Upstream.Client.ImageManifest(ctx, want.Reference+"@"+top.Digest, s.Platform)
	if err != nil {
		return in, err
	}
	res, err := v.Verify(ctx, signing.Subject{Reference: want.Reference, Repository: img.Repository, Digest: top.Digest, Platform: img.Manifest.Digest})
	if err == nil {
		err = res.Err()
	}
	return lock.Input{Name: want.Name, Kind: lock.Image, Source: want.Reference, Digest: top.Digest, Size: top.Size, Verified: supply.Vouched(res)}, err
}

// lockFile downloads a release by its published checksum and checks that against
// the signature, or against the record in the table.
func (s *Supply) lockFile(ctx context.Context, v *signing.Verifier, table Table, r release) (in lock.Input, err error) {
	b, err := s.Upstream.Client.Small(ctx, r.checksum)
	if err != nil {
		return in, err
	}
	sum, err := published(b, path.Base(r.url))
	if err != nil {
		return in, &BadChecksum{r.checksum, err.Error(), "one"}
	}
	in = lock.Input{Name: r.name, Kind: lock.File, Source: r.url}
	if !r.signed {
		rec, ok := table.record(r, s.Platform.Architecture)
		switch {
		case !ok:
			return in, &NoChecksum{r.name, r.version, s.Platform.Architecture, sum}
		case rec.SHA256 != sum:
			return in, &BadChecksum{r.checksum, sum, rec.SHA256 + " as recorded by " + rec.Source}
		}
		in.Verified = rec.verification()
	}
	d, err := s.Upstream.Client.File(ctx, r.url, store.Descriptor{Digest: "sha256:" + sum})
	if err != nil {
		return in, fmt.Errorf("%s: %w", r.url, err)
	}
	in.Digest, in.Size = d.Digest, d.Size
	if r.signed {
		err = s.lockSignature(ctx, v, &in)
	}
	return in, err
}

// lockSignature verifies a file's detached signature and keeps what proves it.
func (s *Supply) lockSignature(ctx context.Context, v *signing.Verifier, in *lock.Input) error {
	f := supply.File{URL: in.Source, Descriptor: store.Descriptor{Digest: in.Digest, Size: in.Size}}
	for _, side := range []struct {
		ext  string
		into *[]byte
	}{{".sig", &f.Signature}, {".cert", &f.Certificate}} {
		b, err := s.Upstream.Client.Small(ctx, f.URL+side.ext)
		var missing *fetch.NotFound
		if err != nil && !errors.As(err, &missing) {
			return err
		}
		*side.into = bytes.TrimSpace(b)
	}
	if bytes.HasPrefix(f.Certificate, []byte("-----BEGIN")) {
		f.Certificate = base64.StdEncoding.AppendEncode(nil, f.Certificate)
	}
	log := &recorder{log: s.Upstream.Log}
	res, err := v.VerifyBlob(ctx, signing.Blob{Reference: f.Reference(), Digest: f.Digest, Signature: f.Signature, Certificate: f.Certificate}, log)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return err
	}
	// Kept is the first entry that is enough on its own, as builds will see it.
	for _, f.LogEntry = range log.entries {
		if res, err = f.Verify(ctx, v); err != nil || res.Accepted() {
			break
		}
	}
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return err
	}
	entry, err := json.Marshal(f.LogEntry)
	if err != nil {
		return err
	}
	in.Signature, in.Certificate, in.LogEntry = string(f.Signature), string(f.Certificate), base64.StdEncoding.EncodeToString(entry)
	in.Verified = supply.Vouched(res)
	return nil
}

// recorder keeps what a log answered, in the order of the log.
type recorder struct {
	log     signing.TransparencyLog
	entries []signing.LogEntry
}

func (r *recorder) Find(ctx context.Context, digest v1.Hash, sig, certPEM []byte) (found []signing.LogEntry, err error) {
	found, err = r.log.Find(ctx, digest, sig, certPEM)
	slices.SortFunc(found, func(a, b signing.LogEntry) int { return cmp.Compare(a.LogIndex, b.LogIndex) })
	r.entries = found
	return found, err
}
