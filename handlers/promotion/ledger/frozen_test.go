package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// untilAnswered repeats call while the ledger returns ErrUnavailable.
func untilAnswered[R any](ctx context.Context, call func(context.Context) (R, error)) (R, error) {
	for {
		r, err := call(ctx)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return r, err
		}
	}
}

// beginAll begins targets 1 to n of a promotion at once, each until it has a result, and counts the
// results.
func beginAll(ctx context.Context, l *Ledger, promotion, n int64, next rules.Next) error {
	var g errgroup.Group
	for target := int64(1); target <= n; target++ {
		g.Go(func() error {
			b, err := untilAnswered(ctx, func(ctx context.Context) (BeginResult, error) { return l.Begin(ctx, record(promotion, target)) })
			// leased: an earlier reply was lost
			if err == nil && b.Next != next && b.Why != "leased" {
				err = errors.New(key(promotion, target).String() + ": " + b.Next.String() + " " + b.Why)
			}
			return err
		})
	}
	return g.Wait()
}

// An instance stops inside a transaction, and its connection stays open. PostgreSQL ends its
// session, so that begins and a pause go on.
func TestAFrozenTransactionEnds(t *testing.T) {
	t.Parallel()
	for name, holds := range map[string]readRequest{
		"in a row":                       {keys: []payouts.Key{key(1, 1)}, lock: true},
		"with the lock of the promotion": {promotions: []payouts.Promotion{{Type: "POINT", ID: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPostgresDB(t)
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			l, frozen := h.open(t), h.open(t, as("frozen"))
			const targets = 40
			acceptMany(t, l, 1, targets)
			acceptMany(t, l, 2, targets)

			u, _, err := frozen.store.begin(ctx, holds)
			require.NoError(t, err)
			defer u.rollback()
			if len(holds.promotions) > 0 {
				_, err = untilAnswered(ctx, func(ctx context.Context) (struct{}, error) {
					return struct{}{}, l.Pause(ctx, payouts.Promotion{Type: "POINT", ID: 1}, operator)
				})
				require.NoError(t, err)
				require.NoError(t, beginAll(ctx, l, 1, targets, rules.Ack), "paused")
			} else {
				require.NoError(t, beginAll(ctx, l, 1, targets, rules.Send))
			}
			require.NoError(t, beginAll(ctx, l, 2, targets, rules.Send))
		})
	}
}

// The others do not wait for the end of a frozen transaction. Here PostgreSQL never ends its
// session.
func TestOthersGoOnDuringAFrozenTransaction(t *testing.T) {
	t.Parallel()
	freeze := func(t *testing.T, h *testDB, sql string, args ...any) pgx.Tx {
		tx, err := h.connect(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
		return tx
	}
	t.Run("postgres: a locked row fails alone", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l := h.open(t)
		const targets = 64
		acceptMany(t, l, 1, targets)
		freeze(t, h, `SELECT FROM payouts WHERE target_id = 7 FOR UPDATE`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		left := map[int64]bool{}
		for target := int64(1); target <= targets; target++ {
			left[target] = true
		}
		for len(left) > 1 && ctx.Err() == nil {
			var batch []payouts.Record
			for target := range left {
				batch = append(batch, record(1, target))
			}
			for _, k := range l.beginTogether(t, batch) {
				if k.err == nil {
					delete(left, k.key.Target)
				} else if k.key.Target == 7 {
					require.ErrorIs(t, k.err, ErrUnavailable)
				}
			}
		}
		require.Equal(t, map[int64]bool{7: true}, left)
	})
	t.Run("postgres: a locked row is not marked as items", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l := h.open(t)
		acceptMany(t, l, 1, 3)
		for target := int64(1); target <= 3; target++ {
			require.NoError(t, l.NotEnqueued(t.Context(), []payouts.Key{key(1, target)})[0])
		}
		tx := freeze(t, h, `SELECT FROM payouts WHERE target_id = 2 FOR UPDATE`)
		for _, left := range [][]int64{{1, 2, 3}, {2}, {2}} {
			rows, err := l.FeedUnqueued(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 10)
			require.NoError(t, err)
			var targets []int64
			for _, r := range rows {
				targets = append(targets, r.Target)
			}
			require.Equal(t, left, inOrder(targets))
			n, err := l.MarkEnqueued(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, "", rows)
			require.NoError(t, err)
			require.Equal(t, len(left)-1, n)
		}
		require.NoError(t, tx.Rollback(t.Context()))
		rows, err := l.FeedUnqueued(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 10)
		require.NoError(t, err)
		n, err := l.MarkEnqueued(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, "", rows)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
	t.Run("postgres: a gate that a pause waits for", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		conn := h.connect(t)
		l := h.open(t)
		acceptMany(t, l, 1, 3)
		acceptMany(t, l, 2, 3)
		tx := freeze(t, h, pgSharePromotionLocks, []string{"POINT"}, []int64{1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		paused := make(chan error, 1)
		go func() {
			_, err := untilAnswered(ctx, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, l.Pause(ctx, payouts.Promotion{Type: "POINT", ID: 1}, operator)
			})
			paused <- err
		}()
		require.Eventually(t, func() bool { return waiters(t, conn) > 0 }, 2*time.Minute, time.Millisecond)
		require.NoError(t, beginAll(ctx, l, 2, 3, rules.Send))
		require.NoError(t, beginAll(ctx, l, 1, 3, rules.Send), "the pause has not taken effect")
		require.Empty(t, paused)
		require.NoError(t, tx.Rollback(ctx))
		require.NoError(t, <-paused)
	})
}

// A session holds three rows of promotion 1. One is accepted, one started and one settled again and
// again, together with new payouts. No call for promotion 2, whose own lock passes after three seconds,
// waits longer than one lock timeout. Later none waits, and no transaction waits long.
func TestALockedPromotionDelaysNoOther(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t, func(_ *Config, o *Options) { o.Lease = time.Hour }), h.connect(t)
		acceptMany(t, l, 1, 2)
		begun := mustBegin(t, l, record(1, 2))
		tx, err := h.connect(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM payouts FOR UPDATE`)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version, accepted_at, payload)
			VALUES ('POINT', 1, 3, 9, 'PENDING', 'stream', now(), 1, now(), 'x')`)
		require.NoError(t, err)
		passing, err := h.connect(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = passing.Exec(t.Context(), `INSERT INTO promotion_summary_slots (type, promotion_id, summary_id, slot)
			SELECT 'POINT', 2, 9, slot FROM generate_series(0, 255) AS slot`)
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		began := time.Now()
		var guard sync.Mutex
		slowest := map[bool]time.Duration{} // before and after the first waits
		done := map[int64]int{}             // by promotion
		timed := func(promotion int64, call func() error) error {
			start := time.Now()
			err := call()
			guard.Lock()
			defer guard.Unlock()
			if promotion == 2 {
				late := start.Sub(began) > 9*time.Second
				slowest[late] = max(slowest[late], time.Since(start))
			}
			if err == nil {
				done[promotion]++
			}
			return err
		}
		var targets atomic.Int64
		targets.Store(100)
		pay := func(promotion int64) error {
			r := record(promotion, targets.Add(1))
			err := timed(promotion, func() error { _, err := l.acceptOne(ctx, r, false); return err })
			if err != nil {
				return err
			}
			var b BeginResult
			err = timed(promotion, func() error { b, err = l.Begin(ctx, r); return err })
			if err != nil {
				return err
			}
			return timed(promotion, func() error {
				_, err := l.Settle(ctx, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "x"}})
				return err
			})
		}
		var wg sync.WaitGroup
		again := func(call func() error) {
			for range 4 {
				wg.Go(func() {
					for loop.Sleep(ctx, 20*time.Millisecond) {
						if err := call(); err != nil && ctx.Err() == nil && !errors.Is(err, ErrUnavailable) {
							t.Error(err)
						}
					}
				})
			}
		}
		again(func() error { _, err := l.acceptOne(ctx, record(1, 3), false); return err })
		again(func() error { _, err := l.Begin(ctx, record(1, 1)); return err })
		again(func() error {
			_, err := l.Settle(ctx, payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: begun.Epoch, Outcome: rules.Done, Receipt: "x"}})
			return err
		})
		again(func() error { return pay(1) })
		again(func() error { return pay(2) })
		require.True(t, loop.Sleep(ctx, 3*time.Second))
		require.NoError(t, passing.Rollback(ctx)) // while the settles of promotion 2 have met its lock, too
		most, last := 0, time.Now()
		var stall time.Duration // the longest time in which this loop stood still
		for loop.Sleep(ctx, 20*time.Millisecond) {
			var n int
			err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '1 s'
				AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'payouts'::regclass)`).Scan(&n)
			took := time.Since(last)
			last = last.Add(took)
			stall = max(stall, took)
			if err == nil && time.Since(began) > 9*time.Second && took < 500*time.Millisecond {
				most = max(most, n)
			}
		}
		wg.Wait()
		t.Logf("slowest %v, done %v, most long waits %d, longest stall %s", slowest, done, most, stall)
		require.Less(t, slowest[false], 5*time.Second+stall)
		require.Less(t, slowest[true], 2*time.Second+stall)
		require.NotZero(t, done[1], "its other payouts are paid")
		require.Greater(t, done[2], 10*done[1], "promotion 2 doesn't wait with the locked one after its own lock has passed")
		require.Zero(t, most)
	})
}

// An instance wakes after PostgreSQL has ended its session. Nothing of its transaction is stored,
// the error allows a repetition, and the next call uses a new session.
func TestAnInstanceWakesWithoutItsSession(t *testing.T) {
	t.Parallel()
	h := newPostgresDB(t)
	l := h.open(t)
	mustAccept(t, l, record(1, 1))
	h.dsn += "&idle_in_transaction_session_timeout=200"
	frozen := h.open(t, as("frozen"))
	u, s, err := frozen.store.begin(t.Context(), readRequest{promotions: []payouts.Promotion{{Type: "POINT", ID: 1}}, keys: []payouts.Key{key(1, 1)}, lock: true})
	require.NoError(t, err)
	defer u.rollback()
	row := s.rows[key(1, 1)]
	row.State, row.Epoch, row.Version = rules.Sending, 9, row.Version+1
	pid, conn := u.(*pgTransaction).conn.Conn().PgConn().PID(), h.connect(t)
	require.Eventually(t, func() bool {
		var alive bool
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, int32(pid)).Scan(&alive))
		return !alive
	}, 2*time.Minute, 10*time.Millisecond)

	err = u.commit(t.Context(), &writeSet{rows: []*storedRow{row}})
	require.Equal(t, faultServer, frozen.store.fault(err), "%v", err)
	u.rollback()
	require.Equal(t, rules.Pending, mustExplain(t, l, key(1, 1)).State)
	b, err := untilAnswered(t.Context(), func(ctx context.Context) (BeginResult, error) { return frozen.Begin(ctx, record(1, 1)) })
	require.NoError(t, err)
	require.Equal(t, int64(1), b.Epoch)
}

// A close without time left interrupts a wait for a lock.
func TestACloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	h := newPostgresDB(t)
	l, conn := h.open(t), h.connect(t)
	mustAccept(t, l, record(1, 1))
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM payouts FOR UPDATE`)
	require.NoError(t, err)
	leased := make(chan error, 1)
	go func() {
		_, err := l.Begin(context.Background(), record(1, 1))
		leased <- err
	}()
	require.Eventually(t, func() bool { return l.store.(*postgres).hot.Stat().AcquiredConns() > 0 }, 2*time.Minute, time.Millisecond)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.CloseContext(over), context.Canceled)
	require.ErrorIs(t, <-leased, ErrClosed)
	require.NoError(t, tx.Rollback(t.Context()))
}

