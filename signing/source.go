package signing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
)

const (
	bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// legacyArtifactType is what cosign names a legacy signature it attaches as a referrer.
	legacyArtifactType = "application/vnd.dev.cosign.artifact.sig.v1+json"
	// emptyMediaType is what some registries list for an artifact type that is
	// given beside an empty config.
	emptyMediaType = "application/vnd.oci.empty.v1+json"
	// predicateAnnotation tells what a bundle states without fetching it.
	predicateAnnotation = "dev.sigstore.bundle.predicateType"

	// Bounds on what anyone may put beside an image.
	maxManifest   = 4 << 20
	maxBlob       = 4 << 20
	maxReferrers  = 256
	maxLayers     = 256
	maxIndexPages = 16
)

// candidate is one signature, not judged yet. Exactly one of legacy and bundle
// is set.
type candidate struct {
	form, location string
	legacy         *legacySignature
	bundle         []byte
}

// legacySignature is a layer of a legacy signature image: the signed payload,
// with everything else in annotations.
type legacySignature struct {
	payload     []byte
	annotations map[string]string
}

// source finds the signatures of a digest, lazily, in the order of search. An
// error is something that could not be read; the search goes on after it. Its
// String says what was searched.
type source interface {
	fmt.Stringer
	find(ctx context.Context, digest v1.Hash) iter.Seq2[candidate, error]
}

func legacyTag(digest v1.Hash) string    { return "sha256-" + digest.Hex + ".sig" }
func referrersTag(digest v1.Hash) string { return "sha256-" + digest.Hex }

// unpack yields the signatures in the manifest of a signature image.
func unpack(manifest []byte, form, location string, blob func(v1.Descriptor) ([]byte, error)) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		c := candidate{form: form, location: location}
		m, err := v1.ParseManifest(bytes.NewReader(manifest))
		if err == nil && len(m.Layers) > maxLayers {
			err = fmt.Errorf("signature image has %d layers, at most %d are read", len(m.Layers), maxLayers)
		}
		if err != nil {
			yield(c, fmt.Errorf("read signature manifest: %w", err))
			return
		}
		for _, layer := range m.Layers {
			isBundle := layer.MediaType == bundleMediaType
			if !isBundle && layer.MediaType != ctypes.SimpleSigningMediaType || otherPredicate(m.Annotations) {
				continue
			}
			c := c
			var b []byte
			var err error
			if layer.Size > maxBlob {
				err = fmt.Errorf("signature blob %s has %d bytes, at most %d are read", layer.Digest, layer.Size, maxBlob)
			} else {
				b, err = blob(layer)
			}
			if isBundle {
				c.bundle = b
			} else {
				c.legacy = &legacySignature{payload: b, annotations: layer.Annotations}
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// otherPredicate tells that a bundle's annotations announce a statement about
// the image (provenance, contents) rather than its signature.
func otherPredicate(annotations map[string]string) bool {
	p, ok := annotations[predicateAnnotation]
	return ok && p != ctypes.CosignSignPredicateType
}

// signs tells whether a referrer may be a signature.
func signs(d v1.Descriptor) bool {
	switch d.ArtifactType {
	case "", bundleMediaType, legacyArtifactType, emptyMediaType:
		return !otherPredicate(d.Annotations)
	}
	return false
}

// registrySource looks in a repository of a registry.
type registrySource struct {
	repo      name.Repository
	transport http.RoundTripper
	keychain  authn.Keychain
}

func (s *registrySource) String() string { return s.repo.Name() }

func (s *registrySource) find(ctx context.Context, digest v1.Hash) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		rt, err := s.connect(ctx)
		if err != nil {
			yield(candidate{location: s.repo.Name()}, fmt.Errorf("connect: %w", err))
			return
		}
		opts := []remote.Option{remote.WithContext(ctx), remote.WithTransport(rt)}
		blob := func(d v1.Descriptor) ([]byte, error) {
			l, err := remote.Layer(s.repo.Digest(d.Digest.String()), opts...)
			if err != nil {
				return nil, err
			}
			r, err := l.Compressed()
			if err != nil {
				return nil, err
			}
			defer r.Close()
			return readAll(r, maxBlob)
		}
		// manifest yields what is in one signature image. Only a tag may be
		// absent; what an index lists must be there.
		manifest := func(ref name.Reference, form string) bool {
			d, err := remote.Get(ref, opts...)
			if _, isTag := ref.(name.Tag); isTag && notFound(err) {
				return true
			}
			if err != nil {
				return yield(candidate{form: form, location: ref.String()}, err)
			}
			for c, err := range unpack(d.Manifest, form, ref.String(), blob) {
				if !yield(c, err) {
					return false
				}
			}
			return true
		}

		if !manifest(s.repo.Tag(legacyTag(digest)), FormLegacyTag) {
			return
		}
		seen := map[v1.Hash]bool{}
		listed := func(list []v1.Descriptor, form string) bool {
			for _, d := range list {
				if !signs(d) || seen[d.Digest] {
					continue
				}
				if len(seen) == maxReferrers {
					return yield(candidate{form: form, location: s.repo.Name()}, fmt.Errorf("more than %d referrers; the others were not read", maxReferrers))
				}
				seen[d.Digest] = true
				if !manifest(s.repo.Digest(d.Digest.String()), form) {
					return false
				}
			}
			return true
		}
		list, err := s.referrers(ctx, rt, digest)
		if err != nil && !yield(candidate{form: FormReferrer, location: s.repo.Name()}, fmt.Errorf("list referrers: %w", err)) {
			return
		}
		if !listed(list, FormReferrer) {
			return
		}
		// A registry that gained the referrers API later still has the tag.
		tag := s.repo.Tag(referrersTag(digest))
		d, err := remote.Get(tag, opts...)
		var index *v1.IndexManifest
		if err == nil {
			index, err = v1.ParseIndexManifest(bytes.NewReader(d.Manifest))
		}
		switch {
		case notFound(err):
		case err != nil:
			yield(candidate{form: FormReferrersTag, location: tag.String()}, err)
		default:
			listed(index.Manifests, FormReferrersTag)
		}
	}
}

