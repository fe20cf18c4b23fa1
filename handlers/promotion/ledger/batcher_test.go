package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// newTestBatcher returns a batcher whose flush finishes all items.
func newTestBatcher(ctx context.Context, flushers, size int, linger time.Duration, flush func(context.Context, []*batchItem[int, int])) *batcher[int, int] {
	return newBatcher(ctx, flushers, size, linger, func(ctx context.Context, batch []*batchItem[int, int]) []*batchItem[int, int] {
		flush(ctx, batch)
		return nil
	}, nil)
}

func TestBatcher(t *testing.T) {
	t.Parallel()
	t.Run("one call is flushed at once, what gathers meanwhile goes together", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			c := newTestBatcher(t.Context(), 2, 8, 10*time.Second, func(_ context.Context, batch []*batchItem[int, int]) {
				sizes = append(sizes, len(batch))
				time.Sleep(time.Second)
				for _, k := range batch {
					k.res = k.req * 2
					k.finish()
				}
			})
			var wg sync.WaitGroup
			start := time.Now()
			for i := range 6 {
				wg.Go(func() {
					got, err := c.one(t.Context(), payouts.Key{}, i)
					require.NoError(t, err)
					require.Equal(t, i*2, got)
				})
				synctest.Wait()
			}
			wg.Wait()
			require.Equal(t, []int{1, 5}, sizes)
			require.Equal(t, 2*time.Second, time.Since(start))
			c.close()
			_, err := c.one(t.Context(), payouts.Key{}, 1)
			require.ErrorIs(t, err, ErrClosed)
		})
	})
	t.Run("under load, batches that are not full begin 5 ms apart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var began []time.Duration
			start := time.Now()
			c := newTestBatcher(t.Context(), 2, 5, 10*time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				began = append(began, time.Since(start))
				for _, k := range batch {
					k.finish()
				}
			})
			send := func(items ...int) {
				_ = c.submit(t.Context(), newBatch[int, int](len(items), func(i int) (payouts.Key, int, error) { return payouts.Key{}, items[i], nil })...)
			}
			send(1)
			send(2, 3, 4)
			send(5, 6, 7, 8)
			require.Equal(t, []time.Duration{0, 0, 0}, began, "a few items do not wait")
			send(9)
			require.Equal(t, 5*time.Millisecond, began[3], "after a batch of four")
			send(10, 11, 12, 13)
			require.Equal(t, 5*time.Millisecond, began[4], "after a single item")
			send(14, 15, 16, 17, 18)
			require.Equal(t, 5*time.Millisecond, began[5], "a full batch does not wait")
			c.close()
		})
	})
	t.Run("a full batch goes, and a stuck flush holds nobody up for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := newTestBatcher(t.Context(), 2, 4, 10*time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				if batch[0].req == 0 {
					<-release
				}
				for _, k := range batch {
					k.finish()
				}
			})
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = c.one(t.Context(), payouts.Key{}, 0) })
			synctest.Wait()
			start := time.Now()
			_, err := c.one(t.Context(), payouts.Key{}, 1)
			require.NoError(t, err)
			require.Equal(t, 10*time.Millisecond, time.Since(start))
			close(release)
			wg.Wait()
			c.close()
		})
	})
	t.Run("a caller whose context ends does not wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := newTestBatcher(t.Context(), 1, 4, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				<-release
				for _, k := range batch {
					k.finish()
				}
			})
			c.keeps = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.one(ctx, payouts.Key{}, 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			close(release)
			c.close()
		})
	})
	t.Run("a queued request is removed, a running one is waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var carriedOut []int
			c := newTestBatcher(t.Context(), 1, 4, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				<-release
				for _, k := range batch {
					carriedOut = append(carriedOut, k.req)
					k.finish()
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var wg sync.WaitGroup
			wg.Go(func() { _, err := c.one(ctx, payouts.Key{}, 1); require.NoError(t, err) })
			synctest.Wait() // 1 is being flushed
			wg.Go(func() { _, err := c.one(ctx, payouts.Key{}, 2); require.ErrorIs(t, err, context.DeadlineExceeded) })
			wg.Go(func() { _, err := c.one(t.Context(), payouts.Key{}, 3); require.NoError(t, err) })
			<-ctx.Done()
			synctest.Wait()
			close(release)
			wg.Wait()
			c.close()
			require.Equal(t, []int{1, 3}, carriedOut)
		})
	})
	t.Run("close carries out what is queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			done := 0
			c := newTestBatcher(t.Context(), 1, 1, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				time.Sleep(time.Second)
				done += len(batch)
				batch[0].finish()
			})
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() { _, err := c.one(t.Context(), payouts.Key{}, i); require.NoError(t, err) })
			}
			synctest.Wait()
			c.close()
			wg.Wait()
			require.Equal(t, 2, done)
		})
	})
}

