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

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/slots"
)

// tableMachine uses an in-flight table as the parts of a reader do, at random, and keeps a simple account.
type tableMachine struct {
	*inflight
	n        int
	where    map[string]string // entry id → buffered, worker, delayed, acking, releasing, flushing
	workers  []*pendingEntry
	late     []*pendingEntry // delayed
	flights  []*pendingEntry // in a flush
	ackCount map[string]int
	signals  chan struct{}
}

// newTestTable returns an open table without workers.
func newTestTable(concurrency, batch int) *inflight {
	t := newInflight(&Options{Config: Config{
		Concurrency: concurrency, BatchSize: batch, MinIdle: time.Hour, MaxRedeliveries: 1,
		Redelivery: pipeline.Backoff{First: time.Hour, Max: time.Hour},
	}}, NewMetrics())
	t.search, t.keep, t.work = func() {}, func() {}, func(int) {}
	t.start()
	return t
}

func stored(id string) []goredis.XMessage {
	return []goredis.XMessage{{ID: id, Values: map[string]any{}}}
}

func TestTableNeverLosesOrDoublesAnEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &tableMachine{
			inflight: newTestTable(rapid.IntRange(1, 4).Draw(t, "workers"), rapid.IntRange(1, 5).Draw(t, "batch")),
			where:    map[string]string{}, ackCount: map[string]int{}, signals: make(chan struct{}, 1),
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"read":    m.readNew,
			"again":   m.readAgain,
			"take":    m.takeFirst,
			"ack":     m.ackOne,
			"nack":    m.nackOne,
			"abandon": m.abandonOne,
			"due":     m.oneBecomesDue,
			"flush":   m.startFlush,
			"answer":  m.answer,
			"lose":    m.loseOne,
			"resize":  func(t *rapid.T) { m.resize(rapid.IntRange(1, 4).Draw(t, "workers")) },
			"close":   m.end,
		})
	})
}

func (m *tableMachine) check(t *rapid.T) {
	count := map[string]int{}
	for _, w := range m.where {
		count[w]++
	}
	require.Len(t, m.buffer, count["buffered"], "buffer")
	require.Equal(t, count["worker"], m.busy, "busy")
	require.Equal(t, count["delayed"], m.delayed, "delayed")
	require.Len(t, m.acks, count["acking"], "acks")
	require.Len(t, m.release, count["releasing"], "releases")
	require.Len(t, m.entries, len(m.where), "entries in flight")
	require.GreaterOrEqual(t, m.free(), 0)
	if room, closed := m.readable(); room && !closed {
		require.Positive(t, m.free(), "a read may be sent although nothing fits")
		require.Less(t, m.busy+len(m.buffer), m.limit, "a read may be sent although no worker would take its entry")
	}
	for id, n := range m.ackCount {
		require.Equal(t, 1, n, "%s was acknowledged more than once", id)
	}
}

func (m *tableMachine) readNew(t *rapid.T) {
	if room, closed := m.readable(); closed || !room {
		t.Skip("a reader would not read now")
	}
	for range rapid.IntRange(1, m.opts.BatchSize).Draw(t, "entries") {
		m.n++
		id := fmt.Sprintf("%d-0", m.n)
		m.addRead(stored(id), nil, time.Now())
		m.where[id] = "buffered"
	}
}

func (m *tableMachine) readAgain(t *rapid.T) {
	if m.closed || len(m.where) == 0 {
		t.Skip("nothing in flight")
	}
	id, before := rapid.SampledFrom(keys(m.where)).Draw(t, "id"), m.read
	m.addRead(stored(id), nil, time.Now())
	require.Equal(t, before, m.read, "%s would run twice", id)
}

func (m *tableMachine) takeFirst(t *rapid.T) {
	if m.closed {
		t.Skip("workers were stopped")
	}
	lost, first := map[string]bool{}, ""
	for _, e := range slices.Backward(m.buffer) {
		if e.lost {
			lost[e.ID] = true
		} else {
			first = e.ID
		}
	}
	e := m.claimNext(m.signals)
	if e == nil {
		require.Empty(t, first)
	} else {
		require.Equal(t, first, e.ID, "out of order")
		m.where[first] = "worker"
		m.workers = append(m.workers, e)
	}
	for id := range lost { // those that were skipped
		if !m.has(id) {
			delete(m.where, id)
		}
	}
}

// pick removes one element.
func pick(t *rapid.T, from *[]*pendingEntry) *pendingEntry {
	if len(*from) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
	e := (*from)[i]
	*from = slices.Delete(slices.Clone(*from), i, i+1)
	return e
}