// connect authenticates with the registry once, so that a refusal here is never
// taken for an absent signature.
func (s *registrySource) connect(ctx context.Context) (http.RoundTripper, error) {
	auth := authn.Anonymous
	if s.keychain != nil {
		var err error
		if auth, err = authn.Resolve(ctx, s.keychain, s.repo); err != nil {
			return nil, err
		}
	}
	rt := s.transport
	if rt == nil {
		rt = transport.NewRetry(remote.DefaultTransport, transport.WithRetryStatusCodes(
			http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout))
	}
	return transport.NewWithContext(ctx, s.repo.Registry, auth, rt, []string{s.repo.Scope(transport.PullScope)})
}

// referrers asks the referrers API of the OCI distribution specification. A
// registry without it has no such list, which is not an error. The registry
// library's own call hides which of API and tag answered, and reads one page.
func (s *registrySource) referrers(ctx context.Context, rt http.RoundTripper, digest v1.Hash) ([]v1.Descriptor, error) {
	next := &url.URL{
		Scheme: s.repo.Scheme(), Host: s.repo.RegistryStr(),
		Path: fmt.Sprintf("/v2/%s/referrers/%s", s.repo.RepositoryStr(), digest),
	}
	var list []v1.Descriptor
	for range maxIndexPages {
		page, more, err := referrersPage(ctx, rt, next)
		list = append(list, page...)
		if err != nil || more == nil {
			return list, err
		}
		next = more
	}
	return list, fmt.Errorf("more than %d pages; the others were not read", maxIndexPages)
}

func referrersPage(ctx context.Context, rt http.RoundTripper, u *url.URL) (list []v1.Descriptor, next *url.URL, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", string(types.OCIImageIndex))
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented:
		return nil, nil, nil
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return nil, nil, err
	}
	if mt, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mt != string(types.OCIImageIndex) {
		return nil, nil, fmt.Errorf("%s answered with %q, expected an image index", u, resp.Header.Get("Content-Type"))
	}
	b, err := readAll(resp.Body, maxManifest)
	if err != nil {
		return nil, nil, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, nil, err
	}
	link, params, _ := strings.Cut(resp.Header.Get("Link"), ">")
	if target, ok := strings.CutPrefix(link, "<"); ok && strings.Contains(params, `rel="next"`) {
		if next, err = u.Parse(target); err == nil && next.Host != u.Host {
			err = fmt.Errorf("next page is on another host, %s", next.Host)
		}
	}
	return index.Manifests, next, err
}

// notFound tells that a registry said it does not have something.
func notFound(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && e.StatusCode == http.StatusNotFound
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return b, err
}

// layoutSource looks in an OCI layout: its index.json lists signatures beside
// the image, legacy ones under their tag name or cosign's kind annotation.
type layoutSource string

func (s layoutSource) String() string { return "layout " + string(s) }

func (s layoutSource) read(d v1.Descriptor) ([]byte, error) {
	h, err := parseDigest(d.Digest.String())
	if err != nil {
		return nil, err
	}
	b, err := s.readFile(filepath.Join("blobs", h.Algorithm, h.Hex))
	if err != nil {
		return nil, err
	}
	if got := describe("", b).Digest; got != h {
		return nil, fmt.Errorf("blob %s has content of %s", h, got)
	}
	return b, nil
}

func (s layoutSource) readFile(path string) ([]byte, error) {
	f, err := os.Open(filepath.Join(string(s), path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, maxManifest)
}

func (s layoutSource) find(_ context.Context, digest v1.Hash) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		b, err := s.readFile("index.json")
		var index *v1.IndexManifest
		if err == nil {
			index, err = v1.ParseIndexManifest(bytes.NewReader(b))
		}
		if err != nil {
			yield(candidate{location: string(s)}, fmt.Errorf("read index.json: %w", err))
			return
		}
		for _, d := range index.Manifests {
			tag, tagged := d.Annotations[refNameAnnotation]
			form := FormReferrer
			switch {
			case tagged && tag == legacyTag(digest), !tagged && d.Annotations[KindAnnotation] == kindSignatures:
				form = FormLegacyTag
			case !d.MediaType.IsImage() || !signs(d):
				continue
			}
			location := d.Digest.String()
			b, err := s.read(d)
			if err != nil {
				if !yield(candidate{form: form, location: location}, err) {
					return
				}
				continue
			}
			if form == FormReferrer && !refersTo(b, digest) {
				continue
			}
			for c, err := range unpack(b, form, location, s.read) {
				if !yield(c, err) {
					return
				}
			}
		}
	}
}

func refersTo(manifest []byte, digest v1.Hash) bool {
	var m struct {
		Subject *v1.Descriptor `json:"subject"`
	}
	return json.Unmarshal(manifest, &m) == nil && m.Subject != nil && m.Subject.Digest == digest
}
