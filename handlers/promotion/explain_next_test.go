package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// TestWhatNextTellsEveryState in words that name who acts, and when.
func TestWhatNextTellsEveryState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		x    ledger.Explanation
		want string
	}{
		{"paid", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Success}}}, "nothing. It is paid."},
		{"cancelled", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Cancelled}}}, "nothing. It was cancelled"},
		{"failed", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}}, "millrace dead replay"},
		{"failed and cancelled", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}, PromotionState: ledger.PromotionCancelled}, "its promotion is cancelled."},
		{"unknown", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Unknown}}}, "millrace unknown resolve POINT 1 7 --paid"},
		{"paused", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintNone}}, PromotionState: ledger.PromotionPaused, Then: ledger.Send},
			"it waits until a person resumes the promotion (millrace campaign resume POINT 1); then the request is sent with the key POINT:1:7."},
		{"waits for the feeder", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintNone}}, Then: ledger.Send},
			"the feeder adds it to the promotion's stream as soon as there is room: it looks every 1s. The request is sent"},
		{"in the stream", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintStream, HintDue: now}}, Then: ledger.Send},
			"it is in the promotion's stream since 2026-03-01T12:00:00.000Z"},
		{"being called", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b", AttemptStartedAt: now}}, Then: ledger.Send},
			"b is calling the Money API since 2026-03-01T12:00:00.000Z; its answer settles it. If b is dead, its lease ends in 8s"},
		{"paused while being called", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b"}}, PromotionState: ledger.PromotionPaused},
			"b is calling"},
		{"its worker is gone", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(-time.Second), HintDue: now.Add(-time.Second), AttemptBy: "b"}}, Then: ledger.Send},
			"has not been heard of; its lease ended 1s ago (2026-03-01T11:59:59.000Z). The feeder hands the payout on in 29s"},
		{"not charged, to be retried", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Errored, Hint: ledger.HintRetry, HintDue: now.Add(4 * time.Second)}}, Then: ledger.Send},
			"its retry record is due in 4s (2026-03-01T12:00:04.000Z); if that is lost, the feeder hands the payout on in 34s (2026-03-01T12:00:34.000Z). The request is sent with the key POINT:1:7."},
		{"perhaps charged", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Ambiguous, Hint: ledger.HintRetry, HintDue: now.Add(-time.Hour), MaybeCharged: true}}, Then: ledger.Send},
			"the feeder hands the payout on at its next look. The request is sent with the key POINT:1:7 again; it may have been charged"},
		{"must be asked", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Ambiguous, Hint: ledger.HintRetry, HintDue: now, MaybeCharged: true}}, Then: ledger.Ask},
			"The Money API is asked what became of the key POINT:1:7; nothing is sent any more."},
		{"used up", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Errored, Hint: ledger.HintRetry, HintDue: now}}, Then: ledger.Ack},
			"It is settled without another call"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.x.Key, tt.x.Now = ledger.Key{Type: "POINT", Promotion: 1, Target: 7}, now
			if tt.x.PromotionState == "" {
				tt.x.PromotionState = ledger.PromotionRunning
			}
			c := DefaultConfig()
			require.Contains(t, whatNext(tt.x, &c), tt.want)
		})
	}
}