func (m *tableMachine) ackOne(t *rapid.T) {
	e := pick(t, &m.workers)
	m.ack(e)
	m.where[e.ID] = "acking"
}

func (m *tableMachine) nackOne(t *rapid.T) {
	e := pick(t, &m.workers)
	_, again := m.nack(e)
	switch {
	case e.lost:
		delete(m.where, e.ID)
	case m.closed:
		m.where[e.ID] = "releasing"
	case e.nacks > m.opts.MaxRedeliveries:
		delete(m.where, e.ID)
		require.Contains(t, m.leftPending, e.ID)
		require.EqualValues(t, e.nacks, m.counts[e.ID])
	case m.limit == 1:
		require.True(t, again)
		m.workers = append(m.workers, e)
		return
	default:
		m.late = append(m.late, e)
		m.where[e.ID] = "delayed"
	}
	require.False(t, again)
}

func (m *tableMachine) abandonOne(t *rapid.T) {
	e := pick(t, &m.workers)
	m.abandon(e)
	delete(m.where, e.ID)
}

func (m *tableMachine) oneBecomesDue(t *rapid.T) {
	e := pick(t, &m.late)
	e.timer.Stop()
	m.becomeDue(e)
	if !m.closed {
		m.where[e.ID] = "buffered"
	}
}

func (m *tableMachine) startFlush(t *rapid.T) {
	plain, fenced := m.nextAcks(rapid.IntRange(1, 5).Draw(t, "n"))
	list := slices.Concat(m.nextReleases(), plain, fenced)
	for _, e := range list {
		m.where[e.ID] = "flushing"
	}
	m.flights = append(m.flights, list...)
}

func (m *tableMachine) answer(t *rapid.T) {
	e := pick(t, &m.flights)
	if rapid.Bool().Draw(t, "failed") {
		m.retry([]*pendingEntry{e})
		m.where[e.ID] = map[stage]string{stageAcking: "acking", stageReleasing: "releasing"}[e.stage]
		return
	}
	if e.stage == stageAcking {
		m.ackCount[e.ID]++
	}
	m.flushed([]*pendingEntry{e})
	delete(m.where, e.ID)
}

func (m *tableMachine) loseOne(t *rapid.T) {
	if len(m.where) == 0 {
		t.Skip("nothing in flight")
	}
	m.lose(m.entries[rapid.SampledFrom(keys(m.where)).Draw(t, "id")])
}

func (m *tableMachine) end(*rapid.T) {
	for id, w := range m.where {
		if w != "buffered" && w != "delayed" || m.closed {
			continue
		}
		if m.entries[id].lost {
			delete(m.where, id)
		} else {
			m.where[id] = "releasing"
		}
	}
	m.close(false)
}

func keys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m)) // rapid repeats a run from its draws alone
}

// What waits for its redelivery takes no place of other entries, until there is too much of it.
func TestDelayedEntriesTakeNoPlace(t *testing.T) {
	t.Parallel()
	table, n := newTestTable(2, 1), 0
	add := func() {
		n++
		table.addRead(stored(fmt.Sprintf("%d-0", n)), nil, time.Now())
	}
	delay := func() {
		add()
		_, again := table.nack(table.claimNext(nil))
		require.False(t, again)
	}
	delay()
	delay()
	add()
	room, _ := table.readable()
	require.True(t, room, "a worker is idle")
	require.Equal(t, 2, table.free(), "an entry of a dead consumer, too")
	require.NotNil(t, table.claimNext(nil))
	delay()
	room, _ = table.readable()
	require.False(t, room)
	require.Zero(t, table.free())
}

// Another consumer may have an entry that was not confirmed for too long. No worker may start it.
func TestTableDropsStaleEntries(t *testing.T) {
	t.Parallel()
	table := newTestTable(1, 10)
	searches := 0
	table.search = func() { searches++ }
	table.addRead(stored("1-0"), nil, time.Now().Add(-time.Hour))
	table.addRead(stored("2-0"), nil, time.Now())
	require.Equal(t, "2-0", table.claimNext(nil).ID)
	require.False(t, table.has("1-0"))
	require.Equal(t, 1, searches, "the reader must search for the dropped entry")
}

