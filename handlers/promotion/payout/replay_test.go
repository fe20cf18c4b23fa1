package payout

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// byAnn is who steers promotions in tests.
var byAnn = ledger.Steering{Who: "ann", Why: "a test", Future: true}

func TestPayoutKeys(t *testing.T) {
	t.Parallel()
	for _, k := range []payouts.Key{{Type: "POINT", Promotion: 1, Target: 2}, {Type: "VOUCHER", Promotion: 1 << 60, Target: 777}} {
		got, err := payoutKey(k.String())
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
	for _, text := range []string{"", "POINT", "POINT:1", "POINT:1:2:3", "POINT:x:2", "POINT:1:0x2", "POINT:01:2", "POINT:1: 2"} {
		_, err := payoutKey(text)
		require.Error(t, err, text)
	}
}

func TestSourcesOfStoredOrigins(t *testing.T) {
	t.Parallel()
	for origin, want := range map[string][2]string{
		"orders/3@42":           {"kafka", "orders"},
		"a/b/0@1":               {"kafka", "a/b"},
		"scan:events:1@17-0":    {"redis-stream", "scan:events:1"},
		"x@y/1@1700000000000-3": {"redis-stream", "x@y/1"},
		"":                      {"", ""},
		"somewhere":             {"", "somewhere"},
		"orders/x@42":           {"", "orders/x@42"},
		"orders@42":             {"", "orders@42"},
	} {
		kind, source := sourceOf(origin)
		require.Equal(t, want, [2]string{kind, source}, origin)
	}
}

// testLedger is a ledger with payouts in states that a test needs.
type testLedger struct {
	t *testing.T
	*ledger.Ledger
}

// newTestLedger returns a ledger in a database, and the replays of its dead letters.
func newTestLedger(t *testing.T, dsn string) (*testLedger, Replays) {
	t.Helper()
	config := ledger.DefaultConfig()
	config.DSN = setting.NewSecret(dsn)
	config.MaxRetries, config.Retry = 0, pipeline.Backoff{First: 1, Max: 1}
	l, err := ledger.Open(t.Context(), config, ledger.Options{Instance: "test", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.Migrate(t.Context()))
	return &testLedger{t, l}, Replays{Ledger: func() *ledger.Ledger { return l }}
}

// accepted accepts a payout and settles one call per outcome. The first one that is not paid fails
// it.
func (b *testLedger) accepted(promotion, target int64, outcomes ...rules.Outcome) payouts.Key {
	b.t.Helper()
	rec := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: promotion, Target: target}, SummaryID: 1, Payload: []byte("{}"), Route: "h"}
	require.NoError(b.t, b.Accept(b.t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
	for _, outcome := range outcomes {
		begun, err := b.Begin(b.t.Context(), rec)
		require.NoError(b.t, err)
		res := payouts.CallResult{Key: rec.Key, CallResult: rules.CallResult{Epoch: begun.Epoch, Outcome: outcome, Class: "a_class", Answer: "an answer", Route: "h"}}
		if outcome == rules.Done {
			res.Receipt = "tx-9"
		}
		_, err = b.Settle(b.t.Context(), res)
		require.NoError(b.t, err)
	}
	return rec.Key
}

// The ledger decides about the replay of a dead letter, and the preview shows the same result.
func TestAReplayIsTheLedgersToDecide(t *testing.T) {
	t.Parallel()
	replayed := store.Outcome{Result: store.OutcomeReplayed}
	ann := store.By{Who: "ann", Why: "x"}
	unknown := func(b *testLedger) payouts.Key { return b.accepted(5, 2, rules.Unclear, rules.Rejected) }
	for name, c := range map[string]struct {
		payout func(*testLedger) payouts.Key
		class  string // of the dead letter
		before bool   // the dead letter was replayed before
		want   store.Status
	}{
		"failed": {
			payout: func(b *testLedger) payouts.Key { return b.accepted(5, 2, rules.Rejected) },
			want:   store.Status{State: "FAILED", Replay: replayed, Remains: "POINT:5:2 stays FAILED: nothing is paid"},
		},
		"unknown": {
			payout: unknown,
			want: store.Status{State: "UNKNOWN", Replay: replayed,
				Unsettled: "POINT:5:2 is UNKNOWN, it may have been charged: find out, then millrace unknown resolve POINT 5 2 --paid TRANSACTION_KEY | --unpaid, with --why"},
		},
		"resolved": {
			payout: func(b *testLedger) payouts.Key {
				k := unknown(b)
				require.NoError(b.t, b.Resolve(b.t.Context(), k, rules.Resolution{Done: true, Receipt: "tx-1", Who: "ann", Why: "seen"}))
				return k
			},
			want: store.Status{State: "SUCCESS, tx-1", Replay: store.Refuse("POINT:5:2: it is paid, transaction key tx-1")},
		},
		"paid": {
			payout: func(b *testLedger) payouts.Key { return b.accepted(5, 2, rules.Done) },
			want:   store.Status{State: "SUCCESS, tx-9", Replay: store.Refuse("POINT:5:2: it is paid, transaction key tx-9")},
		},
		"pending": {
			payout: func(b *testLedger) payouts.Key { return b.accepted(5, 2) },
			want:   store.Status{State: "PENDING", Replay: store.Refuse("POINT:5:2: it is PENDING: it is being paid")},
		},
		"replayed before": {
			payout: func(b *testLedger) payouts.Key { return b.accepted(5, 2, rules.Rejected) }, before: true,
			want: store.Status{State: "PENDING", Replay: store.Outcome{Result: store.OutcomeAlready, Reason: "POINT:5:2 is PENDING"}},
		},
		"replayed in another generation": {
			payout: func(b *testLedger) payouts.Key {
				k := b.accepted(5, 2, rules.Rejected)
				_, err := b.Replay(b.t.Context(), k, ledger.Replay{DeadLetter: "1", Generation: 11, Who: "ann", Why: "x"})
				require.NoError(b.t, err)
				return b.accepted(5, 2, rules.Rejected)
			},
			want: store.Status{State: "FAILED", Replay: replayed, Remains: "POINT:5:2 stays FAILED: nothing is paid"},
		},
		"cancelled with its promotion": {
			payout: func(b *testLedger) payouts.Key {
				k := b.accepted(5, 2)
				_, err := b.Cancel(b.t.Context(), k.OfPromotion(), byAnn)
				require.NoError(b.t, err)
				_, err = b.Begin(b.t.Context(), payouts.Record{Key: k, SummaryID: 1, Payload: []byte("{}"), Route: "h"})
				require.NoError(b.t, err)
				return k
			},
			want: store.Status{State: "CANCELLED", Replay: store.Refuse("POINT:5:2: it was cancelled with its promotion")},
		},
		"failed, of a cancelled promotion": {
			payout: func(b *testLedger) payouts.Key {
				k := b.accepted(5, 2, rules.Rejected)
				_, err := b.Cancel(b.t.Context(), k.OfPromotion(), byAnn)
				require.NoError(b.t, err)
				return k
			},
			want: store.Status{State: "FAILED", Replay: store.Refuse("POINT:5:2: its promotion is cancelled"), Remains: "POINT:5:2 stays FAILED: nothing is paid"},
		},
		"a record that came second": {
			payout: unknown, class: rules.ClassConflict,
			want: store.Status{State: "UNKNOWN", Replay: store.Refuse("another request for POINT:5:2 came first, and the first one wins")},
		},
		"of no payout": {
			payout: func(*testLedger) payouts.Key { return payouts.Key{Type: "POINT", Promotion: 5, Target: 2} },
			want:   store.Status{State: "not in the ledger", Replay: store.Refuse("the ledger has no payout POINT:5:2")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, func(t *testing.T, dsn string) {
				b, replays := newTestLedger(t, dsn)
				k := c.payout(b)
				l := store.DeadLetter{ID: "1", Subject: k.String(), Class: c.class, Generation: 1}
				if c.before {
					_, err := replays.Replay(t.Context(), l, ann)
					require.NoError(t, err)
				}
				for range 2 { // a look changes nothing
					got, err := replays.Preview(t.Context(), l)
					require.NoError(t, err)
					require.Equal(t, c.want, got)
				}
				done, err := replays.Replay(t.Context(), l, ann)
				require.NoError(t, err)
				require.Equal(t, c.want.Replay, done)
			})
		})
	}
}

// A preview needs a payout as the subject, and a ledger that answers.
func TestAPreviewThatFails(t *testing.T) {
	t.Parallel()
	b, replays := newTestLedger(t, sqldbtest.File(t))
	l := store.DeadLetter{ID: "1", Subject: "what", Generation: 1}
	got, err := replays.Preview(t.Context(), l)
	require.NoError(t, err)
	require.Equal(t, store.Status{Replay: store.Refuse(`"what" is no payout`)}, got)
	done, err := replays.Replay(t.Context(), l, store.By{Who: "ann", Why: "x"})
	require.NoError(t, err)
	require.Equal(t, got.Replay, done)

	l.Subject = b.accepted(5, 1).String()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = replays.Preview(ctx, l)
	require.ErrorContains(t, err, "promotion: preview POINT:5:1: ")
}
