package feeder

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A counter that appears at 1 has not increased for Prometheus, so that each series exists at 0.
func TestSeriesExistBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	for name, perType := range map[string]int{
		"fed_total": 3, "streams_lost_total": 1, "orphan_streams_total": 1, "feeder_failures_total": 1, "unknown_streams": 1,
		"paused": 1, "paused_seconds": 1, "waiting_for_place": 1, "oldest_unpaid_seconds": 1, "overdue_seconds": 1, "payouts": 4,
	} {
		n, err := testutil.GatherAndCount(reg, "millrace_promotion_"+name)
		require.NoError(t, err)
		require.Equal(t, perType*len(promotiontype.Names()), n, name)
	}
}

func TestSettledPayoutsAreCountedByState(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	m.settled(ledger.Totals{Type: "POINT", Paid: 5, Unknown: 2})
	for state, n := range map[rules.State]float64{rules.Success: 5, rules.Failed: 0, rules.Unknown: 2, rules.Cancelled: 0} {
		require.InDelta(t, n, testutil.ToFloat64(m.payouts.WithLabelValues("POINT", string(state))), 0, state)
		require.Zero(t, testutil.ToFloat64(m.payouts.WithLabelValues("VOUCHER", string(state))), state)
	}
}
