package fetch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// Retry bounds how often and how long a download is tried. The zero value
// means 5 attempts, waits from 500 ms doubling up to 30 s, at most 5 minutes of
// waiting in all, and 1 minute of silence.
type Retry struct {
	Attempts  int           // in all, the first included
	Base, Max time.Duration // shortest and longest wait of our own choice
	// Budget bounds the sum of the waits of one download. A wait that a server
	// asks for with Retry-After is kept to in full; one that doesn't fit into
	// what is left of the budget ends the download at once.
	Budget time.Duration
	// Silence is how long a server may send nothing before the attempt fails.
	Silence time.Duration
	// Sleep waits; it returns early with the error of ctx when that ends.
	Sleep func(ctx context.Context, d time.Duration) error
}

func (r Retry) withDefaults() Retry {
	if r.Attempts <= 0 {
		r.Attempts = 5
	}
	for _, d := range []struct {
		v     *time.Duration
		value time.Duration
	}{{&r.Base, 500 * time.Millisecond}, {&r.Max, 30 * time.Second}, {&r.Budget, 5 * time.Minute}, {&r.Silence, time.Minute}} {
		if *d.v <= 0 {
			*d.v = d.value
		}
	}
	if r.Sleep == nil {
		r.Sleep = sleep
	}
	return r
}

// do calls try until it succeeds, fails for good, or the bounds are reached.
// Tried again are passing failures and, once, wrong content.
func (r Retry) do(ctx context.Context, url string, try func() error) error {
	r = r.withDefaults()
	var waited time.Duration
	var mismatched bool
	for n := 1; ; n++ {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", url, ctx.Err())
		}
		wait := r.backoff(n)
		if f, ok := errors.AsType[*failure](err); ok {
			gone := &Unreachable{URL: url, Status: f.status, Attempts: n, Err: f.err}
			if f.final || n >= r.Attempts {
				return gone
			}
			wait = max(wait, f.after)
			if waited+wait > r.Budget {
				gone.Err = fmt.Errorf("%w; waiting %s more would exceed the limit of %s", f.err, wait, r.Budget)
				return gone
			}
		} else if _, ok := errors.AsType[*store.DigestMismatch](err); ok && !mismatched && n < r.Attempts {
			mismatched = true
		} else if _, ok := errors.AsType[*NotFound](err); ok {
			return err
		} else {
			return fmt.Errorf("%s: %w", url, err)
		}
		waited += wait
		if err := r.Sleep(ctx, wait); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
}

// backoff doubles from Base to Max; half of each wait is chance, so that
// builders which were refused together don't come back together.
func (r Retry) backoff(n int) time.Duration {
	d := r.Base
	for ; n > 1 && d < r.Max; n-- {
		d *= 2
	}
	d = min(d, r.Max)
	return d/2 + rand.N(d/2+1)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retryable tells whether a status is a passing one.
func retryable(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
}

// retryAfter reads the header of that name: seconds or a date (RFC 9110
// §10.2.3). A date is compared with the server's own clock where it sends it.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(s, 0), 1<<30)) * time.Second
	}
	until, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(until.Sub(now), 0)
}

// failure is one failed attempt that was the network's or the server's doing.
type failure struct {
	status int           // 0 when there was no answer
	after  time.Duration // the wait that the server asks for
	final  bool          // trying again is of no use
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Unreachable reports a server that gave no usable answer: the URL asked for,
// the last HTTP status (0 when there was none), how often it was tried and the
// last error. It does not unwrap to Err: a registry client above RoundTripper
// would take a reset connection there for one that it should try again itself.
type Unreachable struct {
	URL      string
	Status   int
	Attempts int
	Err      error
}

func (e *Unreachable) Error() string {
	hint := ""
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		hint = "; check the name and the registry credentials"
	}
	return fmt.Sprintf("%s: %v (attempts: %d)%s", e.URL, e.Err, e.Attempts, hint)
}

// NotFound reports that the server answers but has nothing at URL.
type NotFound struct{ URL string }

func (e *NotFound) Error() string { return e.URL + ": not found" }

type tooLong struct{ limit int64 }

func (e *tooLong) Error() string { return fmt.Sprintf("answer is longer than %d bytes", e.limit) }
