package promotion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/telemetry"
)

// stalledAfter is the age of due work at which an instance that settles nothing is not ready.
const stalledAfter = time.Minute

// progressing is the readiness check. It reports the age of the oldest unpaid payout of each
// promotion. It fails only when work is due and this instance settles nothing.
func (r *resources) progressing(ctx context.Context) error {
	waiting, err := r.ledger.WaitTimes(ctx)
	if err != nil {
		return fmt.Errorf("read the waiting payouts: %w", err)
	}
	oldest := map[string]float64{}
	var stalled []error
	for _, w := range waiting {
		oldest[w.Promotion.String()] = w.OldestUnpaid.Seconds()
		if w.Overdue > stalledAfter {
			stalled = append(stalled, fmt.Errorf("%s: a payout has been due for %s, and this instance settles nothing", w.Promotion, w.Overdue.Round(time.Second)))
		}
	}
	telemetry.Detail(ctx, "oldest_unpaid_seconds", oldest)
	if r.progress.Within(stalledAfter) {
		return nil
	}
	return errors.Join(stalled...)
}
