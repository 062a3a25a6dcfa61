package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Registry is where to push.
type Registry struct {
	Repository string            // "ghcr.io/example/node"; loopback addresses are spoken to without TLS
	Keychain   authn.Keychain    // nil means the user's Docker credentials
	Transport  http.RoundTripper // nil means the default one
	Wait       time.Duration     // before the first of three retries, then three times the last; 0 means 1 s
}

// Unreachable reports a registry that did not answer, or answered only that it
// can't now: trying again later may help.
type Unreachable struct {
	Repository string
	Err        error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("registry of %s does not serve requests: %v; try again later", e.Repository, e.Err)
}

func (e *Unreachable) Unwrap() error { return e.Err }

// Push uploads the release: blobs that the registry does not have, manifests and
// artifacts by digest. It then reads back what it pushed, and only when all is
// there as it should be sets the artifacts' tags and last, in their order, the
// given tags. Pushing again changes nothing. Where the registry has no referrers
// API, referrers are added to the index under the referrers tag.
// Errors: *Unreachable, *store.DigestMismatch for content that is not the
// promised one in the store or when read back.
func (g Registry) Push(ctx context.Context, s *store.Store, r Release, tags []string) error {
	p, err := r.plan()
	if err != nil {
		return fmt.Errorf("push to %s:\n%w", g.Repository, err)
	}
	repo, err := name.NewRepository(g.Repository, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	var findings []error
	for _, tag := range tags {
		if _, err := name.NewTag(repo.Name() + ":" + tag); err != nil || tag == "" {
			findings = append(findings, fmt.Errorf("push to %s: %q is not a tag", repo, tag))
		}
	}
	if err := errors.Join(findings...); err != nil {
		return err
	}
	c, err := g.connect(repo)
	if err != nil {
		return fmt.Errorf("push to %s: %w", repo, err)
	}
	if err := c.push(ctx, s, p, tags); err != nil {
		return g.explain(ctx, err)
	}
	return nil
}

// explain tells an absent registry from a refusal.
func (g Registry) explain(ctx context.Context, err error) error {
	var (
		mismatch *store.DigestMismatch
		status   *transport.Error
		network  *url.Error
	)
	answered := errors.As(err, &status)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("push to %s: %w", g.Repository, context.Cause(ctx))
	case errors.As(err, &mismatch):
	case answered && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		return fmt.Errorf("push to %s: %w; log in to the registry with an account that may push", g.Repository, err)
	case answered && (status.Temporary() || status.StatusCode >= 500), !answered && errors.As(err, &network):
		return &Unreachable{g.Repository, err}
	}
	return fmt.Errorf("push to %s: %w", g.Repository, err)
}

// client is a session with one repository.
type client struct {
	repo   name.Repository
	pusher *remote.Pusher
	puller *remote.Puller
}

func (g Registry) connect(repo name.Repository) (client, error) {
	c := client{repo: repo}
	keychain, rt, wait := g.Keychain, g.Transport, g.Wait
	if keychain == nil {
		keychain = authn.DefaultKeychain
	}
	if rt == nil {
		t := remote.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = time.Minute
		rt = t
	}
	if wait == 0 {
		wait = time.Second
	}
	options := []remote.Option{
		remote.WithAuthFromKeychain(keychain),
		remote.WithTransport(patient{rt}),
		remote.WithRetryBackoff(remote.Backoff{Duration: wait, Factor: 3, Jitter: 0.1, Steps: 4}),
	}
	var errs [2]error
	c.pusher, errs[0] = remote.NewPusher(options...)
	c.puller, errs[1] = remote.NewPuller(options...)
	return c, errors.Join(errs[:]...)
}

