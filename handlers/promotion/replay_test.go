package promotion

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
	"github.com/millrace-io/millrace/plugins/sqldb/sqldbtest"
)

// byAnn is who steers promotions in tests.
var byAnn = ledger.Steering{Who: "ann", Why: "a test", Future: true}

func TestPayoutKeys(t *testing.T) {
	t.Parallel()
	for _, k := range []ledger.Key{{Type: "POINT", Promotion: 1, Target: 2}, {Type: "VOUCHER", Promotion: 1 << 60, Target: 777}} {
		got, err := payoutKey(k.String())
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
	for _, text := range []string{"", "POINT", "POINT:1", "POINT:1:2:3", "POINT:x:2", "POINT:1:0x2", "POINT:01:2", "POINT:1: 2"} {
		_, err := payoutKey(text)
		require.Error(t, err, text)
	}
}

// books is a ledger whose payouts a test brings to where it wants them.
type books struct {
	t *testing.T
	*ledger.Ledger
}

// deadBooks returns a ledger in a database, and what replays its dead letters.
func deadBooks(t *testing.T, dsn string) (*books, deadReplays) {
	t.Helper()
	run := newEngine(&Config{Ledger: ledger.DefaultConfig()}, newMetrics())
	run.config.Ledger.DSN = pipeline.NewSecret(dsn)
	run.config.Ledger.MaxRetries, run.config.Ledger.Retry = 0, pipeline.Backoff{First: 1, Max: 1}
	l, err := ledger.Open(t.Context(), run.config.Ledger, ledger.Options{Instance: "test", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.Migrate(t.Context()))
	run.ledger = l
	return &books{t, l}, deadReplays{run}
}

// accepted makes a payout known, and calls the Money API once for each outcome. It is given up by the first that is not paid.
func (b *books) accepted(promotion, target int64, outcomes ...ledger.Outcome) ledger.Key {
	b.t.Helper()
	rec := ledger.Record{Key: ledger.Key{Type: "POINT", Promotion: promotion, Target: target}, SummaryID: 1, Payload: []byte("{}"), Handler: "h"}
	_, err := b.Accept(b.t.Context(), rec, false)
	require.NoError(b.t, err)
	for _, outcome := range outcomes {
		begun, err := b.Begin(b.t.Context(), rec)
		require.NoError(b.t, err)
		res := ledger.Result{Key: rec.Key, Epoch: begun.Epoch, Outcome: outcome, Class: "a_class", Answer: "an answer", Handler: "h"}
		if outcome == ledger.Paid {
			res.TransactionKey = "tx-9"
		}
		_, err = b.Settle(b.t.Context(), res)
		require.NoError(b.t, err)
	}
	return rec.Key
}

// What the ledger says about a payout is what becomes of the replay of its letter, and a look foretells it.
func TestAReplayIsTheLedgersToDecide(t *testing.T) {
	t.Parallel()
	replayed := deadletter.Outcome{Result: letters.OutcomeReplayed}
	ann := letters.By{Who: "ann", Why: "x"}
	unknown := func(b *books) ledger.Key { return b.accepted(5, 2, ledger.PerhapsCharged, ledger.Rejected) }
	for name, c := range map[string]struct {
		payout func(*books) ledger.Key
		class  string // of the letter
		before bool   // the letter was replayed before
		want   deadletter.Standing
	}{
		"failed": {
			payout: func(b *books) ledger.Key { return b.accepted(5, 2, ledger.Rejected) },
			want:   deadletter.Standing{State: "FAILED", Replay: replayed, Remains: "POINT:5:2 stays FAILED: nobody is paid"},
		},
		"unknown": {
			payout: unknown,
			want: deadletter.Standing{State: "UNKNOWN", Replay: replayed,
				Unsettled: "POINT:5:2 is UNKNOWN, it may have been charged: find out, then millrace unknown resolve POINT 5 2 --paid TRANSACTION_KEY | --unpaid, with --why"},
		},
		"resolved": {
			payout: func(b *books) ledger.Key {
				k := unknown(b)
				require.NoError(b.t, b.Resolve(b.t.Context(), k, ledger.Resolution{Paid: true, TransactionKey: "tx-1", Who: "ann", Why: "seen"}))
				return k
			},
			want: deadletter.Standing{State: "SUCCESS, tx-1", Replay: deadletter.Refuse("POINT:5:2: it is paid, transaction key tx-1")},
		},
		"paid": {
			payout: func(b *books) ledger.Key { return b.accepted(5, 2, ledger.Paid) },
			want:   deadletter.Standing{State: "SUCCESS, tx-9", Replay: deadletter.Refuse("POINT:5:2: it is paid, transaction key tx-9")},
		},
		"pending": {
			payout: func(b *books) ledger.Key { return b.accepted(5, 2) },
			want:   deadletter.Standing{State: "PENDING", Replay: deadletter.Refuse("POINT:5:2: it is PENDING: it is being paid")},
		},
		"replayed before": {
			payout: func(b *books) ledger.Key { return b.accepted(5, 2, ledger.Rejected) }, before: true,
			want: deadletter.Standing{State: "PENDING", Replay: deadletter.Outcome{Result: letters.OutcomeAlready, Reason: "POINT:5:2 is PENDING"}},
		},
		"replayed in another generation": {
			payout: func(b *books) ledger.Key {
				k := b.accepted(5, 2, ledger.Rejected)
				_, err := b.Replay(b.t.Context(), k, ledger.Replay{Letter: "1", Generation: 11, Who: "ann", Why: "x"})
				require.NoError(b.t, err)
				return b.accepted(5, 2, ledger.Rejected)
			},
			want: deadletter.Standing{State: "FAILED", Replay: replayed, Remains: "POINT:5:2 stays FAILED: nobody is paid"},
		},
		"cancelled with its promotion": {
			payout: func(b *books) ledger.Key {
				k := b.accepted(5, 2)
				_, err := b.Cancel(b.t.Context(), k.Of(), byAnn)
				require.NoError(b.t, err)
				_, err = b.Begin(b.t.Context(), ledger.Record{Key: k, SummaryID: 1, Payload: []byte("{}"), Handler: "h"})
				require.NoError(b.t, err)
				return k
			},
			want: deadletter.Standing{State: "CANCELLED", Replay: deadletter.Refuse("POINT:5:2: it was cancelled with its promotion")},
		},
		"failed, of a cancelled promotion": {
			payout: func(b *books) ledger.Key {
				k := b.accepted(5, 2, ledger.Rejected)
				_, err := b.Cancel(b.t.Context(), k.Of(), byAnn)
				require.NoError(b.t, err)
				return k
			},
			want: deadletter.Standing{State: "FAILED", Replay: deadletter.Refuse("POINT:5:2: its promotion is cancelled"), Remains: "POINT:5:2 stays FAILED: nobody is paid"},
		},
		"a record that came second": {
			payout: unknown, class: ledger.ClassConflict,
			want: deadletter.Standing{State: "UNKNOWN", Replay: deadletter.Refuse("another request for POINT:5:2 came first, and the first one wins")},
		},
		"of no payout": {
			payout: func(*books) ledger.Key { return ledger.Key{Type: "POINT", Promotion: 5, Target: 2} },
			want:   deadletter.Standing{State: "not in the ledger", Replay: deadletter.Refuse("the ledger has no payout POINT:5:2")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, func(t *testing.T, dsn string) {
				b, replays := deadBooks(t, dsn)
				k := c.payout(b)
				l := letters.Letter{ID: "1", Subject: k.String(), Class: c.class, Generation: 1}
				if c.before {
					_, err := replays.Replay(t.Context(), l, ann)
					require.NoError(t, err)
				}
				for range 2 { // a look changes nothing
					got, err := replays.Look(t.Context(), l)
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

// A subject that is no payout has nothing to ask about; a ledger that is away can't be asked.
func TestALookThatCantBe(t *testing.T) {
	t.Parallel()
	b, replays := deadBooks(t, sqldbtest.File(t))
	l := letters.Letter{ID: "1", Subject: "what", Generation: 1}
	got, err := replays.Look(t.Context(), l)
	require.NoError(t, err)
	require.Equal(t, deadletter.Standing{Replay: deadletter.Refuse(`"what" is no payout`)}, got)
	done, err := replays.Replay(t.Context(), l, letters.By{Who: "ann", Why: "x"})
	require.NoError(t, err)
	require.Equal(t, got.Replay, done)

	l.Subject = b.accepted(5, 1).String()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = replays.Look(ctx, l)
	require.ErrorContains(t, err, "promotion: look at POINT:5:1: ")
}
