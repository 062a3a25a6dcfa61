// Package fetch downloads image manifests, image blobs and release files into
// the builder's store.
//
// It takes references that are pinned by digest and URLs whose digest is known,
// and puts nothing into the store under a name its bytes don't have. What the
// store already holds is not asked for again; of that, blobs above 8 MiB are
// not hashed anew, so read them with store.OpenVerified. Every attempt, wait and
// body is bounded, and a download that ends early leaves nothing behind.
//
// Two calls return bytes that no digest vouches for: Resolve, the only one
// that takes a tag, and Small, which reads checksum and signature files.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Limits of what is read into memory or, for a file of unknown size, to disk.
const (
	maxManifest = 8 << 20
	maxConfig   = 8 << 20
	maxSmall    = 1 << 20
	maxFile     = 4 << 30
)

// unknown is the size of a descriptor that only gives a digest.
const unknown = -1

// Client downloads into Store. Only Store is required. A Client is safe for
// concurrent use and must not be copied or changed once used.
type Client struct {
	Store *store.Store
	// Transport sends the requests. The default bounds dialling and the TLS
	// handshake and takes its proxy from the environment.
	Transport http.RoundTripper
	// Keychain gives registry credentials; default authn.DefaultKeychain.
	Keychain authn.Keychain
	// Routes maps the host of a URL to the base URL (scheme and host) of the
	// server that answers for it: {"registry.k8s.io": "http://127.0.0.1:5000"}.
	// References, errors and the Host header keep the canonical name.
	Routes map[string]string
	Retry  Retry
	// Progress, when set, hears of every piece of a blob or file that arrives:
	// a short name, and the bytes so far and in total (-1 when not known). It is
	// called from several goroutines, and done falls when a download restarts.
	Progress func(name string, done, total int64)

	once     sync.Once
	router   *router
	sessions sync.Map // repository name -> *session
	inFlight sync.Map // digest -> chan struct{}
}

// Resolved is what a tag names: the descriptor of a manifest or index, and its
// media type.
type Resolved struct {
	store.Descriptor
	MediaType string
}

// Resolve asks the registry once what the tag of ref (registry/repository:tag)
// names. The digest is taken from the bytes of the answer, not from a header.
// The answer is as trustworthy as the registry: verify the digest before use.
func (c *Client) Resolve(ctx context.Context, ref string) (Resolved, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return Resolved{}, fmt.Errorf("resolve: %w", err)
	}
	b, err := c.read(ctx, c.registrySource(tag.Repository, "manifests", tag.TagStr()), maxManifest)
	if err != nil {
		return Resolved{}, fmt.Errorf("resolve %s: %w", ref, err)
	}
	doc, err := parseDocument(b)
	if err != nil {
		return Resolved{}, fmt.Errorf("resolve %s: %w", ref, err)
	}
	got, err := c.Store.PutBytes(b)
	return Resolved{got, doc.MediaType}, err
}

// File puts the release file at url into the store and returns its descriptor.
// want gives its digest and its size in bytes, 0 when that is not known (then
// at most 4 GiB). Errors: *NotFound, *Unreachable, *store.DigestMismatch.
func (c *Client) File(ctx context.Context, url string, want store.Descriptor) (store.Descriptor, error) {
	limit := want.Size
	if want.Size == 0 {
		want.Size, limit = unknown, maxFile
	}
	return c.ensure(ctx, source{name: path.Base(url), url: url, client: c.web}, want, limit)
}

// Small returns the content of a side file, such as a .sha256, .sig or .cert,
// of at most 1 MiB. Nothing vouches for it but the server.
// Errors: *NotFound, *Unreachable.
func (c *Client) Small(ctx context.Context, url string) ([]byte, error) {
	return c.read(ctx, source{url: url, client: c.web}, maxSmall)
}

// RoundTripper returns a transport for registry clients of other packages. It
// follows Routes and repeats GET and HEAD as Retry says; when that was in vain
// its error is *Unreachable. It adds no credentials and follows no redirects.
func (c *Client) RoundTripper() http.RoundTripper {
	return &retrier{next: c.transport(), retry: c.Retry}
}

// source says where bytes come from.
type source struct {
	name   string // for Progress
	url    string
	accept string // media types, for manifests
	client func(context.Context) (*http.Client, error)
}

// get sends one request, for the bytes from (inclusive) to total when from > 0.
// The status of the response it returns is 200, or 206 for a range.
func (s source) get(ctx context.Context, from, total int64) (*http.Response, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	if s.accept != "" {
		req.Header.Set("Accept", s.accept)
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, total-1))
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, asFailure(err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusPartialContent:
		if from > 0 && resp.Header.Get("Content-Range") == fmt.Sprintf("bytes %d-%d/%d", from, total-1, total) {
			return resp, nil
		}
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, &NotFound{URL: s.url}
	}
	return nil, answered(resp, from == 0)
}

