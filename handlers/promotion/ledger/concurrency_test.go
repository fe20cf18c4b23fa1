package ledger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestOneOfManyBegins(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, unannounced), h.open(t, unannounced, as("b"))}
		for target := range int64(20) {
			if target%2 == 0 { // the others are born by their begins
				mustAccept(t, ledgers[0], record(1, target+1))
			}
			var sends, retries atomic.Int64
			var g errgroup.Group
			for i := range 32 {
				g.Go(func() error {
					b, err := ledgers[i%2].Begin(t.Context(), record(1, target+1))
					switch b.Next {
					case rules.Send:
						sends.Add(1)
					case rules.Retry:
						retries.Add(1)
					}
					return err
				})
			}
			require.NoError(t, g.Wait())
			require.Equal(t, int64(1), sends.Load())
			require.Equal(t, int64(31), retries.Load())
		}
	})
}

func TestOneOfManyAccepts(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		var fresh, conflicts atomic.Int64
		var g errgroup.Group
		for i := range 400 {
			g.Go(func() error {
				r := record(1, int64(1+i%20))
				if i/20%4 == 3 {
					r.Payload = []byte(`{"amount":1}`)
				}
				a, err := ledgers[i%2].acceptOne(t.Context(), r, false)
				if a.Fresh {
					fresh.Add(1)
				}
				if a.Next == rules.Conflict {
					conflicts.Add(1)
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Equal(t, int64(20), fresh.Load())
		require.Positive(t, conflicts.Load())
		c, err := ledgers[0].Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Equal(t, int64(20), c.Accepted)
		require.Equal(t, int64(20), c.Conflict, "each key has seen both requests, whichever came first")
	})
}

// Share locks do not delay the pause indefinitely, and after it has returned no lease is taken.
func TestPauseIsSeenWhileBeginsNeverStop(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, unannounced), h.open(t, unannounced, as("b")), h.open(t, unannounced, as("c"))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var target, leased atomic.Int64
		var paused, stop atomic.Bool
		var g errgroup.Group
		for i := range 96 {
			g.Go(func() error {
				for !stop.Load() {
					after := paused.Load()
					b, err := ledgers[i%3].Begin(ctx, record(1+int64(i%2), target.Add(1)))
					if err != nil {
						return err
					}
					if b.Next == rules.Send {
						leased.Add(1)
						if after && i%2 == 0 {
							return errors.New("leased after the pause had returned")
						}
					}
				}
				return nil
			})
		}
		require.Eventually(t, func() bool { return leased.Load() > 500 }, 2*time.Minute, time.Millisecond)
		start := time.Now()
		require.NoError(t, ledgers[0].Pause(ctx, payouts.Promotion{Type: "POINT", ID: 1}, operator))
		took := time.Since(start)
		paused.Store(true)
		n := leased.Load()
		require.Eventually(t, func() bool { return leased.Load() > n+100 }, 2*time.Minute, time.Millisecond, "the other promotion goes on")
		stop.Store(true)
		require.NoError(t, g.Wait())
		require.Less(t, took, 20*time.Second)
	})
}

