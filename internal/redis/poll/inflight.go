package poll

import (
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/slots"
)

// stage is the position of an entry on its way through a reader.
type stage uint8

const (
	stageBuffered  stage = iota // read, no worker has taken it
	stageTaken                  // a worker has it
	stageDelayed                // nacked, waits for its next delivery
	stageAcking                 // acknowledged, the XACK is not confirmed
	stageReleasing              // not to be started here, its release is not confirmed
)

// pendingEntry is an entry that this reader is responsible for.
type pendingEntry struct {
	goredis.XMessage
	bytes     int   // of the XMessage, which is kept until the entry is acknowledged or given up
	delivered int64 // when it came in, that time included
	nacks     int   // by this reader
	excused   int   // of those: while the gate was closed

	stage     stage
	since     time.Time       // when it was read, then when its handler started
	confirmed time.Time       // the start of the last command that confirmed it as ours
	lost      bool            // claimed by another consumer, or deleted: its ack is fenced
	started   bool            // a handler has it
	refused   bool            // Ordered: the chain must not start it
	revoked   bool            // it waits too long for a handler, or lies behind the fence
	revoke    chan<- struct{} // makes the worker that offers it check lost and revoked
	timer     *time.Timer     // in stageDelayed
	acked     func()          // called when its acknowledgement is confirmed; may be nil
}

// inflight is the in-flight table of a reader, and the queues between its parts. It does no I/O. It is
// safe for concurrent use.
//
// An entry is in the table from its read until its XACK or its release is confirmed, or until it is
// left pending. Until then it is not taken in again.
type inflight struct {
	opts     *Options
	m        *Metrics
	slots    *slots.Slots     // of Options.Ahead; nil without it
	starts   *slots.Slots     // of Options.Ahead; nil without it
	stopping chan struct{}    // closed with the table
	search   func()           // makes the poller search own pending entries now
	keep     func()           // starts the acker and the renewer
	work     func(worker int) // starts a worker

	// The first entry makes them, because an idle stream should use little memory.
	flush    chan struct{} // there is something to acknowledge or release
	finished chan struct{} // closed when no worker is left

	mu            sync.Mutex
	room          sync.Cond // there may be room for a read, or the table was closed
	startedAt     time.Time // zero: not started
	closed        bool      // nothing is added or started any more
	gone          bool      // the stream does not exist: nothing can be released
	keeping       bool      // the acker and the renewer run
	limit         int       // the concurrency
	more          int       // workers in addition; see adapt
	ahead         int       // see readAhead
	aheadEnd      time.Time // of ahead
	running       int       // how many there are
	busy          int       // those that have an entry
	delayed       int       // entries in stageDelayed
	bytes         int       // of all entries
	size          int       // expected of the next entry, in bytes; 0: none came in yet
	fenced        bool      // a timer will start the workers after the fence
	searchPending bool      // Ordered: the next search takes in entries before all others

	entries     map[string]*pendingEntry
	buffer      []*pendingEntry      // stageBuffered, in the order of reading
	acks        []*pendingEntry      // stageAcking, and not in a flush
	release     []*pendingEntry      // stageReleasing, and not in a flush
	leftPending map[string]time.Time // left pending here: a search does not take them in again
	counts      map[string]int64     // delivery counts to be written, of entries left pending

	last      time.Time // when the last entry came in
	read      int64     // entries that came in, without duplicates
	confirmed int64     // entries whose ack is confirmed
}

func newInflight(o *Options, m *Metrics) *inflight {
	t := &inflight{opts: o, m: m, limit: o.Concurrency, stopping: make(chan struct{})}
	t.room.L = &t.mu
	return t
}

// signal fills a channel of capacity one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// start opens the table. It returns false after an earlier start or close.
func (t *inflight) start() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !t.startedAt.IsZero() {
		return false
	}
	t.startedAt = time.Now()
	return true
}

// close ends the adding and the starting of entries, and releases those that no worker has. first
// is false after an earlier close.
func (t *inflight) close(gone bool) (first, started bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	t.closed, t.gone = true, gone
	t.releaseUnstarted()
	close(t.stopping)
	signal(t.flush)
	t.room.Broadcast()
	return true, !t.startedAt.IsZero()
}

// finish ends the acker after the last worker. No entry comes in any more.
func (t *inflight) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished != nil {
		close(t.finished)
	}
}

// endWhenIdle reports whether nothing is in flight and nothing waits for a flush. The acker and the
// renewer then end, and the next entry starts them again.
func (t *inflight) endWhenIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keeping = len(t.entries) > 0 || len(t.counts) > 0
	return !t.keeping
}

