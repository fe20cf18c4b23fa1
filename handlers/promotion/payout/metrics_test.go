package payout

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A counter that appears at 1 is no increase to Prometheus, so that each series exists at 0.
func TestSeriesExistBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	for name, perType := range map[string]int{
		"millrace_promotion_unannounced_total": 1, "millrace_promotion_accepted_cancelled_total": 1, "millrace_promotion_attempts_total": 7,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		require.Equal(t, perType*len(promotiontype.Names()), n, name)
	}
}

func TestAttemptsAreCountedByWhatTheyLeave(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	m.attempted("POINT", ledger.SettleResult{State: rules.Success})
	m.attempted("POINT", ledger.SettleResult{State: rules.Success, Stale: true})
	m.attempted("VOUCHER", ledger.SettleResult{State: rules.Ambiguous})
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("POINT", "SUCCESS")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("POINT", "stale")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.attempts.WithLabelValues("VOUCHER", "AMBIGUOUS")), 0)
}
