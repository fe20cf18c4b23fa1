package simulator

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"
)

// record is the state of a key. It is small, because each requested key has one.
type record struct {
	execution  // the latest; its key is empty
	attempts   uint32
	lookups    uint32
	executions uint32
	proper     uint32 // executions for the subject that is the key
	inFlight   bool
	answered   bool   // a caller has received the good answer
	overlaps   uint32 // calls during another call
	afterDone  uint32 // calls after answered
	rejected   bool   // with fromFirstUse: the key was rejected
	used       int64  // first request, Unix milliseconds; 0: none
}

// journal has all keys and their executions. It is safe for concurrent use.
type journal struct {
	id           string // prefix of the receipts of this process
	ttl          time.Duration
	table        *table // nil: in memory only
	fromFirstUse bool   // ttl counts from the first use of a key
	forgetsKeys  bool   // see API.ForgetsKeys

	mu             sync.Mutex
	keys           map[string]*record
	sorted         sortedKeys
	paths          map[string]string // each once, as far as they are few
	odd            map[string]uint32 // executions for a subject that is not their key
	next           uint64            // number of the next execution
	executions     int
	sum            int64                        // of all executions
	doubleKeys     int                          // keys executed more than once
	doubleSubjects int                          // subjects executed more than once, with any keys
	calls          map[string][]context.Context // under way, by key; each ends with its connection
	overlaps       int
	afterDone      int
}

func newJournal(cfg Config, forgetsKeys bool) *journal {
	return &journal{
		id: newID(), ttl: cfg.KeyTTL, fromFirstUse: cfg.KeysAgeFromFirstUse, forgetsKeys: forgetsKeys, next: 1,
		keys: map[string]*record{}, paths: map[string]string{}, calls: map[string][]context.Context{}, odd: map[string]uint32{},
	}
}

// open loads the file of the journal, if it has one.
func (j *journal) open(ctx context.Context, path string, syncAlways bool) (err error) {
	if path == "" {
		return nil
	}
	j.table, err = openTable(ctx, path, syncAlways, func(e execution) {
		j.next = max(j.next, e.number+1)
		j.apply(e)
	})
	return err
}

// record returns the key's record, perhaps a new one. The caller holds mu, or is alone.
func (j *journal) record(key string) *record {
	r := j.keys[key]
	if r == nil {
		r = &record{}
		j.keys[key] = r
	}
	return r
}

type claimed struct {
	state   claimState
	attempt uint32 // number of the attempt
	receipt string // only when replay
}

type claimState uint8

const (
	fresh    claimState = iota // the caller must execute or release it
	replay                     // it was executed before, with this body
	busy                       // another request is in flight
	reused                     // it was executed before, with another body
	rejected                   // the key is refused for good
)

// claim starts an attempt for key. With reject a key that isn't executed is refused.
func (j *journal) claim(key string, hash bodyHash, now time.Time, reject bool) claimed {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(key)
	if j.old(r.used, now) {
		r.used, r.rejected = 0, false
	}
	if r.used == 0 {
		r.used = now.UnixMilli()
	}
	known := !j.forgetsKeys && j.remembered(r, now)
	switch {
	case r.inFlight && !j.forgetsKeys:
		return claimed{state: busy}
	case known && r.hash != hash:
		return claimed{state: reused}
	case known:
		r.attempts++
		return claimed{state: replay, attempt: r.attempts, receipt: r.receipt}
	case reject, r.rejected:
		r.rejected = j.fromFirstUse
		return claimed{state: rejected}
	}
	r.attempts++
	r.inFlight = true
	return claimed{state: fresh, attempt: r.attempts}
}

// remembered reports whether the key has an execution that is not too old.
func (j *journal) remembered(r *record, now time.Time) bool {
	if r.executions == 0 {
		return false
	}
	if j.fromFirstUse {
		return r.at >= r.used && !j.old(r.used, now)
	}
	return !j.old(r.at, now)
}

// old reports whether the time of a key that was used at a moment is over.
func (j *journal) old(at int64, now time.Time) bool {
	return j.ttl > 0 && now.UnixMilli()-at >= j.ttl.Milliseconds()
}

// callBegins notes a call, a request or a lookup, whose context ends with its connection. It counts the
// call if another one of the key is under way, unless its caller is gone, and if a caller has
// received the good answer. The caller calls ends after the answer.
func (j *journal) callBegins(ctx context.Context, key string) (ends func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.keys[key] // nil: no request was looked at yet
	if slices.ContainsFunc(j.calls[key], func(other context.Context) bool { return other.Err() == nil }) {
		j.overlaps++
		r = j.record(key)
		r.overlaps++
	}
	if r != nil && r.answered {
		r.afterDone++
		j.afterDone++
	}
	j.calls[key] = append(j.calls[key], ctx)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		i := slices.Index(j.calls[key], ctx)
		if j.calls[key] = slices.Delete(j.calls[key], i, i+1); len(j.calls[key]) == 0 {
			delete(j.calls, key)
		}
	}
}

// answers notes that the caller receives the good answer.
func (j *journal) answers(key string) {
	j.mu.Lock()
	j.keys[key].answered = true
	j.mu.Unlock()
}

func (j *journal) release(key string) {
	j.mu.Lock()
	j.keys[key].inFlight = false
	j.mu.Unlock()
}

// execute executes a claimed key: e has no number, receipt and time yet. An error means that the journal has not
// got it.
func (j *journal) execute(e execution, now time.Time) (receipt string, err error) {
	j.mu.Lock()
	e.number = j.next
	j.next++
	j.mu.Unlock()
	e.receipt, e.at = j.id+"-"+strconv.FormatUint(e.number, 10), now.UnixMilli()
	if j.table != nil {
		if err := j.table.append(e); err != nil {
			return "", err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(e)
	return e.receipt, nil
}

const fewPaths = 1000

// apply adds one execution. The caller holds mu, or is alone.
func (j *journal) apply(e execution) {
	key := e.key
	if path, known := j.paths[e.path]; known {
		e.path = path
	} else if len(j.paths) < fewPaths {
		j.paths[e.path] = e.path
	}
	if e.key = ""; e.subject == key {
		e.subject = key // one text in memory
	}
	r := j.record(key)
	r.execution = e
	if r.used == 0 {
		r.used = e.at // from the file: an earlier refusal is not in it
	}
	r.executions++
	switch r.executions {
	case 1:
		j.sorted.add(key)
	case 2:
		j.doubleKeys++
	}
	j.executions++
	j.sum += e.sum

	total := 1 + j.odd[e.subject] // executions for the subject, with any key
	if e.subject == key {
		total += r.proper
		r.proper++
	} else {
		j.odd[e.subject]++
		if c := j.keys[e.subject]; c != nil {
			total += c.proper
		}
	}
	if total == 2 {
		j.doubleSubjects++
	}
}

// lookup returns busy, replay, or fresh for a key that was not executed.
func (j *journal) lookup(key string, now time.Time) claimed {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(key)
	r.lookups++
	c := claimed{attempt: r.lookups, receipt: r.receipt}
	switch {
	case r.inFlight && !j.forgetsKeys:
		c.state = busy
	case j.remembered(r, now):
		c.state = replay
	}
	return c
}

func (j *journal) close() error {
	if j.table == nil {
		return nil
	}
	return j.table.close()
}
