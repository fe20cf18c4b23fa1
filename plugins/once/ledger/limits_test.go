package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rate"
)

// limited registers the kind invoice with limits in its settings.
func limited(t *testing.T, limits Limits, ledgers ...*Ledger) {
	t.Helper()
	for _, l := range ledgers {
		require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: policyOf("invoice"), Limits: limits}))
	}
}

func mustPermit(t *testing.T, l *Ledger, a Ask) Permit {
	t.Helper()
	p, err := l.Permit(t.Context(), "invoice", a)
	require.NoError(t, err)
	return p
}

// The clock only goes forward, so the upper bound holds however slow the machine is.
func TestInstancesShareARate(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		const perSecond = 40.0
		limited(t, Limits{PerSecond: perSecond}, a, b)
		start, total := a.clock(t), 0
		for range 20 {
			for _, l := range []*Ledger{a, b, a, b, a, b} {
				p := mustPermit(t, l, Ask{Tokens: 1000})
				require.LessOrEqual(t, p.Tokens, 10, "a chunk")
				require.Equal(t, Limits{PerSecond: perSecond}, p.Limits)
				total += p.Tokens
			}
			h.advance(time.Second)
		}
		took := a.clock(t).Sub(start) + rate.Ahead + rate.Chunk
		require.LessOrEqual(t, float64(total), perSecond*took.Seconds()+1)
		require.GreaterOrEqual(t, total, 20*20, "two chunks a second, at the least")

		require.Zero(t, mustPermit(t, a, Ask{}).Tokens, "nothing was asked for")
	})
}

// Slots of a killed instance count until the leases of its calls have ended, also when it starts again.
func TestSlotsOfAKilledInstanceCount(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		killed, other := h.open(t), h.open(t, as("b"))
		limited(t, Limits{InFlight: 4}, killed, other)
		require.Equal(t, 3, mustPermit(t, killed, Ask{Slots: 3}).Slots)
		lease := policyOf("invoice").Lease
		require.Equal(t, 1, mustPermit(t, other, Ask{Slots: 9}).Slots)
		again := h.open(t) // with the same name
		limited(t, Limits{InFlight: 4}, again)
		require.Zero(t, mustPermit(t, again, Ask{Slots: 9}).Slots)
		s, err := other.LimitsOf(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, []int{4, 3}, []int{s.Slots, s.Holders})

		h.advance(SlotUse(lease)) // a call may begin until now
		require.Equal(t, 1, mustPermit(t, other, Ask{Slots: 9, Running: 1}).Slots)
		h.advance(SlotLife(lease) - SlotUse(lease))
		require.Equal(t, 2, mustPermit(t, again, Ask{Slots: 9}).Slots, "half, because another one wants some, too")
		require.Equal(t, 2, mustPermit(t, other, Ask{Slots: 9, Running: 1}).Slots)
		require.NoError(t, again.FreeSlots(t.Context(), "invoice"))
		require.Equal(t, 4, mustPermit(t, other, Ask{Slots: 9, Running: 2}).Slots)
	})
}

// Calls that run count although the limit is lower now, and no other one begins.
func TestALowerLimitCountsWhatRuns(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		limited(t, Limits{InFlight: 8, PerSecond: 100}, a, b)
		p := mustPermit(t, a, Ask{Slots: 6, Tokens: 5})
		require.Equal(t, []int{6, 5}, []int{p.Slots, p.Tokens})
		n := 2
		require.NoError(t, a.SetLimits(t.Context(), "invoice", LimitChange{InFlight: &n}, operator))
		require.Zero(t, mustPermit(t, b, Ask{Slots: 1}).Slots)
		p = mustPermit(t, a, Ask{Slots: 6, Running: 6, Tokens: 5})
		require.Equal(t, []int{1, 0}, []int{p.Slots, p.Tokens}, "no token is taken for a call that can't run")
		require.Zero(t, mustPermit(t, b, Ask{Slots: 1}).Slots, "six calls run")
		require.Equal(t, 1, mustPermit(t, a, Ask{Slots: 6, Running: 1}).Slots, "b waits")
		require.Equal(t, 1, mustPermit(t, b, Ask{Slots: 1}).Slots)
	})
}

func TestAnOperatorSetsLimits(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		limited(t, Limits{PerSecond: 200}, l)
		inForce := func() InForce {
			t.Helper()
			due, err := l.Due(t.Context(), "invoice")
			require.NoError(t, err)
			s, err := l.LimitsOf(t.Context(), "invoice")
			require.NoError(t, err)
			require.Equal(t, s.InForce, due.Limits)
			return s.InForce
		}
		require.Equal(t, InForce{Limits{PerSecond: 200}, FromSettings, FromSettings}, inForce())
		half, none, four := 0.5, 0.0, 4
		require.NoError(t, l.SetLimits(t.Context(), "invoice", LimitChange{PerSecond: &half}, operator))
		require.Equal(t, InForce{Limits{PerSecond: 0.5}, FromOperator, FromSettings}, inForce())
		require.NoError(t, l.SetLimits(t.Context(), "invoice", LimitChange{InFlight: &four}, operator))
		require.Equal(t, InForce{Limits{0.5, 4}, FromOperator, FromOperator}, inForce())
		require.Equal(t, 1, mustPermit(t, l, Ask{Tokens: 9}).Tokens)
		require.NoError(t, l.SetLimits(t.Context(), "invoice", LimitChange{PerSecond: &none}, operator))
		require.Equal(t, InForce{Limits{0, 4}, FromOperator, FromOperator}, inForce())
		require.NoError(t, l.SetLimits(t.Context(), "invoice", LimitChange{Settings: true}, operator))
		require.Equal(t, InForce{Limits{PerSecond: 200}, FromSettings, FromSettings}, inForce())
		p := mustPermit(t, l, Ask{Tokens: 99})
		require.Equal(t, 50, p.Tokens)
		require.LessOrEqual(t, p.Wait, rate.Ahead, "a token of the lower limit holds nobody up for its two seconds")

		s, err := l.LimitsOf(t.Context(), "invoice")
		require.NoError(t, err)
		var details []string
		for _, a := range s.Audit {
			require.Equal(t, []any{operator, "limit"}, []any{a.By, a.Action})
			details = append(details, a.Detail)
		}
		require.Equal(t, []string{
			"per_second: settings to 0.5; in_flight: settings to settings",
			"per_second: 0.5 to 0.5; in_flight: settings to 4",
			"per_second: 0.5 to none; in_flight: 4 to 4",
			"per_second: none to settings; in_flight: 4 to settings",
		}, details)
		minus := -1
		require.ErrorIs(t, l.SetLimits(t.Context(), "invoice", LimitChange{InFlight: &minus}, operator), ErrInvalid)
		require.ErrorIs(t, l.SetLimits(t.Context(), "invoice", LimitChange{InFlight: &four}, By{Who: "ann"}), ErrInvalid)
		require.ErrorIs(t, l.SetLimits(t.Context(), "nothing", LimitChange{InFlight: &four}, operator), ErrNotFound)
		require.ErrorIs(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: policyOf("invoice"), Limits: Limits{PerSecond: -1}}), ErrInvalid)
	})
}
