package signing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sigstore/sigstore-go/pkg/tuf"
	"github.com/theupdateframework/go-tuf/v2/metadata"
)

// TUF is a repository of The Update Framework that gives out a trusted root.
type TUF struct {
	// URL is the repository's; empty means the public one of sigstore.
	URL string
	// Root is the root.json to begin from; empty means sigstore's own, which is
	// part of this program.
	Root []byte
	// Dir keeps the metadata that was seen last, so that none older is taken.
	Dir string
	// Transport carries requests and does its own retries; nil means the default.
	Transport http.RoundTripper
}

// tufTimeout bounds all downloads of one refresh.
const tufTimeout = 2 * time.Minute

// TrustedRoot returns the trusted_root.json that the repository gives out now.
// The error is a *Rejection with TrustExpired when its metadata has expired,
// and otherwise wraps what the transport returned.
func (t TUF) TrustedRoot(ctx context.Context) ([]byte, error) {
	opts := tuf.DefaultOptions().WithCachePath(t.Dir)
	if t.URL != "" {
		opts.RepositoryBaseURL = t.URL
	}
	if t.Root != nil {
		opts.Root = t.Root
	}
	ctx, cancel := context.WithTimeout(ctx, tufTimeout)
	defer cancel()
	f := &tufFetcher{ctx: ctx, client: &http.Client{Transport: t.Transport}}
	opts.Fetcher = f

	client, err := tuf.New(opts)
	var b []byte
	if err == nil {
		b, err = client.GetTarget("trusted_root.json")
	}
	if err == nil {
		_, err = ParseTrustedRoot(b)
	}
	switch {
	case err == nil:
		return b, nil
	case f.failed != nil: // the library does not always wrap it
		err = f.failed
	case errors.Is(err, &metadata.ErrExpiredMetadata{}):
		return nil, &Rejection{Result{Outcome: TrustExpired, Reference: "trusted root from " + opts.RepositoryBaseURL, Detail: err.Error() + "; check the clock, and try again when the repository was renewed"}}
	}
	return nil, fmt.Errorf("trusted root from %s: %w", opts.RepositoryBaseURL, err)
}

// tufFetcher downloads for the library, which knows no context.
type tufFetcher struct {
	ctx    context.Context
	client *http.Client
	failed error
}

func (f *tufFetcher) DownloadFile(url string, limit int64, _ time.Duration) ([]byte, error) {
	req, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.failed = err
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK { // the library tells a missing file by this
		return nil, &metadata.ErrDownloadHTTP{StatusCode: resp.StatusCode, URL: url}
	}
	return readAll(resp.Body, limit)
}