func (c client) push(ctx context.Context, s *store.Store, p plan, tags []string) error {
	all := slices.Concat(p.images, []manifest{p.index}, p.artifacts)
	if err := each(ctx, p.blobs, func(ctx context.Context, b blob) error { return c.upload(ctx, s, b) }); err != nil {
		return err
	}
	for _, m := range all { // an index after what it lists, a referrer after its subject
		if err := c.put(ctx, c.repo.Digest(m.Digest), m); err != nil {
			return err
		}
	}

	if err := each(ctx, p.blobs, c.checkBlob); err != nil {
		return err
	}
	if err := each(ctx, all, c.checkManifest); err != nil {
		return err
	}

	for i, m := range p.artifacts {
		if p.tags[i] == "" {
			continue
		}
		if err := c.put(ctx, c.repo.Tag(p.tags[i]), m); err != nil {
			return err
		}
	}
	for _, tag := range tags {
		if err := c.put(ctx, c.repo.Tag(tag), p.index); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for all items, four at a time, until one fails.
func each[T any](ctx context.Context, items []T, f func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, item := range items {
		g.Go(func() error { return f(ctx, item) })
	}
	return g.Wait()
}

// bounded gives a request for size bytes, with its retries, a deadline that
// only a connection below 64 KiB/s misses.
func bounded(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 5*time.Minute+time.Duration(size>>16)*time.Second)
}

func (c client) upload(ctx context.Context, s *store.Store, b blob) error {
	ctx, cancel := bounded(ctx, b.Size)
	defer cancel()
	h, err := v1.NewHash(b.Digest)
	if err != nil {
		return err
	}
	if err := c.pusher.Upload(ctx, c.repo, layer{s, b, h}); err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	return nil
}

func (c client) put(ctx context.Context, ref name.Reference, m manifest) error {
	ctx, cancel := bounded(ctx, m.Size)
	defer cancel()
	if err := c.pusher.Put(ctx, ref, taggable{m}); err != nil {
		return fmt.Errorf("manifest %s: %w", ref.Identifier(), err)
	}
	return nil
}

func (c client) checkBlob(ctx context.Context, b blob) error {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	l, err := c.puller.Layer(ctx, c.repo.Digest(b.Digest))
	if err != nil {
		return err
	}
	size, err := l.Size()
	if err != nil {
		return fmt.Errorf("read back blob %s: %w", b.Digest, err)
	}
	if size != b.Size {
		return fmt.Errorf("read back blob %s: registry has %d bytes, expected %d", b.Digest, size, b.Size)
	}
	return nil
}

func (c client) checkManifest(ctx context.Context, m manifest) error {
	ctx, cancel := bounded(ctx, m.Size)
	defer cancel()
	d, err := c.puller.Get(ctx, c.repo.Digest(m.Digest))
	if err != nil {
		return fmt.Errorf("read back manifest %s: %w", m.Digest, err)
	}
	if !bytes.Equal(d.Manifest, m.data) || string(d.MediaType) != m.MediaType {
		return fmt.Errorf("read back manifest %s of type %s: %w", m.Digest, d.MediaType,
			&store.DigestMismatch{Want: m.Descriptor, Got: describe("", d.Manifest).Descriptor})
	}
	return nil
}

// layer is a blob as the registry library wants it.
type layer struct {
	s *store.Store
	b blob
	h v1.Hash
}

func (l layer) Digest() (v1.Hash, error)             { return l.h, nil }
func (l layer) Size() (int64, error)                 { return l.b.Size, nil }
func (l layer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l layer) DiffID() (v1.Hash, error)             { return v1.Hash{}, errors.ErrUnsupported }
func (l layer) Uncompressed() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
func (l layer) Compressed() (io.ReadCloser, error) {
	if l.b.data != nil {
		return io.NopCloser(bytes.NewReader(l.b.data)), nil
	}
	return l.s.OpenVerified(l.b.Descriptor)
}

// taggable is a manifest as the registry library wants it.
type taggable struct{ m manifest }

func (t taggable) RawManifest() ([]byte, error)        { return t.m.data, nil }
func (t taggable) MediaType() (types.MediaType, error) { return types.MediaType(t.m.MediaType), nil }

// patient waits as long as a registry asks for in Retry-After (RFC 9110
// §10.2.3), up to a minute, before its refusal is passed on and tried again.
type patient struct{ next http.RoundTripper }

func (t patient) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return resp, err
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return resp, nil
	}
	timer := time.NewTimer(time.Duration(min(seconds, 60)) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return resp, nil
	case <-req.Context().Done():
		return nil, errors.Join(req.Context().Err(), resp.Body.Close())
	}
}
