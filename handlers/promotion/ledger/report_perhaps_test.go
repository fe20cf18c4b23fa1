package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A request whose outcome is not stored is perhaps charged: while its call runs, and after its lease has ended. The count,
// the list and the row agree.
func TestWhatIsPerhapsCharged(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		for target := range int64(4) {
			mustAccept(t, l, record(1, 1+target))
		}
		unclear := mustBegin(t, l, record(1, 1))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: unclear.Epoch, Outcome: rules.Unclear}})
		mustBegin(t, l, record(1, 2))
		retried := mustBegin(t, l, record(1, 3))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 3), CallResult: rules.CallResult{Epoch: retried.Epoch, Outcome: rules.TryAgain}})

		check := func(calling int64) {
			t.Helper()
			c, err := l.Status(t.Context(), p)
			require.NoError(t, err)
			require.Equal(t, []int64{4, 2, calling, 1}, []int64{c.Pending, c.PerhapsCharged, c.Calling, c.WithWorker})
			rows, err := l.PerhapsCharged(t.Context(), p, 10)
			require.NoError(t, err)
			require.Len(t, rows, 2)
			for _, r := range rows {
				require.True(t, r.PerhapsDone(), r.Key)
			}
			rows, err = l.PerhapsCharged(t.Context(), p, 1)
			require.NoError(t, err)
			require.Len(t, rows, 1)
			leases, err := l.Leases(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, leases, int(calling))
			for _, n := range leases {
				require.EqualValues(t, 1, n)
			}
			n, longest, err := l.UnderWay(t.Context(), p)
			require.NoError(t, err)
			require.Equal(t, calling, n)
			require.Equal(t, calling > 0, longest > 0 && longest <= time.Hour, longest)
		}
		check(1)
		h.advance(time.Hour)
		check(0)
	})
}

// How long ago an operator changed the state is known of a promotion and in the list, and no creation is one.
func TestSinceWhenAStateLasts(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		mustAccept(t, l, record(1, 1))
		since := func() []time.Duration {
			c, err := l.Status(t.Context(), p)
			require.NoError(t, err)
			list, err := l.List(t.Context(), "", 1)
			require.NoError(t, err)
			return []time.Duration{c.ChangedFor, list[0].ChangedFor}
		}
		require.Equal(t, []time.Duration{0, 0}, since())
		h.advance(time.Minute)
		require.NoError(t, l.Pause(t.Context(), p, Steering{Who: "ann"}))
		require.NoError(t, l.Resume(t.Context(), p, Steering{Who: "ann"}))
		h.advance(time.Minute)
		for _, d := range since() {
			require.InDelta(t, time.Minute.Seconds(), d.Seconds(), 30)
		}
	})
}

// Those that wait longest are the first accepted ones that are not settled, of this promotion alone.
func TestTheOldestPayouts(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		for _, k := range []payouts.Key{key(2, 9), key(1, 4), key(1, 1), key(1, 3), key(1, 2)} {
			mustAccept(t, l, record(k.Promotion, k.Target))
			h.advance(time.Second)
		}
		paid := mustBegin(t, l, record(1, 4))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 4), CallResult: rules.CallResult{Epoch: paid.Epoch, Outcome: rules.Done}})
		for limit, want := range map[int][]payouts.Key{1: {key(1, 1)}, 2: {key(1, 1), key(1, 3)}, 5: {key(1, 1), key(1, 3), key(1, 2)}} {
			keys, err := l.Oldest(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, limit)
			require.NoError(t, err)
			require.Equal(t, want, keys)
		}
	})
}
