package promotion_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A mistyped number changes nothing. Status shows each change with the operator and the reason.
func TestSteeringByCommand(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		for _, verb := range []string{"pause", "resume", "cancel"} {
			text := sys.says(app.ExitBad, "campaign", verb, "POINT", "778", "--why", "x")
			require.Contains(t, text, "has accepted nothing of it")
			require.Contains(t, text, "--future applies it before the first record")
		}
		for _, verb := range []string{"pause", "resume", "cancel", "rebuild"} {
			require.Contains(t, sys.says(app.ExitUsage, "campaign", verb, "POINT", "778"), "--why REASON required, for the audit")
		}
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(1)}, ledger.AcceptOptions{})[0].Err)
		sys.says(app.ExitOK, "campaign", "pause", "POINT", "1", "--who", "ann", "--why", "ticket 4711")
		sys.says(app.ExitOK, "campaign", "cancel", "VOUCHER", "5", "--future", "--why", "never published", "--who", "ann")
		sys.says(app.ExitOK, "campaign", "pause", "VOUCHER", "6", "--future", "--why", "not before Monday", "--who", "ann")

		var status struct{ Promotions []campaign.Status }
		sys.json(&status, "campaign", "status")
		all := status.Promotions
		require.Len(t, all, 2, "the paused ones")
		require.Equal(t, []any{payouts.Type("POINT"), rules.GroupPaused, int64(1)}, []any{all[0].Type, all[0].State, all[0].Pending})
		require.Equal(t, "pause", all[0].Audit[0].Action)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status"), "PAUSED")
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status", "VOUCHER:6"), "pause by ann: not before Monday")
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status", "POINT", "1"), "pause by ann: ticket 4711\n")
	})
}

// A pause and a cancel that have nothing to do say in which state the promotion stays, and so do their previews.
func TestSteeringOfAPaidPromotionByCommand(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 1))
		sys.end(1, rules.Done)
		for _, flag := range []string{"--why=x", "--dry-run"} {
			require.Contains(t, sys.says(app.ExitBad, "campaign", "cancel", "POINT", "1", flag), "nothing to cancel; it stays FINISHED (--future")
			require.Contains(t, sys.says(app.ExitBad, "campaign", "pause", "POINT", "1", flag), "nothing to pause; it stays FINISHED (--future")
			sys.says(app.ExitOK, "campaign", "resume", "POINT", "1", flag)
		}
		sys.says(app.ExitOK, "campaign", "pause", "POINT", "1", "--future", "--why", "x")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "cancel", "POINT", "1", "--why", "x"), "nothing to cancel; it stays PAUSED (--future")
		sys.says(app.ExitOK, "campaign", "resume", "POINT", "1", "--why", "x")
	})
}

// A preview refuses what the action would refuse, and changes nothing.
func TestPreviewsRefuseWhatTheActionsRefuse(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "VOUCHER", ID: 2}, 5)) // no row of its own yet
		for _, flag := range []string{"--dry-run", "--why=x"} {
			require.Contains(t, sys.says(app.ExitBad, "campaign", "rebuild", "VOUCHER", "2", flag), "not found")
			require.Contains(t, sys.says(app.ExitBad, "campaign", "pause", "POINT", "778", flag), "--future applies it before the first record")
		}
		sys.end(1, rules.TryAgain)
		for _, verb := range []string{"pause", "resume", "cancel", "rebuild"} {
			require.Contains(t, sys.says(app.ExitOK, "campaign", verb, "POINT", "1", "--dry-run"), "POINT:1 is RUNNING: ")
		}
		audit, err := sys.ledger.Audit(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.Empty(t, audit)
		sys.says(app.ExitOK, "campaign", "cancel", "POINT", "1", "--why", "x")
		for _, verb := range []string{"pause", "resume"} {
			for _, flag := range []string{"--dry-run", "--why=x"} {
				require.Contains(t, sys.says(app.ExitBad, "campaign", verb, "POINT", "1", flag), "promotion is cancelled")
			}
		}
	})
}

