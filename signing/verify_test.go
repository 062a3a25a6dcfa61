package signing_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/kairos-io/provider-kubernetes/signing"
	"github.com/kairos-io/provider-kubernetes/signing/signingtest"
)

const (
	releaser = "krel-trust@k8s-releng-prod.iam.gserviceaccount.com"
	google   = "https://accounts.google.com"
	etcdRef  = "registry.k8s.io/etcd:3.6.6-0"
)

// handler lets a test put itself in front of a registry.
type handler func(w http.ResponseWriter, r *http.Request, next http.Handler)

// newRegistry serves a registry and returns its repository "etcd".
func newRegistry(t *testing.T, referrers bool, front handler) name.Repository {
	t.Helper()
	reg := registry.New(registry.WithReferrersSupport(referrers), registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if front == nil {
			reg.ServeHTTP(w, r)
			return
		}
		front(w, r, reg)
	}))
	t.Cleanup(srv.Close)
	repo, err := name.NewRepository(strings.TrimPrefix(srv.URL, "http://") + "/etcd")
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// pushIndex pushes an index of two platform manifests and returns the digests
// of the index and of the first manifest.
func pushIndex(t *testing.T, repo name.Repository) (index, platform v1.Hash) {
	t.Helper()
	idx, err := random.Index(64, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	idx = mutate.IndexMediaType(idx, types.OCIImageIndex)
	index, err = idx.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(repo.Digest(index.String()), idx); err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return index, m.Manifests[0].Digest
}

func newVerifier(t *testing.T, trustedRoot []byte, rules ...signing.Rule) *signing.Verifier {
	t.Helper()
	if len(rules) == 0 {
		rules = []signing.Rule{{Pattern: "registry.k8s.io/**", Identity: releaser, Issuer: google}}
	}
	policy, err := signing.NewPolicy(rules, nil)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := signing.ParseTrustedRoot(trustedRoot)
	if err != nil {
		t.Fatal(err)
	}
	return &signing.Verifier{Policy: policy, Trust: trust, Transport: http.DefaultTransport}
}

func verify(t *testing.T, v *signing.Verifier, s signing.Subject) signing.Result {
	t.Helper()
	res, err := v.Verify(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func want(t *testing.T, got signing.Result, outcome signing.Outcome, detail ...string) {
	t.Helper()
	if got.Outcome != outcome {
		t.Fatalf("outcome %s (%s), want %s", got.Outcome, got.Detail, outcome)
	}
	for _, d := range detail {
		if !strings.Contains(got.Detail, d) {
			t.Errorf("detail %q does not say %q", got.Detail, d)
		}
	}
}

func TestGoodSignatureIsFoundInEveryPlaceAndForm(t *testing.T) {
	logOnly := signingtest.New(t, signingtest.Config{})
	tsaOnly := signingtest.New(t, signingtest.Config{NoLog: true, TSA: true})
	both := signingtest.New(t, signingtest.Config{TSA: true})
	for _, tt := range []struct {
		name      string
		sigstore  *signingtest.Sigstore
		referrers bool
		bundle    bool
		form      string
	}{
		{"legacy tag with a log entry", logOnly, false, false, signing.FormLegacyTag},
		{"legacy tag with a timestamp", tsaOnly, true, false, signing.FormLegacyTag},
		{"legacy tag with both", both, true, false, signing.FormLegacyTag},
		{"bundle by referrers API with a log entry", logOnly, true, true, signing.FormReferrer},
		{"bundle by referrers API with a timestamp", tsaOnly, true, true, signing.FormReferrer},
		{"bundle by referrers tag with both", both, false, true, signing.FormReferrersTag},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repo := newRegistry(t, tt.referrers, nil)
			index, platform := pushIndex(t, repo)
			tt.sigstore.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: tt.bundle})

			got := verify(t, newVerifier(t, tt.sigstore.TrustedRoot()), signing.Subject{
				Reference: etcdRef, Repository: repo, Digest: index.String(), Platform: platform.String(),
			})
			want(t, got, signing.Verified)
			if got.Form != tt.form || !strings.HasPrefix(got.Location, repo.Name()) {
				t.Errorf("found as %s at %s, want %s in %s", got.Form, got.Location, tt.form, repo)
			}
			if got.Identity != releaser || got.Issuer != google || got.Digest != index.String() || got.Reference != etcdRef {
				t.Errorf("result %+v", got)
			}
			if !got.SignedAt.Equal(tt.sigstore.Epoch) {
				t.Errorf("signed at %s, want %s", got.SignedAt, tt.sigstore.Epoch)
			}
			if !got.Accepted() || got.Err() != nil {
				t.Errorf("not accepted: %v", got.Err())
			}
		})
	}
}

