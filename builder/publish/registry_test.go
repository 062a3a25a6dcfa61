package publish

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// server is a real registry that notes requests; answer may take one over.
type server struct {
	Registry
	mu       sync.Mutex
	requests []string
	answer   func(http.ResponseWriter, *http.Request) bool
}

func serve(t *testing.T, referrers bool) *server {
	t.Helper()
	s := &server{}
	r := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(referrers))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, req.Method+" "+req.URL.Path)
		answer := s.answer
		s.mu.Unlock()
		if answer == nil || !answer(w, req) {
			r.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(srv.Close)
	s.Registry = Registry{
		Repository: strings.TrimPrefix(srv.URL, "http://") + "/example/node",
		Keychain:   authn.NewMultiKeychain(), // anonymous
		Wait:       time.Millisecond,
	}
	return s
}

func (s *server) repo(t *testing.T) name.Repository {
	t.Helper()
	repo, err := name.NewRepository(s.Repository)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// log returns the requests so far.
func (s *server) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// starting returns the requests that start with prefix.
func (s *server) starting(prefix string) []string {
	var found []string
	for _, r := range s.log() {
		if strings.HasPrefix(r, prefix) {
			found = append(found, r)
		}
	}
	return found
}

// sigTag is the tag of the release's signature.
func sigTag(r Release) string { return r.Artifacts[0].Tag }

func TestPushedReleaseIsFoundInTheRegistry(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		s, r := release(t)
		srv := serve(t, referrers)
		if err := srv.Push(t.Context(), s, r, []string{"v1-k8s1.37", "latest"}); err != nil {
			t.Fatal(err)
		}
		for _, tag := range []string{"v1-k8s1.37", "latest"} {
			index, err := remote.Index(srv.repo(t).Tag(tag))
			if err != nil {
				t.Fatal(err)
			}
			if d, err := index.Digest(); err != nil || d.String() != r.Index.Descriptor.Digest {
				t.Errorf("%s is %s, %v", tag, d, err)
			}
			if err := validate.Index(index); err != nil {
				t.Error(err)
			}
		}
		sig, err := remote.Get(srv.repo(t).Tag(sigTag(r)))
		if err != nil || !bytes.Equal(sig.Manifest, r.Artifacts[0].Manifest) {
			t.Errorf("signature is %+v, %v", sig, err)
		}
		found, err := remote.Referrers(srv.repo(t).Digest(r.Index.Descriptor.Digest))
		if err != nil {
			t.Fatal(err)
		}
		m, err := found.IndexManifest()
		if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != store.Digest(r.Artifacts[1].Manifest) {
			t.Errorf("referrers API %v: referrers are %+v, %v", referrers, m, err)
		}
	}
}

func TestTagsMoveLast(t *testing.T) {
	s, r := release(t)
	srv := serve(t, true)
	if err := srv.Push(t.Context(), s, r, []string{"b", "a"}); err != nil {
		t.Fatal(err)
	}
	manifests := "/v2/example/node/manifests/"
	requests := srv.log()
	last := requests[len(requests)-3:]
	want := []string{"PUT " + manifests + sigTag(r), "PUT " + manifests + "b", "PUT " + manifests + "a"}
	if !slices.Equal(last, want) {
		t.Errorf("last requests are %q, expected %q", last, want)
	}
	// Before that, everything was pushed and then read back.
	for _, m := range []string{r.Index.Descriptor.Digest, r.Images[0].Manifest.Descriptor.Digest, store.Digest(r.Artifacts[1].Manifest)} {
		put, get := slices.Index(requests, "PUT "+manifests+m), slices.Index(requests, "GET "+manifests+m)
		if put < 0 || get < put {
			t.Errorf("%s is written by request %d and read by %d", m, put, get)
		}
	}
	for _, image := range r.Images {
		for _, l := range image.Layers {
			// One look before the upload, one after it.
			if heads := srv.starting("HEAD /v2/example/node/blobs/" + l.Descriptor.Digest); len(heads) < 2 {
				t.Errorf("layer %s is looked at %d times", l.Descriptor.Digest, len(heads))
			}
		}
	}
	if index, image := slices.Index(requests, "PUT "+manifests+r.Index.Descriptor.Digest),
		slices.Index(requests, "PUT "+manifests+r.Images[1].Manifest.Descriptor.Digest); index < image {
		t.Error("the index came before an image that it lists")
	}
}

func TestPushingAgainUploadsNothing(t *testing.T) {
	s, r := release(t)
	srv := serve(t, false)
	for i := range 2 {
		srv.requests = nil
		if err := srv.Push(t.Context(), s, r, []string{"latest"}); err != nil {
			t.Fatal(err)
		}
		if uploads := len(srv.starting("PATCH ")); uploads == 0 != (i == 1) {
			t.Errorf("push %d uploads %d blobs", i, uploads)
		}
	}
	tag := srv.repo(t).Tag(strings.Replace(r.Index.Descriptor.Digest, ":", "-", 1))
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := index.IndexManifest(); err != nil || len(m.Manifests) != 1 {
		t.Errorf("referrers tag lists %+v, %v", m, err)
	}
}

// tagged tells which tags the registry was asked to set.
func (s *server) tagged() []string {
	var tags []string
	for _, r := range s.starting("PUT /v2/example/node/manifests/") {
		if !strings.Contains(r, "sha256:") {
			tags = append(tags, r)
		}
	}
	return tags
}

