package promotion

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// stalledAfter is the age of due work at which an instance that settles nothing is not ready.
const stalledAfter = time.Minute

// readiness is the readiness check of the plugin. It reads the last measurement of the feeder and
// asks no server.
type readiness struct {
	measured func() feeder.Measurement
	progress *payout.Progress
}

// check reports the age of the oldest unpaid payout of each promotion. It fails when the ledger is
// not measured any more, or when work is due and this instance settles nothing.
func (r readiness) check(ctx context.Context) error {
	m := r.measured()
	if err := m.Check(time.Now()); err != nil {
		return err
	}
	oldest := map[string]float64{}
	stalled, longest := 0, -1
	for i, w := range m.Waiting {
		oldest[w.Promotion.String()] = w.OldestUnpaid.Seconds()
		if w.Overdue <= stalledAfter {
			continue
		}
		if stalled++; longest < 0 || w.Overdue > m.Waiting[longest].Overdue {
			longest = i
		}
	}
	telemetry.Detail(ctx, "oldest_unpaid_seconds", oldest)
	if stalled == 0 || r.progress.Within(stalledAfter) {
		return nil
	}
	w := m.Waiting[longest]
	return fmt.Errorf("%s: a payout has been due for %s, and this instance settles nothing (%d promotions wait so long)",
		w.Promotion, w.Overdue.Round(time.Second), stalled)
}
