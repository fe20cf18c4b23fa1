package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
)

const (
	// asideTimeout bounds a flush after one that met a lock. It ends before the time limit of the
	// callers.
	asideTimeout = 2 * time.Second

	// Limits of one wait for a lock in such a flush. With more promotions it is shorter: up to 50
	// locked ones take half of the time.
	maxLockWait, minLockWait = 250 * time.Millisecond, 20 * time.Millisecond

	// A promotion that met a lock is expected to meet it again for this time, in which PostgreSQL
	// ends a frozen session.
	lockMemory = 10 * time.Second
)

// flusher runs batches. If a batch fails, perhaps because of one row, its items are run one by one.
// If it met a lock, its promotions are run one by one. Those that meet it again are set aside, and
// so are their later items for some time, until some of them succeed.
type flusher[Q, R any] struct {
	l        *Ledger
	what     string
	run      func(context.Context, []*batchItem[Q, R]) error
	ordinary func(context.Context, []*batchItem[Q, R]) error // sets ended; may be nil

	locked sync.Map // payouts.Promotion -> lockSeen
}

// lockSeen has the time at which a promotion last met a lock, or was suspected of it.
type lockSeen struct {
	at  time.Time
	met bool
	// passed: items of it have succeeded since. Then it may have met no more than a transaction that
	// waited for another promotion's lock, and must not wait with that one.
	passed bool
}

// lockWait is the key of a context's time limit for one wait for a lock.
type lockWait struct{}

func newFlusher[Q, R any](l *Ledger, what string, run func(context.Context, []*batchItem[Q, R]) error) *flusher[Q, R] {
	return &flusher[Q, R]{l: l, what: what, run: run}
}

// collect returns a batcher that flushes with b.
func (b *flusher[Q, R]) collect(flushers int, linger time.Duration) *batcher[Q, R] {
	return newBatcher(b.l.life, flushers, b.l.cfg.BatchSize, linger, b.flush, b.flushAside)
}

// apart separates the items whose promotion is expected to meet a lock, and those whose promotion may
// meet one.
func (b *flusher[Q, R]) apart(batch []*batchItem[Q, R]) (free, perhaps, locked []*batchItem[Q, R]) {
	expected := false
	b.locked.Range(func(p, last any) bool {
		if time.Since(last.(lockSeen).at) < lockMemory {
			expected = true
		} else {
			b.locked.CompareAndDelete(p, last)
		}
		return true
	})
	if !expected {
		return batch, nil, nil
	}
	for _, k := range batch {
		switch last, met := b.locked.Load(k.key.OfPromotion()); {
		case !met:
			free = append(free, k)
		case last.(lockSeen).passed:
			perhaps = append(perhaps, k)
		default:
			locked = append(locked, k)
		}
	}
	return free, perhaps, locked
}

// try runs one transaction.
func (b *flusher[Q, R]) try(ctx context.Context, limit time.Duration, run func(context.Context, []*batchItem[Q, R]) error, part ...*batchItem[Q, R]) error {
	if len(part) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := run(ctx, part)
	b.l.opts.Metrics.batch(b.what, len(part), time.Since(began))
	return err
}