func TestImageWithoutSignatureIsUnsigned(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	for _, referrers := range []bool{false, true} {
		repo := newRegistry(t, referrers, nil)
		index, _ := pushIndex(t, repo)
		got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
		want(t, got, signing.Unsigned, repo.Name(), index.String())
		var rejection *signing.Rejection
		if !errors.As(got.Err(), &rejection) || rejection.Result.Outcome != signing.Unsigned {
			t.Errorf("error %v", got.Err())
		}
	}
}

func TestAttestationIsNoSignature(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	for _, referrers := range []bool{false, true} {
		repo := newRegistry(t, referrers, nil)
		index, _ := pushIndex(t, repo)
		s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: true, PredicateType: "https://slsa.dev/provenance/v1"})
		got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
		want(t, got, signing.Unsigned)
	}
}

func TestWrongSigner(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{TSA: true})
	stranger := signingtest.New(t, signingtest.Config{TSA: true})
	for _, tt := range []struct {
		name     string
		sigstore *signingtest.Sigstore
		options  signingtest.Options
		detail   string
	}{
		{"any character for a dot", s, signingtest.Options{Identity: "krel-trust@k8s-releng-prodXiam.gserviceaccount.com", Issuer: google}, "krel-trust@k8s-releng-prodXiam"},
		{"name embedded in a longer one", s, signingtest.Options{Identity: "x-" + releaser + ".example.net", Issuer: google}, "x-krel-trust@"},
		{"same name from another issuer", s, signingtest.Options{Identity: releaser, Issuer: "https://accounts.google.com.example.net"}, "google.com.example.net"},
		{"issuer with a trailing slash", s, signingtest.Options{Identity: releaser, Issuer: google + "/"}, `google.com/"`},
		{"other letter case", s, signingtest.Options{Identity: "Krel-trust@k8s-releng-prod.iam.gserviceaccount.com", Issuer: google}, "Krel"},
		{"other authority", stranger, signingtest.Options{Identity: releaser, Issuer: google}, "trusted root"},
		{"bad signature bytes", s, signingtest.Options{Identity: releaser, Issuer: google, Corrupt: true}, "trusted root"},
	} {
		for _, bundle := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				repo := newRegistry(t, true, nil)
				index, _ := pushIndex(t, repo)
				tt.options.Bundle = bundle
				tt.sigstore.Sign(t, repo, index, tt.options)
				got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
				want(t, got, signing.WrongSigner, tt.detail)
			})
		}
	}
}

func TestRegexpIdentityRefusesSiblingOrganisation(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, nil)
	v := newVerifier(t, s.TrustedRoot(), signing.Rule{
		Pattern: "registry.k8s.io/*", Issuer: google, IdentityRegexp: `^https://github\.com/example-org/[a-z]+/\.github/workflows/r\.yml@refs/heads/main$`,
	})
	for identity, outcome := range map[string]signing.Outcome{
		"https://github.com/example-org/repo/.github/workflows/r.yml@refs/heads/main":      signing.Verified,
		"https://github.com/example-org-evil/repo/.github/workflows/r.yml@refs/heads/main": signing.WrongSigner,
	} {
		index, _ := pushIndex(t, repo)
		s.Sign(t, repo, index, signingtest.Options{Identity: identity, Issuer: google})
		want(t, verify(t, v, signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}), outcome)
	}
}

func TestPayloadMayNameThePromotionRegistry(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, false, nil)
	index, _ := pushIndex(t, repo)
	s.Sign(t, repo, index, signingtest.Options{
		Identity: releaser, Issuer: google, DockerReference: "europe-west1-docker.pkg.dev/k8s-artifacts-prod/images/etcd",
	})
	want(t, verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}), signing.Verified)
}