// One payload of the batch is refused only by the database.
func TestBadRowFailsAlone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		batch := newBatch[acceptRequest, AcceptResult](5, func(i int) (payouts.Key, acceptRequest, error) {
			r := record(1, int64(i)+1)
			if i == 2 {
				r.Payload = make([]byte, 8<<20+1) // the constraint payouts_payload_size
			}
			return r.Key, acceptRequest{Record: &r}, nil
		})
		l.accepts.all(t.Context(), batch)
		for i, k := range batch {
			if i == 2 {
				require.ErrorIs(t, k.err, rules.ErrInvalid)
				continue
			}
			require.NoError(t, k.err)
			require.Equal(t, AcceptResult{Next: rules.Enqueue, Fresh: true, State: rules.Pending}, k.res)
		}
		c, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Equal(t, int64(4), c.Accepted)
	})
}

// A batch that fails for a shared reason is not tried for every row.
func TestSharedErrorIsNotTriedForEveryRow(t *testing.T) {
	t.Parallel()
	l := newSQLiteDB(t).open(t)
	batch := newBatch[payouts.Key, int](50, func(i int) (payouts.Key, payouts.Key, error) { k := key(1, int64(i)+1); return k, k, nil })
	runs := 0
	broken := errors.New("broken")
	c := newFlusher(l, "test", func(context.Context, []*batchItem[payouts.Key, int]) error { runs++; return broken }).collect(1, 0)
	c.all(t.Context(), batch)
	c.close()
	require.Equal(t, 4, runs)
	for _, k := range batch {
		require.ErrorIs(t, k.err, broken)
	}
}

var errLocked, errData = errors.New("locked"), errors.New("data")

// lockStore is a store whose transactions fail only by locks and data.
type lockStore struct{ store }

func (lockStore) fault(err error) fault {
	switch {
	case errors.Is(err, errLocked):
		return faultLocked
	case errors.Is(err, errData):
		return faultData
	}
	return faultNone
}

// suspects returns the promotions that are expected to meet a lock.
func suspects[Q, R any](b *flusher[Q, R]) (all []any) {
	b.locked.Range(func(p, _ any) bool { all = append(all, p); return true })
	return all
}

// After a lock, no other flusher takes the promotions of the batch until it is known which one has
// it.
func TestALockIsFoundByPromotion(t *testing.T) {
	t.Parallel()
	l := &Ledger{cfg: DefaultConfig(), store: lockStore{}, life: t.Context()}
	var b *flusher[int, int]
	b = newFlusher(l, "test", func(_ context.Context, part []*batchItem[int, int]) error {
		promotion := part[0].key.Promotion
		if part[len(part)-1].key.Promotion == promotion {
			_, _, locked := b.apart(part)
			require.Len(t, locked, len(part), "suspected")
		}
		if promotion == 1 {
			return errLocked
		}
		return nil
	})
	batch := newBatch[int, int](6, func(i int) (payouts.Key, int, error) { return key(int64(1+i%3), int64(i)), 0, nil })
	w := &caller{done: make(chan struct{})}
	w.left.Store(6)
	for _, k := range batch {
		k.caller = w
	}
	aside := b.flush(t.Context(), slices.Clone(batch))
	require.Equal(t, []*batchItem[int, int]{batch[0], batch[3]}, aside)
	require.Equal(t, []any{payouts.Promotion{Type: "POINT", ID: 1}}, suspects(b))
	require.Equal(t, int32(2), w.left.Load())
}