// drop removes an entry from the table.
func (t *inflight) drop(e *pendingEntry) {
	delete(t.entries, e.ID)
	t.forget(e)
	if len(t.entries) == 0 {
		signal(t.flush)
	}
}

// releaseUnstarted releases the buffer and the delayed entries.
func (t *inflight) releaseUnstarted() {
	for _, e := range t.entries {
		if e.stage == stageDelayed {
			t.delayed--
			e.timer.Stop()
			t.queueRelease(e)
		}
	}
	for _, e := range t.buffer {
		t.queueRelease(e)
	}
	t.buffer = nil
}

// queueRelease ends the part of an entry in this table. A lost entry is not released.
func (t *inflight) queueRelease(e *pendingEntry) {
	e.stage = stageReleasing // a lost entry must not become due either
	t.forget(e)
	if e.lost || t.gone {
		t.drop(e)
		return
	}
	t.release = append(t.release, e)
	signal(t.flush)
}

// spawn starts the workers that the buffered entries need.
func (t *inflight) spawn() {
	if len(t.buffer) > 0 && t.opts.stopped() {
		t.awaitFence()
		return
	}
	for limit := t.workers(); !t.closed && t.running < limit && t.running-t.busy < len(t.buffer); t.running++ {
		t.work(t.running)
	}
}

func (t *inflight) has(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.entries[id]
	return ok
}

// addRead takes in entries that the server gave to this consumer; the command was sent at sent. An
// entry that is in the table already is only confirmed. A closed table releases the others.
func (t *inflight) addRead(entries []goredis.XMessage, delivered map[string]int64, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.searchPending && !t.closed {
		return // the search takes in these, too, after those that come first
	}
	t.admit(entries, delivered, sent)
	if t.closed {
		t.releaseUnstarted()
	}
}

// adopt is addRead for claimed entries. It returns false and adds nothing while the table is not open.
func (t *inflight) adopt(entries []goredis.XMessage, delivered map[string]int64, claimed time.Time, acked func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.startedAt.IsZero() {
		return false
	}
	t.m.adopted.Add(float64(t.admit(entries, delivered, claimed)))
	for _, e := range entries {
		t.entries[e.ID].acked = acked
	}
	return true
}

func (t *inflight) admit(entries []goredis.XMessage, delivered map[string]int64, sent time.Time) (added int) {
	if t.entries == nil {
		t.entries, t.flush, t.finished = map[string]*pendingEntry{}, make(chan struct{}, 1), make(chan struct{})
	}
	now, bytes := time.Now(), t.bytes
	for _, x := range entries {
		if e, ok := t.entries[x.ID]; ok {
			e.confirmed, e.lost = sent, false
			continue
		}
		delete(t.leftPending, x.ID)
		e := &pendingEntry{XMessage: x, delivered: max(delivered[x.ID], 1), since: now, confirmed: sent, bytes: bytesOf(x)}
		t.entries[x.ID] = e
		t.bytes += e.bytes
		t.place(e)
		t.last = now
		added++
	}
	t.expect(added, t.bytes-bytes)
	if added > 0 && !t.closed {
		if !t.keeping {
			t.keeping = true
			t.keep()
		}
		t.spawn()
	}
	t.read += int64(added)
	t.m.entries.Add(float64(added))
	return added
}

// missing returns the ids of own pending entries that are not in flight, and were not left pending.
func (t *inflight) missing(own []goredis.XPendingExt) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range own {
		e, inFlight := t.entries[p.ID]
		at, left := t.leftPending[p.ID]
		left = left && time.Since(at) <= t.opts.MinIdle // after that it can be reclaimed
		if !left && (!inFlight || e.lost) {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// next returns the next entry for a worker that receives from revoke. Nil ends the worker.
func (t *inflight) next(revoke chan<- struct{}) *pendingEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.room.Signal()
	if !t.closed && t.running <= t.workers() && !t.opts.stopped() {
		if e := t.claimNext(revoke); e != nil {
			return e
		}
	}
	t.running--
	t.spawn() // after the fence
	return nil
}

// awaitFence calls spawn after gatePoll.
func (t *inflight) awaitFence() {
	if !t.fenced {
		t.fenced = true
		time.AfterFunc(gatePoll, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.fenced = false
			t.spawn()
		})
	}
}

