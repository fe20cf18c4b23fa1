package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func places(n int) tune { return func(_ *Config, o *Options) { o.MaxActive = n } }

func mustAdmit(t testing.TB, l *Ledger, promotion int64, want bool) {
	t.Helper()
	got, err := l.Admit(t.Context(), payouts.Promotion{Type: "POINT", ID: promotion})
	require.NoError(t, err)
	require.Equal(t, want, got, "promotion %d", promotion)
}

func admitted(t testing.TB, l *Ledger) (ids []int64) {
	t.Helper()
	all, err := l.AdmitWaiting(t.Context())
	require.NoError(t, err)
	for _, p := range all {
		ids = append(ids, p.ID)
	}
	return inOrder(ids)
}

func queued(t testing.TB, l *Ledger) (ids []int64) {
	t.Helper()
	work, err := l.Unfinished(t.Context())
	require.NoError(t, err)
	for _, w := range work {
		require.False(t, w.WaitsForPlace && w.Active)
		if w.WaitsForPlace {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// A promotion without a place waits. The one accepted first gets the next free place.
func TestPlacesAreGivenInTheOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, places(2))
		for _, p := range []int64{5, 4, 3, 2, 1} {
			mustAccept(t, l, record(p, 1))
			h.advance(time.Second)
		}
		mustAdmit(t, l, 5, true)
		mustAdmit(t, l, 4, true)
		mustAdmit(t, l, 1, false)
		mustAdmit(t, l, 2, false)
		mustAdmit(t, l, 3, false)
		mustAdmit(t, l, 4, true) // it has a place
		require.Equal(t, []int64{1, 2, 3}, queued(t, l))
		require.Empty(t, admitted(t, l), "no place is free")

		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 5}))
		mustAdmit(t, l, 6, false) // others wait
		mustAdmit(t, l, 1, false) // it waits, but not first
		require.Equal(t, []int64{3}, admitted(t, l))
		require.Empty(t, admitted(t, l))
		mustAdmit(t, l, 3, true)
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 4}))
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}))
		require.Equal(t, []int64{1, 2}, admitted(t, l))
		require.Empty(t, queued(t, l))

		c, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 2})
		require.NoError(t, err)
		require.True(t, c.Active)
		require.Zero(t, c.WaitsForPlace)
		mustAdmit(t, l, 5, false) // it was drained, and has work again
		h.advance(time.Minute)
		c, err = l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 5})
		require.NoError(t, err)
		require.GreaterOrEqual(t, c.WaitsForPlace, time.Minute)
		waiting, err := l.WaitTimes(t.Context())
		require.NoError(t, err)
		for _, w := range waiting {
			require.GreaterOrEqual(t, w.OldestUnpaid, time.Minute)
			require.Equal(t, w.WaitsForPlace, w.Overdue == 0, "what waits for a place could not have been worked on")
		}
	})
}

// A promotion with single records overtakes no waiting one. Its record after a drain waits behind
// the records that were accepted before.
func TestAnOldPromotionDoesNotOvertake(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, places(1))
		next := func(p, target int64) {
			mustAccept(t, l, record(p, target))
			h.advance(time.Second)
		}
		pay := func(p, target int64) {
			b := mustBegin(t, l, record(p, target))
			mustSettle(t, l, payouts.CallResult{Key: key(p, target), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "t"}})
			require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: p}))
		}
		next(1, 1)
		mustAdmit(t, l, 1, true)
		next(2, 1)
		mustAdmit(t, l, 2, false)
		pay(1, 1)
		next(1, 2)
		mustAdmit(t, l, 1, false)
		next(3, 1)
		mustAdmit(t, l, 3, false)
		for _, want := range []payouts.Key{key(2, 1), key(1, 2), key(3, 1)} {
			require.Equal(t, []int64{want.Promotion}, admitted(t, l))
			pay(want.Promotion, want.Target)
		}
	})
}

// A promotion without work that is possible now takes no place, and delays no waiting one.
func TestAPromotionThatCanDoNothingTakesNoPlace(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, places(1))
		for _, p := range []int64{1, 2, 3, 4} {
			mustAccept(t, l, record(p, 1))
			h.advance(time.Second)
		}
		mustAdmit(t, l, 1, true)
		for _, p := range []int64{2, 3, 4} {
			mustAdmit(t, l, p, false)
		}
		// 1 is paused while it is active, 2 while it waits; 3 is cancelled while it waits.
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, operator))
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, operator))
		_, err := l.Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}, operator)
		require.NoError(t, err)
		require.Equal(t, []int64{4}, admitted(t, l))
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 4}))
		mustAccept(t, l, record(5, 1))
		mustAdmit(t, l, 5, true) // a paused one that waits is not in its way

		require.NoError(t, l.Resume(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, operator))
		require.Empty(t, admitted(t, l))
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 5}))
		require.Equal(t, []int64{2}, admitted(t, l))
	})
}