// The time of a flush ends after a record that can't be stored. The records after it are not
// reported as invalid.
func TestADataErrorIsOnlyOfItsRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{cfg: DefaultConfig(), store: lockStore{}, life: t.Context()}
		b := newFlusher(l, "test", func(_ context.Context, part []*batchItem[int, int]) error {
			if part[0].key.Promotion == 1 {
				time.Sleep(asideTimeout + time.Millisecond)
				return errData
			}
			return nil
		})
		batch := newBatch[int, int](3, func(i int) (payouts.Key, int, error) { return key(int64(1+i), 1), 0, nil })
		w := &caller{done: make(chan struct{})}
		w.left.Store(3)
		for _, k := range batch {
			k.caller = w
		}
		b.flushAside(t.Context(), slices.Clone(batch))
		require.ErrorIs(t, batch[0].err, rules.ErrInvalid)
		for _, k := range batch[1:] {
			require.ErrorIs(t, k.err, context.DeadlineExceeded)
			require.NotErrorIs(t, k.err, rules.ErrInvalid)
		}
	})
}

// A promotion without a lock is tried before those that have met one, and is then free of
// suspicion.
func TestLockedPromotionsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{cfg: DefaultConfig(), store: lockStore{}, life: t.Context()}
		var order []int64
		b := newFlusher(l, "test", func(ctx context.Context, part []*batchItem[int, int]) error {
			order = append(order, part[0].key.Promotion)
			if part[0].key.Promotion == 150 {
				return nil
			}
			time.Sleep(ctx.Value(lockWait{}).(time.Duration) + time.Millisecond)
			return errLocked
		})
		flush := func() {
			order = nil
			batch := newBatch[int, int](150, func(i int) (payouts.Key, int, error) { return key(int64(1+i), 1), 0, nil })
			w := &caller{done: make(chan struct{})}
			w.left.Store(150)
			for _, k := range batch {
				k.caller = w
			}
			b.flushAside(t.Context(), batch)
		}
		flush()
		tried := int64(len(order))
		require.Less(t, tried, int64(150))
		free := payouts.Promotion{Type: "POINT", ID: 150}
		b.locked.Store(free, lockSeen{at: time.Now()})
		flush()
		require.Equal(t, tried+1, order[0])
		require.Equal(t, free.ID, order[149-tried])
		require.NotContains(t, suspects(b), free)
		flush()
		require.Equal(t, free.ID, order[0])
	})
}

// Another session holds the lock of promotion 1. Many single begins of it and of promotion 2 come
// at once. Those of promotion 2 share the first wait only, and those of promotion 1 wait in one
// transaction at a time.
func TestOneLockedPromotionDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{cfg: DefaultConfig(), store: lockStore{}, life: t.Context()}
		var locked atomic.Bool
		locked.Store(true)
		var waiting atomic.Int32
		began := time.Now()
		b := newFlusher(l, "begin", func(ctx context.Context, batch []*batchItem[int, int]) error {
			time.Sleep(time.Millisecond)
			if !locked.Load() || !slices.ContainsFunc(batch, func(k *batchItem[int, int]) bool { return k.key.Promotion == 1 }) {
				return nil
			}
			limit := 4 * time.Second
			if wait, ok := ctx.Value(lockWait{}).(time.Duration); ok {
				limit = wait
			}
			if n := waiting.Add(1); time.Since(began) > 10*time.Second && (n > 1 || limit > time.Second) {
				t.Errorf("%d transactions wait for the lock, one for %s", n, limit)
			}
			defer waiting.Add(-1)
			time.Sleep(limit)
			return errLocked
		})
		c := b.collect(3, DefaultConfig().Linger)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var slowest, later [3]time.Duration // by promotion; later: after the first wait
		var guard sync.Mutex
		var wg sync.WaitGroup
		for i := range 200 {
			k := key(int64(1+i%2), int64(i+1))
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 30 * time.Millisecond)
				for ctx.Err() == nil {
					time.Sleep(200 * time.Millisecond)
					start := time.Now()
					_, err := c.one(t.Context(), k, 0)
					if isLocked := k.Promotion == 1 && locked.Load(); isLocked {
						require.ErrorIs(t, err, errLocked)
					}
					guard.Lock()
					require.True(t, k.Promotion == 1 || err == nil, err)
					slowest[k.Promotion] = max(slowest[k.Promotion], time.Since(start))
					if start.Sub(began) > 10*time.Second {
						later[k.Promotion] = max(later[k.Promotion], time.Since(start))
					}
					guard.Unlock()
				}
			})
		}
		wg.Wait()
		require.Less(t, slowest[2], 4500*time.Millisecond)
		require.Less(t, later[2], 20*time.Millisecond)
		require.Less(t, slowest[1], 9*time.Second)
		require.Equal(t, []any{payouts.Promotion{Type: "POINT", ID: 1}}, suspects(b))

		locked.Store(false)
		time.Sleep(lockMemory)
		_, err := c.one(t.Context(), key(1, 1), 0)
		require.NoError(t, err)
		require.Empty(t, suspects(b))
		c.close()
	})
}