// claimNext takes the first entry of the buffer that is still ours. It drops the others: a search finds
// them if they are still pending to this consumer.
func (t *inflight) claimNext(revoke chan<- struct{}) *pendingEntry {
	for len(t.buffer) > 0 {
		e := t.buffer[0]
		t.buffer[0] = nil
		if t.buffer = t.buffer[1:]; len(t.buffer) == 0 {
			t.buffer = nil
		}
		if e.lost || t.stale(e) {
			t.drop(e)
			if !e.lost {
				t.searchFor()
			}
			continue
		}
		e.stage, e.since, e.started, e.revoked, e.revoke = stageTaken, time.Now(), false, false, revoke
		t.busy++
		return e
	}
	return nil
}

// searchFor has the poller search for an entry that was dropped. With Ordered, the buffer is
// dropped too: the entries in it come after that one.
func (t *inflight) searchFor() {
	if t.opts.Ordered && !t.closed {
		t.searchPending = true
		for _, e := range t.buffer {
			t.drop(e)
		}
		t.buffer = nil
	}
	t.search()
}

// searching notes that the search begins.
func (t *inflight) searching() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.searchPending = false
}

// stale reports whether another consumer may have the entry.
func (t *inflight) stale(e *pendingEntry) bool {
	return e.confirmed.Before(t.opts.since(t.opts.MinIdle * 2 / 3))
}

// stillMine reports whether a worker may offer its entry to a handler. False ends its work on it.
func (t *inflight) stillMine(e *pendingEntry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	stale := t.stale(e)
	switch {
	case t.opts.Ordered && !e.lost && !t.closed && t.opts.stopped():
		t.requeue(e)
	case !stale && !e.lost && !e.revoked:
		return true
	case e.lost || e.revoked || t.closed:
		t.busy--
		t.queueRelease(e)
	default:
		t.busy--
		t.drop(e)
		t.searchFor()
	}
	return false
}

// started records that a handler has received the entry.
func (t *inflight) started(e *pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.started, e.since = true, time.Now()
}

// ack ends a worker's work on an entry that its handler acknowledged.
func (t *inflight) ack(e *pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.adapt(time.Since(e.since))
	t.busy--
	e.stage = stageAcking
	t.forget(e)
	t.acks = append(t.acks, e)
	if n := len(t.acks); n == 1 || n >= t.opts.AckBatchSize {
		signal(t.flush)
	}
}

// releaseTaken ends a worker's work on an entry that no handler received.
func (t *inflight) releaseTaken(e *pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	t.queueRelease(e)
}

// abandon ends a worker's work on an entry whose handler did not return in time. It stays pending.
func (t *inflight) abandon(e *pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	t.drop(e)
}

// nack decides about an entry that its handler refused. When again is true, its worker delivers it
// again after wait. Otherwise the worker's work on it has ended.
func (t *inflight) nack(e *pendingEntry) (wait time.Duration, again bool) {
	gated, stopped := t.opts.gated(), t.opts.Ordered && t.opts.stopped()
	t.mu.Lock()
	defer t.mu.Unlock()
	e.started = false
	refused := e.refused
	if e.refused = false; !refused {
		e.nacks++
		if gated {
			e.excused++
		}
	}
	if (stopped || refused) && !t.closed && !e.lost {
		t.requeue(e)
		return 0, false
	}
	wait = t.opts.Redelivery.Delay(e.nacks - e.excused)
	keep := !t.closed && !e.lost && e.nacks-e.excused <= t.opts.MaxRedeliveries
	if keep && t.workers() == 1 {
		return wait, true // with a single worker, no entry overtakes another
	}
	t.busy--
	switch {
	case keep:
		t.delayed++
		e.stage = stageDelayed
		e.timer = time.AfterFunc(wait, func() { t.becomeDue(e) })
	case t.closed || e.lost:
		t.queueRelease(e)
	default:
		t.leavePending(e)
	}
	return 0, false
}

func (t *inflight) leavePending(e *pendingEntry) {
	t.m.leftPending.Inc()
	t.drop(e)
	if t.leftPending == nil {
		t.leftPending = map[string]time.Time{}
	}
	t.leftPending[e.ID] = time.Now()
	if counted := e.nacks - e.excused; counted > 1 { // all but the first were redeliveries here
		if t.counts == nil {
			t.counts = map[string]int64{}
		}
		t.counts[e.ID] = e.delivered + int64(counted) - 1
		signal(t.flush)
	}
}

// becomeDue puts a delayed entry in front of the buffer, once the gate is open.
func (t *inflight) becomeDue(e *pendingEntry) {
	gated := t.opts.gated()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.stage != stageDelayed {
		return
	}
	if gated {
		e.timer.Reset(gatePoll)
		return
	}
	t.delayed--
	e.stage = stageBuffered
	t.buffer = slices.Insert(t.buffer, 0, e)
	t.m.redeliveries.Inc()
	t.spawn()
}