func TestMirrorNeedsAConfiguredSignatureRepository(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	canonical, mirror := newRegistry(t, true, nil), newRegistry(t, true, nil)
	idx, err := random.Index(64, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := idx.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, repo := range []name.Repository{canonical, mirror} {
		if err := remote.WriteIndex(repo.Digest(digest.String()), idx); err != nil {
			t.Fatal(err)
		}
	}
	s.Sign(t, canonical, digest, signingtest.Options{Identity: releaser, Issuer: google})
	subject := signing.Subject{Reference: etcdRef, Repository: mirror, Digest: digest.String()}

	want(t, verify(t, newVerifier(t, s.TrustedRoot()), subject), signing.Unsigned, mirror.Name())
	for _, rule := range []signing.Rule{
		{Pattern: "registry.k8s.io/etcd", SignatureRepository: canonical.Name()},
		{Pattern: "registry.k8s.io/**", SignatureRepository: canonical.RegistryStr() + "/**"},
	} {
		rule.Identity, rule.Issuer = releaser, google
		got := verify(t, newVerifier(t, s.TrustedRoot(), rule), subject)
		want(t, got, signing.Verified)
		if !strings.HasPrefix(got.Location, canonical.Name()) {
			t.Errorf("location %s, want in %s", got.Location, canonical)
		}
	}
}

func TestSignatureForOtherBytesIsAWrongDigest(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{TSA: true})
	other := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("b", 64)}
	for _, bundle := range []bool{false, true} {
		repo := newRegistry(t, true, nil)
		index, _ := pushIndex(t, repo)
		s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Digest: other, Bundle: bundle})
		got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
		want(t, got, signing.WrongDigest, other.String(), index.String())
	}
}

func TestOneGoodSignatureAmongOthersIsEnough(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	subject := signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}
	s.Sign(t, repo, index, signingtest.Options{Identity: "other@example.com", Issuer: google})
	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("c", 64)}})
	want(t, verify(t, newVerifier(t, s.TrustedRoot()), subject), signing.WrongDigest, "other@example.com", "cccc")

	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: true})
	got := verify(t, newVerifier(t, s.TrustedRoot()), subject)
	want(t, got, signing.Verified)
	if got.Form != signing.FormReferrer {
		t.Errorf("form %s", got.Form)
	}
}

func TestPlatformSignatureCountsOnlyWhenThePolicySaysSo(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, nil)
	index, platform := pushIndex(t, repo)
	s.Sign(t, repo, platform, signingtest.Options{Identity: releaser, Issuer: google})
	subject := signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String(), Platform: platform.String()}

	want(t, verify(t, newVerifier(t, s.TrustedRoot()), subject), signing.Unsigned)

	v := newVerifier(t, s.TrustedRoot(), signing.Rule{Pattern: "registry.k8s.io/**", Identity: releaser, Issuer: google, PlatformSignatures: true})
	got := verify(t, v, subject)
	want(t, got, signing.Verified)
	if got.Digest != platform.String() {
		t.Errorf("digest %s was verified, only %s is signed", got.Digest, platform)
	}
	// A bad signature on the index is not made good by one on the platform.
	s.Sign(t, repo, index, signingtest.Options{Identity: "other@example.com", Issuer: google})
	got = verify(t, v, subject)
	want(t, got, signing.WrongSigner)
	if got.Digest != index.String() {
		t.Errorf("digest %s", got.Digest)
	}
}