// A frozen transaction holds rows of many promotions. Calls for promotions before and after them in
// the order of the keys are carried out while it is frozen.
func TestManyLockedPromotionsStopNoOther(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]bool{"postgres: settle": true, "postgres: begin": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPostgresDB(t)
			l := h.open(t, func(_ *Config, o *Options) { o.Lease = time.Hour })
			isFree := func(promotion int64) bool { return promotion <= 3 || promotion > 15 }
			const targets = 8
			var calls []payouts.CallResult
			for promotion := int64(1); promotion <= 18; promotion++ {
				acceptMany(t, l, promotion, targets)
				for target := int64(1); target <= targets; target++ {
					call := payouts.CallResult{Key: key(promotion, target), CallResult: rules.CallResult{Outcome: rules.Done, Receipt: "x"}}
					if settle {
						call.Epoch = mustBegin(t, l, record(promotion, target)).Epoch
					}
					calls = append(calls, call)
				}
			}
			tx, err := h.connect(t).Begin(t.Context())
			require.NoError(t, err)
			locked := `SELECT FROM payouts WHERE promotion_id BETWEEN 4 AND 15 FOR UPDATE`
			if settle {
				locked = `INSERT INTO promotion_summary_slots (type, promotion_id, summary_id, slot)
					SELECT 'POINT', i, 9, slot FROM generate_series(4, 15) AS i, generate_series(0, 255) AS slot`
			}
			_, err = tx.Exec(t.Context(), locked)
			require.NoError(t, err)

			frozen, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var free, held sync.WaitGroup
			rand.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
			for _, call := range calls {
				<-time.After(3 * time.Millisecond) // several batches
				wg := &held
				if isFree(call.Key.Promotion) {
					wg = &free
				}
				wg.Go(func() {
					_, err := untilAnswered(frozen, func(ctx context.Context) (any, error) {
						if settle {
							return l.Settle(ctx, call)
						}
						return l.Begin(ctx, record(call.Key.Promotion, call.Key.Target))
					})
					if err != nil && wg == &free {
						t.Error(call.Key, err)
					}
				})
			}
			free.Wait()
			cancel()
			held.Wait()
		})
	}
}
