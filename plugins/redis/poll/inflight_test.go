package poll

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// bookMachine drives a book as the reader does, at random, and keeps its own simple account.
type bookMachine struct {
	b      *book
	now    time.Time
	n      int
	where  map[string]string // entry id → buffered, slot, delayed, acking, returning, flushing-ack, flushing-return
	slots  []*held
	late   []*held // delayed
	flight []*held // in a flush
	acked  map[string]int
	recall chan struct{}
	ended  bool // returnUnbegun was called: nothing is added any more
}

func TestBookNeverLosesOrDoublesAnEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &bookMachine{
			b:      newBook(rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(1, 5).Draw(t, "batch")),
			now:    time.Unix(1_000_000, 0),
			where:  map[string]string{},
			acked:  map[string]int{},
			recall: make(chan struct{}, 1),
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"read":    m.read,
			"again":   m.readAgain,
			"take":    m.take,
			"ack":     m.ack,
			"nack":    m.nack,
			"leave":   m.leave,
			"abandon": m.abandon,
			"ripen":   m.ripen,
			"flush":   m.flush,
			"answer":  m.answer,
			"lose":    m.lose,
			"resize":  func(t *rapid.T) { m.b.slots = rapid.IntRange(1, 4).Draw(t, "slots") },
			"end":     m.end,
		})
	})
}

func (m *bookMachine) check(t *rapid.T) {
	count := map[string]int{}
	for _, w := range m.where {
		count[w]++
	}
	require.Len(t, m.b.buffer, count["buffered"], "buffer")
	require.Equal(t, count["slot"], m.b.busy, "busy")
	require.Equal(t, count["delayed"], m.b.delayed, "delayed")
	require.Len(t, m.b.acks, count["acking"], "acks")
	require.Len(t, m.b.returns, count["returning"], "returns")
	require.Equal(t, count["flushing"], m.b.flushing, "flushing")
	require.Equal(t, len(m.where), m.b.unsettled(), "entries in flight")
	require.GreaterOrEqual(t, m.b.free(), 0)
	if m.b.canRead() {
		require.Positive(t, m.b.free(), "a read may be sent although nothing fits")
		require.Less(t, m.b.busy+len(m.b.buffer), m.b.slots, "a read may be sent although no slot would take its entry")
	}
	for id, n := range m.acked {
		require.Equal(t, 1, n, "%s was acknowledged more than once", id)
	}
}

func (m *bookMachine) read(t *rapid.T) {
	if m.ended || !m.b.canRead() {
		t.Skip("a reader would not read now")
	}
	for range rapid.IntRange(1, m.b.batch).Draw(t, "entries") {
		m.n++
		id := fmt.Sprintf("%d-0", m.n)
		require.True(t, m.b.add(goredis.XMessage{ID: id, Values: map[string]any{}}, 1, m.now, m.now))
		m.where[id] = "buffered"
	}
}

func (m *bookMachine) readAgain(t *rapid.T) {
	if m.ended || len(m.where) == 0 {
		t.Skip("nothing in flight")
	}
	id := rapid.SampledFrom(keys(m.where)).Draw(t, "id")
	require.False(t, m.b.add(goredis.XMessage{ID: id, Values: map[string]any{}}, 2, m.now, m.now), "%s would run twice", id)
}

func (m *bookMachine) take(t *rapid.T) {
	if m.ended {
		t.Skip("slots have been told to stop")
	}
	lost := map[string]bool{}
	for _, h := range m.b.buffer {
		if h.lost {
			lost[h.entry.ID] = true
		}
	}
	var first string
	for _, h := range m.b.buffer {
		if !h.lost {
			first = h.entry.ID
			break
		}
	}
	h, stale := m.b.take(m.now, m.now, m.recall)
	require.False(t, stale)
	if h == nil {
		require.Empty(t, first)
	} else {
		require.Equal(t, first, h.entry.ID, "out of order")
		m.where[first] = "slot"
		m.slots = append(m.slots, h)
	}
	for id := range lost { // those that were skipped
		if _, in := m.b.entries[id]; !in {
			delete(m.where, id)
		}
	}
}

// pick removes one element.
func pick(t *rapid.T, from *[]*held) *held {
	if len(*from) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
	h := (*from)[i]
	*from = append((*from)[:i:i], (*from)[i+1:]...)
	return h
}

func (m *bookMachine) ack(t *rapid.T) {
	h := pick(t, &m.slots)
	m.b.settle(h)
	m.where[h.entry.ID] = "acking"
}