// A promotion whose stream can't be used yields its place to a waiting one, and waits behind all
// others.
func TestAPlaceIsYielded(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, places(1))
		yield := func(p int64) bool {
			done, err := l.Yield(t.Context(), payouts.Promotion{Type: "POINT", ID: p})
			require.NoError(t, err)
			return done
		}
		for _, p := range []int64{1, 2, 3} {
			mustAccept(t, l, record(p, 1))
			h.advance(time.Second)
		}
		mustAdmit(t, l, 1, true)
		require.False(t, yield(1), "no other promotion waits")
		same, err := l.RecordIncarnation(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, "A")
		require.NoError(t, err)
		require.True(t, same)
		mustAdmit(t, l, 2, false)
		mustAdmit(t, l, 3, false)
		require.True(t, yield(1))
		require.False(t, yield(1), "it has none")
		token, err := l.Incarnation(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Equal(t, "A", token, "its stream may hold entries")
		for _, p := range []int64{2, 3, 1} {
			require.Equal(t, []int64{p}, admitted(t, l))
			require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: p}))
		}
	})
}

// A started event takes only a free place, and does not wait: there is nothing to pay yet.
func TestAStartedEventObeysTheLimit(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, places(1))
		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 10))
		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, 20))
		active, err := l.Active(t.Context(), "POINT")
		require.NoError(t, err)
		require.Equal(t, []ActiveStream{{Promotion: payouts.Promotion{Type: "POINT", ID: 1}, TotalCount: 10}}, active)
		c, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 2})
		require.NoError(t, err)
		require.EqualValues(t, 20, c.TotalCount, "for its later size")
		require.Zero(t, c.WaitsForPlace)
		require.NoError(t, l.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}, 0), "a stream that exists is read in any case")
		mustAccept(t, l, record(2, 1))
		mustAdmit(t, l, 2, false)
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}))
		require.Empty(t, admitted(t, l), "3 has the place")
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}))
		require.Equal(t, []int64{2}, admitted(t, l))
	})
}

// Instances that admit at the same time give each free place once.
func TestInstancesAdmitTogether(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		const limit, promotions = 5, 60
		all := []*Ledger{h.open(t, places(limit)), h.open(t, places(limit), as("b")), h.open(t, places(limit), as("c"))}
		for p := range int64(promotions) {
			mustAccept(t, all[0], record(p+1, 1))
		}
		var g errgroup.Group
		for i, l := range all {
			g.Go(func() error {
				for p := range int64(promotions) {
					if _, err := l.Admit(t.Context(), payouts.Promotion{Type: "POINT", ID: (p+int64(20*i))%promotions + 1}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		count := func() int {
			a, err := all[0].Active(t.Context(), "POINT")
			require.NoError(t, err)
			return len(a)
		}
		require.GreaterOrEqual(t, count(), limit)
		require.Less(t, count(), limit+len(all), "one more for each statement that ran at the same time")

		for count() > 0 {
			active, err := all[0].Active(t.Context(), "POINT")
			require.NoError(t, err)
			for _, a := range active {
				require.NoError(t, all[0].Deactivate(t.Context(), a.Promotion))
				b := mustBegin(t, all[0], record(a.ID, 1))
				mustSettle(t, all[0], payouts.CallResult{Key: key(a.ID, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "t"}})
			}
			for _, l := range all {
				g.Go(func() error { _, err := l.AdmitWaiting(t.Context()); return err })
			}
			require.NoError(t, g.Wait())
			require.LessOrEqual(t, count(), limit)
		}
		require.Empty(t, queued(t, all[0]), "each promotion had its turn")
	})
}

// Lost streams leave connections for everything else: one promotion is written at a time.
func TestLostStreamsLeaveConnections(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l := h.open(t)
		for p := range int64(coldConnections) {
			mustAccept(t, l, record(p+1, 1))
			_, err := l.RecordIncarnation(t.Context(), payouts.Promotion{Type: "POINT", ID: p + 1}, "A")
			require.NoError(t, err)
		}
		conn, err := pgx.Connect(t.Context(), h.dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM promotion_streams FOR UPDATE")
		require.NoError(t, err)
		var g errgroup.Group
		for p := range int64(coldConnections) {
			g.Go(func() error {
				_, _, err := l.RecordStreamLoss(t.Context(), payouts.Promotion{Type: "POINT", ID: p + 1}, "A", "B")
				return err
			})
		}
		require.Eventually(t, func() bool {
			var waiting int
			err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, conn.PgConn().PID()).Scan(&waiting)
			return err == nil && waiting > 0
		}, 2*time.Minute, 10*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for range 50 {
			_, err = l.Status(ctx, payouts.Promotion{Type: "POINT", ID: 1})
			require.NoError(t, err)
		}
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, g.Wait())
	})
}
