package standin

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Web serves files, such as those of a release, at their canonical URLs.
type Web struct {
	Server
	files map[string][]byte // by host and path
	moved map[string]string
}

// NewWeb starts a web server that has no files yet.
func NewWeb(t testing.TB) *Web {
	w := &Web{files: map[string][]byte{}, moved: map[string]string{}}
	w.start(t, http.HandlerFunc(w.file))
	return w
}

// Put serves b at url.
func (w *Web) Put(url string, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[key(url)] = b
}

// Redirect answers 302 to the URL to for the URL from.
func (w *Web) Redirect(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved[key(from)] = to
}

func key(url string) string {
	_, k, _ := strings.Cut(url, "://")
	return k
}

func (w *Web) file(resp http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	b, ok := w.files[r.Host+r.URL.Path]
	to := w.moved[r.Host+r.URL.Path]
	w.mu.Unlock()
	switch {
	case to != "":
		http.Redirect(resp, r, to, http.StatusFound)
	case ok:
		resp.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(resp, r, "", time.Time{}, bytes.NewReader(b))
	default:
		http.NotFound(resp, r)
	}
}
