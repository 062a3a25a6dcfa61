package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/test/standin"
)

const (
	k8s  = "registry.k8s.io"
	etcd = k8s + "/etcd:3.6.6-0"
)

var amd64 = Platform{OS: "linux", Architecture: "amd64"}

// waits is a Sleep that notes what it was asked for and returns at once.
type waits struct {
	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, d)
	return ctx.Err()
}

func newClient(t *testing.T, routes map[string]string) (*Client, *waits) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &waits{}
	return &Client{Store: s, Routes: routes, Retry: Retry{Sleep: w.sleep}}, w
}

// blobs returns the digests in the store, after checking that each is whole
// and that no temporary file is left.
func blobs(t *testing.T, c *Client) []string {
	t.Helper()
	if tmp, err := os.ReadDir(filepath.Join(c.Store.Dir(), "tmp")); err != nil || len(tmp) > 0 {
		t.Errorf("temporary files are left: %v %v", tmp, err)
	}
	entries, err := os.ReadDir(filepath.Join(c.Store.Dir(), "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(c.Store.Dir(), "blobs", "sha256", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != e.Name() {
			t.Errorf("blob %s holds other bytes", e.Name())
		}
		digests = append(digests, "sha256:"+e.Name())
	}
	return digests
}

// describe returns the descriptor of b and stores nothing.
func describe(b []byte) store.Descriptor {
	return store.Descriptor{Digest: store.Digest(b), Size: int64(len(b))}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const fileURL = "https://dl.k8s.io/release/v1.37.2/bin/linux/amd64/kubeadm"

func webClient(t *testing.T, content []byte) (*standin.Web, *Client, *waits) {
	t.Helper()
	web := standin.NewWeb(t)
	web.Put(fileURL, content)
	c, w := newClient(t, web.Routes("dl.k8s.io"))
	return web, c, w
}

func TestTagThatMovesIsAskedForOnce(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	a, b := standin.Image(t, "linux/amd64", 2), standin.Image(t, "linux/amd64", 2)
	pinned := reg.Push(etcd, a)
	reg.MoveTag(etcd, b)
	c, _ := newClient(t, reg.Routes(k8s))

	got, err := c.Resolve(t.Context(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	if etcd+"@"+got.Digest != pinned || got.Size != must(a.Size()) || got.MediaType != string(must(a.MediaType())) {
		t.Fatalf("resolved to %+v, expected %s", got, pinned)
	}
	img, err := c.Image(t.Context(), etcd+"@"+got.Digest, amd64)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(img.TopBytes, must(a.RawManifest())) {
		t.Error("the image is not the one that was resolved")
	}
	if n := reg.Count("", "/manifests/3.6.6-0"); n != 1 {
		t.Errorf("%d requests by tag, expected 1", n)
	}
	if slices.Contains(blobs(t, c), must(b.Digest()).String()) {
		t.Error("what the tag moved to is in the store")
	}
	// The tag did move: a second look-up would have gone wrong.
	if got, err := c.Resolve(t.Context(), etcd); err != nil || got.Digest != must(b.Digest()).String() {
		t.Errorf("second look-up: %+v %v", got, err)
	}
}

func TestFileWaitsAsLongAsARateLimitAsks(t *testing.T) {
	content := pattern(1000)
	for _, tt := range []struct {
		name   string
		header map[string]string
		want   time.Duration
	}{
		{"seconds", map[string]string{"Retry-After": "20"}, 20 * time.Second},
		{"date", map[string]string{"Date": "Mon, 30 Nov 2026 10:00:00 GMT", "Retry-After": "Mon, 30 Nov 2026 10:00:25 GMT"}, 25 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			web, c, w := webClient(t, content)
			web.Fail(standin.Fault{Path: "kubeadm", Times: 1, Status: 429, Header: tt.header})
			got, err := c.File(t.Context(), fileURL, describe(content))
			if err != nil || got != describe(content) {
				t.Fatalf("got %v, %v", got, err)
			}
			if !reflect.DeepEqual(w.all, []time.Duration{tt.want}) {
				t.Errorf("waited %v, expected %v", w.all, tt.want)
			}
			blobs(t, c)
		})
	}
}

func TestWaitBeyondTheBudgetIsNotBegun(t *testing.T) {
	web, c, w := webClient(t, pattern(10))
	web.Fail(standin.Fault{Status: 429, Header: map[string]string{"Retry-After": "3600"}})
	_, err := c.File(t.Context(), fileURL, describe(pattern(10)))
	gone, ok := errors.AsType[*Unreachable](err)
	if !ok || gone.Status != 429 || gone.Attempts != 1 || len(w.all) != 0 {
		t.Errorf("got %v after waits %v, expected to give up at once", err, w.all)
	}
}

func TestPassingFaultsAreOvercome(t *testing.T) {
	content := pattern(1000)
	for name, f := range map[string]standin.Fault{
		"cut off":      {Times: 2, Cut: 300},
		"reset":        {Times: 2, Drop: true},
		"408":          {Times: 2, Status: 408},
		"500":          {Times: 2, Status: 500},
		"wrong once":   {Times: 1, Flip: true},
		"longer once":  {Times: 1, Append: 1},
		"silent":       {Times: 1, Hang: true},
		"silent later": {Times: 1, Hang: true, Cut: 300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int64{1000, 0} {
				web, c, _ := webClient(t, content)
				if f.Hang {
					c.Retry.Silence = 200 * time.Millisecond
				}
				web.Fail(f)
				got, err := c.File(t.Context(), fileURL, store.Descriptor{Digest: store.Digest(content), Size: size})
				if err != nil || got != describe(content) {
					t.Fatalf("size %d: got %v, %v", size, got, err)
				}
				// A slow machine may seem silent once more.
				if n := web.Count("GET", "kubeadm"); n < f.Times+1 || n > f.Times+1 && !f.Hang {
					t.Errorf("size %d: %d requests, expected %d", size, n, f.Times+1)
				}
				if got := blobs(t, c); !slices.Equal(got, []string{store.Digest(content)}) {
					t.Errorf("size %d: store holds %v", size, got)
				}
			}
		})
	}
}

func TestDownloadThatWasCutIsContinued(t *testing.T) {
	content := pattern(1000)
	web, c, _ := webClient(t, content)
	web.Fail(standin.Fault{Times: 2, Cut: 300})
	if _, err := c.File(t.Context(), fileURL, describe(content)); err != nil {
		t.Fatal(err)
	}
	var ranges []string
	for _, r := range web.Requests() {
		ranges = append(ranges, r.Header.Get("Range"))
	}
	if want := []string{"", "bytes=300-999", "bytes=600-999"}; !slices.Equal(ranges, want) {
		t.Errorf("asked for ranges %q, expected %q", ranges, want)
	}
}

func TestDownloadRestartsWhereTheServerCannotContinue(t *testing.T) {
	content := pattern(1000)
	for name, f := range map[string]standin.Fault{
		"no such range":   {Times: 1, Status: 416},
		"another partial": {Times: 1, Status: 206},
		"not allowed":     {Times: 1, Status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			web, c, _ := webClient(t, content)
			web.Fail(standin.Fault{Times: 1, Cut: 300})
			web.Fail(f)
			if got, err := c.File(t.Context(), fileURL, describe(content)); err != nil || got != describe(content) {
				t.Fatalf("got %v, %v", got, err)
			}
			if last := web.Requests()[2]; last.Header.Get("Range") != "" {
				t.Errorf("the third request still asks for %q", last.Header.Get("Range"))
			}
			blobs(t, c)
		})
	}
}

