package simulator

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

type order struct {
	Type      string   `json:"type"`
	Promotion int64    `json:"promotionId"`
	Summary   int64    `json:"promotionSummaryId"`
	Target    int64    `json:"targetId"`
	Value     string   `json:"-"` // in the column of its type
	Hash      bodyHash `json:"bodyHash"`
}

// bodyHash is the first half of the body's SHA-256, in hex.
type bodyHash [16]byte

func (h bodyHash) String() string               { return hex.EncodeToString(h[:]) }
func (h bodyHash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

func (h *bodyHash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("bodyHash %q is not %d bytes in hex", text, len(h))
	}
	if _, err := hex.Decode(h[:], text); err != nil {
		return fmt.Errorf("bodyHash: %w", err)
	}
	return nil
}

// record is the state of a key. It is small, because each requested key has one.
type record struct {
	order
	attempts   uint32 // requests for a charge
	lookups    uint32
	executions uint32
	proper     uint32 // executions for the target that the key names
	inFlight   bool
	answered   bool   // a caller has received the answer "paid"
	overlaps   uint32 // calls during another call
	afterPaid  uint32 // calls after answered
	rejected   bool   // with fromFirstUse: the key was rejected
	number     uint64 // of the latest execution
	at         int64  // of the latest execution, Unix milliseconds
	used       int64  // first request for a charge, Unix milliseconds; 0: none
}

type target struct {
	typ               string
	promotion, target int64
}

// journal has all keys and their charges. It is safe for concurrent use.
type journal struct {
	id           string // prefix of transaction keys
	ttl          time.Duration
	file         *journalFile // nil: in memory only
	fromFirstUse bool         // ttl counts from the first use of a key

	mu            sync.Mutex
	keys          map[string]*record
	sorted        sortedKeys
	odd           map[target]uint32 // executions with keys that name another target
	next          uint64            // number of the next execution
	executions    uint64
	amount        int64                        // of all executions
	doubleKeys    int                          // keys charged more than once
	doubleTargets int                          // targets charged more than once, with any keys
	calls         map[string][]context.Context // under way, by key; each ends with its connection
	overlaps      int
	afterPaid     int
}

func newJournal(ttl time.Duration) *journal {
	return &journal{id: newID(), ttl: ttl, keys: map[string]*record{}, calls: map[string][]context.Context{}, odd: map[target]uint32{}, next: 1}
}

func openJournal(path string, syncAlways bool, ttl time.Duration) (j *journal, err error) {
	if j = newJournal(ttl); path != "" {
		j.file, j.id, err = openFile(path, syncAlways, j.load)
	}
	return j, err
}

// load adds a line of the file.
func (j *journal) load(l line) error {
	if _, known := promotiontype.ByName(l.Type); !known {
		return fmt.Errorf("unknown type %q", l.Type)
	}
	if l.Key == "" || l.Number == 0 || l.Promotion == 0 || l.Target == 0 || l.Value == "" || l.Hash == (bodyHash{}) || l.At == 0 {
		return errors.New("no key, number, promotion, target, value, bodyHash or time")
	}
	j.next = max(j.next, l.Number+1)
	j.apply(l)
	return nil
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
	number  uint64 // of the charge; only when replay
}

type claimState uint8

const (
	fresh    claimState = iota // the caller must execute or release it
	replay                     // it was charged before, with this body
	busy                       // another request is in flight
	reused                     // it was charged before, with another body
	rejected                   // the key is refused permanently
)

// claim starts an attempt for key. With reject a key that isn't charged is refused.
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
	switch {
	case r.inFlight:
		return claimed{state: busy}
	case j.remembered(r, now) && r.Hash != hash:
		return claimed{state: reused}
	case j.remembered(r, now):
		r.attempts++
		return claimed{state: replay, attempt: r.attempts, number: r.number}
	case reject, r.rejected:
		r.rejected = j.fromFirstUse
		return claimed{state: rejected}
	}
	r.attempts++
	r.inFlight = true
	return claimed{state: fresh, attempt: r.attempts}
}

// remembered reports whether a repeated request is a replay.
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

// callBegins notes a call, a charge or a lookup, whose context ends with its connection. It counts the
// call if another one of the key is under way, unless its caller is gone, and if a caller has
// received the answer "paid". The caller calls ends after the answer.
func (j *journal) callBegins(ctx context.Context, key string) (ends func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.keys[key] // nil: no charge was looked at yet
	if slices.ContainsFunc(j.calls[key], func(other context.Context) bool { return other.Err() == nil }) {
		j.overlaps++
		r = j.record(key)
		r.overlaps++
	}
	if r != nil && r.answered {
		r.afterPaid++
		j.afterPaid++
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

// answers notes that the caller receives the answer "paid".
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

// execute charges a claimed key. An error means that the journal has no charge.
func (j *journal) execute(key string, o order, now time.Time) (number uint64, err error) {
	j.mu.Lock()
	l := line{Number: j.next, Key: key, order: o, At: now.UnixMilli()}
	j.next++
	j.mu.Unlock()
	if j.file != nil {
		text, err := json.Marshal(l)
		if err != nil {
			return 0, fmt.Errorf("write journal: %w", err)
		}
		if err := j.file.append(append(text, '\n')); err != nil {
			return 0, err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(l)
	return l.Number, nil
}

// apply adds one execution. The caller holds mu, or is alone.
func (j *journal) apply(l line) {
	r := j.record(l.Key)
	r.order, r.number, r.at = l.order, l.Number, l.At
	if r.used == 0 {
		r.used = l.At // from the file: an earlier refusal is not in it
	}
	r.executions++
	switch r.executions {
	case 1:
		j.sorted.add(l.Key)
	case 2:
		j.doubleKeys++
	}
	j.executions++
	if t, known := promotiontype.ByName(l.Type); known {
		j.amount += t.MinorUnits(l.Value)
	}

	t := target{l.Type, l.Promotion, l.Target}
	canonical := t.key()
	total := uint32(1) // charges of the target, with any key
	if l.Key == canonical {
		total += r.proper + j.odd[t]
		r.proper++
	} else {
		total += j.odd[t]
		j.odd[t]++
		if c := j.keys[canonical]; c != nil {
			total += c.proper
		}
	}
	if total == 2 {
		j.doubleTargets++
	}
}

func (t target) key() string { return fmt.Sprintf("%s:%d:%d", t.typ, t.promotion, t.target) }

func (j *journal) transaction(number uint64) string {
	return j.id + "-" + strconv.FormatUint(number, 10)
}

// lookup returns busy, replay, or fresh for a key without a charge.
func (j *journal) lookup(key string, now time.Time) claimed {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(key)
	r.lookups++
	c := claimed{attempt: r.lookups, number: r.number}
	switch {
	case r.inFlight:
		c.state = busy
	case j.remembered(r, now):
		c.state = replay
	}
	return c
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.close()
}
