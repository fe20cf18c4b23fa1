package gateway

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/sse"
)

// domain has the jobs of a domain that are watched here. Its lock is taken before that of a stream.
type domain struct {
	g      *Gateway
	name   string
	prefix string        // of the JSON of its events, up to the id of the job
	wait   time.Duration // after it, clients without room are disconnected

	mu   sync.Mutex
	jobs map[string]*job // by id
}

// job is a job that is watched here, or was until recently. The lock of its domain protects it.
type job struct {
	domain   *domain
	id       string
	sequence *sequence
	watchers map[*watcher]struct{} // those that are attached
	users    int                   // watchers, attached or not
	losses   int                   // how often feed entries may have been missed
	leave    *time.Timer           // removes the job; nil while it has users

	out     []outgoing // not yet sent to the watchers
	size    int        // of out, in bytes
	waiting bool       // for a watcher without room

	reading       bool        // a read of the log is queued or under way
	pendingReason string      // the reason for another read after it and after out; "": none
	retry         *time.Timer // reads the log later; nil: none was planned
	tried         int64       // the position when retry was planned
	failed        int         // reads that failed since the last one that did not
	empty         int         // reads that closed no hole since the last one that did
}

// reread is the time between two reads that look for a missing number, or that fail.
func reread(n int) time.Duration {
	return pipeline.Backoff{First: 50 * time.Millisecond, Max: 2 * time.Second}.Delay(n)
}

// keepUnwatched is how long a job is kept without watchers, in addition to gap_wait. A watcher that
// reconnects then does not start the wait for a missing number again.
const keepUnwatched = 5 * time.Second

// join returns the job for a further watcher.
func (d *domain) join(id string) *job {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.jobs[id]
	if j == nil {
		j = &job{domain: d, id: id, sequence: newSequence(d.g.opts.GapWait), watchers: map[*watcher]struct{}{}}
		d.jobs[id] = j
	}
	if j.leave != nil {
		j.leave.Stop()
		j.leave = nil
	}
	j.users++
	return j
}

// remove ends the watch of one watcher.
func (d *domain) remove(w *watcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := w.job
	delete(j.watchers, w)
	if j.users--; j.users > 0 {
		return
	}
	if j.sequence.finished {
		delete(d.jobs, j.id)
		return
	}
	var leave *time.Timer
	leave = time.AfterFunc(d.g.opts.GapWait+keepUnwatched, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if j.leave == leave {
			delete(d.jobs, j.id)
		}
	})
	j.leave = leave
}

// jobID returns the job of an event without decoding it.
func (d *domain) jobID(text string) string {
	if rest, ok := strings.CutPrefix(text, d.prefix); ok {
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	e, err := event.Decode([]byte(text)) // written in another form
	if err != nil {
		return ""
	}
	return e.JobID
}

// entries takes the events of entries of a feed, in their order.
func (d *domain) entries(texts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var touched []*job
	for _, text := range texts {
		j := d.jobs[d.jobID(text)]
		if j == nil {
			continue
		}
		e, err := event.Decode([]byte(text))
		if err != nil {
			d.g.sampled.Warn(d.g.opts.Logger, "feed entry is no event", logs.Err(err))
			continue
		}
		j.sequence.full = len(j.out) >= outEvents || j.size >= outBytes
		steps, late := j.sequence.feed(d.g.item(e, []byte(text)), now)
		if late {
			d.g.metrics.late.WithLabelValues(d.name).Inc()
		}
		j.queue(steps)
		touched = append(touched, j)
	}
	for _, j := range touched { // a later entry may have closed the hole
		d.g.metrics.dropped.WithLabelValues(d.name).Add(float64(j.sequence.dropped))
		j.sequence.dropped = 0
		j.deliver()
		if j.sequence.needsLog() && (j.retry == nil || j.sequence.sentUpTo > j.tried) {
			j.catchUp(readHole)
		}
	}
}

// reset begins a job again that an operator has reset. An event of the second run may have come before
// the news of the reset, so the log is read.
func (d *domain) reset(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.jobs[id]; j != nil {
		j.beginAgain()
	}
}

// beginAgain takes the first run of a job back. The caller has the lock of the domain.
func (j *job) beginAgain() {
	j.out, j.size = nil, 0 // it is of the first run, so a watcher that comes now must not receive it
	j.queue(j.sequence.reset(len(j.watchers) > 0))
	j.deliver()
	j.losses++
	j.catchUp(readLost)
}

// follows begins the job again when a page of its log shows that it has. It returns false then, because
// the log must be read again. Watchers that have the end keep what they have while the log has nothing
// else. The caller has the lock of the domain.
func (j *job) follows(p page) bool {
	if !j.sequence.begunAgain(p) {
		return true
	}
	if p.state != nil || len(j.watchers) == 0 {
		j.beginAgain()
	}
	return false
}

// lost reads the logs of all jobs, because entries of a feed may have been missed.
func (d *domain) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, j := range d.jobs {
		j.losses++
		if len(j.watchers) > 0 {
			j.sequence.searchMissing()
		}
		j.catchUp(readLost)
	}
}

