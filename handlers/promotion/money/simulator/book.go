package simulator

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// order is one request for a charge.
type order struct {
	typ       string // name of the promotion type
	promotion int64
	summary   int64
	target    int64
	value     string // what is paid
	hash      bodyHash
}

type bodyHash [16]byte

// record is what is known of a key, charged or only asked for. There is one for every key ever
// seen, so it is kept small.
type record struct {
	order
	attempts   uint32 // requests for a charge
	lookups    uint32
	executions uint32
	proper     uint32 // executions for the target that the key names
	inFlight   bool
	rejected   bool   // with fromFirstUse: the key was rejected
	number     uint64 // of the latest execution
	at         int64  // of the latest execution, Unix milliseconds
	used       int64  // first request for a charge since the key was forgotten, Unix milliseconds; 0: none
}

type target struct {
	typ               string
	promotion, target int64
}

// book knows every key, and all that was executed. Safe for concurrent use.
type book struct {
	id      string // prefix of transaction keys
	ttl     time.Duration
	journal *journal // nil: in memory only

	fromFirstUse bool // ttl counts from the first use of a key

	mu            sync.Mutex
	keys          map[string]*record
	sorted        sortedKeys
	odd           map[target]uint32 // executions under keys that name another target
	next          uint64            // number of the next execution
	executions    uint64
	amount        int64 // of all executions
	doubleKeys    int   // keys charged more than once
	doubleTargets int   // targets charged more than once, under whatever keys
}

// openBook opens the book at path, or begins one in memory.
func openBook(path string, syncAlways bool, ttl time.Duration) (*book, error) {
	b := &book{ttl: ttl, keys: map[string]*record{}, odd: map[target]uint32{}, next: 1}
	if path == "" {
		b.id = newID()
		return b, nil
	}
	j, id, err := openJournal(path, syncAlways, b.load)
	if err != nil {
		return nil, err
	}
	b.journal, b.id = j, id
	return b, nil
}

// load takes up a line of the file.
func (b *book) load(l line) error {
	t, known := promotiontype.ByName(l.Type)
	if !known {
		return fmt.Errorf("unknown type %q", l.Type)
	}
	o := order{typ: t.Name, promotion: l.Promotion, summary: l.Summary, target: l.Target, value: l.Value}
	if l.Key == "" || l.Number == 0 {
		return errors.New("no key or no number")
	}
	if n, err := hex.Decode(o.hash[:], []byte(l.BodyHash)); err != nil || n != len(o.hash) {
		return fmt.Errorf("bodyHash %q is not %d bytes in hex", l.BodyHash, len(o.hash))
	}
	b.next = max(b.next, l.Number+1)
	b.apply(b.record(l.Key), l.Key, o, l.Number, l.At)
	return nil
}

// record returns the key's record and makes it if need be. The caller holds mu, or is alone.
func (b *book) record(key string) *record {
	r := b.keys[key]
	if r == nil {
		r = &record{}
		b.keys[key] = r
	}
	return r
}

// claimed is the outcome of claim.
type claimed struct {
	state   claimState
	attempt uint32 // number of the attempt; only when fresh or replay
	number  uint64 // of the charge; only when replay
}

type claimState uint8

const (
	fresh    claimState = iota // the caller may execute it, and must release it
	replay                     // it was charged before, with this body
	busy                       // another request is at it
	reused                     // it was charged before, with another body
	rejected                   // the key is refused for good
)

// claim begins an attempt for key. reject tells whether a key that isn't charged is refused.
func (b *book) claim(key string, hash bodyHash, now time.Time, reject bool) claimed {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(key)
	if b.old(r.used, now) {
		r.used, r.rejected = 0, false
	}
	if r.used == 0 {
		r.used = now.UnixMilli()
	}
	switch {
	case r.inFlight:
		return claimed{state: busy}
	case b.remembered(r, now) && r.hash != hash:
		return claimed{state: reused}
	case b.remembered(r, now):
		r.attempts++
		return claimed{state: replay, attempt: r.attempts, number: r.number}
	case reject, r.rejected:
		r.rejected = b.fromFirstUse
		return claimed{state: rejected}
	}
	r.attempts++
	r.inFlight = true
	return claimed{state: fresh, attempt: r.attempts}
}

// remembered reports whether a repeated request is recognised.
func (b *book) remembered(r *record, now time.Time) bool {
	if r.executions == 0 {
		return false
	}
	if b.fromFirstUse {
		return r.at >= r.used && !b.old(r.used, now)
	}
	return !b.old(r.at, now)
}

// old reports whether a key that was used at a moment is forgotten.
func (b *book) old(at int64, now time.Time) bool {
	return b.ttl > 0 && now.UnixMilli()-at >= b.ttl.Milliseconds()
}

// release ends a claim that was fresh.
func (b *book) release(key string) {
	b.mu.Lock()
	b.keys[key].inFlight = false
	b.mu.Unlock()
}

// execute charges a claimed key. After an error nothing was charged, as far as the book knows.
func (b *book) execute(key string, o order, now time.Time) (number uint64, err error) {
	b.mu.Lock()
	number = b.next
	b.next++
	b.mu.Unlock()
	at := now.UnixMilli()
	if b.journal != nil {
		text, err := json.Marshal(line{
			Number: number, Key: key, Type: o.typ, Promotion: o.promotion, Summary: o.summary, Target: o.target,
			Value: o.value, BodyHash: hex.EncodeToString(o.hash[:]), At: at,
		})
		if err != nil {
			return 0, fmt.Errorf("write book: %w", err)
		}
		if err := b.journal.append(append(text, '\n')); err != nil {
			return 0, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply(b.keys[key], key, o, number, at)
	return number, nil
}

// apply enters one execution. The caller holds mu, or is alone.
func (b *book) apply(r *record, key string, o order, number uint64, at int64) {
	r.order, r.number, r.at = o, number, at
	if r.used == 0 {
		r.used = at // from the file: an earlier refusal is not in it
	}
	r.executions++
	switch r.executions {
	case 1:
		b.sorted.add(key)
	case 2:
		b.doubleKeys++
	}
	b.executions++
	if t, known := promotiontype.ByName(o.typ); known {
		b.amount += t.MinorUnits(o.value)
	}

	t := target{o.typ, o.promotion, o.target}
	canonical := t.key()
	total := uint32(1) // how often the target was charged, under whatever key
	if key == canonical {
		total += r.proper + b.odd[t]
		r.proper++
	} else {
		total += b.odd[t]
		b.odd[t]++
		if c := b.keys[canonical]; c != nil {
			total += c.proper
		}
	}
	if total == 2 {
		b.doubleTargets++
	}
}

// key is the key that the contract prescribes for a target.
func (t target) key() string {
	k := make([]byte, 0, 64)
	k = append(append(k, t.typ...), ':')
	k = append(strconv.AppendInt(k, t.promotion, 10), ':')
	return string(strconv.AppendInt(k, t.target, 10))
}

// transaction returns the transaction key of an execution.
func (b *book) transaction(number uint64) string {
	return b.id + "-" + strconv.FormatUint(number, 10)
}

// lookup begins an attempt to look key up.
func (b *book) lookup(key string, now time.Time) (state claimState, attempt uint32, number uint64, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(key)
	r.lookups++
	if r.inFlight {
		return busy, r.lookups, 0, false
	}
	return replay, r.lookups, r.number, b.remembered(r, now)
}

func (b *book) close() error {
	if b.journal == nil {
		return nil
	}
	return b.journal.close()
}