// Two instances run a small campaign. Their workers crash, answer late and repeat calls. No two
// calls for a payout are allowed at the same time.
func TestManyWorkersPayEachOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		long := func(c *Config, o *Options) {
			o.Lease = time.Hour
			c.Retry.First = time.Microsecond
			c.Retry.Max = time.Microsecond
		}
		ledgers := []*Ledger{h.open(t, long, withResults), h.open(t, long, withResults, as("b"))}
		const targets = 200
		acceptMany(t, ledgers[0], 1, targets)
		var busy, charged [targets + 1]atomic.Int32
		var paid atomic.Int64
		var g errgroup.Group
		for i := range 64 {
			g.Go(func() error {
				for n := 0; paid.Load() < targets; n++ {
					target := int64(1 + (i*7+n)%targets)
					l := ledgers[(i+n)%2]
					b, err := l.Begin(t.Context(), record(1, target))
					if err != nil {
						return err
					}
					if b.Next != rules.Send {
						continue
					}
					if busy[target].Add(1) > 1 {
						return errors.New("two workers at once")
					}
					res := payouts.CallResult{Key: key(1, target), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Throttled}}
					if n%3 == 0 {
						charged[target].Add(1)
						res.Outcome, res.Receipt = rules.Done, "tx"
						paid.Add(1)
					}
					busy[target].Add(-1)
					for range 2 {
						if _, err := ledgers[n%2].Settle(t.Context(), res); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		for target := 1; target <= targets; target++ {
			require.Equal(t, int32(1), charged[target].Load())
		}
		c, err := ledgers[1].Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Equal(t, int64(targets), c.Paid)
		require.Zero(t, c.Pending)
		require.Len(t, relayed(t, ledgers[0], OutboxOutcome), targets)
		var answered int
		require.NoError(t, ledgers[0].store.read(t.Context(), func(q querier, _ time.Time) error {
			return q.query(t.Context(), func(r scanner) error { return r.Scan(&answered) }, `SELECT count(*) FROM attempts WHERE outcome = 'paid' AND NOT late`)
		}))
		require.Equal(t, targets, answered)
	})
}

// Callers get errors that wrap ErrUnavailable and repeat. The counts are right at the end.
func TestBackendsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l := h.open(t, func(_ *Config, o *Options) { o.Lease = 300 * time.Millisecond })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		again := func(what func() error) error {
			for {
				err := what()
				if err == nil || !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
					return err
				}
			}
		}
		conn, err := pgx.Connect(ctx, h.dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(ctx) }()
		const targets = 600
		var failures atomic.Int64
		var g errgroup.Group
		for i := range 30 {
			g.Go(func() error {
				for target := int64(i + 1); target <= targets; target += 30 {
					r := record(1, target)
					if err := again(func() error { _, err := l.acceptOne(ctx, r, false); count(&failures, err); return err }); err != nil {
						return err
					}
					var b BeginResult
					for b.Next != rules.Send { // a lease that was taken unnoticed runs out
						if err := again(func() (err error) { b, err = l.Begin(ctx, r); count(&failures, err); return err }); err != nil {
							return err
						}
					}
					if err := again(func() error {
						s, err := l.Settle(ctx, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "x"}})
						count(&failures, err)
						if err == nil && s.State != rules.Success {
							return errors.New("not settled")
						}
						return err
					}); err != nil {
						return err
					}
				}
				for failures.Load() == 0 && ctx.Err() == nil { // until the first is killed
					if err := again(func() error {
						_, err := l.acceptOne(ctx, record(1, int64(i+1)), false)
						count(&failures, err)
						return err
					}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		schema := l.store.(*postgres).hot.Config().ConnConfig.RuntimeParams["search_path"]
		var done sync.WaitGroup
		finished := make(chan error, 1)
		done.Go(func() { finished <- g.Wait() })
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for kills := 0; ; {
			select {
			case err := <-finished:
				done.Wait()
				require.NoError(t, err)
				require.Positive(t, failures.Load(), "some callers have met a dead connection")
				c, err := l.Status(ctx, payouts.Promotion{Type: "POINT", ID: 1})
				require.NoError(t, err)
				require.Equal(t, Counts{Promotion: c.Promotion, State: rules.GroupRunning, PayoutCounts: PayoutCounts{Accepted: targets, Paid: targets}}, c)
				return
			case <-tick.C:
				if kills++; kills > 12 && failures.Load() > 0 {
					continue
				}
				_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
					AND pid IN (SELECT a.pid FROM pg_stat_activity a JOIN pg_locks k ON k.pid = a.pid JOIN pg_class c ON c.oid = k.relation
					JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1)`, schema)
				require.NoError(t, err)
			}
		}
	})
}

func count(n *atomic.Int64, err error) {
	if err != nil {
		n.Add(1)
	}
}

func TestOneOfManyAcceptsOfACancelledPromotion(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, withResults), h.open(t, withResults, as("b")), h.open(t, withResults, as("c")), h.open(t, withResults, as("d"))}
		mustAccept(t, ledgers[0], record(1, 999))
		_, err := ledgers[0].Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, operator)
		require.NoError(t, err)
		var g errgroup.Group
		for target := int64(1); target <= 300; target++ {
			for _, l := range ledgers {
				g.Go(func() error {
					_, err := l.acceptOne(t.Context(), record(1, target), false)
					return err
				})
			}
			if target%20 == 0 {
				require.NoError(t, g.Wait())
			}
		}
		c, err := ledgers[0].Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.EqualValues(t, 301, c.Cancelled)
		require.EqualValues(t, 301, c.Accepted)
		require.Len(t, relayed(t, ledgers[0], OutboxOutcome), int(c.Cancelled))
	})
}
