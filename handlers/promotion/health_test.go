package promotion

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
)

// Readiness is progress: it fails without measurements, and when due work is not done here. It
// reads the last measurement only.
func TestReadinessIsTheLastMeasurement(t *testing.T) {
	t.Parallel()
	last := feeder.Measurement{}
	check := func() error {
		return readiness{func() feeder.Measurement { return last }, &payout.Progress{}}.check(context.Background())
	}
	require.ErrorContains(t, check(), "the ledger has not been measured since the start")
	wait := func(id int64, overdue time.Duration) ledger.WaitTime {
		return ledger.WaitTime{UnfinishedPromotion: ledger.UnfinishedPromotion{Promotion: payouts.Promotion{Type: "POINT", ID: id}}, Overdue: overdue}
	}
	last = feeder.Measurement{At: time.Now(), Waiting: []ledger.WaitTime{wait(1, 0), wait(2, stalledAfter)}}
	require.NoError(t, check())
	last.Waiting = append(last.Waiting, wait(3, 2*time.Minute), wait(4, 3*time.Minute))
	require.ErrorContains(t, check(), "4: a payout has been due for 3m0s, and this instance settles nothing (2 promotions wait so long)")
	last = feeder.Measurement{At: time.Now().Add(-4 * feeder.MeasureInterval)}
	require.ErrorContains(t, check(), "the ledger has not been measured since")
}
