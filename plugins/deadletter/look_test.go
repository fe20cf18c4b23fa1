package deadletter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// standings are payouts of every kind: 1 is paid, 2 unknown, 3 failed, 4 was replayed before.
func (o *office) standings() {
	o.payouts.now = map[string]Standing{
		"P:1": {State: "SUCCESS, tx-1", Replay: Refuse("it is paid")},
		"P:2": {State: "UNKNOWN", Replay: Outcome{Result: letters.OutcomeReplayed}, Unsettled: "resolve P:2 first"},
		"P:3": {State: "FAILED", Replay: Outcome{Result: letters.OutcomeReplayed}, Remains: "nobody is paid"},
		"P:4": {State: "PENDING", Replay: Outcome{Result: letters.OutcomeAlready, Reason: "P:4 is PENDING"}},
	}
	for n := 1; n <= 4; n++ {
		o.put(payoutLetter(n))
	}
}

func TestShowTellsHowItStandsNow(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.standings()
		lost := order(9)
		lost.ID, lost.Source = "lost", letters.Source{Name: "who knows"}
		o.put(lost, order(1))
		for id, want := range map[string]string{
			payoutLetter(1).ID: `now +SUCCESS, tx-1; a replay would be refused: it is paid\n`,
			payoutLetter(2).ID: `now +UNKNOWN; it must not be discarded yet: resolve P:2 first\n`,
			payoutLetter(3).ID: `now +FAILED\n`,
			payoutLetter(4).ID: `now +PENDING; a replay would have no effect: P:4 is PENDING\n`,
			"lost":             `now +a replay would be refused: it can't be known where it came from: "who knows"\n`,
		} {
			out, code := o.run("show", id)
			require.Equal(t, 0, code, out)
			require.Regexp(t, want, out)
		}
		out, _ := o.run("show", order(1).ID)
		require.NotContains(t, out, "now ", "no ledger has it, and it can be replayed")
		require.False(t, o.payouts.started, "its services were started to look, and stopped")

		var shown Shown
		out, _ = o.run("show", payoutLetter(1).ID, "--json")
		require.NoError(t, json.Unmarshal([]byte(out), &shown))
		require.Equal(t, o.payouts.now["P:1"], *shown.Now)

		o.inTurn(func(turn *letters.Turn) error {
			return turn.Discard(t.Context(), payoutLetter(1).ID, letters.By{Who: "ann", Why: "x"})
		})
		out, _ = o.run("show", payoutLetter(1).ID)
		require.Regexp(t, `now +SUCCESS, tx-1\n`, out, "what a replay came to is for those that wait")

		o.payouts.blind = errors.New("no database")
		out, code := o.run("show", payoutLetter(3).ID)
		require.Equal(t, 0, code)
		require.Regexp(t, `now +not known: the ledger can't be asked: no database\n`, out)
		out, _ = o.run("show", payoutLetter(3).ID, "--json")
		require.Contains(t, out, `"now_not_asked": "the ledger can't be asked: no database"`)
	})
}

// A dry run foretells the report of the run.
func TestADryRunTellsWhatWouldBecomeOfEach(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.standings()
		empty := order(8)
		empty.Headers = map[string]string{redispoll.MetaMalformed: "no_payload"}
		gone := order(7)
		o.put(empty, order(1), gone)
		o.inTurn(func(turn *letters.Turn) error {
			return turn.Discard(t.Context(), gone.ID, letters.By{Who: "ann", Why: "x"})
		})
		payout := func(n int, result, reason string) Line {
			l := payoutLetter(n)
			return Line{ID: l.ID, Result: result, Reason: reason, About: l.Subject, Class: l.Class, Now: o.payouts.now[l.Subject].State}
		}

		r := o.report(0, "replay", "--all", "--dry-run")
		require.Equal(t, Report{DryRun: true, Selected: 6, Replayed: 3, Already: 1, Refused: 2, Letters: []Line{
			payout(1, letters.OutcomeRefused, "it is paid"),
			payout(2, letters.OutcomeReplayed, ""),
			payout(3, letters.OutcomeReplayed, ""),
			payout(4, letters.OutcomeAlready, "P:4 is PENDING"),
			{ID: empty.ID, Result: letters.OutcomeRefused, Reason: "the entry had no message (no_payload)", Class: "undecodable"},
			{ID: order(1).ID, Result: letters.OutcomeReplayed, Class: "undecodable"},
		}}, r)
		out, code := o.run("replay", "--all", "--dry-run")
		require.Equal(t, 0, code, out)
		require.Regexp(t, payoutLetter(1).ID+` +would be refused +P:1 rejected, now SUCCESS, tx-1 +it is paid\n`, out)
		require.Contains(t, out, "\n3 letters are meant, 1 would have no effect, 2 would be refused; nothing was done.\n")
		out, _ = o.run("replay", "--dry-run", payoutLetter(3).ID, gone.ID)
		require.Contains(t, out, "\n1 letter is meant, 1 would be skipped; nothing was done.\n")
		out, _ = o.run("replay", "--dry-run", payoutLetter(4).ID)
		require.Contains(t, out, "\nNo letter is meant, 1 would have no effect; nothing was done.\n")

		r = o.report(0, "discard", "--plugin", "payouts", "--dry-run")
		require.Equal(t, Report{DryRun: true, Selected: 4, Discarded: 3, Refused: 1, Letters: []Line{
			payout(1, resultDiscarded, ""), payout(2, letters.OutcomeRefused, "resolve P:2 first"),
			payout(3, resultDiscarded, "nobody is paid"), payout(4, resultDiscarded, ""),
		}}, r)
		r = o.report(0, "discard", payoutLetter(2).ID, "--dry-run", "--unsettled")
		require.Equal(t, []Line{payout(2, resultDiscarded, "resolve P:2 first")}, r.Letters)
		require.Empty(t, o.payouts.calls)
		require.Zero(t, o.topics.called())
		require.Equal(t, 6, o.waiting())

		// It is not the letters when the ledger can't be asked: it is asked three times, and the rest goes on.
		o.payouts.blind, o.payouts.looks = errors.New("no database"), 0
		r = o.report(0, "replay", "--all", "--dry-run")
		require.Equal(t, []int{4, 1, 1}, []int{r.NotAsked, r.Replayed, r.Refused}, "%+v", r)
		require.Equal(t, "the ledger can't be asked: no database", r.Letters[3].Reason)
		require.Equal(t, tooMany, o.payouts.looks)
		out, _ = o.run("replay", payoutLetter(3).ID, "--dry-run")
		require.Contains(t, out, "No letter is meant, 1 can't be told; nothing was done.")
		require.Equal(t, 4, o.report(0, "discard", "--plugin", "payouts", "--dry-run").Refused)
	})
}

