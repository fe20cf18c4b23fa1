package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// Limits of items that may meet a lock and are flushed in parts. With flushTimeout, and the parts
// that were set aside before, a batch ends before the time limit of its callers.
const (
	partTimeout   = 2 * time.Second // of one part
	partsTimeout  = 4 * time.Second // of all parts
	partsFailures = 16              // failed parts after which the rest is not tried

	// A promotion that met a lock is expected to meet it again for this time, in which PostgreSQL
	// ends a frozen session.
	lockMemory = 10 * time.Second
)

// batchItem is one request of a batch, with its result.
type batchItem[Q, R any] struct {
	key   rules.Key // of the payout
	req   Q
	res   R
	err   error
	ended bool          // by the ordinary statement
	taken atomic.Bool   // by a flusher, or removed by its caller
	done  chan struct{} // closed when the result is there; nil in a batch of one caller
}

// newBatch returns one item per request. Invalid ones have their error.
func newBatch[Q, R any](n int, item func(i int) (rules.Key, Q, error)) []*batchItem[Q, R] {
	batch := make([]*batchItem[Q, R], n)
	for i := range batch {
		batch[i] = &batchItem[Q, R]{}
		batch[i].key, batch[i].req, batch[i].err = item(i)
	}
	return batch
}

// flusher runs batches. If a batch fails, perhaps because of one row, its items are run one by one.
// If it waited too long for a lock or the database, it is run in parts, with a short time limit. So
// are later items of its promotions, as long as they may meet the lock again.
type flusher[Q, R any] struct {
	l        *Ledger
	what     string
	run      func(context.Context, []*batchItem[Q, R]) error
	ordinary func(context.Context, []*batchItem[Q, R]) error // sets ended; may be nil
	slots    chan struct{}                                   // one per batch of do at the same time

	guard  sync.Mutex                    // guards locked
	locked map[rules.Promotion]time.Time // last met a lock; zero: perhaps
}

func newFlusher[Q, R any](l *Ledger, what string, slots int, run func(context.Context, []*batchItem[Q, R]) error) *flusher[Q, R] {
	return &flusher[Q, R]{l: l, what: what, run: run, slots: make(chan struct{}, slots), locked: map[rules.Promotion]time.Time{}}
}

// collect returns a batcher that flushes with b.
func (b *flusher[Q, R]) collect(flushers int) *batcher[Q, R] {
	return newBatcher(b.l.life, flushers, b.l.cfg.BatchSize, b.l.cfg.Linger, b.flush, b.flushInParts)
}

// do runs a caller's batch in transactions of at most Config.BatchSize items, without those that
// have an error. The end of ctx does not interrupt a running transaction.
func (b *flusher[Q, R]) do(ctx context.Context, batch []*batchItem[Q, R]) {
	valid := slices.DeleteFunc(slices.Clone(batch), func(k *batchItem[Q, R]) bool { return k.err != nil })
	for part := range slices.Chunk(valid, b.l.cfg.BatchSize) {
		if err := b.flushPart(ctx, part); err != nil {
			for _, k := range part {
				k.err = err
			}
		}
	}
}

// flushPart returns an error if the part was not tried.
func (b *flusher[Q, R]) flushPart(ctx context.Context, part []*batchItem[Q, R]) error {
	if !b.l.enter() {
		return ErrClosed
	}
	defer b.l.calls.Done()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if aside := b.flush(b.l.life, part); len(aside) > 0 {
		b.flushInParts(b.l.life, aside)
	}
	return nil
}

// metLock notes that a part waited too long. Its promotions are suspects, and certain if it has
// only one.
func (b *flusher[Q, R]) metLock(part []*batchItem[Q, R]) {
	b.guard.Lock()
	defer b.guard.Unlock()
	first := part[0].key.OfPromotion()
	several := slices.ContainsFunc(part, func(k *batchItem[Q, R]) bool { return k.key.OfPromotion() != first })
	for _, k := range part {
		p := k.key.OfPromotion()
		if _, known := b.locked[p]; !several {
			b.locked[p] = time.Now()
		} else if !known {
			b.locked[p] = time.Time{}
		}
	}
}

// metNone notes that a part succeeded.
func (b *flusher[Q, R]) metNone(part []*batchItem[Q, R]) {
	b.guard.Lock()
	defer b.guard.Unlock()
	for _, k := range part {
		if p := k.key.OfPromotion(); time.Since(b.locked[p]) >= lockMemory {
			delete(b.locked, p)
		}
	}
}

// apart separates the items whose promotion met a lock, certainly or perhaps.
func (b *flusher[Q, R]) apart(batch []*batchItem[Q, R], certainly bool) (free, locked []*batchItem[Q, R]) {
	b.guard.Lock()
	defer b.guard.Unlock()
	if len(b.locked) == 0 {
		return batch, nil
	}
	for _, k := range batch {
		if last, met := b.locked[k.key.OfPromotion()]; met && (!certainly || !last.IsZero()) {
			locked = append(locked, k)
		} else {
			free = append(free, k)
		}
	}
	return free, locked
}

