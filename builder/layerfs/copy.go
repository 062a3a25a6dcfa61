package layerfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

// source is a regular file whose content is wanted.
type source struct {
	entry Entry
	node  *inode
}

func (f *FS) source(name string) (source, error) {
	name = rooted(name)
	ent, err := f.tree.lookup(name, true)
	if err != nil {
		return source{}, err
	}
	if ent.typ != Regular {
		err := error(&NotRegular{name, ent.typ})
		if ent.layer >= 0 {
			err = fmt.Errorf("layer %s: %w", f.layers[ent.layer].Descriptor.Digest, err)
		}
		return source{}, err
	}
	return source{ent.entry(name), ent.inode}, nil
}

// Copy writes the content of the regular file that Stat finds at name to dst.
// After an error, what was written is not to be used: a *store.DigestMismatch
// shows only when the layer has been read to its end.
//
// Other errors: those of Stat, *NotRegular, and dst's.
func (f *FS) Copy(ctx context.Context, dst io.Writer, name string) (Entry, error) {
	src, err := f.source(name)
	if err != nil {
		return Entry{}, err
	}
	err = f.copy(ctx, []source{src}, 1, func(Entry) (io.WriteCloser, error) { return keepOpen{dst}, nil })
	return src.entry, err
}

// ReadFile returns what Copy writes. A file of more than limit bytes is an
// error, and is not read.
func (f *FS) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	e, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	if e.Size > limit {
		return nil, fmt.Errorf("%q has %d bytes, expected at most %d", e.Path, e.Size, limit)
	}
	var b bytes.Buffer
	if _, err := f.Copy(ctx, &b, name); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// CopyAll copies many files, as Copy does, reading each layer at most once. It
// writes to what open returns for each, in the order of the layers, and closes
// it; the entry has the name from names. All names that can't be copied are
// reported together, before open is called.
func (f *FS) CopyAll(ctx context.Context, names []string, open func(Entry) (io.WriteCloser, error)) error {
	var files []source
	var errs []error
	for _, name := range names {
		src, err := f.source(name)
		files, errs = append(files, src), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.copy(ctx, files, 1, open)
}

// copy reads up to jobs layers side by side; with one job it keeps their order.
func (f *FS) copy(ctx context.Context, files []source, jobs int, open func(Entry) (io.WriteCloser, error)) error {
	wanted := make([]map[int][]source, len(f.layers)) // by layer and header
	for _, src := range files {
		in := &wanted[src.node.layer]
		if *in == nil {
			*in = map[int][]source{}
		}
		(*in)[src.node.n] = append((*in)[src.node.n], src)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(jobs)
	for i, left := range wanted {
		if left == nil {
			continue
		}
		g.Go(func() error {
			// The blob that New has read had the right diff_id.
			return f.layers[i].read(ctx, pass{visit: func(n int, _ *tar.Header, content io.Reader) (bool, error) {
				same := left[n]
				delete(left, n)
				if same == nil {
					return true, nil
				}
				return len(left) > 0, write(same, content, open)
			}})
		})
	}
	return g.Wait()
}

// write copies one content to all that want it.
func write(same []source, content io.Reader, open func(Entry) (io.WriteCloser, error)) (err error) {
	var to []io.Writer
	for _, src := range same {
		w, oerr := open(src.entry)
		if oerr != nil {
			return fmt.Errorf("copy of %q: %w", src.entry.Path, oerr)
		}
		defer func() {
			if cerr := w.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("copy of %q: %w", src.entry.Path, cerr))
			}
		}()
		to = append(to, w)
	}
	if _, err := io.Copy(io.MultiWriter(to...), content); err != nil {
		return fmt.Errorf("copy of %q: %w", same[0].entry.Path, err)
	}
	return nil
}

// keepOpen leaves closing to the writer's owner.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
