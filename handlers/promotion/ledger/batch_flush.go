package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// Limits of a batch that met a lock and is flushed in parts. With flushTimeout a batch ends before
// the time limit of its callers.
const (
	partTimeout   = 2 * time.Second // of one part
	partsTimeout  = 8 * time.Second // of all parts of a batch
	partsFailures = 32              // failed parts after which the rest is not tried
)

// newFlusher returns a flush function for run. If a batch fails, perhaps because of one row, its
// items are run one by one. If it waited too long for a lock or the database, it is run in halves.
func newFlusher[Q, R any](l *Ledger, what string, run func(context.Context, []*batchItem[Q, R]) error) func(context.Context, []*batchItem[Q, R]) {
	b := &flusher[Q, R]{l: l, what: what, run: run}
	return b.flush
}

type flusher[Q, R any] struct {
	l    *Ledger
	what string
	run  func(context.Context, []*batchItem[Q, R]) error
}

// try runs one transaction. late reports whether it failed because it waited too long.
func (b *flusher[Q, R]) try(ctx context.Context, limit time.Duration, part ...*batchItem[Q, R]) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = b.run(ctx, part)
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
			k.finish(none, err)
		} else {
			k.finish(k.res, k.err)
		}
	}
}

func (b *flusher[Q, R]) flush(ctx context.Context, batch []*batchItem[Q, R]) {
	late, err := b.try(ctx, flushTimeout, batch...)
	switch {
	case err == nil || len(batch) == 1 || ctx.Err() != nil:
		b.finish(ctx, err, batch...)
	case late:
		b.halves(ctx, err, batch)
	case b.l.store.fault(err) == faultServer:
		b.finish(ctx, err, batch...)
	default:
		b.oneByOne(ctx, err, batch)
	}
}

// oneByOne runs each item in a transaction of its own.
func (b *flusher[Q, R]) oneByOne(ctx context.Context, err error, batch []*batchItem[Q, R]) {
	failed := 0 // consecutive failures without a data error
	for _, k := range batch {
		if failed < 3 {
			if _, err = b.try(ctx, flushTimeout, k); err != nil && b.l.store.fault(err) != faultData {
				failed++
			} else {
				failed = 0
			}
		}
		b.finish(ctx, err, k)
	}
}

// halves runs a batch in parts. Each part that fails is split in two, and larger parts go first, so
// that items without the lock end soon. Items that are not reached in time get the error of the
// last part.
func (b *flusher[Q, R]) halves(ctx context.Context, err error, batch []*batchItem[Q, R]) {
	// Items of one promotion stay together, because they may wait for the same lock.
	slices.SortStableFunc(batch, func(x, y *batchItem[Q, R]) int { return rules.CompareKeys(x.key, y.key) })
	parts := [][]*batchItem[Q, R]{batch[:len(batch)/2], batch[len(batch)/2:]}
	within, cancel := context.WithTimeout(ctx, partsTimeout)
	defer cancel()
	for failed := 0; len(parts) > 0; parts = parts[1:] {
		part := parts[0]
		if within.Err() != nil || failed >= partsFailures {
			b.finish(ctx, err, part...)
			continue
		}
		late, failure := b.try(within, partTimeout, part...)
		switch {
		case failure == nil:
			b.finish(ctx, nil, part...)
			continue
		case !late && b.l.store.fault(failure) == faultServer:
			failed = partsFailures
		default:
			failed++
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
