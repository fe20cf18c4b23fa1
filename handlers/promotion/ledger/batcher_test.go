package ledger

import (
	"context"
	"errors"
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
					k.finish(k.req*2, nil)
				}
			}, nil)
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
					k.finish(0, nil)
				}
			}, nil)
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
	t.Run("a caller that goes away before its flush leaves no trace, later an orphan", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var flushed, orphans []int
			release := make(chan struct{})
			c := newBatcher(t.Context(), 1, 4, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				for _, k := range batch {
					flushed = append(flushed, k.req)
				}
				<-release
				for _, k := range batch {
					k.finish(0, nil)
				}
			}, func(k *batchItem[int, int]) { orphans = append(orphans, k.req) })
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					_, err := c.do(ctx, rules.Key{}, i)
					require.ErrorIs(t, err, context.Canceled)
				})
				synctest.Wait()
			}
			cancel()
			wg.Wait()
			close(release)
			c.close()
			require.Equal(t, []int{0}, flushed)
			require.Equal(t, []int{0}, orphans)
		})
	})
	t.Run("close carries out what is queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			done := 0
			c := newBatcher(t.Context(), 1, 1, time.Millisecond, func(_ context.Context, batch []*batchItem[int, int]) {
				time.Sleep(time.Second)
				done += len(batch)
				batch[0].finish(0, nil)
			}, nil)
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
		var batch []*batchItem[acceptRequest, AcceptResult]
		for target := range int64(5) {
			r := record(1, target+1)
			if target == 2 {
				r.Payload = make([]byte, 8<<20+1) // the constraint payouts_payload_size
			}
			batch = append(batch, &batchItem[acceptRequest, AcceptResult]{key: r.Key, req: acceptRequest{Record: &r}, done: make(chan struct{})})
		}
		newFlusher(l, "accept", l.acceptBatch)(t.Context(), batch)
		for i, k := range batch {
			<-k.done
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
	var batch []*batchItem[rules.Key, int]
	for i := range int64(50) {
		batch = append(batch, &batchItem[rules.Key, int]{key: key(1, i+1), req: key(1, i+1), done: make(chan struct{})})
	}
	runs := 0
	broken := errors.New("broken")
	newFlusher(l, "test", func(context.Context, []*batchItem[rules.Key, int]) error { runs++; return broken })(t.Context(), batch)
	require.Equal(t, 4, runs)
	for _, k := range batch {
		<-k.done
		require.ErrorIs(t, k.err, broken)
	}
}

// The payout is due again before the lease expires.
func TestBeginIsReleasedWhenItsCallerLeft(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		r := record(1, 2)
		mustAccept(t, l, r)
		k := &batchItem[*rules.Record, BeginResult]{key: r.Key, req: &r, done: make(chan struct{})}
		k.state.Store(itemAbandoned) // its caller's context ended after it was taken
		newFlusher(l, "begin", l.beginBatch)(t.Context(), []*batchItem[*rules.Record, BeginResult]{k})
		require.Equal(t, rules.Send, k.res.Next)
		l.releaseAbandoned(k)
		require.Eventually(t, func() bool { return mustExplain(t, l, r.Key).State == rules.Errored }, 10*time.Second, time.Millisecond)
		b := mustBegin(t, l, r)
		require.Equal(t, rules.Send, b.Next)
		require.Equal(t, 1, b.Attempt)
	})
}

// When the context of a begin ends, its payout is leased by its caller, was never leased, or is
// released.
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
		_, err := l.Accept(t.Context(), record(1, 3), false)
		require.ErrorIs(t, err, ErrClosed)
		_, err = l.Settle(t.Context(), rules.CallResult{Key: key(1, 2), Epoch: 1, Outcome: rules.Paid})
		require.ErrorIs(t, err, ErrClosed)
	})
}
