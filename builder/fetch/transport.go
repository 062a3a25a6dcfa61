package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// errSilent is why a request to a silent server is cancelled.
var errSilent = errors.New("the server went silent")

// router is the lowest layer. It sends a request to the server that answers
// for its host, ends a GET or HEAD whose server has gone silent, and returns as
// *failure what is the network's or the server's passing fault, so that the
// layers above see the same error wherever in a handshake or body it happened.
type router struct {
	next    http.RoundTripper
	routes  map[string]string
	silence time.Duration
}

func newRouter(next http.RoundTripper, routes map[string]string, silence time.Duration) *router {
	if next == nil {
		next = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			ForceAttemptHTTP2:   true,
			TLSHandshakeTimeout: 15 * time.Second,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConnsPerHost: 2 * runtime.NumCPU(),
			DisableCompression:  true, // digests are of the bytes as stored
		}
	}
	return &router{next: next, routes: routes, silence: silence}
}

func (r *router) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	if base, ok := r.routes[req.URL.Host]; ok {
		u, err := url.Parse(base)
		if err != nil {
			cancel(nil)
			return nil, fmt.Errorf("route for %s: %w", req.URL.Host, err)
		}
		if out.Host == "" {
			out.Host = req.URL.Host
		}
		out.URL.Scheme, out.URL.Host = u.Scheme, u.Host
	}
	b := &body{ctx: ctx, cancel: cancel, silence: r.silence}
	if !repeatable(req) {
		b.silence = 0 // an upload may take long to be sent
	}
	b.listen()
	resp, err := r.next.RoundTrip(out)
	b.heard()
	if err != nil {
		defer cancel(nil)
		return nil, b.failure(err)
	}
	b.ReadCloser, resp.Body = resp.Body, b
	resp.Request = req
	if repeatable(req) && retryable(resp.StatusCode) {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
		_ = resp.Body.Close()
		return nil, answered(resp, false)
	}
	return resp, nil
}

// body is a response body that fails when the server is silent for too long.
// The clock only runs while a byte is waited for.
type body struct {
	io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	silence time.Duration
	clock   *time.Timer
}

func (b *body) listen() {
	switch {
	case b.silence == 0:
	case b.clock == nil:
		b.clock = time.AfterFunc(b.silence, func() { b.cancel(errSilent) })
	default:
		b.clock.Reset(b.silence)
	}
}

func (b *body) heard() {
	if b.clock != nil {
		b.clock.Stop()
	}
}

func (b *body) failure(err error) *failure {
	if errors.Is(context.Cause(b.ctx), errSilent) {
		err = fmt.Errorf("%w for %s", errSilent, b.silence)
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return &failure{err: err, final: untrusted}
}

func (b *body) Read(p []byte) (int, error) {
	b.listen()
	n, err := b.ReadCloser.Read(p)
	b.heard()
	if err != nil && err != io.EOF { //nolint:errorlint // an EOF that is wrapped is not the end
		err = b.failure(err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// retrier repeats GET and HEAD requests.
type retrier struct {
	next  http.RoundTripper
	retry Retry
}

func (t *retrier) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	if !repeatable(req) {
		return t.next.RoundTrip(req)
	}
	u := url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Path: req.URL.Path} // the query may hold a secret
	err = t.retry.do(req.Context(), u.String(), func() (err error) {
		resp, err = t.next.RoundTrip(req)
		return err
	})
	return resp, err
}

func repeatable(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// checkRedirect allows ten redirects, to any host, but not from TLS to clear
// text: side files have no digest to betray a change on the way.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" && !loopback(req.URL.Hostname()) {
		return fmt.Errorf("refused a redirect from https to %s://%s", req.URL.Scheme, req.URL.Host)
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// answered describes a response with an unwanted status.
func answered(resp *http.Response, final bool) *failure {
	return &failure{
		status: resp.StatusCode,
		after:  retryAfter(resp.Header),
		final:  final,
		err:    fmt.Errorf("%s answered %s", resp.Request.URL.Host, resp.Status),
	}
}

// asFailure takes what went wrong out of the wrappings of the HTTP client and
// of the registry handshake. What the router didn't report is no passing fault.
func asFailure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{err: err, final: true}
	if e, ok := errors.AsType[*url.Error](err); ok {
		f.err = e.Err // without the URL, whose query may hold a secret
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		f.status, f.final = e.StatusCode, !retryable(e.StatusCode)
	}
	return f
}
