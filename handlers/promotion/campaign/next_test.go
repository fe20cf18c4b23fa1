package campaign

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// TestNextStepOfEachState: the text names the component that acts, and when.
func TestNextStepOfEachState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		x      ledger.Explanation
		want   string
		dead   []ExplainedDeadLetter
		answer *lookup
	}{
		{"paid", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Success}}}}, "nothing. It is paid.", nil, nil},
		{"cancelled", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Cancelled}}}}, "nothing. It was certainly not charged, and was cancelled", nil, nil},
		{"failed", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}}, "is not retried; its dead letter is not in the store and can't be replayed", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "rejected", PublishedAt: now}, "", ""}}, nil},
		{"failed, its dead letter on its way", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}},
			"its dead letter is not in the store yet", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "rejected"}, "", ""}}, nil},
		{"failed, its dead letter discarded", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}},
			"its dead letter was discarded and can't be replayed.", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "rejected", PublishedAt: now}, "abcd", store.Discarded}}, nil},
		{"failed, its dead letter open", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}},
			"millrace deadletter replay abcd, with --why.", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "rejected", PublishedAt: now}, "abcd", store.Open}}, nil},
		{"paid, its dead letter on its way", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Success}}}},
			"It is paid. Its dead letter is not in the store yet: discard it when millrace deadletter list shows it.", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "unknown"}, "", ""}}, nil},
		{"failed and cancelled", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}, PromotionState: rules.GroupCancelled}, "its promotion is cancelled.", nil, nil},
		{"unknown", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Unknown}}}}, "millrace unknown resolve POINT 1 7 --paid", nil, nil},
		{"paused", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Pending, Queue: rules.QueueNone}}}, PromotionState: rules.GroupPaused, NextStep: rules.Send},
			"it waits until an operator resumes the promotion (millrace campaign resume POINT 1, with --why); then the request is sent with the key POINT:1:7.", nil, nil},
		{"waits for the feeder", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Pending, Queue: rules.QueueNone}}}, NextStep: rules.Send},
			"the feeder adds it to the promotion's stream as soon as it has room; it checks every 1s. The request is sent", nil, nil},
		{"in the stream", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Pending, Queue: rules.QueueStream, QueueDue: now}}}, NextStep: rules.Send},
			"it is in the promotion's stream since 2026-03-01T12:00:00.000Z", nil, nil},
		{"being called", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b", AttemptStartedAt: now}}}, NextStep: rules.Send},
			"b is calling the Money API since 2026-03-01T12:00:00.000Z; its answer settles it. If b has ended, the lease ends in 8s", nil, nil},
		{"paused while being called", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Sending, LeaseUntil: now.Add(8 * time.Second), AttemptBy: "b"}}}, PromotionState: rules.GroupPaused},
			"b is calling", nil, nil},
		{"its worker has ended", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Sending, LeaseUntil: now.Add(-time.Second), QueueDue: now.Add(-time.Second), AttemptBy: "b"}}}, NextStep: rules.Send},
			"b took it and did not settle it; its lease ended 1s ago (2026-03-01T11:59:59.000Z). The feeder enqueues the payout in 29s", nil, nil},
		{"not charged, to be retried", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Errored, Queue: rules.QueueRetry, QueueDue: now.Add(4 * time.Second)}}}, NextStep: rules.Send},
			"its retry record is due in 4s (2026-03-01T12:00:04.000Z); if that is lost, the feeder enqueues the payout in 34s (2026-03-01T12:00:34.000Z). The request is sent with the key POINT:1:7.", nil, nil},
		{"perhaps charged", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Ambiguous, Queue: rules.QueueRetry, QueueDue: now.Add(-time.Hour), MaybeDone: true}}}, NextStep: rules.Send},
			"its retry record was due 1h0m0s ago (2026-03-01T11:00:00.000Z); if that is lost, the feeder enqueues the payout in its next round. The request is sent with the key POINT:1:7 again; it may have been charged", nil, nil},
		{"must be looked up", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Ambiguous, Queue: rules.QueueRetry, QueueDue: now, MaybeDone: true}}}, NextStep: rules.Lookup},
			"The key POINT:1:7 is looked up; nothing is sent before the Money API has answered.", nil, nil},
		{"not charged, its key old", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Errored, Queue: rules.QueueRetry, QueueDue: now}}}, NextStep: rules.Lookup},
			"The key POINT:1:7 is looked up, because it was first used longer than idempotency_ttl ago; if there is no charge, the request is sent.", nil, nil},
		{"no attempt left", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Errored, Queue: rules.QueueRetry, QueueDue: now}}}, NextStep: rules.Ack},
			"It is settled without another call", nil, nil},
		{
			"unknown, and the Money API knows", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Unknown}}}},
			"it was charged, and the ledger has no answer. Record it: millrace unknown resolve POINT 1 7 --paid TX-9, with --why.",
			nil, &lookup{Answer: "paid", TransactionKey: "TX-9"},
		},
		{
			"failed, its dead letter parked", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Failed}}}},
			"millrace deadletter replay abcd --parked, with --why.", []ExplainedDeadLetter{{ledger.DeadLetter{Class: "rejected", PublishedAt: now}, "abcd", store.Parked}}, nil,
		},
		{
			"paid, and its dead letter waits", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Success}}}},
			"It is paid. Its dead letter still waits: millrace deadletter discard abcd, with --why.",
			[]ExplainedDeadLetter{{ledger.DeadLetter{Class: "unknown"}, "abcd", store.Open}}, nil,
		},
		{
			"paid, and a rival waits", ledger.Explanation{Payout: ledger.Payout{Row: payouts.Row{Row: rules.Row{State: rules.Success}}}},
			"It is paid. A second request for it waits as dead letter beef: ask the sender which one is right",
			[]ExplainedDeadLetter{{ledger.DeadLetter{Class: "unknown"}, "abcd", store.Discarded}, {ledger.DeadLetter{Class: "conflict"}, "beef", store.Open}}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.x.Key, tt.x.Now = payouts.Key{Type: "POINT", Promotion: 1, Target: 7}, now
			if tt.x.PromotionState == "" {
				tt.x.PromotionState = rules.GroupRunning
			}
			settings := Settings{FeederInterval: time.Second, FeederGrace: 30 * time.Second}
			require.Contains(t, nextStep(tt.x, settings, tt.dead, tt.answer, ""), tt.want)
		})
	}
}