func TestValidityIsJudgedWhenTheSignatureWasMade(t *testing.T) {
	lastYear := time.Now().UTC().AddDate(-1, 0, 0).Truncate(24 * time.Hour).Add(10 * time.Hour)
	at := func(min int) time.Time { return lastYear.Add(time.Duration(min) * time.Minute) }
	for _, tt := range []struct {
		name    string
		config  signingtest.Config
		options signingtest.Options
		outcome signing.Outcome
		detail  string
	}{
		{
			"expired leaf, nobody saw the signature", signingtest.Config{TSA: true},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), Unwitnessed: true},
			signing.WrongSigner, "no trusted time inside",
		},
		{
			"valid leaf, nobody saw the signature", signingtest.Config{},
			signingtest.Options{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), Unwitnessed: true},
			signing.WrongSigner, "no trusted time inside",
		},
		{
			"expired leaf, seen while it was valid", signingtest.Config{},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(4)},
			signing.Verified, "",
		},
		{
			"expired leaf, timestamped while it was valid", signingtest.Config{NoLog: true, TSA: true},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(4)},
			signing.Verified, "",
		},
		{
			"seen after the leaf had expired", signingtest.Config{},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(11)},
			signing.WrongSigner, "no trusted time inside",
		},
		{
			"timestamped before the leaf was made", signingtest.Config{NoLog: true, TSA: true},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(-1)},
			signing.WrongSigner, "no trusted time inside",
		},
		{
			"authority expired since", signingtest.Config{CAEnd: time.Now().AddDate(0, -1, 0)},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(4)},
			signing.Verified, "",
		},
		{
			"authority expired between leaf and signature", signingtest.Config{CAEnd: at(3)},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(4)},
			signing.WrongSigner, "trusted root",
		},
		{
			"every authority of the root ended before the leaf was made", signingtest.Config{CAEnd: at(-60)},
			signingtest.Options{NotBefore: at(0), NotAfter: at(10), SignedAt: at(4)},
			signing.TrustExpired, at(-60).Format(time.RFC3339),
		},
	} {
		for _, bundle := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				s := signingtest.New(t, tt.config)
				repo := newRegistry(t, true, nil)
				index, _ := pushIndex(t, repo)
				tt.options.Identity, tt.options.Issuer, tt.options.Bundle = releaser, google, bundle
				s.Sign(t, repo, index, tt.options)
				got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
				want(t, got, tt.outcome, tt.detail)
			})
		}
	}
}

func TestLogEntryIsNeededWhereTheRootNamesALog(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{NoLog: true, TSA: true})
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google})
	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: true})
	v := newVerifier(t, s.TrustedRootWithLog(t))
	want(t, verify(t, v, signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}), signing.WrongSigner, "log entr")
}

func TestExpiredTrustMetadataFailsBeforeTheNetwork(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, func(http.ResponseWriter, *http.Request, http.Handler) { t.Error("asked the registry") })
	v := newVerifier(t, s.TrustedRoot())
	v.TrustExpires = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	v.Now = func() time.Time { return v.TrustExpires.AddDate(0, 0, 1) }
	subject := signing.Subject{Reference: etcdRef, Repository: repo, Digest: "sha256:" + strings.Repeat("a", 64)}
	want(t, verify(t, v, subject), signing.TrustExpired, "2026-03-01T00:00:00Z")
}

func TestWhatCannotBeReadIsUnreachable(t *testing.T) {
	status := func(code int) handler {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(code) }
	}
	onPath := func(part string, h handler) handler {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, part) {
				h(w, r, next)
				return
			}
			next.ServeHTTP(w, r)
		}
	}
	hangUp := func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
	page := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>log in first</html>")
	}
	for _, tt := range []struct {
		name  string
		front handler
	}{
		{"429 everywhere", status(http.StatusTooManyRequests)},
		{"503 everywhere", status(http.StatusServiceUnavailable)},
		{"401 everywhere", status(http.StatusUnauthorized)},
		{"404 everywhere, as no registry answers", status(http.StatusNotFound)},
		{"401 for the tag", onPath("/manifests/sha256-", status(http.StatusUnauthorized))},
		{"403 for the tag", onPath("/manifests/sha256-", status(http.StatusForbidden))},
		{"429 for the tag", onPath("/manifests/sha256-", status(http.StatusTooManyRequests))},
		{"503 for the tag", onPath("/manifests/sha256-", status(http.StatusServiceUnavailable))},
		{"connection dropped", onPath("/manifests/sha256-", hangUp)},
		{"login page for the tag", onPath("/manifests/sha256-", page)},
		{"500 for the referrers", onPath("/referrers/", status(http.StatusInternalServerError))},
		{"403 for the referrers", onPath("/referrers/", status(http.StatusForbidden))},
		{"login page for the referrers", onPath("/referrers/", page)},
		{"404 for the signature's blob", onPath("/blobs/", status(http.StatusNotFound))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := signingtest.New(t, signingtest.Config{})
			signed := false
			repo := newRegistry(t, true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if signed {
					tt.front(w, r, next)
				} else {
					next.ServeHTTP(w, r)
				}
			})
			index, _ := pushIndex(t, repo)
			if strings.Contains(tt.name, "blob") {
				s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google})
			}
			signed = true
			got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
			want(t, got, signing.Unreachable)
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		srv := httptest.NewServer(nil)
		repo, err := name.NewRepository(strings.TrimPrefix(srv.URL, "http://") + "/etcd")
		if err != nil {
			t.Fatal(err)
		}
		srv.Close()
		s := signingtest.New(t, signingtest.Config{})
		got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: "sha256:" + strings.Repeat("a", 64)})
		want(t, got, signing.Unreachable)
	})
}

