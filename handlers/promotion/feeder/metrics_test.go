package feeder

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
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
	require.NoError(t, testutil.CollectAndCompare(m.payouts, strings.NewReader(`
# HELP millrace_promotion_payouts Settled payouts in the ledger, by type and state. All instances export the same value.
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
