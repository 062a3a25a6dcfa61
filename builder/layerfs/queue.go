package layerfs

import (
	"archive/tar"
	"fmt"
	"io"
)

// maxWaiting bounds what a queue holds, in bytes of names and attributes.
const maxWaiting = 1 << 20

// queue applies the headers of one layer, which may be read ahead of its turn:
// that has come when the older layers are applied.
type queue struct {
	to      *changeset
	layer   int
	turn    <-chan struct{}
	headers []*tar.Header
	bytes   int
	applied int // headers of the layer
}

func (q *queue) add(_ int, h *tar.Header, _ io.Reader) (bool, error) {
	q.headers = append(q.headers, h)
	q.bytes += 512 + len(h.Name) + len(h.Linkname)
	for k, v := range h.PAXRecords {
		q.bytes += len(k) + len(v)
	}
	if q.bytes < maxWaiting {
		select {
		case <-q.turn:
		default:
			return true, nil
		}
	}
	return true, q.apply()
}

// apply waits for the layer's turn. After an error nothing is left to apply.
func (q *queue) apply() error {
	<-q.turn
	q.to.layer = q.layer
	headers := q.headers
	q.headers, q.bytes = nil, 0
	for _, h := range headers {
		if err := q.to.apply(q.applied, h); err != nil {
			return fmt.Errorf("entry %.256q: %w", h.Name, err)
		}
		q.applied++
	}
	return nil
}
