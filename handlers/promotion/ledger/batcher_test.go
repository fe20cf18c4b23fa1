package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

func TestBatcher(t *testing.T) {
	t.Parallel()
	t.Run("one call is flushed at once, what gathers meanwhile goes together", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			c := newBatcher(t.Context(), 2, 8, 10*time.Second, func(_ context.Context, batch []*batchItem[int, int]) {
				sizes = append(sizes, len(batch))
				time.Sleep(time.Second)
				for _, k := range batch {
					k.res = k.req * 2
					close(k.done)
				}
			})
			var wg sync.WaitGroup
			start := time.Now()
			for i := range 6 {
				wg.Go(func() {
					got, err := c.do(t.Context(), rules.Key{}, i)
					require.NoError(t, err)
					require.Equal(t, i*2, got)
				})
				synctest.Wait()
			}
			wg.Wait()
			require.Equal(t, []int{1, 5}, sizes)
			require.Equal(t, 2*time.Second, time.Since(start))
			c.close()
			_, err := c.do(t.Context(), rules.Key{}, 1)
			require.ErrorIs(t, err, ErrClosed)
		})
	})
	t.Run("a full batch goes, and a stuck flush holds nobody up for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := newBatcher(t.Context(), 2, 4, 10*time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				if batch[0].req == 0 {
					<-release
				}
				for _, k := range batch {
					close(k.done)
				}
			})
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = c.do(t.Context(), rules.Key{}, 0) })
			synctest.Wait()
			start := time.Now()
			_, err := c.do(t.Context(), rules.Key{}, 1)
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
			c := newBatcher(t.Context(), 1, 4, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				<-release
				for _, k := range batch {
					close(k.done)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.do(ctx, rules.Key{}, 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			close(release)
			c.close()
		})
	})
	t.Run("close carries out what is queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			done := 0
			c := newBatcher(t.Context(), 1, 1, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				time.Sleep(time.Second)
				done += len(batch)
				close(batch[0].done)
			})
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() { _, err := c.do(t.Context(), rules.Key{}, i); require.NoError(t, err) })
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
		batch := newBatch[acceptRequest, AcceptResult](5, func(i int) (rules.Key, acceptRequest, error) {
			r := record(1, int64(i)+1)
			if i == 2 {
				r.Payload = make([]byte, 8<<20+1) // the constraint payouts_payload_size
			}
			return r.Key, acceptRequest{Record: &r}, nil
		})
		l.accepts.do(t.Context(), batch)
		for i, k := range batch {
			if i == 2 {
				require.ErrorIs(t, k.err, rules.ErrInvalid)
				continue
			}
			require.NoError(t, k.err)
			require.Equal(t, AcceptResult{Next: rules.Enqueue, Fresh: true, State: rules.Pending}, k.res)
		}
		c, err := l.Status(t.Context(), rules.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Equal(t, int64(4), c.Accepted)
	})
}

// A batch that fails for a shared reason is not tried for every row.
func TestSharedErrorIsNotTriedForEveryRow(t *testing.T) {
	t.Parallel()
	l := newSQLiteDB(t).open(t)
	batch := newBatch[rules.Key, int](50, func(i int) (rules.Key, rules.Key, error) { k := key(1, int64(i)+1); return k, k, nil })
	runs := 0
	broken := errors.New("broken")
	newFlusher(l, "test", 1, func(context.Context, []*batchItem[rules.Key, int]) error { runs++; return broken }).do(t.Context(), batch)
	require.Equal(t, 4, runs)
	for _, k := range batch {
		require.ErrorIs(t, k.err, broken)
	}
}

// Duplicates, invalid records and more records than a transaction takes are in one call.
func TestBatchHasAResultPerRecord(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(c *Config, _ *Options) { c.BatchSize = 3 })
		records := []rules.Record{record(1, 1), record(1, 2), record(1, 1), {}, record(2, 1), record(1, 3), record(1, 1)}
		full := AcceptOptions{Full: func(p rules.Promotion) bool { return p.ID == 2 }}
		var got []string
		for _, a := range l.Accept(t.Context(), records, full) {
			got = append(got, fmt.Sprint(a.Next, a.Fresh, a.Err != nil))
		}
		require.Equal(t, []string{"enqueue true false", "enqueue true false", "enqueue false false", "none false true",
			"overflow true false", "enqueue true false", "enqueue false false"}, got)
		require.Equal(t, rules.QueueNone, mustExplain(t, l, key(2, 1)).Queue)
		got = nil
		for _, b := range l.Begin(t.Context(), records) {
			got = append(got, fmt.Sprint(b.Next, " ", b.Epoch, b.Why, b.Err != nil))
		}
		require.Equal(t, []string{"send 1false", "send 1false", "retry 0leasedfalse", "none 0true", "send 1false", "send 1false", "retry 0leasedfalse"}, got)
		errs := l.NotEnqueued(t.Context(), []rules.Key{key(1, 1), key(9, 9), {}})
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], ErrNotFound)
		require.ErrorIs(t, errs[2], rules.ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Begin(ctx, records)[0].Err, context.Canceled)
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
				b, err := l.beginOne(ctx, record(1, target+1))
				if err == nil && b.Next == rules.Send {
					_, err = l.Settle(t.Context(), rules.CallResult{Key: key(1, target+1), Epoch: b.Epoch, Outcome: rules.Paid, TransactionKey: "x"})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool {
			c, err := l.Status(t.Context(), rules.Promotion{Type: "POINT", ID: 1})
			require.NoError(t, err)
			return c.InFlight == 0 && c.Ambiguous == 0 && c.Accepted == targets
		}, 20*time.Second, 5*time.Millisecond)
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
		_, err = l.Settle(t.Context(), rules.CallResult{Key: key(1, 2), Epoch: 1, Outcome: rules.Paid})
		require.ErrorIs(t, err, ErrClosed)
	})
}