// finish passes the results to items that were run together.
func (b *flusher[Q, R]) finish(ctx context.Context, err error, part ...*batchItem[Q, R]) {
	if err != nil {
		if err = b.l.wrap(b.what, err); ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	if len(part) > 0 {
		b.l.noteRefusal(b.what, err)
	}
	for _, k := range part {
		if err != nil {
			var none R
			k.res, k.err = none, err
		}
		k.finish()
	}
}

// flush finishes the items of a batch, except those that it returns for flushAside.
func (b *flusher[Q, R]) flush(ctx context.Context, batch []*batchItem[Q, R]) (aside []*batchItem[Q, R]) {
	batch, perhaps, aside := b.apart(batch)
	batch, err := b.flushOrdinary(ctx, batch)
	if err == nil {
		err = b.try(ctx, b.l.opts.flushTimeout, b.run, batch...)
	}
	f := b.l.store.fault(err)
	switch {
	case f == faultLocked && ctx.Err() == nil:
		aside = append(aside, b.flushPromotions(ctx, batch)...)
	case err == nil || len(batch) == 1 || ctx.Err() != nil || f == faultServer:
		b.finish(ctx, err, batch...)
	default:
		b.oneByOne(ctx, err, batch)
	}
	return append(aside, b.flushPerhaps(ctx, perhaps)...)
}

// flushPerhaps runs promotions that have passed since they met a lock. It returns the items of the
// first one that fails and of those after it, so that at most one short wait delays the flusher.
func (b *flusher[Q, R]) flushPerhaps(ctx context.Context, items []*batchItem[Q, R]) (aside []*batchItem[Q, R]) {
	if len(items) == 0 {
		return nil
	}
	parts, _ := b.byPromotion(items)
	for i, part := range parts {
		if err := b.tryPart(ctx, minLockWait, part); err != nil {
			return slices.Concat(parts[i:]...)
		}
		b.finish(ctx, nil, part...)
	}
	return nil
}

// flushOrdinary finishes the items that the ordinary statement carries out, and returns the others.
// It returns an error that the general path would have too. After another one, which may come after
// the commit, the general path decides each item by its row.
func (b *flusher[Q, R]) flushOrdinary(ctx context.Context, batch []*batchItem[Q, R]) (rest []*batchItem[Q, R], err error) {
	if b.ordinary == nil {
		return batch, nil
	}
	if err = b.try(ctx, b.l.opts.flushTimeout, b.ordinary, batch...); err != nil {
		if f := b.l.faultOf(err); f != faultLocked && f != faultServer {
			err = nil
		}
		return batch, err
	}
	for _, k := range batch {
		if k.ended {
			b.finish(ctx, nil, k)
		} else {
			rest = append(rest, k)
		}
	}
	return rest, nil
}

// oneByOne runs each item in a transaction of its own.
func (b *flusher[Q, R]) oneByOne(ctx context.Context, err error, batch []*batchItem[Q, R]) {
	failed := 0 // consecutive failures without a data error
	for _, k := range batch {
		if failed < 3 {
			if err = b.try(ctx, b.l.opts.flushTimeout, b.run, k); err != nil && b.l.store.fault(err) != faultData {
				failed++
			} else {
				failed = 0
			}
		}
		b.finish(ctx, err, k)
	}
}

// flushPromotions runs each promotion of a batch that met a lock, and returns the items of those
// that fail.
func (b *flusher[Q, R]) flushPromotions(ctx context.Context, batch []*batchItem[Q, R]) (aside []*batchItem[Q, R]) {
	ctx, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	parts, wait := b.byPromotion(batch)
	suspected := lockSeen{at: time.Now()}
	for _, part := range parts { // so that no other flusher waits for the lock
		b.locked.LoadOrStore(part[0].key.OfPromotion(), suspected)
	}
	for _, part := range parts {
		if err := b.tryPart(ctx, wait, part); err != nil {
			aside = append(aside, part...)
		} else {
			b.finish(ctx, nil, part...)
		}
	}
	return aside
}

// flushAside finishes items of locked promotions. Each part that fails is split in two, after all
// promotions were tried, so that items without the lock end soon. Items that are not reached in
// time get the error of the last failed part, unless that is an error of its data.
func (b *flusher[Q, R]) flushAside(ctx context.Context, items []*batchItem[Q, R]) {
	within, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	failure := context.DeadlineExceeded
	for parts, wait := b.byPromotion(items); len(parts) > 0; parts = parts[1:] {
		part, err := parts[0], failure
		if within.Err() == nil {
			if err = b.tryPart(within, wait, part); err != nil && b.l.store.fault(err) != faultData {
				failure = err
			}
		}
		if err != nil && len(part) > 1 && within.Err() == nil && b.l.store.fault(err) != faultServer {
			parts = append(parts, part[:len(part)/2], part[len(part)/2:])
		} else {
			b.finish(ctx, err, part...)
		}
	}
}

// byPromotion returns parts of one promotion each, and their limit for one wait for a lock. Those
// that have met a lock are last, the latest at the end, so that each gets its turn.
func (b *flusher[Q, R]) byPromotion(items []*batchItem[Q, R]) (parts [][]*batchItem[Q, R], wait time.Duration) {
	sorted.By(items, func(x, y *batchItem[Q, R]) int { return payouts.CompareKeys(x.key, y.key) })
	for len(items) > 0 {
		n := slices.IndexFunc(items, func(k *batchItem[Q, R]) bool { return k.key.OfPromotion() != items[0].key.OfPromotion() })
		if n < 0 {
			n = len(items)
		}
		n = min(n, b.l.cfg.BatchSize)
		parts, items = append(parts, items[:n]), items[n:]
	}
	met := map[payouts.Promotion]time.Time{}
	for _, part := range parts {
		if last, ok := b.locked.Load(part[0].key.OfPromotion()); ok && last.(lockSeen).met {
			met[part[0].key.OfPromotion()] = last.(lockSeen).at
		}
	}
	sorted.By(parts, func(x, y []*batchItem[Q, R]) int {
		return met[x[0].key.OfPromotion()].Compare(met[y[0].key.OfPromotion()])
	})
	return parts, min(maxLockWait, max(minLockWait, asideTimeout/2/time.Duration(len(parts))))
}

// tryPart runs items of one promotion, which may be locked. A success removes a suspicion. It does not
// remove what is known of a lock, because that may be one of other rows.
func (b *flusher[Q, R]) tryPart(ctx context.Context, wait time.Duration, part []*batchItem[Q, R]) error {
	err := b.try(context.WithValue(ctx, lockWait{}, wait), asideTimeout, b.run, part...)
	p := part[0].key.OfPromotion()
	if b.l.store.fault(err) == faultLocked {
		b.locked.Store(p, lockSeen{at: time.Now(), met: true})
	} else if last, ok := b.locked.Load(p); err == nil && ok {
		if seen := last.(lockSeen); !seen.met {
			b.locked.CompareAndDelete(p, last)
		} else if !seen.passed {
			b.locked.CompareAndSwap(p, last, lockSeen{at: seen.at, met: true, passed: true})
		}
	}
	return err
}

// readRequestOf returns the sorted unique keys and promotions of a batch.
func readRequestOf[Q, R any](batch []*batchItem[Q, R]) (w readRequest) {
	for _, k := range batch {
		w.keys = append(w.keys, k.key)
	}
	sorted.By(w.keys, payouts.CompareKeys)
	w.keys = slices.Compact(w.keys)
	for _, k := range w.keys {
		if n := len(w.promotions); n == 0 || w.promotions[n-1] != k.OfPromotion() {
			w.promotions = append(w.promotions, k.OfPromotion())
		}
	}
	return w
}
