package gateway

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse"
)

// world is a job as the sequence sees it: a log, a feed with a position, and a clock.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	wait   time.Duration
	keep   int64 // numbers that the log keeps
	log    map[int64]item
	since  map[int64]time.Time // when the log first had a higher number
	lost   map[int64]bool      // a failover removed the number
	top    int64
	end    int64
	feed   []item
	read   int // position of the gateway in the feed
	seq    *sequence
	dirty  bool
	live   []*viewer
	all    []*viewer
	tokens int
}

// viewer is a watcher with the checks of what it receives.
type viewer struct {
	w        *world
	cursor   int64
	begin    int64
	attached bool
	ended    bool
	got      []int64
	token    int
}

func (w *world) append(n int64, end string) {
	if _, dup := w.log[n]; dup || w.end > 0 && n > w.end {
		return
	}
	it := item{seq: n, end: end}
	w.log[n] = it
	w.top = max(w.top, n)
	for lower := int64(1); lower < n; lower++ {
		if _, ok := w.since[lower]; !ok {
			w.since[lower] = w.now
		}
	}
	if end != "" && w.end == 0 {
		w.end = n
	}
	delete(w.log, w.top-w.keep)
	w.feed = append(w.feed, it)
}

func (w *world) first() int64 { return max(0, w.top-w.keep) + 1 }

func (w *world) page(after int64, limit int) page {
	p := page{after: after, end: w.end, first: w.first()}
	for n := range w.log {
		p.top = max(p.top, n)
		if n > after {
			p.items = append(p.items, w.log[n])
		}
	}
	slices.SortFunc(p.items, func(a, b item) int { return int(a.seq - b.seq) })
	if len(p.items) > limit {
		p.items, p.more = p.items[:limit], true
	}
	if p.top > 0 {
		state := w.log[p.top]
		p.state = &state
	}
	return p
}

// receive checks the rules of a stream.
func (v *viewer) receive(steps []outgoing) {
	for _, one := range steps {
		if v.ended {
			require.Empty(v.w.t, steps, "after the end")
		}
		before := v.cursor
		out, next, send := take(cursor{at: v.cursor}, one)
		v.cursor = next.at
		v.ended = out.ends
		if !send {
			continue
		}
		switch out.kind {
		case numbered:
			require.True(v.w.t, out.item.seq == before+1 || out.ends && out.item.seq <= before, "%d after %d", out.item.seq, before)
			v.got = append(v.got, out.item.seq)
		case missing:
			require.Equal(v.w.t, before+1, out.from)
			require.LessOrEqual(v.w.t, out.from, out.to)
			for n := out.from; n <= out.to; n++ {
				since, known := v.w.since[n]
				trimmed := n < v.w.first()
				lost := v.w.lost[n]
				require.True(v.w.t, trimmed || lost || known && v.w.now.Sub(since) >= v.w.wait-v.w.wait/sightingsPerWait,
					"%d is reported as missing too early", n)
				_, there := v.w.log[n]
				require.False(v.w.t, there, "%d is in the log", n)
			}
		case transient:
			require.LessOrEqual(v.w.t, out.above, before, "a transient item overtakes a numbered one")
			require.Greater(v.w.t, out.item.event.Data[0], byte(v.token))
			v.token = int(out.item.event.Data[0])
		case latest, again:
		}
	}
}

func (w *world) toAll(steps []outgoing) {
	for _, v := range w.live {
		v.receive(steps)
	}
	w.live = slices.DeleteFunc(w.live, func(v *viewer) bool { return v.ended })
}

func (w *world) tail(upTo int) {
	for ; w.read < min(upTo, len(w.feed)); w.read++ {
		out, _ := w.seq.feed(w.feed[w.read], w.now)
		w.toAll(out)
	}
	w.dirty = w.dirty || w.seq.needsLog()
}

func (w *world) readJob(limit int) {
	p := w.page(w.seq.next(), limit)
	if w.rng.IntN(3) == 0 {
		w.tail(len(w.feed)) // the feed comes between the read and its result
	}
	w.toAll(w.seq.page(p, w.now))
	w.dirty = w.seq.needsLog()
}

