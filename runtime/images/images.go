// Package images brings the images that an OS image bundles into the node's
// containerd, under the names that kubeadm and the kubelet ask for. It takes
// the bundle's list and archives from a root file system, trusts nothing that
// another than root could have changed or that did not come with the provider
// binary, and imports only what the list names and what is byte for byte the
// listed content. What containerd has already is left alone. It never waits
// longer than its bound.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// Importer imports or verifies the bundle of one root file system.
type Importer struct {
	Root   *host.Root
	Runner host.Runner   // starts ctr
	Bound  time.Duration // of the whole; 0 is 5 minutes
	Pause  time.Duration // between two tries to reach containerd; 0 is 1 second
	Log    io.Writer     // one line for each refusal, and the summary
	Why    io.Writer     // the same refusals explained

	owner uint32 // of all files; 0, root, but in tests
}

// importLimit is also the most that one archive may take.
const importLimit = 5 * time.Minute

// Import imports every archive whose image containerd lacks and pins all listed
// images against the kubelet's garbage collection. An image counts as there
// when containerd has the locked digest under its name: nothing of its archive
// enters the node then, so its content is not read. All others are verified,
// imported, and compared with the list afterwards.
func (i Importer) Import(ctx context.Context) Summary {
	return i.run(ctx, Success, func(ctx context.Context, b *bundle, s *Summary) {
		var sound, changed []Image
		for _, img := range b.images {
			f, err := b.archive(img)
			if err != nil {
				i.refuse(s, img, err)
				continue
			}
			_ = f.Close()
			sound = append(sound, img)
		}
		if len(sound) == 0 {
			return
		}

		c := &containerd{Runner: i.Runner, pause: cmp.Or(i.Pause, time.Second), waiting: func(why error) {
			fmt.Fprintf(i.Why, "image-import: waiting for containerd: %v\n", why)
		}}
		before, err := c.look(ctx, sound)
		for _, img := range sound {
			switch {
			case err != nil:
				i.refuse(s, img, err)
			case before.equal[img.Reference] && before.pinned[img.Reference]:
				s.Present++
			default:
				if err := i.bring(ctx, c, b, img, before); err != nil {
					i.refuse(s, img, err)
					continue
				}
				changed = append(changed, img)
			}
		}
		if len(changed) == 0 {
			return
		}
		after, err := c.look(ctx, changed)
		for _, img := range changed {
			switch {
			case err != nil:
				i.refuse(s, img, err)
			case !after.equal[img.Reference] || !after.pinned[img.Reference]:
				i.refuse(s, img, refuse(ctrFailed, "ctr was content, but containerd doesn't hold it pinned and with digest %s", img.Digest))
			case before.equal[img.Reference]:
				s.Present++
			default:
				s.Imported++
			}
		}
	})
}

// bring pins an image that containerd has and imports one that it lacks.
func (i Importer) bring(ctx context.Context, c *containerd, b *bundle, img Image, before held) error {
	if before.equal[img.Reference] {
		return c.pin(ctx, img)
	}
	f, err := b.verified(ctx, img)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return c.load(ctx, img, f)
}

// Verify reads every archive and asks nothing of containerd.
func (i Importer) Verify(ctx context.Context) Summary {
	return i.run(ctx, Verified, func(ctx context.Context, b *bundle, s *Summary) {
		for _, img := range b.images {
			f, err := b.verified(ctx, img)
			if err != nil {
				i.refuse(s, img, err)
				continue
			}
			_ = f.Close()
		}
	})
}

// run opens the bundle, has the work done and tells how it ended; good is what
// it is called when nothing was refused and nothing failed.
func (i Importer) run(ctx context.Context, good Outcome, work func(context.Context, *bundle, *Summary)) Summary {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(i.Bound, importLimit))
	defer cancel()
	b, err := openBundle(i.Root, i.owner)
	defer b.close()
	s := Summary{Entries: len(b.images), Unlisted: b.unlisted, ReadOnly: b.readOnly}
	switch {
	case errors.Is(err, errNotBundled):
		s.Outcome = NotBundled
		fmt.Fprintf(i.Why, "image-import: %v\n", err)
	case err != nil:
		s.Outcome = Refused
		fmt.Fprintf(i.Log, "image-import: bundle refused reason=%s\n", reasonOf(err))
		fmt.Fprintf(i.Why, "image-import: bundle: %v\n", err)
	default:
		work(ctx, b, &s)
		switch {
		case s.Refused+s.Failed == 0:
			s.Outcome = good
		case s.Refused+s.Failed < s.Entries:
			s.Outcome = Partial
		case s.Failed > 0:
			s.Outcome = Failed
		default:
			s.Outcome = Refused
		}
	}
	fmt.Fprintln(i.Log, s)
	return s
}

// refuse counts and logs an archive that was not imported.
func (i Importer) refuse(s *Summary, img Image, err error) {
	reason := reasonOf(err)
	if reason == ctrFailed || reason == deadline {
		s.Failed++
	} else {
		s.Refused++
	}
	fmt.Fprintf(i.Log, "image-import: refused %s ref=%s reason=%s\n", img.Archive, img.Reference, reason)
	fmt.Fprintf(i.Why, "image-import: %s: %v\n", img.Archive, err)
}