func (o *office) waiting() int {
	o.t.Helper()
	n, err := o.store.Count(o.t.Context(), letters.Filter{States: letters.Waiting()})
	require.NoError(o.t, err)
	return int(n)
}

// A letter is what reminds of a payout that may have been charged.
func TestWhatIsUnsettledIsNotDiscarded(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.standings()
		o.put(order(1))
		r := o.report(app.ExitBad, "discard", "--all", "--why", "a load test's")
		require.Equal(t, Report{Selected: 5, Discarded: 4, Refused: 1, Letters: []Line{
			{ID: payoutLetter(2).ID, Result: letters.OutcomeRefused, Reason: "resolve P:2 first"},
		}}, r)
		require.Equal(t, letters.Open, o.state(payoutLetter(2).ID))
		long := strings.Repeat("x", reasonWidth-len(": millrace resolve")) + ": millrace resolve"
		o.payouts.now["P:2"] = Standing{State: "UNKNOWN", Unsettled: long}
		out, code := o.run("discard", payoutLetter(2).ID, "--why", "x")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, out, long, "a command in a reason is whole")
		require.Contains(t, out, "1 letter: 1 refused.")
		r = o.report(app.ExitBad, "discard", payoutLetter(3).ID, "nothing", "--why", "again")
		require.Equal(t, 2, r.Skipped, "what was discarded is not refused: %+v", r)

		o.payouts.blind = errors.New("no database")
		r = o.report(app.ExitBad, "discard", payoutLetter(2).ID, "--why", "x")
		require.Equal(t, "whether it is settled is not known: the ledger can't be asked: no database; --unsettled discards it all the same", r.Letters[0].Reason)
		require.Equal(t, 1, o.report(0, "discard", payoutLetter(2).ID, "--unsettled", "--why", "it is nobody's").Discarded)
		require.Equal(t, letters.Discarded, o.state(payoutLetter(2).ID))
	})
}

// A ledger that can't even be opened is said, and what else there is goes on.
func TestALedgerThatIsAway(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutLetter(5), order(1))
		o.payouts.absent = errors.New("connection refused")
		r := o.report(app.ExitBad, "discard", "--all", "--why", "x")
		require.Equal(t, []int{1, 1}, []int{r.Discarded, r.Refused}, "%+v", r)
		require.Contains(t, r.Letters[0].Reason, "connection refused")
		out, code := o.run("show", payoutLetter(5).ID)
		require.Equal(t, 0, code)
		require.Regexp(t, `now +not known: the ledger can't be asked: .*connection refused`, out)
	})
}

// A letter of a ledger that this binary lacks is not replayed, and given up only by who says so: nobody knows whether it is
// settled.
func TestALedgerOfNobody(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		l := Letter{ID: "stranger", Subject: "R:5", DeadLetter: pipeline.DeadLetter{Handler: "refunds.pay", Class: "rejected"}}
		o.put(l.kept("refunds"))
		require.Equal(t, "nobody here replays letters of refunds", o.report(0, "replay", "--all", "--dry-run").Letters[0].Reason)
		why := "this binary has no plugin refunds to ask: use one that has, or --unsettled"
		for code, args := range map[int][]string{0: {"--dry-run"}, app.ExitBad: {"--why", "x"}} {
			r := o.report(code, append([]string{"discard", "--all"}, args...)...)
			require.Equal(t, []int{1, 0}, []int{r.Refused, r.Discarded}, "%+v", r)
			require.Equal(t, why, r.Letters[0].Reason)
		}
		require.Equal(t, letters.Open, o.state("stranger"))
		out, _ := o.run("show", "stranger")
		require.Contains(t, out, "it must not be discarded yet: "+why)
		require.Equal(t, 1, o.report(0, "discard", "--all", "--unsettled", "--why", "x").Discarded)
	})
}
