package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// TestWhatNextTellsEveryState in words that name who acts, and when.
func TestWhatNextTellsEveryState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name  string
		x     ledger.Explanation
		want  string
		dead  []ExplainedLetter
		asked *lookup
	}{
		{"paid", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Success}}}, "nothing. It is paid.", nil, nil},
		{"cancelled", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Cancelled}}}, "nothing. It was cancelled", nil, nil},
		{"failed", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}}, "given up; there is no working copy of its dead letter", []ExplainedLetter{{ledger.Letter{Class: "rejected", PublishedAt: now}, "", ""}}, nil},
		{"failed, its letter on its way", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}},
			"its dead letter is still on its way", []ExplainedLetter{{ledger.Letter{Class: "rejected"}, "", ""}}, nil},
		{"failed, its letter discarded", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}},
			"its dead letter was discarded; nothing can replay it.", []ExplainedLetter{{ledger.Letter{Class: "rejected", PublishedAt: now}, "abcd", letters.Discarded}}, nil},
		{"failed, its letter open", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}},
			"millrace dead replay abcd, with --why.", []ExplainedLetter{{ledger.Letter{Class: "rejected", PublishedAt: now}, "abcd", letters.Open}}, nil},
		{"paid, its letter on its way", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Success}}},
			"It is paid. Its dead letter is still on its way: when millrace dead list shows it, discard it.", []ExplainedLetter{{ledger.Letter{Class: "unknown"}, "", ""}}, nil},
		{"failed and cancelled", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}, PromotionState: ledger.PromotionCancelled}, "its promotion is cancelled.", nil, nil},
		{"unknown", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Unknown}}}, "millrace unknown resolve POINT 1 7 --paid", nil, nil},
		{"paused", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintNone}}, PromotionState: ledger.PromotionPaused, Then: ledger.Send},
			"it waits until a person resumes the promotion (millrace campaign resume POINT 1); then the request is sent with the key POINT:1:7.", nil, nil},
		{"waits for the feeder", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintNone}}, Then: ledger.Send},
			"the feeder adds it to the promotion's stream as soon as there is room: it looks every 1s. The request is sent", nil, nil},
		{"in the stream", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Pending, Hint: ledger.HintStream, HintDue: now}}, Then: ledger.Send},
			"it is in the promotion's stream since 2026-03-01T12:00:00.000Z", nil, nil},
		{"being called", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b", AttemptStartedAt: now}}, Then: ledger.Send},
			"b is calling the Money API since 2026-03-01T12:00:00.000Z; its answer settles it. If b is dead, its lease ends in 8s", nil, nil},
		{"paused while being called", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b"}}, PromotionState: ledger.PromotionPaused},
			"b is calling", nil, nil},
		{"its worker is gone", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Sending, LeaseUntil: now.Add(-time.Second), HintDue: now.Add(-time.Second), AttemptBy: "b"}}, Then: ledger.Send},
			"has not been heard of; its lease ended 1s ago (2026-03-01T11:59:59.000Z). The feeder hands the payout on in 29s", nil, nil},
		{"not charged, to be retried", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Errored, Hint: ledger.HintRetry, HintDue: now.Add(4 * time.Second)}}, Then: ledger.Send},
			"its retry record is due in 4s (2026-03-01T12:00:04.000Z); if that is lost, the feeder hands the payout on in 34s (2026-03-01T12:00:34.000Z). The request is sent with the key POINT:1:7.", nil, nil},
		{"perhaps charged", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Ambiguous, Hint: ledger.HintRetry, HintDue: now.Add(-time.Hour), MaybeCharged: true}}, Then: ledger.Send},
			"the feeder hands the payout on at its next look. The request is sent with the key POINT:1:7 again; it may have been charged", nil, nil},
		{"must be asked", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Ambiguous, Hint: ledger.HintRetry, HintDue: now, MaybeCharged: true}}, Then: ledger.Ask},
			"The key POINT:1:7 is looked up; nothing is sent before the Money API has answered.", nil, nil},
		{"not charged, its key old", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Errored, Hint: ledger.HintRetry, HintDue: now}}, Then: ledger.Ask},
			"The key POINT:1:7 is looked up, because it was first used longer than idempotency_ttl ago; if there is no charge, the request is sent.", nil, nil},
		{"used up", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Errored, Hint: ledger.HintRetry, HintDue: now}}, Then: ledger.Ack},
			"It is settled without another call", nil, nil},
		{
			"unknown, and the Money API knows", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Unknown}}},
			"it was charged, and the service doesn't know. Tell it: millrace unknown resolve POINT 1 7 --paid TX-9, with --why.",
			nil, &lookup{Answer: "paid", TransactionKey: "TX-9"},
		},
		{
			"failed, its letter named", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Failed}}},
			"millrace dead replay abcd --parked, with --why.", []ExplainedLetter{{ledger.Letter{Class: "rejected", PublishedAt: now}, "abcd", letters.Parked}}, nil,
		},
		{
			"paid, and its letter waits", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Success}}},
			"It is paid. Its dead letter still waits: millrace dead discard abcd, with --why.",
			[]ExplainedLetter{{ledger.Letter{Class: "unknown"}, "abcd", letters.Open}}, nil,
		},
		{
			"paid, and a rival waits", ledger.Explanation{Entry: ledger.Entry{Row: ledger.Row{State: ledger.Success}}},
			"It is paid. A second request for it waits as dead letter beef: ask whoever sent it",
			[]ExplainedLetter{{ledger.Letter{Class: "unknown"}, "abcd", letters.Discarded}, {ledger.Letter{Class: "conflict"}, "beef", letters.Open}}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.x.Key, tt.x.Now = ledger.Key{Type: "POINT", Promotion: 1, Target: 7}, now
			if tt.x.PromotionState == "" {
				tt.x.PromotionState = ledger.PromotionRunning
			}
			c := DefaultConfig()
			require.Contains(t, whatNext(tt.x, &c, tt.dead, tt.asked), tt.want)
		})
	}
}