// Records of a cancelled promotion are cancelled at once, counted, and logged once.
func TestRecordsOfACancelledPromotion(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		_, err := sys.ledger.Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, ledger.Steering{Who: "ann", Why: "x", Future: true})
		require.NoError(t, err)
		sys.start()
		sys.send(publish, points(1, 3)...)
		require.Eventually(t, func() bool { return sys.counts("POINT").Cancelled == 3 }, 2*time.Minute, 20*time.Millisecond)
		require.Zero(t, sys.api.Summary().Executed)
	})
}

// A cancellation says what it does not stop, and until when, and so does its preview.
func TestACancellationSaysWhatIsUnderWay(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		for target := int64(1); target <= 2; target++ {
			require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(target)}, ledger.AcceptOptions{})[0].Err)
		}
		sys.end(3, rules.Unclear)
		b, err := sys.ledger.Begin(t.Context(), pointRecord(2))
		require.NoError(t, err)
		require.Equal(t, rules.Send, b.Next)
		const says = `Under way: 1 payout, leased by workers that call the Money API or wait for a call slot\. What they have begun ends normally, at the latest in [1-9][0-9ms]*s\.\n`
		require.Regexp(t, says, sys.says(app.ExitOK, "campaign", "cancel", "POINT", "1", "--dry-run"))
		require.Regexp(t, `^POINT:1: 1 payout cancelled\. `+says+`Perhaps charged by an earlier call: 1\. The service looks them up and sends nothing again\.\n`,
			sys.says(app.ExitOK, "campaign", "cancel", "POINT", "1", "--why", "x"))
		var again struct {
			InFlight  int64   `json:"in_flight"`
			Longest   float64 `json:"longest_lease_seconds"`
			Ambiguous int64
		}
		sys.json(&again, "campaign", "cancel", "POINT", "1", "--why", "again")
		require.Equal(t, []int64{1, 1}, []int64{again.InFlight, again.Ambiguous})
		require.Positive(t, again.Longest)
		require.Equal(t, "VOUCHER:5: 0 payouts cancelled. None is under way.\n", sys.says(app.ExitOK, "campaign", "cancel", "VOUCHER", "5", "--future", "--why", "x"))
	})
}

// A pause says what it does not stop, and until when, and so does its preview.
func TestAPauseSaysWhatIsUnderWay(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		for target := int64(1); target <= 2; target++ {
			require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(target)}, ledger.AcceptOptions{})[0].Err)
		}
		require.Contains(t, sys.says(app.ExitOK, "campaign", "pause", "POINT", "1", "--dry-run"), "None is under way.\n")
		b, err := sys.ledger.Begin(t.Context(), pointRecord(2))
		require.NoError(t, err)
		require.Equal(t, rules.Send, b.Next)
		const says = `Under way: 1 payout, leased by workers that call the Money API or wait for a call slot\. What they have begun ends normally, at the latest in [1-9][0-9ms]*s\.\n`
		require.Regexp(t, says, sys.says(app.ExitOK, "campaign", "pause", "POINT", "1", "--dry-run"))
		require.Regexp(t, `^POINT:1: paused\. No instance takes a further payout of it\. `+says, sys.says(app.ExitOK, "campaign", "pause", "POINT", "1", "--why", "x"))
		var again struct {
			InFlight int64   `json:"in_flight"`
			Longest  float64 `json:"longest_lease_seconds"`
		}
		sys.json(&again, "campaign", "pause", "POINT", "1", "--why", "again")
		require.Equal(t, int64(1), again.InFlight)
		require.Positive(t, again.Longest)
		other, err := sys.ledger.Begin(t.Context(), pointRecord(1))
		require.NoError(t, err)
		require.Equal(t, "paused", other.Why)
	})
}
