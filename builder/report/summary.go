package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/lock"
)

// Input is one verified input of an image. Size is in bytes, of its layers for
// an image.
type Input struct {
	Name     string            `json:"name"`
	Source   string            `json:"source"`
	Digest   string            `json:"digest"`
	Size     int64             `json:"size"`
	Verified lock.Verification `json:"verified"`
}

// Layer is one layer of an image. Reused: nothing was compressed for it.
type Layer struct {
	Name         string `json:"name"`
	Digest       string `json:"digest"`
	Size         int64  `json:"size"`
	Uncompressed int64  `json:"uncompressed,omitempty"`
	Reused       bool   `json:"reused"`
}

// Platform is what was made for one platform.
type Platform struct {
	Platform  string       `json:"platform"`
	Digest    string       `json:"digest"`
	Inputs    []Input      `json:"inputs"`
	Resolved  []lock.Input `json:"resolved,omitempty"`
	Toolchain string       `json:"toolchain,omitempty"` // compiler of what was built here
	Layers    []Layer      `json:"layers"`
}

// Summary is what a person or a machine wants to know about a finished image.
type Summary struct {
	Image         string     `json:"image"` // layout path or reference, with digest
	Digest        string     `json:"digest"`
	Kubernetes    string     `json:"kubernetes"`
	KairosVersion string     `json:"kairosVersion"`
	Supply        string     `json:"supply"`
	SupplyReason  string     `json:"supplyReason"`
	Tags          []string   `json:"tags"`
	Platforms     []Platform `json:"platforms"`
	Rules         int        `json:"conformanceRules"`
	PeakMemory    int64      `json:"peakMemory"` // of the builder's own process, in bytes
	Steps         []Timing   `json:"steps"`
}

// JSON writes the summary as one indented document.
func (s Summary) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// Markdown writes the summary as a page, with a bar for every layer.
func (s Summary) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Node image for Kubernetes %s\n\n`%s`\n\n", s.Kubernetes, s.Image)
	fmt.Fprintf(&b, "- supply: **%s** (%s)\n- KAIROS_VERSION: `%s`\n- tags: %s\n- conformance: all %d rules hold\n", s.Supply, s.SupplyReason, s.KairosVersion, strings.Join(s.Tags, ", "), s.Rules)
	for _, p := range s.Platforms {
		fmt.Fprintf(&b, "\n## %s\n\n`%s`\n\n| input | size | verified by | digest |\n|---|---:|---|---|\n", p.Platform, p.Digest)
		for _, in := range p.Inputs {
			fmt.Fprintf(&b, "| %s | %s | %s | `%s` |\n", in.Source, Bytes(in.Size), vouch(in.Verified), short(in.Digest))
		}
		if len(p.Resolved) > 0 {
			fmt.Fprintf(&b, "\n%d packages were resolved from the distribution's signed archive; the JSON summary lists them with their digests.\n", len(p.Resolved))
		}
		if p.Toolchain != "" {
			fmt.Fprintf(&b, "\nPrograms were built here with %s.\n", p.Toolchain)
		}
		fmt.Fprint(&b, "\n| layer | size | | digest |\n|---|---:|---|---|\n")
		for _, l := range p.Layers {
			state := "made"
			if l.Reused {
				state = "reused"
			}
			fmt.Fprintf(&b, "| %s | %s | `%s` %s | `%s` |\n", l.Name, Bytes(l.Size), bar(l.Size, p.Layers), state, short(l.Digest))
		}
	}
	fmt.Fprint(&b, "\n## Time\n\n| step | seconds |\n|---|---:|\n")
	for _, t := range s.Steps {
		fmt.Fprintf(&b, "| %s | %.2f |\n", t.Name, t.Seconds)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Text writes the summary for a terminal.
func (s Summary) Text(w io.Writer) error {
	var b strings.Builder
	for _, p := range s.Platforms {
		fmt.Fprintf(&b, "\n%s  Kubernetes %s  supply %s\n\n", p.Platform, s.Kubernetes, s.Supply)
		for _, in := range p.Inputs {
			fmt.Fprintf(&b, "  %-29s %9s  %-19s  %s\n", in.Name, Bytes(in.Size), short(in.Digest), vouch(in.Verified))
		}
		fmt.Fprintln(&b)
		var total int64
		for _, l := range p.Layers {
			state := ""
			if l.Reused {
				state = "reused"
			}
			total += l.Size
			fmt.Fprintf(&b, "  %-29s %9s  %-19s  %-20s %s\n", l.Name, Bytes(l.Size), short(l.Digest), bar(l.Size, p.Layers), state)
		}
		fmt.Fprintf(&b, "  %-29s %9s\n", "in all", Bytes(total))
	}
	fmt.Fprintf(&b, "\nconformance: all %d rules hold; peak memory %s\n", s.Rules, Bytes(s.PeakMemory))
	_, err := io.WriteString(w, b.String())
	return err
}

func vouch(v lock.Verification) string {
	switch v.By {
	case lock.BySignature:
		return "signature of " + v.Identity
	case lock.ByChecksum:
		return "checksum from " + v.Origin
	case lock.ByException:
		return "NOT VERIFIED: " + v.Reason
	}
	return string(v.By)
}

func short(digest string) string { return digest[:min(len(digest), 19)] }

func bar(n int64, all []Layer) string {
	largest := int64(1)
	for _, l := range all {
		largest = max(largest, l.Size)
	}
	return strings.Repeat("█", max(1, int(n*20/largest)))
}