func TestUnreadableTagDoesNotHideAGoodReferrer(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
	index, _ := pushIndex(t, repo)
	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: true})
	want(t, verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}), signing.Verified)
}

func TestReferrersAreReadPageByPage(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") && r.URL.Query().Get("page") == "" {
			w.Header().Set("Content-Type", string(types.OCIImageIndex)+"; charset=utf-8")
			w.Header().Set("Link", "<"+r.URL.Path+`?page=2>; rel="next"`)
			_, _ = io.WriteString(w, `{"schemaVersion":2,"manifests":[]}`)
			return
		}
		next.ServeHTTP(w, r)
	})
	index, _ := pushIndex(t, repo)
	s.Sign(t, repo, index, signingtest.Options{Identity: releaser, Issuer: google, Bundle: true})
	got := verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()})
	want(t, got, signing.Verified)
	if got.Form != signing.FormReferrer {
		t.Errorf("form %s", got.Form)
	}
}

func TestOnlyDigestsAreAskedForBesidesSignatureTags(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "3.6.6-0") {
			t.Errorf("the image's tag was resolved: %s", r.URL.Path)
		}
		next.ServeHTTP(w, r)
	})
	index, _ := pushIndex(t, repo)
	want(t, verify(t, newVerifier(t, s.TrustedRoot()), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}), signing.Unsigned)
}

func TestExceptionIsTakenWithoutLookingAndOnlyForItsReference(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	v := newVerifier(t, s.TrustedRoot())
	policy, err := signing.NewPolicy(
		[]signing.Rule{{Pattern: "registry.k8s.io/**", Identity: releaser, Issuer: google}},
		[]signing.Exception{{Reference: "registry.k8s.io/kube-proxy:v1.37.1", Reason: "released before it was signed"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	v.Policy = policy
	got := verify(t, v, signing.Subject{Reference: "registry.k8s.io/kube-proxy:v1.37.1", Repository: repo, Digest: index.String()})
	want(t, got, signing.Excepted)
	if got.Reason != "released before it was signed" || !got.Accepted() {
		t.Errorf("result %+v", got)
	}
	want(t, verify(t, v, signing.Subject{Reference: "registry.k8s.io/kube-proxy:v1.37.2", Repository: repo, Digest: index.String()}), signing.Unsigned)
}

func TestWhatIsNoFindingIsAnError(t *testing.T) {
	s := signingtest.New(t, signingtest.Config{})
	repo := newRegistry(t, true, nil)
	index, _ := pushIndex(t, repo)
	v := newVerifier(t, s.TrustedRoot())
	if _, err := v.Verify(t.Context(), signing.Subject{Reference: "quay.io/etcd:1", Repository: repo, Digest: index.String()}); !errors.Is(err, signing.ErrNoRule) {
		t.Errorf("no rule: %v", err)
	}
	for _, digest := range []string{"", "latest", "sha256:abc", "sha512:" + strings.Repeat("a", 128)} {
		if _, err := v.Verify(t.Context(), signing.Subject{Reference: etcdRef, Repository: repo, Digest: digest}); err == nil {
			t.Errorf("digest %q was accepted", digest)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(ctx, signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	v.Trust = nil
	if _, err := v.Verify(t.Context(), signing.Subject{Reference: etcdRef, Repository: repo, Digest: index.String()}); err == nil {
		t.Error("verified without a trusted root")
	}
}