func status(code int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func TestFailedPushMovesNoTag(t *testing.T) {
	unreachable := func(err error) bool { var u *Unreachable; return errors.As(err, &u) }
	says := func(want string) func(error) bool {
		return func(err error) bool {
			return err != nil && !unreachable(err) && strings.Contains(err.Error(), want)
		}
	}
	mismatch := func(err error) bool { var m *store.DigestMismatch; return errors.As(err, &m) && !unreachable(err) }
	for name, c := range map[string]struct {
		request string // prefix of the one that is taken over
		answer  func(http.ResponseWriter)
		spoil   func(*store.Store, Release)
		want    func(error) bool
	}{
		"busy":         {request: "POST /v2/", answer: status(http.StatusServiceUnavailable, ""), want: unreachable},
		"too many":     {request: "PUT /v2/", answer: status(http.StatusTooManyRequests, ""), want: unreachable},
		"broken":       {request: "PUT /v2/", answer: status(http.StatusNotImplemented, `{"errors":[{"code":"UNSUPPORTED"}]}`), want: unreachable},
		"cut off":      {request: "GET /v2/", answer: func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, want: unreachable},
		"not allowed":  {request: "POST /v2/", answer: status(http.StatusForbidden, ""), want: says("log in to the registry")},
		"refused":      {request: "PUT /v2/", answer: status(http.StatusBadRequest, ""), want: says("400")},
		"another size": {request: "HEAD /v2/example/node/blobs/", answer: func(w http.ResponseWriter) { w.Header().Set("Content-Length", "7") }, want: says("registry has 7 bytes")},
		"another manifest": {request: "GET /v2/example/node/manifests/", answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			io.WriteString(w, "{}")
		}, want: says("read back manifest")},
		"layer changed in the store": {spoil: func(s *store.Store, r Release) {
			d := r.Images[0].Layers[0].Descriptor
			p, _ := s.Path(d.Digest)
			os.WriteFile(p, make([]byte, d.Size), 0o644)
		}, want: mismatch},
	} {
		s, r := release(t)
		srv := serve(t, true)
		if c.answer != nil {
			srv.answer = func(w http.ResponseWriter, req *http.Request) bool {
				hit := strings.HasPrefix(req.Method+" "+req.URL.Path, c.request)
				if hit {
					c.answer(w)
				}
				return hit
			}
		} else {
			c.spoil(s, r)
		}
		if err := srv.Push(t.Context(), s, r, []string{"latest"}); !c.want(err) {
			t.Errorf("%s: got %v", name, err)
		}
		if tags := srv.tagged(); len(tags) > 0 {
			t.Errorf("%s: set %q", name, tags)
		}
		if len(srv.log()) > 200 {
			t.Errorf("%s: made %d requests", name, len(srv.log()))
		}
	}
}

func TestPassingFaultsAreRetried(t *testing.T) {
	s, r := release(t)
	srv := serve(t, true)
	refused := map[string]bool{}
	srv.answer = func(w http.ResponseWriter, req *http.Request) bool {
		srv.mu.Lock()
		defer srv.mu.Unlock()
		key := req.Method + " " + req.URL.Path
		if refused[key] || strings.Contains(key, "/uploads/") && req.Method != http.MethodPost { // each try has its own
			return false
		}
		refused[key] = true
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	if err := srv.Push(t.Context(), s, r, []string{"latest"}); err != nil {
		t.Fatal(err)
	}
	if len(refused) < 10 {
		t.Errorf("only %d requests were refused", len(refused))
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s, r := release(t)
	srv := serve(t, true)
	srv.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	if err := srv.Push(ctx, s, r, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if n := len(srv.log()); n > 4 { // one for each blob that is under way
		t.Errorf("asked %d times", n)
	}
}

func TestRegistryThatIsNotThere(t *testing.T) {
	s, r := release(t)
	srv := httptest.NewServer(nil)
	srv.Close()
	g := Registry{Repository: strings.TrimPrefix(srv.URL, "http://") + "/node", Keychain: authn.NewMultiKeychain(), Wait: time.Millisecond}
	err := g.Push(t.Context(), s, r, nil)
	var u *Unreachable
	if !errors.As(err, &u) || !strings.Contains(err.Error(), g.Repository) {
		t.Errorf("got %v", err)
	}
}

func TestCancelledPushIsNotUnreachable(t *testing.T) {
	s, r := release(t)
	srv := serve(t, true)
	ctx, cancel := context.WithCancel(t.Context())
	srv.answer = func(http.ResponseWriter, *http.Request) bool { cancel(); return false }
	err := srv.Push(ctx, s, r, []string{"latest"})
	var u *Unreachable
	if !errors.Is(err, context.Canceled) || errors.As(err, &u) {
		t.Errorf("got %v", err)
	}
	if tags := srv.tagged(); len(tags) > 0 {
		t.Errorf("set %q", tags)
	}
}

func TestNamesAreCheckedBeforeAnythingIsSent(t *testing.T) {
	s, r := release(t)
	srv := serve(t, true)
	err := srv.Push(t.Context(), s, r, []string{"good", "", "no tag", "sha256:x"})
	for _, want := range []string{`""`, `"no tag"`, `"sha256:x"`} {
		if err == nil || !strings.Contains(err.Error(), want+" is not a tag") {
			t.Errorf("got %v, expected %s", err, want)
		}
	}
	srv.Repository = "node"
	if err := srv.Push(t.Context(), s, r, nil); err == nil {
		t.Error("a repository without a registry was accepted")
	}
	if len(srv.log()) > 0 {
		t.Errorf("sent %q", srv.log())
	}
}
