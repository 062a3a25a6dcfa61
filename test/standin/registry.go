package standin

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Options says what a registry supports.
type Options struct {
	Referrers bool // the referrers API; without it clients fall back to the referrers tag
	Token     bool // every request needs the token that /token gives to anyone
}

// Token is the bearer token of a registry with Options.Token.
const Token = "stand-in-token"

// Registry is an in-memory registry that speaks the distribution API. The name
// of the registry in a reference is of no effect, so that one serves any.
type Registry struct {
	Server
	t       testing.TB
	backend http.Handler // without faults, records and tokens
}

// NewRegistry starts an empty registry.
func NewRegistry(t testing.TB, o Options) *Registry {
	r := &Registry{t: t, backend: registry.New(
		registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithReferrersSupport(o.Referrers))}
	handler := r.backend
	if o.Token {
		handler = http.HandlerFunc(r.tokens)
	}
	r.start(t, handler)
	return r
}

func (r *Registry) tokens(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/token":
		_ = json.NewEncoder(w).Encode(map[string]string{"token": Token})
	case req.Header.Get("Authorization") == "Bearer "+Token:
		r.backend.ServeHTTP(w, req)
	default:
		realm := r.URL
		if req.Host != r.Host() {
			realm = "https://" + req.Host // clients refuse clear text for a canonical name
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`/token",service="stand-in"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// Push stores an image or index under a tag and returns the reference with the
// digest added. It is neither recorded nor subject to faults.
func (r *Registry) Push(ref string, content remote.Taggable) string {
	r.t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := remote.Push(tag, content, remote.WithTransport(direct{r.backend})); err != nil {
		r.t.Fatal(err)
	}
	digest, err := partial.Digest(content.(partial.WithRawManifest))
	if err != nil {
		r.t.Fatal(err)
	}
	return ref + "@" + digest.String()
}

// MoveTag makes the tag of ref name content once the tag was looked up.
func (r *Registry) MoveTag(ref string, content remote.Taggable) {
	tag, err := name.NewTag(ref)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Fail(Fault{Path: "/manifests/" + tag.TagStr(), Times: 1, Then: func() { r.Push(ref, content) }})
}

// PushManifest stores any bytes as a manifest and returns the reference of it.
func (r *Registry) PushManifest(repo string, b []byte) string {
	r.t.Helper()
	digest, _, err := v1.SHA256(bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	_, path, _ := strings.Cut(repo, "/")
	req := httptest.NewRequest(http.MethodPut, "/v2/"+path+"/manifests/"+digest.String(), bytes.NewReader(b))
	req.Header.Set("Content-Type", string(types.OCIManifestSchema1))
	rec := httptest.NewRecorder()
	if r.backend.ServeHTTP(rec, req); rec.Code != http.StatusCreated {
		r.t.Fatalf("push manifest: %d %s", rec.Code, rec.Body)
	}
	return repo + "@" + digest.String()
}

// PushBlob stores a blob in a repository and returns its digest.
func (r *Registry) PushBlob(repo string, b []byte) string {
	r.t.Helper()
	n, err := name.NewRepository(repo)
	if err != nil {
		r.t.Fatal(err)
	}
	layer := static.NewLayer(b, types.OCILayer)
	if err := remote.WriteLayer(n, layer, remote.WithTransport(direct{r.backend})); err != nil {
		r.t.Fatal(err)
	}
	digest, err := layer.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	return digest.String()
}

// direct calls a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	d.handler.ServeHTTP(rec, in)
	resp := rec.Result()
	resp.Request = req
	return resp, nil
}

// Image returns an image of one platform (os/architecture[/variant]) with this
// many layers of random content.
func Image(t testing.TB, platform string, layers int) v1.Image {
	t.Helper()
	img, err := random.Image(512, int64(layers))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	p := parse(t, platform)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Index returns an OCI index of entries.
func Index(entries ...mutate.IndexAddendum) v1.ImageIndex {
	return mutate.AppendManifests(empty.Index, entries...)
}

// Entry lists an image in an index under a platform.
func Entry(t testing.TB, img v1.Image, platform string) mutate.IndexAddendum {
	t.Helper()
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: parse(t, platform)}}
}

// Attestation is the entry that build tools list beside an image: of no
// platform, with one in-toto layer and a config without diff_ids.
func Attestation(t testing.TB, of v1.Image) mutate.IndexAddendum {
	t.Helper()
	subject, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		static.NewLayer([]byte(`{"subject":"`+subject.String()+`"}`), "application/vnd.in-toto+json"))
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "unknown", Architecture: "unknown"})
	if err != nil {
		t.Fatal(err)
	}
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
		Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": subject.String(),
		},
	}}
}

func parse(t testing.TB, platform string) *v1.Platform {
	t.Helper()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
