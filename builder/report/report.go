// Package report tells a person what a long run is doing and what it did: one
// line per finished step, a moving bar for running ones on a terminal, and a
// summary of an image as text, Markdown and JSON.
package report

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Reporter prints steps to one writer. It may be used by many goroutines. A nil
// Reporter prints nothing.
type Reporter struct {
	mu      sync.Mutex
	w       io.Writer
	tty     bool
	running []*Step
	done    []Timing
	drawn   time.Time
	bar     bool
}

// Timing is one finished step.
type Timing struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// New returns a reporter on w. With tty the last line is a bar that is redrawn.
func New(w io.Writer, tty bool) *Reporter { return &Reporter{w: w, tty: tty} }

// Step is one piece of work that takes time.
type Step struct {
	r           *Reporter
	name        string
	start       time.Time
	at, total   int64
	measurement string
}

// Note prints one line.
func (r *Reporter) Note(format string, args ...any) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(fmt.Sprintf(format, args...))
}

// Step says that a piece of work begins. Call Done on what it returns.
func (r *Reporter) Step(name string) *Step {
	s := &Step{r: r, name: name, start: time.Now()}
	if r == nil {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, s)
	if !r.tty {
		r.print("  …    " + name)
	}
	r.draw(true)
	return s
}

// Progress says how many of total bytes are done.
func (s *Step) Progress(at, total int64) {
	if s.r == nil {
		return
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.at, s.total = at, total
	s.r.draw(false)
}

// Detail is printed behind the step's name when it is done.
func (s *Step) Detail(format string, args ...any) { s.measurement = fmt.Sprintf(format, args...) }

// Done ends the step and returns err as it is.
func (s *Step) Done(err error) error {
	if s.r == nil {
		return err
	}
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range r.running {
		if o == s {
			r.running = append(r.running[:i], r.running[i+1:]...)
			break
		}
	}
	took := time.Since(s.start)
	mark := "ok"
	if err != nil {
		mark = "FAIL"
	}
	line := fmt.Sprintf("  %-5s%s  %s", mark, s.name, took.Round(10*time.Millisecond))
	if s.measurement != "" {
		line += "  " + s.measurement
	}
	r.print(line)
	r.done = append(r.done, Timing{s.name, took.Seconds()})
	return err
}

// Timings returns the finished steps in the order they ended.
func (r *Reporter) Timings() []Timing {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Timing(nil), r.done...)
}

func (r *Reporter) print(line string) {
	if r.bar {
		fmt.Fprint(r.w, "\r\x1b[K")
		r.bar = false
	}
	fmt.Fprintln(r.w, line)
	r.draw(true)
}

// draw shows the oldest running step; at most ten times a second unless forced.
func (r *Reporter) draw(force bool) {
	if !r.tty || len(r.running) == 0 || !force && time.Since(r.drawn) < 100*time.Millisecond {
		return
	}
	s := r.running[0]
	line := fmt.Sprintf("\r\x1b[K  …    %s  %s", s.name, time.Since(s.start).Round(time.Second))
	if s.total > 0 {
		const width = 24
		n := min(int(s.at*width/s.total), width)
		line += fmt.Sprintf("  [%s%s] %s of %s", strings.Repeat("#", n), strings.Repeat(".", width-n), Bytes(s.at), Bytes(s.total))
	}
	if len(r.running) > 1 {
		line += fmt.Sprintf("  (+%d)", len(r.running)-1)
	}
	fmt.Fprint(r.w, line)
	r.bar, r.drawn = true, time.Now()
}

// Bytes writes a size for people: "12.3 MB".
func Bytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