func (w *world) backlog(v *viewer, limit int) {
	if v.ended || v.attached {
		return
	}
	decided := w.seq.decided(v.cursor)
	p := w.page(w.seq.after(v.cursor), limit)
	if w.rng.IntN(3) == 0 {
		w.tail(len(w.feed))
	}
	out, _ := w.seq.readPage(v.cursor, decided, p, w.now)
	v.receive(out)
	if !v.ended && !p.more && w.seq.attach(v.cursor, p) {
		v.attached = true
		w.live = append(w.live, v)
		w.dirty = w.dirty || w.seq.needsLog()
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		t: t, rng: rng, now: time.Unix(1e9, 0), wait: []time.Duration{0, 10 * time.Second}[rng.IntN(2)], keep: []int64{10, 1000}[rng.IntN(2)],
		log: map[int64]item{}, since: map[int64]time.Time{}, lost: map[int64]bool{},
	}
	w.seq = newSequence(w.wait)
	return w
}

// TestSequenceKeepsTheRulesOfAStream checks random histories. Each number is sent once and in
// order, or reported as missing. The terminal item is last. Transient items are not too early.
func TestSequenceKeepsTheRulesOfAStream(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, seed) })
		if t.Failed() {
			return
		}
	}
}

func history(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	rng := w.rng
	var unsent []int64
	const numbers = 40
	for n := int64(1); n <= numbers; n++ {
		if rng.IntN(15) > 0 || n == numbers {
			unsent = append(unsent, n)
		}
	}
	for i := range unsent { // workers that are slower than others
		if j := i + rng.IntN(3); j < len(unsent) && rng.IntN(4) == 0 {
			unsent[i], unsent[j] = unsent[j], unsent[i]
		}
	}
	failover := rng.IntN(4) == 0
	for len(unsent) > 0 {
		w.now = w.now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
		switch rng.IntN(8) {
		case 0, 1, 2:
			end := ""
			if unsent[0] == numbers {
				end = "done"
			}
			w.append(unsent[0], end)
			unsent = unsent[1:]
		case 3:
			w.tokens++
			w.feed = append(w.feed, item{event: sse.Event{Data: []byte{byte(w.tokens)}}})
		case 4:
			w.tail(w.read + rng.IntN(5))
		case 5:
			v := &viewer{w: w, cursor: []int64{0, w.top, rng.Int64N(w.top + 3)}[rng.IntN(3)]}
			v.begin = v.cursor
			if w.end == 0 || v.cursor < w.end {
				w.all = append(w.all, v)
			}
		case 6:
			for _, v := range w.all {
				w.backlog(v, 1+rng.IntN(8))
			}
		case 7:
			if w.dirty {
				w.readJob(1 + rng.IntN(8))
			}
			if rng.IntN(6) == 0 { // the feed was trimmed
				w.read = len(w.feed)
				w.dirty = true
			}
			if failover && w.end == 0 && rng.IntN(5) == 0 {
				w.failover(1 + rng.IntN(3))
			}
		}
	}
	for range 60 {
		w.now = w.now.Add(time.Second)
		w.tail(len(w.feed))
		w.readJob(8)
		for _, v := range w.all {
			w.backlog(v, 8)
		}
	}
	require.Positive(t, w.end)
	for i, v := range w.all {
		require.True(t, v.ended, "watcher %d from %d stays at %d", i, v.begin, v.cursor)
		if v.begin != w.end {
			require.Equal(t, w.end, v.got[len(v.got)-1], "the terminal item is last")
		}
		require.GreaterOrEqual(t, v.cursor, w.end)
	}
}

// A router that stood still adds its transient events after those of the next owner of the shard.
func TestTransientEventsOlderThanTheLastOneAreNotSent(t *testing.T) {
	t.Parallel()
	s := newSequence(time.Second)
	require.True(t, s.attach(0, page{}))
	token := func(n int64) item { return item{entry: entry{1, n}} }
	var sent []int64
	for _, it := range []item{
		token(1), {seq: 1, entry: entry{1, 2}}, token(3), // of the router
		{seq: 2, entry: entry{1, 4}}, token(7), // of the next owner
		token(3), token(5), token(7), // of the router, when it goes on
		{seq: 3, entry: entry{1, 8}}, token(9),
	} {
		out, late := s.feed(it, time.Unix(1e9, 0))
		require.False(t, late)
		for _, one := range out {
			sent = append(sent, one.item.entry.n)
		}
	}
	require.Equal(t, []int64{1, 2, 3, 4, 7, 8, 9}, sent)
}

// failover removes the newest numbers from the log, and the rest of the feed.
func (w *world) failover(n int) {
	for range n {
		if _, ok := w.log[w.top]; ok {
			w.lost[w.top] = true
			delete(w.log, w.top)
		}
		w.top = 0
		for n := range w.log {
			w.top = max(w.top, n)
		}
	}
	w.feed = w.feed[:min(len(w.feed), max(w.read, len(w.feed)-n))]
	w.dirty = true
}
