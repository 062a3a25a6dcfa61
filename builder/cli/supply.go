package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/rebuilt"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
)

// auto lets the builder choose the supply.
const auto = "auto"

// choose returns the supply to use and why. official needs its lock and a
// registry that answers; what it would be refused for is never a reason to fall
// back, so a stale lock still fails.
func (a *app) choose(ctx context.Context, wanted string, row matrix.Row, platform fetch.Platform) (name, reason string, err error) {
	switch wanted {
	case supply.Official, supply.Rebuilt:
		return wanted, "asked for", nil
	case auto:
	default:
		return "", "", usage("supply %s is unknown: use auto, official or rebuilt", wanted)
	}
	path := lock.Path(a.source, supply.Official, row.Minor, platform.String())
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		rel, _ := filepath.Rel(a.source, path)
		return supply.Rebuilt, "there is no lock of the official supply at " + rel, nil
	} else if err != nil {
		return "", "", err
	}
	if err := answers(ctx, a.registry); err != nil {
		return supply.Rebuilt, a.registry + " does not answer: " + err.Error(), nil
	}
	return supply.Official, "its lock is there and " + a.registry + " answers", nil
}

// answers tells whether a registry serves requests, if only to ask who is there.
func answers(ctx context.Context, registry string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, registry+"/v2/", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 500 {
		return errors.New(resp.Status)
	}
	return nil
}

// openRebuilt returns the rebuilt supply of a row.
func (a *app) openRebuilt(row matrix.Row, platform fetch.Platform, gocmd string, refresh bool, rep *report.Reporter) (*rebuilt.Supply, error) {
	path, err := goCommand(gocmd)
	if err != nil {
		return nil, err
	}
	toolchain := rebuilt.Go{Path: path, Env: passed("HOME", "GOPATH", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOPRIVATE", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")}
	s, err := rebuilt.Open(filepath.Join(a.cache, "rebuilt"), a.source, row, a.matrix.Stack, a.matrix.Epoch, platform, toolchain,
		passed("http_proxy", "https_proxy", "no_proxy"), rep)
	if err != nil {
		return nil, err
	}
	s.Refresh = refresh
	return s, nil
}

// passed returns the named variables of the environment that are set.
func passed(names ...string) []string {
	var out []string
	for _, n := range names {
		if v, ok := os.LookupEnv(n); ok {
			out = append(out, n+"="+v)
		}
	}
	return out
}

// goCommand returns the absolute path of the go command.
func goCommand(flag string) (string, error) {
	if flag != "" {
		return filepath.Abs(flag)
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/go/bin") {
		p := filepath.Join(dir, "go")
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 && filepath.IsAbs(p) {
			return p, nil
		}
	}
	return "", fmt.Errorf("the rebuilt supply needs the go command, which is in none of %s: install Go or name it with --go", strings.ReplaceAll(os.Getenv("PATH"), ":", ", "))
}
