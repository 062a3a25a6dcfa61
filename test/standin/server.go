// Package standin is a container registry and a web server for tests, on
// 127.0.0.1 and over real HTTP, that can be told to misbehave.
//
// Both answer for any host: a client that keeps the canonical name in the Host
// header can be sent to them for registry.k8s.io or dl.k8s.io. Both record what
// they are asked.
package standin

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Request is one request that a server got.
type Request struct {
	Method, Host, Path string
	Header             http.Header
}

// Fault makes a server misbehave for the requests it matches: those with this
// Method (any when empty) whose path contains Path. It is used up after Times
// requests, never when Times is 0. The first fault that matches applies.
type Fault struct {
	Method, Path string
	Times        int

	Status   int               // answer this status and Header instead
	Header   map[string]string // added to the answer
	Redirect string            // answer 307 to this base URL and the same path
	Drop     bool              // close the connection without an answer
	Cut      int               // close the connection after this many bytes of the body
	Flip     bool              // change one byte in the middle of the body
	Append   int               // send this many bytes more than there are
	Hang     bool              // send nothing (after Cut bytes, if given) until the client gives up
	Then     func()            // run after the request was answered
}

// Server is what a Registry and a Web have in common.
type Server struct {
	URL string // http://127.0.0.1:port

	handler  http.Handler
	closing  chan struct{}
	mu       sync.Mutex
	faults   []*Fault
	requests []Request
}

// start serves handler until the test ends.
func (s *Server) start(t testing.TB, handler http.Handler) {
	s.handler = handler
	s.closing = make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = srv.URL
	t.Cleanup(func() {
		close(s.closing)
		srv.Close()
	})
}

// Host returns the host and port of the server, which is a registry name too.
func (s *Server) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// Routes maps each host to this server.
func (s *Server) Routes(hosts ...string) map[string]string {
	m := map[string]string{}
	for _, h := range hosts {
		m[h] = s.URL
	}
	return m
}

// Fail adds a fault.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = -1
	}
	s.faults = append(s.faults, &f)
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Requests returns what was asked so far, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns how many requests had this method (any when empty) and a path
// that contains part.
func (s *Server) Count(method, part string) int {
	n := 0
	for _, r := range s.Requests() {
		if (method == "" || method == r.Method) && strings.Contains(r.Path, part) {
			n++
		}
	}
	return n
}

// take records the request and returns the fault for it, the zero one if none.
func (s *Server) take(r *http.Request) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{r.Method, r.Host, r.URL.Path, r.Header.Clone()})
	for _, f := range s.faults {
		if f.Times != 0 && (f.Method == "" || f.Method == r.Method) && strings.Contains(r.URL.Path, f.Path) {
			f.Times--
			return *f
		}
	}
	return Fault{}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	f := s.take(r)
	if f.Then != nil {
		defer f.Then()
	}
	for k, v := range f.Header {
		w.Header().Set(k, v)
	}
	switch {
	case f.Drop:
		panic(http.ErrAbortHandler)
	case f.Redirect != "":
		http.Redirect(w, r, f.Redirect+r.URL.RequestURI(), http.StatusTemporaryRedirect)
		return
	case f.Status != 0:
		w.WriteHeader(f.Status)
		return
	case f.Hang && f.Cut == 0:
		s.hang(r)
	case f.Cut == 0 && !f.Flip && f.Append == 0:
		s.handler.ServeHTTP(w, r)
		return
	}

	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, r)
	b := append(rec.Body.Bytes(), make([]byte, f.Append)...)
	if f.Flip && len(b) > 0 {
		b[len(b)/2] ^= 1
	}
	maps.Copy(w.Header(), rec.Header())
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(rec.Code)
	if f.Cut == 0 {
		_, _ = w.Write(b)
		return
	}
	_, _ = w.Write(b[:min(f.Cut, len(b))])
	_ = http.NewResponseController(w).Flush()
	if f.Hang {
		s.hang(r)
	}
	panic(http.ErrAbortHandler)
}

func (s *Server) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.closing:
	}
	panic(http.ErrAbortHandler)
}
