package promotion

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// A counter that appears at 1 is no increase to Prometheus, so every series that an alert asks for is there at 0.
func TestSeriesAreThereBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.collectors()...)
	for name, perType := range map[string]int{
		"millrace_promotion_fed_total": 3, "millrace_promotion_streams_lost_total": 1, "millrace_promotion_orphan_streams_total": 1,
		"millrace_promotion_feeder_failures_total": 1, "millrace_promotion_unannounced_total": 1, "millrace_promotion_unknown_streams": 1,
		"millrace_promotion_paused": 1, "millrace_promotion_paused_seconds": 1, "millrace_promotion_accepted_cancelled_total": 1, "millrace_promotion_attempts_total": 7, "millrace_promotion_oldest_unpaid_seconds": 1,
		"millrace_promotion_overdue_seconds": 1, "millrace_promotion_payouts": 4,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		require.Equal(t, perType*len(kinds()), n, name)
	}
}

func TestAttemptsAreCountedByWhatTheyLeave(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	m.attempted("POINT", ledger.Settled{State: ledger.Success})
	m.attempted("POINT", ledger.Settled{State: ledger.Success, Stale: true})
	m.attempted("VOUCHER", ledger.Settled{State: ledger.Ambiguous})
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("POINT", "SUCCESS")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("POINT", "stale")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("VOUCHER", "AMBIGUOUS")), 0)

	m.settled(ledger.Totals{Type: "POINT", Paid: 5, Unknown: 2})
	require.NoError(t, testutil.CollectAndCompare(m.payouts, strings.NewReader(`
# HELP millrace_promotion_payouts Settled payouts in the ledger, by type and state, whoever settled them.
# TYPE millrace_promotion_payouts gauge
millrace_promotion_payouts{state="CANCELLED",type="POINT"} 0
millrace_promotion_payouts{state="CANCELLED",type="VOUCHER"} 0
millrace_promotion_payouts{state="FAILED",type="POINT"} 0
millrace_promotion_payouts{state="FAILED",type="VOUCHER"} 0
millrace_promotion_payouts{state="SUCCESS",type="POINT"} 5
millrace_promotion_payouts{state="SUCCESS",type="VOUCHER"} 0
millrace_promotion_payouts{state="UNKNOWN",type="POINT"} 2
millrace_promotion_payouts{state="UNKNOWN",type="VOUCHER"} 0
`)))
}