func TestTableRenews(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	var gated bool
	long, longer, longest := now.Add(-2*time.Minute), now.Add(-2*time.Hour), now.Add(-4*time.Hour)
	revoke := make(chan struct{}, 1)
	table := newInflight(&Options{LongestHandlerHold: time.Hour, Gate: func() bool { return !gated }, Config: Config{MinIdle: 3 * time.Minute, LongestHold: 3 * time.Hour}}, NewMetrics())
	table.entries = map[string]*pendingEntry{}
	add := func(id string, e pendingEntry) {
		e.ID = id
		table.entries[id] = &e
		if e.stage == stageBuffered {
			table.buffer = append(table.buffer, &e)
		}
	}
	add("fresh", pendingEntry{confirmed: now, since: now})
	add("due", pendingEntry{confirmed: long, since: long})
	add("waits long", pendingEntry{confirmed: long, since: longer})
	add("waits too long", pendingEntry{confirmed: long, since: longest})
	add("lost", pendingEntry{confirmed: long, since: long, lost: true})
	for id, since := range map[string]time.Time{"handled": long, "handled too long": longer} {
		add(id, pendingEntry{stage: stageTaken, started: true, confirmed: long, since: since, revoke: revoke})
	}
	for id, since := range map[string]time.Time{"offered long": longer, "offered too long": longest} {
		add(id, pendingEntry{stage: stageTaken, confirmed: long, since: since, revoke: revoke})
	}

	add("nacked", pendingEntry{stage: stageDelayed, confirmed: long, since: long})
	add("nacked long ago", pendingEntry{stage: stageDelayed, confirmed: long, since: longer})

	require.ElementsMatch(t, []string{"due", "handled", "waits long", "offered long", "nacked", "nacked long ago"}, idsOf(table.renewable(now)))
	require.Equal(t, []string{"waits too long"}, idsOf(table.release), "it is released: the workers are stuck")
	require.Len(t, revoke, 1, "the worker that offers must be notified")
	require.True(t, table.entries["offered too long"].revoked)
	gated = true
	require.ElementsMatch(t, []string{"due", "handled", "waits long", "offered long", "nacked"}, idsOf(table.renewable(now)))
}

// handleAll lets all workers of a table take an entry each, and handle it in the given time. It
// returns their number.
func handleAll(m *inflight, n *int, took time.Duration) int {
	var taken []*pendingEntry
	for m.busy < m.workers() {
		*n++
		m.addRead(stored(fmt.Sprintf("%d-0", *n)), nil, time.Now())
		m.running = m.busy + 1
		taken = append(taken, m.next(nil))
	}
	for _, e := range taken {
		e.since = time.Now().Add(-took)
		m.ack(e)
	}
	m.running = 0
	return len(taken)
}

func TestWorkersFollowTheSlots(t *testing.T) {
	m, n := newTestTable(8, 10), 0
	m.slots, m.starts, m.opts.Ahead = slots.New(8), slots.New(100), 100
	require.Equal(t, 12, handleAll(m, &n, time.Millisecond))
	require.Equal(t, 13, handleAll(m, &n, time.Millisecond), "a slot is free, and no worker was")
	for range 200 {
		handleAll(m, &n, time.Millisecond)
	}
	require.Equal(t, 200, m.workers(), "twice Ahead")
	require.Equal(t, 100, m.mostStarts())
	m.opts.Ahead = 1000
	for range 200 {
		handleAll(m, &n, time.Millisecond)
	}
	require.Equal(t, 12+maxMore, m.workers(), "the most")
	m.opts.Ahead = 5
	require.Equal(t, 12, m.workers(), "always as many again as half the slots")
	require.Equal(t, 12, m.mostStarts())
	m.opts.Ahead = 100
	require.Equal(t, 200, handleAll(m, &n, time.Second))
	require.Equal(t, 12, m.workers(), "slow messages")
	for range 8 {
		require.NoError(t, m.slots.Acquire(t.Context()))
	}
	require.Equal(t, 12, handleAll(m, &n, time.Millisecond))
	require.Equal(t, 12, m.workers(), "all slots are in use")
	for range 8 {
		m.slots.Release()
	}
	m.starts.Resize(0)
	require.Equal(t, 12, handleAll(m, &n, time.Millisecond))
	require.Equal(t, 12, m.workers(), "further workers would only wait for their starts")
}

func TestReadAheadEnds(t *testing.T) {
	m := newTestTable(1, 10)
	m.setAhead(100, time.Now().Add(time.Hour))
	require.Equal(t, 100, m.readAhead())
	m.setAhead(100, time.Now().Add(-time.Millisecond))
	require.Zero(t, m.readAhead(), "the entries of the last read last for too long")
}