func (d *domain) observe(one outgoing, now time.Time) {
	switch {
	case one.kind == missing || one.kind == again:
		d.g.metrics.gaps.WithLabelValues(d.name).Inc()
	case one.kind != latest && !one.item.added.IsZero():
		if delay := now.Sub(one.item.added); delay.Abs() < plausibleDelay {
			d.g.metrics.delay.WithLabelValues(d.name).Observe(max(0, delay.Seconds()))
		}
	}
}

// plausibleDelay bounds the delays that are measured. A producer that gives its entries ids of its own
// makes others, and one of them would spoil the sum of all.
const plausibleDelay = 24 * time.Hour

// catchUp reads the log after the position of the job. The caller has the lock of the domain.
func (j *job) catchUp(reason string) {
	if j.retry != nil {
		j.retry.Stop()
		j.retry = nil
	}
	switch {
	case len(j.watchers) == 0: // a new watcher reads the log itself
	case j.reading || len(j.out) > 0:
		j.pendingReason = reason
	default:
		j.reading, j.pendingReason = true, ""
		after := j.sequence.next()
		begin, lives := time.Now(), j.sequence.lives
		j.domain.g.reader.queueRead(jobKey{j.domain.name, j.id}, after, reason, func(p page, err error) { j.caughtUp(p, err, reason, begin, lives) })
	}
}

// search reads the log from its begin, for the watchers that have numbers which are given again.
// The caller has the lock of the domain.
func (j *job) search() {
	if len(j.watchers) == 0 {
		lives := j.sequence.lives + 1
		j.sequence = newSequence(j.domain.g.opts.GapWait)
		j.sequence.lives = lives
		return
	}
	j.catchUp(readHole)
}

// caughtUp takes the page of catchUp, which was read in a life of the job. After an error, after a
// reset, and while the job is behind, the log is read again.
func (j *job) caughtUp(p page, err error, reason string, begin time.Time, lives int) {
	j.domain.mu.Lock()
	defer j.domain.mu.Unlock()
	now := time.Now()
	if lives != j.sequence.lives {
		j.reading = false
		j.catchUp(reason)
		return
	}
	if err != nil {
		j.sequence.unreadable(begin)
		j.reading = false
		j.failed++
		j.later(reason, reread(j.failed))
		return
	}
	if p.state != nil && !j.follows(p) {
		j.reading = false
		j.catchUp(reason)
		return
	}
	before := j.sequence.sentUpTo
	steps := j.sequence.page(p, now)
	j.failed = 0
	j.queue(steps)
	j.deliver()
	j.reading = false
	if j.sequence.sentUpTo > before {
		j.empty = 0
	}
	switch {
	case j.pendingReason != "":
		j.catchUp(j.pendingReason)
	case !j.sequence.needsLog():
	case p.more && j.sequence.sentUpTo > before || j.sequence.searching:
		j.catchUp(reason)
	default:
		j.empty++
		wait := reread(j.empty)
		if due, ok := j.sequence.due(); ok {
			wait = min(wait, due.Sub(now))
		}
		j.later(readHole, max(wait, time.Millisecond))
	}
}