// try runs one transaction. late reports whether it failed because it waited too long.
func (b *flusher[Q, R]) try(ctx context.Context, limit time.Duration, run func(context.Context, []*batchItem[Q, R]) error, part ...*batchItem[Q, R]) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = run(ctx, part)
	return err != nil && (b.l.store.fault(err) == faultLocked || errors.Is(ctx.Err(), context.DeadlineExceeded)), err
}

// finish passes the results to items that were run together.
func (b *flusher[Q, R]) finish(ctx context.Context, err error, part ...*batchItem[Q, R]) {
	if err != nil {
		if err = b.l.wrap(b.what, err); ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	for _, k := range part {
		if err != nil {
			var none R
			k.res, k.err = none, err
		}
		if k.done != nil {
			close(k.done)
		}
	}
}

// flush finishes the items of a batch, except those that it returns for flushInParts.
func (b *flusher[Q, R]) flush(ctx context.Context, batch []*batchItem[Q, R]) (aside []*batchItem[Q, R]) {
	batch, aside = b.apart(batch, false)
	if len(batch) == 0 {
		return aside
	}
	batch, late, err := b.flushOrdinary(ctx, batch)
	if len(batch) == 0 {
		return aside
	}
	if err == nil {
		late, err = b.try(ctx, flushTimeout, b.run, batch...)
	}
	if late {
		b.metLock(batch)
	}
	switch {
	case err == nil || len(batch) == 1 || ctx.Err() != nil:
		b.finish(ctx, err, batch...)
	case late:
		return append(aside, batch...)
	case b.l.store.fault(err) == faultServer:
		b.finish(ctx, err, batch...)
	default:
		b.oneByOne(ctx, err, batch)
	}
	return aside
}

// flushOrdinary finishes the items that the ordinary statement carries out, and returns the others.
// It returns an error that the general path would have too.
func (b *flusher[Q, R]) flushOrdinary(ctx context.Context, batch []*batchItem[Q, R]) (rest []*batchItem[Q, R], late bool, err error) {
	if b.ordinary == nil {
		return batch, false, nil
	}
	late, err = b.try(ctx, flushTimeout, b.ordinary, batch...)
	if err != nil {
		if !late && b.l.store.fault(err) != faultServer {
			err = nil
		}
		return batch, late, err
	}
	for _, k := range batch {
		if k.ended {
			b.finish(ctx, nil, k)
		} else {
			rest = append(rest, k)
		}
	}
	return rest, false, nil
}

// oneByOne runs each item in a transaction of its own.
func (b *flusher[Q, R]) oneByOne(ctx context.Context, err error, batch []*batchItem[Q, R]) {
	failed := 0 // consecutive failures without a data error
	for _, k := range batch {
		if failed < 3 {
			if _, err = b.try(ctx, flushTimeout, b.run, k); err != nil && b.l.store.fault(err) != faultData {
				failed++
			} else {
				failed = 0
			}
		}
		b.finish(ctx, err, k)
	}
}

// flushInParts finishes items that may meet a lock. Each part that fails is split in two, and
// larger parts go first, so that items without the lock end soon. Promotions that certainly met it
// are not mixed with others, and go last. Items that are not reached in time get the error of the
// last part.
func (b *flusher[Q, R]) flushInParts(ctx context.Context, items []*batchItem[Q, R]) {
	// Items of one promotion stay together, because they may wait for the same lock.
	slices.SortStableFunc(items, func(x, y *batchItem[Q, R]) int { return rules.CompareKeys(x.key, y.key) })
	var parts [][]*batchItem[Q, R]
	suspects, certain := b.apart(items, true)
	for _, some := range [][]*batchItem[Q, R]{suspects, certain} {
		parts = slices.AppendSeq(parts, slices.Chunk(some, max(1, (min(len(some), b.l.cfg.BatchSize)+1)/2)))
	}
	within, cancel := context.WithTimeout(ctx, partsTimeout)
	defer cancel()
	err := context.DeadlineExceeded
	for failed := 0; len(parts) > 0; parts = parts[1:] {
		part := parts[0]
		if within.Err() != nil || failed >= partsFailures {
			b.finish(ctx, err, part...)
			continue
		}
		late, failure := b.try(within, partTimeout, b.run, part...)
		switch {
		case failure == nil:
			b.metNone(part)
			b.finish(ctx, nil, part...)
			continue
		case !late && b.l.store.fault(failure) == faultServer:
			failed = partsFailures
		default:
			failed++
		}
		if late && part[0].key.OfPromotion() == part[len(part)-1].key.OfPromotion() {
			b.metLock(part)
		}
		err = failure
		if len(part) == 1 {
			b.finish(ctx, err, part...)
		} else {
			parts = append(parts, part[:len(part)/2], part[len(part)/2:])
		}
	}
}

// readRequestOf returns the sorted unique keys and promotions of a batch.
func readRequestOf[Q, R any](batch []*batchItem[Q, R]) (w readRequest) {
	for _, k := range batch {
		w.keys = append(w.keys, k.key)
	}
	slices.SortFunc(w.keys, rules.CompareKeys)
	w.keys = slices.Compact(w.keys)
	for _, k := range w.keys {
		if n := len(w.promotions); n == 0 || w.promotions[n-1] != k.OfPromotion() {
			w.promotions = append(w.promotions, k.OfPromotion())
		}
	}
	return w
}
