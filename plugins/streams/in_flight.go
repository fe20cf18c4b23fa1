package streams

import (
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// inFlightCounts counts the messages in flight per stream. The chain reports them, so a message
// counts while its handler runs, also when it was acked meanwhile.
type inFlightCounts struct {
	mu sync.Mutex
	m  map[string]*inFlightCount
}

// inFlightCount is the count of one stream.
type inFlightCount struct {
	all     *inFlightCounts
	n       int
	last    time.Time // when a message began or ended
	watched bool      // a reader runs: the count stays when it is 0
}

// of returns the count of a stream, and makes it when it is missing. h.mu is held.
func (h *inFlightCounts) of(stream string) *inFlightCount {
	x, ok := h.m[stream]
	if !ok {
		x = &inFlightCount{all: h}
		h.m[stream] = x
	}
	return x
}

func (h *inFlightCounts) change(stream string, by int, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.of(stream)
	x.n += by
	x.last = at
	h.dropUnused(stream, x)
}

// watch says whether the count of a stream stays when it is 0, and returns the count.
func (h *inFlightCounts) watch(stream string, on bool) *inFlightCount {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.of(stream)
	x.watched = on
	h.dropUnused(stream, x)
	return x
}

func (h *inFlightCounts) dropUnused(stream string, x *inFlightCount) {
	if x.n == 0 && !x.watched {
		delete(h.m, stream)
	}
}

// count returns how many messages of the stream are in flight and when one began or ended last.
func (x *inFlightCount) count() (n int, last time.Time) {
	x.all.mu.Lock()
	defer x.all.mu.Unlock()
	return x.n, x.last
}

type activity struct{ m *Manager }

func (a activity) Began(o pipeline.Origin) { a.m.inFlight.change(o.Source, 1, time.Now()) }
func (a activity) Ended(o pipeline.Origin) { a.m.inFlight.change(o.Source, -1, time.Now()) }

var _ pipeline.Activity = activity{}