// read returns the whole of a small answer.
func (c *Client) read(ctx context.Context, s source, limit int64) (b []byte, err error) {
	err = c.Retry.do(ctx, s.url, func() error {
		resp, err := s.get(ctx, 0, unknown)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err == nil && int64(len(b)) > limit {
			return &tooLong{limit}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// ensure makes the store hold want. Callers that want the same digest at the
// same time wait for the first of them.
func (c *Client) ensure(ctx context.Context, s source, want store.Descriptor, limit int64) (store.Descriptor, error) {
	p, err := c.Store.Path(want.Digest)
	if err != nil {
		return store.Descriptor{}, fmt.Errorf("%s: %w", s.url, err)
	}
	v, _ := c.inFlight.LoadOrStore(want.Digest, make(chan struct{}, 1))
	turn := v.(chan struct{})
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return store.Descriptor{}, fmt.Errorf("%s: %w", s.url, ctx.Err())
	}
	got := want
	if fi, err := os.Lstat(p); err == nil && want.Size == unknown {
		got.Size = fi.Size()
	}
	if c.holds(got) {
		return got, nil
	}
	return c.download(ctx, s, want, limit)
}

// holds tells whether the store has the blob. A small one is hashed again,
// which mends a damaged manifest; a large one is known by its size, since
// whoever reads it checks it.
func (c *Client) holds(d store.Descriptor) bool {
	if !c.Store.Has(d) {
		return false
	}
	if d.Size > maxManifest {
		return true
	}
	_, err := c.Store.ReadAll(d.Digest, maxManifest)
	return err == nil
}

// download streams s into the store. A body that was cut short is continued
// when the server can do that and the size is known, else restarted.
func (c *Client) download(ctx context.Context, s source, want store.Descriptor, limit int64) (got store.Descriptor, err error) {
	var w *store.Writer
	var n int64
	drop := func() {
		if w != nil {
			w.Abort()
			w, n = nil, 0
		}
	}
	defer drop()
	err = c.Retry.do(ctx, s.url, func() error {
		if n >= want.Size { // nothing is left to ask for, or the size is unknown
			drop()
		}
		resp, err := s.get(ctx, n, want.Size)
		if err != nil {
			if f, ok := errors.AsType[*failure](err); ok && f.status != 0 && !retryable(f.status) {
				drop() // the server can't continue, so begin again
			}
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			drop()
		}
		if w == nil {
			if w, err = c.Store.Writer(); err != nil {
				return err
			}
		}
		// One byte more than is wanted tells a longer body from the right one.
		m, err := io.Copy(w, &progressReader{c: c, s: s, r: io.LimitReader(resp.Body, limit-n+1), done: n, total: want.Size})
		n += m
		if err != nil {
			return err
		}
		expect := want
		if want.Size == unknown {
			if n > limit {
				return &tooLong{limit}
			}
			expect.Size = n
		}
		got, err = w.Commit(expect)
		w, n = nil, 0 // Commit has ended the writer either way
		return err
	})
	return got, err
}

type progressReader struct {
	c           *Client
	s           source
	r           io.Reader
	done, total int64
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.done += int64(n)
	if p.c.Progress != nil && n > 0 {
		p.c.Progress(p.s.name, p.done, p.total)
	}
	return n, err
}

// session is the authenticated client of one repository.
type session struct {
	mu     sync.Mutex
	client *http.Client
}

// registrySource is the URL of a manifest or blob in the distribution API.
func (c *Client) registrySource(repo name.Repository, kind, id string) source {
	s := source{
		name: path.Base(repo.RepositoryStr()) + " " + short(id),
		url:  fmt.Sprintf("%s://%s/v2/%s/%s/%s", repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr(), kind, id),
		client: func(ctx context.Context) (*http.Client, error) {
			return c.session(ctx, repo)
		},
	}
	if kind == "manifests" {
		s.accept = acceptManifests
	}
	return s
}

// session makes the token or basic handshake with the repository's registry,
// once. Credentials go to that registry and its token server only, whatever it
// redirects to.
func (c *Client) session(ctx context.Context, repo name.Repository) (*http.Client, error) {
	v, _ := c.sessions.LoadOrStore(repo.Name(), &session{})
	s := v.(*session)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	keychain := c.Keychain
	if keychain == nil {
		keychain = authn.DefaultKeychain
	}
	auth, err := authn.Resolve(ctx, keychain, repo)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", repo, err)
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, c.transport(), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, asFailure(err)
	}
	s.client = &http.Client{Transport: t, CheckRedirect: checkRedirect}
	return s.client, nil
}

// web is the client for release files: no credentials.
func (c *Client) web(context.Context) (*http.Client, error) {
	return &http.Client{Transport: c.transport(), CheckRedirect: checkRedirect}, nil
}

func (c *Client) transport() *router {
	c.once.Do(func() { c.router = newRouter(c.Transport, c.Routes, c.Retry.withDefaults().Silence) })
	return c.router
}