// Duplicates, invalid records and more records than a transaction takes are in one call.
func TestBatchHasAResultPerRecord(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(c *Config, _ *Options) { c.BatchSize = 3 })
		records := []payouts.Record{record(1, 1), record(1, 2), record(1, 1), {}, record(2, 1), record(1, 3), record(1, 1)}
		full := AcceptOptions{Full: func(p payouts.Promotion) bool { return p.ID == 2 }}
		var got []string
		for _, a := range l.Accept(t.Context(), records, full) {
			got = append(got, fmt.Sprint(a.Next, a.Fresh, a.Err != nil))
		}
		require.Equal(t, []string{"enqueue true false", "enqueue true false", "enqueue false false", "none false true",
			"overflow true false", "enqueue true false", "enqueue false false"}, got)
		require.Equal(t, rules.QueueNone, mustExplain(t, l, key(2, 1)).Queue)
		got = nil
		for _, k := range l.beginTogether(t, slices.Delete(slices.Clone(records), 3, 4)) {
			got = append(got, fmt.Sprint(k.res.Next, " ", k.res.Epoch, k.res.Why, k.err))
		}
		require.Equal(t, []string{"send 1<nil>", "send 1<nil>", "retry 0leased<nil>", "send 1<nil>", "send 1<nil>", "retry 0leased<nil>"}, got)
		_, err := l.Begin(t.Context(), records[3])
		require.ErrorIs(t, err, rules.ErrInvalid)
		errs := l.NotEnqueued(t.Context(), []payouts.Key{key(1, 1), key(9, 9), {}})
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], ErrNotFound)
		require.ErrorIs(t, errs[2], rules.ErrInvalid)
		for i, k := range []payouts.Key{key(1, 1), key(9, 9), {}} {
			require.Equal(t, errs[i], l.NotEnqueued(t.Context(), []payouts.Key{k})[0])
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Accept(ctx, records, full)[0].Err, context.Canceled)
	})
}

// When the context of a begin ends, its payout is leased by its caller or was never leased.
func TestCallersThatLeaveStrandNothing(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(_ *Config, o *Options) { o.Lease = time.Hour })
		const targets = 200
		acceptMany(t, l, 1, targets)
		var wg sync.WaitGroup
		for target := range int64(targets) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(30*time.Millisecond))))
				defer cancel()
				b, err := l.Begin(ctx, record(1, target+1))
				if err == nil && b.Next == rules.Send {
					_, err = l.Settle(t.Context(), payouts.CallResult{Key: key(1, target+1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "x"}})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool {
			c, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
			require.NoError(t, err)
			return c.InFlight == 0 && c.Ambiguous == 0 && c.Accepted == targets
		}, 2*time.Minute, 5*time.Millisecond)
	})
}

func TestClosedLedgerRefuses(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, record(1, 2))
		require.NoError(t, l.Close())
		_, err := l.acceptOne(t.Context(), record(1, 3), false)
		require.ErrorIs(t, err, ErrClosed)
		_, err = l.Settle(t.Context(), payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done}})
		require.ErrorIs(t, err, ErrClosed)
	})
}