func (m *bookMachine) nack(t *rapid.T) {
	h := pick(t, &m.slots)
	if m.ended || h.lost {
		m.b.withdraw(h)
		if h.lost {
			delete(m.where, h.entry.ID)
		} else {
			m.where[h.entry.ID] = "returning"
		}
		return
	}
	m.b.delay(h)
	m.late = append(m.late, h)
	m.where[h.entry.ID] = "delayed"
}

func (m *bookMachine) leave(t *rapid.T) {
	h := pick(t, &m.slots)
	m.b.leave(h, m.now)
	delete(m.where, h.entry.ID)
	require.Contains(t, m.b.left, h.entry.ID)
}

func (m *bookMachine) abandon(t *rapid.T) {
	h := pick(t, &m.slots)
	m.b.abandon(h)
	delete(m.where, h.entry.ID)
}

func (m *bookMachine) ripen(t *rapid.T) {
	h := pick(t, &m.late)
	require.Equal(t, m.where[h.entry.ID] == "delayed" && !m.ended, m.b.ripen(h), "ripen after the end must do nothing")
	if !m.ended {
		m.where[h.entry.ID] = "buffered"
	}
}

func (m *bookMachine) flush(t *rapid.T) {
	hs := append(m.b.nextReturns(), m.b.nextAcks(rapid.IntRange(1, 5).Draw(t, "n"))...)
	for _, h := range hs {
		m.where[h.entry.ID] = "flushing"
	}
	m.flight = append(m.flight, hs...)
}

func (m *bookMachine) answer(t *rapid.T) {
	h := pick(t, &m.flight)
	if rapid.Bool().Draw(t, "failed") {
		m.b.retry([]*held{h})
		m.where[h.entry.ID] = map[stage]string{stageAcking: "acking", stageReturning: "returning"}[h.stage]
		return
	}
	if h.stage == stageAcking {
		m.acked[h.entry.ID]++
	}
	m.b.flushed([]*held{h})
	delete(m.where, h.entry.ID)
}

func (m *bookMachine) lose(t *rapid.T) {
	if len(m.where) == 0 {
		t.Skip("nothing in flight")
	}
	m.b.lose(m.b.entries[rapid.SampledFrom(keys(m.where)).Draw(t, "id")])
}

func (m *bookMachine) end(t *rapid.T) {
	for id, w := range m.where {
		if w != "buffered" && w != "delayed" {
			continue
		}
		if m.b.entries[id].lost {
			delete(m.where, id)
		} else {
			m.where[id] = "returning"
		}
	}
	m.b.returnUnbegun()
	m.ended = true
}

func keys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m)) // rapid repeats a run from its draws alone
}

// An entry that nobody has confirmed for too long may be somebody else's: a slot must not begin it.
func TestBookDropsStaleEntries(t *testing.T) {
	t.Parallel()
	b, now := newBook(1, 10), time.Unix(1_000_000, 0)
	b.add(goredis.XMessage{ID: "1-0"}, 1, now.Add(-time.Hour), now)
	b.add(goredis.XMessage{ID: "2-0"}, 1, now, now)
	h, stale := b.take(now.Add(-time.Minute), now, nil)
	require.True(t, stale, "the reader must look again")
	require.Equal(t, "2-0", h.entry.ID)
	require.NotContains(t, b.entries, "1-0")
}

func TestBookRenews(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	const hold = time.Hour
	due, oldestRun, oldestWait := now.Add(-time.Minute), now.Add(-hold), now.Add(-3*hold)
	long, longer, longest := now.Add(-2*time.Minute), now.Add(-2*hold), now.Add(-4*hold)
	recall := make(chan struct{}, 1)
	b := newBook(6, 10)
	in := func(id string, confirmed, since time.Time) *held {
		b.add(goredis.XMessage{ID: id}, 1, confirmed, since)
		return b.entries[id]
	}
	in("fresh", now, now)
	in("due", long, long)
	in("waits long", long, longer)
	in("waits too long", long, longest)
	slot := func(id string, begun bool, since time.Time) {
		b.add(goredis.XMessage{ID: id}, 1, long, since)
		h := b.entries[id]
		b.buffer = b.buffer[:len(b.buffer)-1]
		h.stage, h.begun, h.recall = stageHeld, begun, recall
		b.busy++
	}
	slot("handled", true, long)
	slot("handled too long", true, longer)
	slot("offered long", false, longer)
	slot("offered too long", false, longest)
	b.lose(in("lost", long, long))

	require.ElementsMatch(t, []string{"due", "handled", "waits long", "offered long"}, idsOf(b.renewable(due, oldestRun, oldestWait)))
	require.Equal(t, []string{"waits too long"}, idsOf(b.returns), "it is released: the slots are stuck")
	require.Len(t, recall, 1, "the slot that offers must hear of it")
	require.True(t, b.entries["offered too long"].recalled)
}
