package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

const (
	importTries  = 3
	queryTimeout = 30 * time.Second
	// The kubelet's garbage collection asks the CRI plugin, which calls an image
	// pinned when one of its names has this label (containerd, docs/cri/config.md).
	pinLabel = "io.cri-containerd.pinned"
	pinValue = "pinned"
)

// containerd is the node's image store, as ctr shows it.
type containerd struct {
	host.Runner
	pause   time.Duration   // between two tries
	waiting func(why error) // told once that containerd doesn't answer
}

// held is what containerd has of a list of images, by reference: the locked
// digest under that name. Importing and pulling write the name last, when all
// content is there.
type held struct{ equal, pinned map[string]bool }

func (c *containerd) look(ctx context.Context, list []Image) (held, error) {
	equal, err := c.names(ctx, list, "")
	if err != nil {
		return held{}, err
	}
	pinned, err := c.names(ctx, list, fmt.Sprintf(",labels.%q==%s", pinLabel, pinValue))
	return held{equal, pinned}, err
}

// names returns which images of a list containerd has, restricted by a further
// filter. A containerd that does not answer is asked again until ctx ends: it
// may still be starting.
func (c *containerd) names(ctx context.Context, list []Image, filter string) (map[string]bool, error) {
	args := []string{"images", "ls", "-q"}
	for _, img := range list {
		args = append(args, fmt.Sprintf("name==%q,target.digest==%s%s", img.Reference, img.Digest, filter))
	}
	var why error
	for {
		out, err := c.ctr(ctx, host.Command{Args: args, Timeout: queryTimeout})
		if err == nil {
			return parseNames(out.Stdout, list)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if why == nil || ctx.Err() == nil { // the end of time says less than ctr did
			why = err
		}
		if c.waiting != nil {
			c.waiting(err)
			c.waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, why
		case <-time.After(c.pause):
		}
	}
}

// load imports a verified archive, pinned. ctr reads the descriptor, not a
// path. Content whose digest is not its name's never becomes part of an image:
// containerd stores by digest.
func (c *containerd) load(ctx context.Context, img Image, archive *os.File) error {
	for try := 1; ; try++ {
		if _, err := archive.Seek(0, io.SeekStart); err != nil {
			return refuse(ctrFailed, "rewind: %w", err)
		}
		_, err := c.ctr(ctx, host.Command{
			Args:  []string{"images", "import", "--label", pinLabel + "=" + pinValue, "-"},
			Stdin: archive, Timeout: importLimit, Limit: 4 << 20, // it draws its progress
		})
		if err == nil || try == importTries || ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// containerd may have been restarted: wait for it.
		if _, err := c.names(ctx, []Image{img}, ""); err != nil {
			return err
		}
	}
}

// pin protects an image that was there before.
func (c *containerd) pin(ctx context.Context, img Image) error {
	_, err := c.ctr(ctx, host.Command{Args: []string{"images", "label", img.Reference, pinLabel + "=" + pinValue}, Timeout: queryTimeout})
	return err
}

// ctr runs ctr. Its errors are refusals: deadline when ctx ended, ctrFailed
// otherwise.
func (c *containerd) ctr(ctx context.Context, cmd host.Command) (host.Output, error) {
	cmd.Name, cmd.Args = "ctr", append([]string{"-n", "k8s.io"}, cmd.Args...)
	out, err := c.Run(ctx, cmd)
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return out, refuse(deadline, "%w", err)
	}
	last := bytes.TrimSpace(out.Stderr)
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	return out, refuse(ctrFailed, "%w: %.300q", err, last)
}

// parseNames reads what -q prints: one name a line, each of them one of list's
// references and none of them twice.
func parseNames(out []byte, list []Image) (map[string]bool, error) {
	asked := map[string]bool{}
	for _, img := range list {
		asked[img.Reference] = true
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		name, whole := strings.CutSuffix(line, "\n")
		if !whole || !asked[name] || names[name] {
			return nil, refuse(ctrFailed, "ctr printed the line %.300q: expected the names that were asked for, each once", line)
		}
		names[name] = true
	}
	return names, nil
}
