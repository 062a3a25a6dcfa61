package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Text writes the report for people: a line for each rule, then what was found
// and what to do about it.
func (r Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s %s\n\n", r.Image, r.Platform, r.Digest)
	for _, c := range r.Checks {
		mark := "✓"
		if !c.Passed {
			mark = "✗"
		}
		fmt.Fprintf(&b, "%s %-10s %s\n", mark, c.Rule, c.Proves)
		for _, n := range c.Notes {
			fmt.Fprintf(&b, "    note: %s\n", strings.ReplaceAll(n, "\n", "\n          "))
		}
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n✗ %s", f.Rule)
		if f.Path != "" {
			fmt.Fprintf(&b, " %s", f.Path)
		}
		for _, line := range [][2]string{{"found", f.Found}, {"expected", f.Want}, {"next", f.Next}} {
			fmt.Fprintf(&b, "\n    %-9s %s", line[0], strings.ReplaceAll(line[1], "\n", "\n              "))
		}
		b.WriteByte('\n')
	}
	switch n := len(r.Findings); n {
	case 0:
		fmt.Fprintf(&b, "\nall %d rules hold\n", len(r.Checks))
	case 1:
		b.WriteString("\n1 finding\n")
	default:
		fmt.Fprintf(&b, "\n%d findings\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// JSON writes the report for programs, in the order of Text.
func (r Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