func TestServerThatStaysDownIsGivenUp(t *testing.T) {
	web, c, w := webClient(t, pattern(10))
	web.Fail(standin.Fault{Status: 503})
	_, err := c.File(t.Context(), fileURL, describe(pattern(10)))
	gone, ok := errors.AsType[*Unreachable](err)
	if !ok || gone.URL != fileURL || gone.Status != 503 || gone.Attempts != 5 {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{fileURL, "dl.k8s.io answered 503 Service Unavailable"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	if n := web.Count("", ""); n != 5 || len(w.all) != 4 {
		t.Errorf("%d requests and waits %v", n, w.all)
	}
	if got := blobs(t, c); len(got) > 0 {
		t.Errorf("store holds %v", got)
	}
}

func TestWrongBytesAreTriedTwiceAtMost(t *testing.T) {
	content := pattern(1000)
	for name, f := range map[string]standin.Fault{"one byte changed": {Flip: true}, "longer": {Append: 5000}} {
		t.Run(name, func(t *testing.T) {
			web, c, _ := webClient(t, content)
			web.Fail(f)
			_, err := c.File(t.Context(), fileURL, describe(content))
			wrong, ok := errors.AsType[*store.DigestMismatch](err)
			if !ok || wrong.Want != describe(content) || !strings.Contains(err.Error(), fileURL) {
				t.Fatalf("got %v", err)
			}
			if wrong.Got.Size > 1001 {
				t.Errorf("%d bytes were read of 1000", wrong.Got.Size)
			}
			if n := web.Count("", ""); n != 2 {
				t.Errorf("%d requests, expected 2", n)
			}
			if got := blobs(t, c); len(got) > 0 {
				t.Errorf("store holds %v", got)
			}
		})
	}
}

func TestFileOfAnotherSizeThanSaid(t *testing.T) {
	content := pattern(1000)
	for _, size := range []int64{999, 1001} {
		_, c, _ := webClient(t, content)
		_, err := c.File(t.Context(), fileURL, store.Descriptor{Digest: store.Digest(content), Size: size})
		if _, ok := errors.AsType[*store.DigestMismatch](err); !ok {
			t.Errorf("size %d: got %v", size, err)
		}
		if got := blobs(t, c); len(got) > 0 {
			t.Errorf("size %d: store holds %v", size, got)
		}
	}
}

func TestFileThatIsThereIsNotFetched(t *testing.T) {
	content := pattern(1000)
	web, c, _ := webClient(t, content)
	if _, err := c.Store.PutBytes(content); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1000} {
		got, err := c.File(t.Context(), fileURL, store.Descriptor{Digest: store.Digest(content), Size: size})
		if err != nil || got != describe(content) {
			t.Errorf("size %d: got %v, %v", size, got, err)
		}
	}
	if n := web.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestFileNeedsADigest(t *testing.T) {
	web, c, _ := webClient(t, pattern(10))
	for _, digest := range []string{"", "sha256:abc", "sha512:" + strings.Repeat("a", 128), "sha256:../../etc/passwd"} {
		if _, err := c.File(t.Context(), fileURL, store.Descriptor{Digest: digest}); err == nil {
			t.Errorf("digest %q was accepted", digest)
		}
	}
	if n := web.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestFinalAnswersAreNotRepeated(t *testing.T) {
	web, c, _ := webClient(t, pattern(10))
	_, err := c.File(t.Context(), fileURL+".missing", describe(pattern(10)))
	if missing, ok := errors.AsType[*NotFound](err); !ok || missing.URL != fileURL+".missing" {
		t.Errorf("got %v", err)
	}
	web.Fail(standin.Fault{Status: 403})
	_, err = c.File(t.Context(), fileURL, describe(pattern(10)))
	if gone, ok := errors.AsType[*Unreachable](err); !ok || gone.Status != 403 || gone.Attempts != 1 {
		t.Errorf("got %v", err)
	}
	if n := web.Count("", ""); n != 2 {
		t.Errorf("%d requests, expected 2", n)
	}
}

func TestRefusedConnectionIsUnreachable(t *testing.T) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	_ = l.Close() // nothing answers here any more
	c, w := newClient(t, map[string]string{"dl.k8s.io": "http://" + l.Addr().String()})
	_, err := c.Small(t.Context(), fileURL)
	if gone, ok := errors.AsType[*Unreachable](err); !ok || gone.Status != 0 || gone.Attempts != 5 || len(w.all) != 4 {
		t.Errorf("got %v after waits %v", err, w.all)
	}
}

func TestUntrustedCertificateIsNotTriedAgain(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	c, w := newClient(t, map[string]string{"dl.k8s.io": srv.URL})
	_, err := c.Small(t.Context(), fileURL)
	if gone, ok := errors.AsType[*Unreachable](err); !ok || gone.Attempts != 1 || len(w.all) != 0 || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v after waits %v", err, w.all)
	}
}

func TestCancelEndsAWait(t *testing.T) {
	web, c, _ := webClient(t, pattern(10))
	ctx, cancel := context.WithCancel(t.Context())
	c.Retry.Sleep = nil // wait for real: the hour below would outlast the test
	c.Retry.Budget = 2 * time.Hour
	web.Fail(standin.Fault{Status: 429, Header: map[string]string{"Retry-After": "3600"}, Then: cancel})
	if _, err := c.File(ctx, fileURL, describe(pattern(10))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	blobs(t, c)
}

func TestCredentialsThatCannotBeReadStopBeforeAnyRequest(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	ref := reg.Push(etcd, standin.Image(t, "linux/amd64", 1))
	c, _ := newClient(t, reg.Routes(k8s))
	c.Keychain = brokenKeychain{}
	if _, err := c.Image(t.Context(), ref, amd64); err == nil || !strings.Contains(err.Error(), "credentials for registry.k8s.io/etcd: no helper") {
		t.Errorf("got %v", err)
	}
	if n := reg.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

type brokenKeychain struct{}

func (brokenKeychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return nil, errors.New("no helper")
}

func TestBrokenStoreIsNotTheServersFault(t *testing.T) {
	web, c, _ := webClient(t, pattern(10))
	if err := os.Remove(filepath.Join(c.Store.Dir(), "tmp")); err != nil {
		t.Fatal(err)
	}
	_, err := c.File(t.Context(), fileURL, describe(pattern(10)))
	if _, ok := errors.AsType[*Unreachable](err); ok || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if n := web.Count("", ""); n != 1 {
		t.Errorf("%d requests, expected 1", n)
	}
}

func TestCancelledDownloadLeavesNothing(t *testing.T) {
	content := pattern(1000)
	for name, f := range map[string]standin.Fault{"before the answer": {Hang: true}, "in the body": {Hang: true, Cut: 600}} {
		t.Run(name, func(t *testing.T) {
			web, c, w := webClient(t, content)
			web.Fail(f)
			ctx, cancel := context.WithCancel(t.Context())
			if f.Cut > 0 {
				c.Progress = func(_ string, done, _ int64) { cancel() }
			} else {
				c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					cancel()
					return http.DefaultTransport.RoundTrip(r)
				})
			}
			_, err := c.File(ctx, fileURL, describe(content))
			if _, ok := errors.AsType[*Unreachable](err); ok || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if got := blobs(t, c); len(got) > 0 || len(w.all) > 0 {
				t.Errorf("store holds %v after waits %v", got, w.all)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestSmallFileIsReadThroughRedirectsUpToItsLimit(t *testing.T) {
	web, cdn := standin.NewWeb(t), standin.NewWeb(t)
	const from, to = "https://github.com/cri-tools/releases/crictl.sha256", "https://objects.example/crictl.sha256"
	web.Redirect(from, to)
	cdn.Put(to, []byte("abc  crictl\n"))
	web.Put("https://github.com/long", make([]byte, maxSmall+1))
	web.Put("https://github.com/full", make([]byte, maxSmall))
	web.Redirect("https://github.com/plain", "http://objects.example/crictl.sha256")
	web.Redirect("https://github.com/loop", "https://github.com/loop")
	c, _ := newClient(t, web.Routes("github.com"))
	c.Routes["objects.example"] = cdn.URL

	if b, err := c.Small(t.Context(), from); err != nil || string(b) != "abc  crictl\n" {
		t.Errorf("got %q, %v", b, err)
	}
	if b, err := c.Small(t.Context(), "https://github.com/full"); err != nil || len(b) != maxSmall {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
	for url, want := range map[string]string{
		"https://github.com/long":  "longer than 1048576 bytes",
		"https://github.com/plain": "redirect from https to http://objects.example",
		"https://github.com/loop":  "10 redirects",
	} {
		if b, err := c.Small(t.Context(), url); err == nil || b != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %d bytes, %v", url, len(b), err)
		}
	}
}

func TestProgressCountsUpToTheTotal(t *testing.T) {
	content := pattern(100_000)
	_, c, _ := webClient(t, content)
	var names []string
	var last, total int64
	c.Progress = func(name string, done, of int64) { names, last, total = append(names, name), done, of }
	if _, err := c.File(t.Context(), fileURL, describe(content)); err != nil {
		t.Fatal(err)
	}
	if last != 100_000 || total != 100_000 || names[0] != "kubeadm" {
		t.Errorf("progress %v %d/%d", names, last, total)
	}
}

func TestRoundTripperRoutesAndRepeatsForRegistryClients(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{Token: true})
	img := standin.Image(t, "linux/amd64", 1)
	ref := must(name.NewDigest(reg.Push(etcd, img)))
	reg.Fail(standin.Fault{Path: "/token", Times: 1, Status: 429, Header: map[string]string{"Retry-After": "3"}})
	reg.Fail(standin.Fault{Path: "/manifests/", Times: 1, Status: 503, Header: map[string]string{"Retry-After": "4"}})
	c, w := newClient(t, reg.Routes(k8s))
	get := func() (*remote.Descriptor, error) {
		return remote.Get(ref, remote.WithTransport(c.RoundTripper()), remote.WithContext(t.Context()))
	}
	if d, err := get(); err != nil || d.Digest != must(img.Digest()) {
		t.Fatalf("got %v, %v", d, err)
	}
	if !slices.Equal(w.all, []time.Duration{3 * time.Second, 4 * time.Second}) {
		t.Errorf("waited %v", w.all)
	}
	for status, f := range map[int]standin.Fault{503: {Status: 503}, 0: {Drop: true}} {
		w.all = nil
		reg.Heal()
		f.Path = "/manifests/"
		reg.Fail(f)
		_, err := get()
		if gone, ok := errors.AsType[*Unreachable](err); !ok || gone.Status != status || gone.Attempts != 5 || len(w.all) != 4 {
			t.Errorf("got %v after %d waits", err, len(w.all))
		}
	}
}

func TestRoundTripperSendsAnUploadOnce(t *testing.T) {
	reg := standin.NewRegistry(t, standin.Options{})
	reg.Fail(standin.Fault{Method: "POST", Status: 503})
	c, w := newClient(t, reg.Routes(k8s))
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://registry.k8s.io/v2/a/blobs/uploads/", strings.NewReader("x")))
	resp, err := c.RoundTripper().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 503 || reg.Count("POST", "") != 1 || len(w.all) != 0 {
		t.Errorf("status %d after %d requests", resp.StatusCode, reg.Count("POST", ""))
	}
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	r := Retry{Base: time.Second, Max: 5 * time.Second}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 40: 5 * time.Second} {
		for range 20 {
			if d := r.backoff(n); d < want/2 || d > want {
				t.Errorf("wait %d is %s, expected %s to %s", n, d, want/2, want)
			}
		}
	}
}
