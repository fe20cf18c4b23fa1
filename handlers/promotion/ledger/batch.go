package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// keyed is a request about one payout.
type keyed interface{ payout() Key }

func (k Key) payout() Key     { return k }
func (r *Result) payout() Key { return r.Key }

// How a batch that met a lock is tried in parts. With flushTimeout a batch ends before its callers' own limit.
const (
	partTimeout   = 2 * time.Second // of one part
	partsTimeout  = 8 * time.Second // of all parts of a batch
	partsFailures = 32              // after so many failed parts the rest is not tried
)

// batched turns a function over a batch into a flush. When the batch fails for a reason that may be one row's, every
// call is tried alone. When it waited for too long, for a lock or for the database, it is tried in halves.
func batched[Q keyed, R any](l *Ledger, what string, run func(context.Context, []*call[Q, R]) error) func(context.Context, []*call[Q, R]) {
	b := &batcher[Q, R]{l: l, what: what, run: run}
	return b.flush
}

type batcher[Q keyed, R any] struct {
	l    *Ledger
	what string
	run  func(context.Context, []*call[Q, R]) error
}

// try runs one transaction; late says whether it ended because it waited for too long.
func (b *batcher[Q, R]) try(ctx context.Context, limit time.Duration, part ...*call[Q, R]) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = b.run(ctx, part)
	return err != nil && (b.l.store.fault(err) == faultLocked || errors.Is(ctx.Err(), context.DeadlineExceeded)), err
}

// finish hands out the results of calls that were run together.
func (b *batcher[Q, R]) finish(ctx context.Context, err error, part ...*call[Q, R]) {
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

func (b *batcher[Q, R]) flush(ctx context.Context, batch []*call[Q, R]) {
	late, err := b.try(ctx, flushTimeout, batch...)
	switch {
	case err == nil || len(batch) == 1 || ctx.Err() != nil:
		b.finish(ctx, err, batch...)
	case late:
		b.halves(ctx, err, batch)
	case b.l.store.fault(err) == faultServer:
		b.finish(ctx, err, batch...)
	default:
		b.alone(ctx, err, batch)
	}
}

// alone runs every call by itself.
func (b *batcher[Q, R]) alone(ctx context.Context, err error, batch []*call[Q, R]) {
	failed := 0 // calls in sequence that failed alone for no reason of their own
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

// halves runs a batch in parts, the larger ones first, and each that fails in two. So the calls that have nothing to do
// with the lock are carried out soon. What is not reached in time fails as the last part did, and may be repeated.
func (b *batcher[Q, R]) halves(ctx context.Context, err error, batch []*call[Q, R]) {
	// Calls for one promotion stay together: they may all wait for its gate.
	slices.SortStableFunc(batch, func(x, y *call[Q, R]) int { return compareKeys(x.req.payout(), y.req.payout()) })
	parts := [][]*call[Q, R]{batch[:len(batch)/2], batch[len(batch)/2:]}
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

// wanted returns the sorted unique keys and promotions of a batch.
func wanted[Q keyed, R any](batch []*call[Q, R]) (w want) {
	for _, k := range batch {
		w.keys = append(w.keys, k.req.payout())
	}
	slices.SortFunc(w.keys, compareKeys)
	w.keys = slices.Compact(w.keys)
	for _, k := range w.keys {
		if n := len(w.promotions); n == 0 || w.promotions[n-1] != k.Of() {
			w.promotions = append(w.promotions, k.Of())
		}
	}
	return w
}
