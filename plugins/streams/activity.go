package streams

import (
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// hands counts what is in hand, a stream. It is told by the chain, so it counts what is really
// being worked on, whoever acked it meanwhile.
type hands struct {
	mu sync.Mutex
	m  map[string]*hand
}

type hand struct {
	n       int
	last    time.Time // when a message began or ended
	watched bool      // a reader runs: keep it when empty
}

func (h *hands) change(stream string, by int, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x, ok := h.m[stream]
	if !ok {
		x = &hand{}
		h.m[stream] = x
	}
	x.n += by
	x.last = at
	h.forget(stream, x)
}

// watch keeps, or no longer keeps, the counts of a stream.
func (h *hands) watch(stream string, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x, ok := h.m[stream]
	if !ok {
		x = &hand{}
		h.m[stream] = x
	}
	x.watched = on
	h.forget(stream, x)
}

func (h *hands) forget(stream string, x *hand) {
	if x.n == 0 && !x.watched {
		delete(h.m, stream)
	}
}

// look returns how many messages of a stream are in hand and when one began or ended last.
func (h *hands) look(stream string) (n int, last time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x, ok := h.m[stream]; ok {
		return x.n, x.last
	}
	return 0, time.Time{}
}

type activity struct{ m *Manager }

func (a activity) Began(o pipeline.Origin) { a.m.hands.change(o.Name, 1, time.Now()) }
func (a activity) Ended(o pipeline.Origin) { a.m.hands.change(o.Name, -1, time.Now()) }

var _ pipeline.Activity = activity{}