// later calls catchUp after a time.
func (j *job) later(reason string, wait time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		j.domain.mu.Lock()
		defer j.domain.mu.Unlock()
		if j.retry == timer {
			j.catchUp(reason)
		}
	})
	j.retry, j.tried = timer, j.sequence.sentUpTo
}

const (
	roundEvents = 16       // that a job sends when each watcher has room for them
	roundBytes  = 64 << 10 // the same
	outEvents   = 512      // that wait for room; the log keeps further ones
	outBytes    = 1 << 20  // the same

	roomStep = 5 * time.Millisecond // between two checks for room
	roomWait = 100 * time.Millisecond
)

// size is the most bytes that a watcher receives for a step, with the cursors of 32 jobs.
func (one outgoing) size() int { return len(one.item.event.Data) + maxIDBytes }

// queue adds steps to those that wait. The caller has the lock of the domain.
func (j *job) queue(steps []outgoing) {
	for _, one := range steps {
		j.out = append(j.out, one)
		j.size += one.size()
	}
}

// deliver sends the steps that wait, when all watchers have room. The caller has the lock of the
// domain.
func (j *job) deliver() {
	if !j.waiting {
		j.rounds(0)
	}
}

// rounds sends steps in rounds. waited is how long the first round has waited for room.
func (j *job) rounds(waited time.Duration) {
	for len(j.out) > 0 && len(j.watchers) > 0 {
		n, size := 1, j.out[0].size()
		for n < min(roundEvents, len(j.out)) && size+j.out[n].size() <= roundBytes {
			size += j.out[n].size()
			n++
		}
		if waited < j.domain.wait && !j.room(n, size) {
			j.waiting = true
			time.AfterFunc(roomStep, func() {
				j.domain.mu.Lock()
				defer j.domain.mu.Unlock()
				j.waiting = false
				j.rounds(waited + roomStep)
			})
			return
		}
		waited = 0
		j.send(j.out[:n])
		clear(j.out[:n])
		j.out = j.out[n:]
		j.size -= size
	}
	j.out, j.size = nil, 0
	if j.pendingReason != "" && !j.reading {
		j.catchUp(j.pendingReason)
	}
}

// room reports whether all watchers have room for events with a size in bytes.
func (j *job) room(events, size int) bool {
	for w := range j.watchers {
		if !w.stream.client.HasCapacity(events, size, j.domain.wait) {
			return false
		}
	}
	return true
}

// encoded is an event of a step, encoded once for all clients that get the same id.
type encoded struct {
	first sse.Event
	more  map[string]sse.Event // by id, for clients with gaps
}

// with returns the encoded form of an event of the step.
func (e *encoded) with(event sse.Event) sse.Event {
	if event.ID == e.first.ID {
		return e.first
	}
	known, ok := e.more[event.ID]
	if !ok {
		if e.more == nil {
			e.more = map[string]sse.Event{}
		}
		known = event.Prepare()
		e.more[event.ID] = known
	}
	return known
}

// send sends steps to all watchers. Each is encoded once per id.
func (j *job) send(steps []outgoing) {
	now := time.Now()
	for _, one := range steps {
		j.domain.observe(one, now)
		shared := &encoded{first: one.event(jobKey{j.domain.name, j.id}, one.item.event.ID).Prepare()}
		for w := range j.watchers {
			w.send(one, shared)
		}
	}
}

// event returns what is sent for a step, with an id. A state and a transient event have none.
func (one outgoing) event(of jobKey, id string) sse.Event {
	e := one.item.event
	switch one.kind {
	case latest:
		return sse.Event{Name: "state", Data: e.Data}
	case missing, again:
		data := fmt.Appendf(nil, `{"from":%d,"to":%d,"domain":%q,"job_id":%q}`, one.from, one.to, of.domain, of.id)
		return sse.Event{ID: id, Name: "gap", Data: data}
	case numbered:
		if id != e.ID {
			return sse.Event{ID: id, Name: e.Name, Data: e.Data}
		}
	case transient:
	}
	return e
}
