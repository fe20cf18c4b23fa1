package deadletter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// payoutStates puts a dead letter of each kind of payout: 1 is paid, 2 unknown, 3 failed, 4 was
// replayed before.
func (o *office) payoutStates() {
	o.payouts.now = map[string]store.Status{
		"P:1": {State: "SUCCESS, tx-1", Replay: store.Refuse("it is paid")},
		"P:2": {State: "UNKNOWN", Replay: store.Outcome{Result: store.OutcomeReplayed}, Unsettled: "resolve P:2 first"},
		"P:3": {State: "FAILED", Replay: store.Outcome{Result: store.OutcomeReplayed}, Remains: "nobody is paid"},
		"P:4": {State: "PENDING", Replay: store.Outcome{Result: store.OutcomeAlready, Reason: "P:4 is PENDING"}},
	}
	for n := 1; n <= 4; n++ {
		o.put(payoutDeadLetter(n))
	}
}

func TestShowHasTheStatus(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.payoutStates()
		lost := order(9)
		lost.ID, lost.Source = "lost", store.Source{Name: "who knows"}
		o.put(lost, order(1))
		for id, want := range map[string]string{
			payoutDeadLetter(1).ID: `now +SUCCESS, tx-1; a replay would be refused: it is paid\n`,
			payoutDeadLetter(2).ID: `now +UNKNOWN; it must not be discarded yet: resolve P:2 first\n`,
			payoutDeadLetter(3).ID: `now +FAILED\n`,
			payoutDeadLetter(4).ID: `now +PENDING; a replay would have no effect: P:4 is PENDING\n`,
			"lost":                 `now +a replay would be refused: its origin is unknown: "who knows"\n`,
		} {
			out, code := o.run("show", id)
			require.Equal(t, 0, code, out)
			require.Regexp(t, want, out)
		}
		out, _ := o.run("show", order(1).ID)
		require.Regexp(t, `now +a replay would publish to kafka orders\n`, out)
		require.Zero(t, o.payouts.started, "its services were started for the preview, and stopped")

		var shown cli.Shown
		out, _ = o.run("show", payoutDeadLetter(1).ID, "--json")
		require.NoError(t, json.Unmarshal([]byte(out), &shown))
		require.Equal(t, o.payouts.now["P:1"], *shown.Now)

		require.NoError(t, o.store.Discard(t.Context(), payoutDeadLetter(1).ID, store.By{Who: "ann", Why: "x"}))
		out, _ = o.run("show", payoutDeadLetter(1).ID)
		require.Regexp(t, `now +SUCCESS, tx-1\n`, out, "the effect of a replay is for those that wait")

		o.payouts.blind = errors.New("no database")
		out, code := o.run("show", payoutDeadLetter(3).ID)
		require.Equal(t, 0, code)
		require.Regexp(t, `now +unknown: the ledger is unavailable: no database\n`, out)
		out, _ = o.run("show", payoutDeadLetter(3).ID, "--json")
		require.Contains(t, out, `"now_unknown": "the ledger is unavailable: no database"`)
	})
}

func TestADryRunPreviewsEachDeadLetter(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.payoutStates()
		empty := order(8)
		empty.Headers = map[string]string{pipeline.MetaMalformed: "no_payload"}
		gone := order(7)
		o.put(empty, order(1), gone)
		require.NoError(t, o.store.Discard(t.Context(), gone.ID, store.By{Who: "ann", Why: "x"}))
		payout := func(n int, result, reason string) cli.Line {
			l := payoutDeadLetter(n)
			return cli.Line{ID: l.ID, Result: result, Reason: reason, About: l.Subject, Class: l.Class, Now: o.payouts.now[l.Subject].State}
		}

		r := o.report(0, "replay", "--all", "--dry-run")
		require.Equal(t, cli.Report{DryRun: true, Selected: 6, Replayed: 3, Already: 1, Refused: 2, Matching: 6, About: []cli.Topic{{Subject: "P", Count: 4}, {Count: 2}}, DeadLetters: []cli.Line{
			payout(1, store.OutcomeRefused, "it is paid"),
			payout(2, store.OutcomeReplayed, ""),
			payout(3, store.OutcomeReplayed, ""),
			payout(4, store.OutcomeAlready, "P:4 is PENDING"),
			{ID: empty.ID, Result: store.OutcomeRefused, Reason: "its transport could not decode it (no_payload)", Class: "undecodable"},
			{ID: order(1).ID, Result: store.OutcomeReplayed, Class: "undecodable"},
		}, Would: []cli.Would{
			{Handler: "payouts.pay", From: "kafka payouts", Result: store.OutcomeReplayed, Count: 2},
			{Handler: "orders.take", From: "kafka orders", Result: store.OutcomeRefused, Reason: "its transport could not decode it (no_payload)", Count: 1},
			{Handler: "orders.take", From: "kafka orders", Result: store.OutcomeReplayed, To: "kafka orders", Count: 1},
			{Handler: "payouts.pay", From: "kafka payouts", Result: store.OutcomeAlready, Reason: "P:4 is PENDING", Count: 1},
			{Handler: "payouts.pay", From: "kafka payouts", Result: store.OutcomeRefused, Reason: "it is paid", Count: 1},
		}}, r)
		out, code := o.run("replay", "--all", "--dry-run")
		require.Equal(t, 0, code, out)
		require.Regexp(t, payoutDeadLetter(1).ID+` +would be refused +P:1 rejected, now SUCCESS, tx-1 +it is paid\n`, out)
		for _, row := range []string{
			`2 +payouts.pay +kafka payouts +be replayed by its ledger`, `1 +orders.take +kafka orders +be replayed to kafka orders`,
			`1 +orders.take +kafka orders +be refused: its transport could not decode it \(no_payload\)`, `1 +payouts.pay +kafka payouts +have no effect: P:4 is PENDING`,
		} {
			require.Regexp(t, `\n`+row+`\n`, out)
		}
		require.Contains(t, out, "\n6 dead letters match: 4 about P, 2 without a subject.\n6 dead letters: 3 would be replayed, 1 would have no effect, 2 would be refused; nothing was changed.\n")
		out, _ = o.run("replay", "--all", "--dry-run", "--limit", "1")
		require.Contains(t, out, "\n6 dead letters match, and the limit selects 1 of them: 1 about P.\n1 dead letter: 1 would be refused; nothing was changed.\n")
		out, _ = o.run("replay", "--dry-run", payoutDeadLetter(3).ID, gone.ID)
		require.Contains(t, out, "\n2 dead letters: 1 would be replayed, 1 would be skipped; nothing was changed.\n")
		out, _ = o.run("replay", "--dry-run", payoutDeadLetter(4).ID)
		require.Contains(t, out, "\n1 dead letter: 1 would have no effect; nothing was changed.\n")

		r = o.report(0, "discard", "--plugin", "payouts", "--dry-run")
		require.Equal(t, cli.Report{DryRun: true, Selected: 4, Discarded: 3, Refused: 1, Matching: 4, About: []cli.Topic{{Subject: "P", Count: 4}}, DeadLetters: []cli.Line{
			payout(1, "discarded", ""), payout(2, store.OutcomeRefused, "resolve P:2 first"),
			payout(3, "discarded", "nobody is paid"), payout(4, "discarded", ""),
		}, Would: []cli.Would{
			{Handler: "payouts.pay", From: "kafka payouts", Result: "discarded", Count: 3},
			{Handler: "payouts.pay", From: "kafka payouts", Result: store.OutcomeRefused, Reason: "resolve P:2 first", Count: 1},
		}}, r)
		r = o.report(0, "discard", payoutDeadLetter(2).ID, "--dry-run", "--unsettled")
		require.Equal(t, []cli.Line{payout(2, "discarded", "resolve P:2 first")}, r.DeadLetters)
		require.Empty(t, o.payouts.calls)
		require.Zero(t, o.topics.called())
		require.Equal(t, 6, o.waiting())

		// An unavailable ledger is called three times. The other dead letters are previewed.
		o.payouts.blind, o.payouts.looks = errors.New("no database"), 0
		r = o.report(0, "replay", "--all", "--dry-run")
		require.Equal(t, []int{4, 1, 1}, []int{r.Unknown, r.Replayed, r.Refused}, "%+v", r)
		require.Equal(t, "the ledger is unavailable: no database", r.DeadLetters[3].Reason)
		require.Equal(t, maxPreviewFailures, o.payouts.looks)
		out, _ = o.run("replay", payoutDeadLetter(3).ID, "--dry-run")
		require.Contains(t, out, "1 dead letter: 1 unknown; nothing was changed.")
		require.Equal(t, 4, o.report(0, "discard", "--plugin", "payouts", "--dry-run").Refused)
	})
}

func (o *office) waiting() int {
	o.t.Helper()
	n, err := o.store.Count(o.t.Context(), store.Filter{States: store.Waiting()})
	require.NoError(o.t, err)
	return int(n)
}

// The dead letter is the reminder of a payout that may have been charged.
func TestAnUnsettledPayoutIsNotDiscarded(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.payoutStates()
		o.put(order(1))
		r := o.report(app.ExitBad, "discard", "--all", "--why", "a load test's")
		require.Equal(t, cli.Report{Selected: 5, Discarded: 4, Refused: 1, DeadLetters: []cli.Line{
			{ID: payoutDeadLetter(2).ID, Result: store.OutcomeRefused, Reason: "resolve P:2 first"},
		}}, r)
		require.Equal(t, store.Open, o.state(payoutDeadLetter(2).ID))
		long := strings.Repeat("x", 400-len(": millrace resolve")) + ": millrace resolve"
		o.payouts.now["P:2"] = store.Status{State: "UNKNOWN", Unsettled: long}
		out, code := o.run("discard", payoutDeadLetter(2).ID, "--why", "x")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, out, long, "a command in a reason is whole")
		require.Contains(t, out, "1 dead letter: 1 refused.")
		r = o.report(app.ExitBad, "discard", payoutDeadLetter(3).ID, "nothing", "--why", "again")
		require.Equal(t, 2, r.Skipped, "what was discarded is not refused: %+v", r)

		o.payouts.blind = errors.New("no database")
		r = o.report(app.ExitBad, "discard", payoutDeadLetter(2).ID, "--why", "x")
		require.Equal(t, "it is unknown whether it is settled: the ledger is unavailable: no database; --unsettled discards it all the same", r.DeadLetters[0].Reason)
		require.Equal(t, 1, o.report(0, "discard", payoutDeadLetter(2).ID, "--unsettled", "--why", "it is nobody's").Discarded)
		require.Equal(t, store.Discarded, o.state(payoutDeadLetter(2).ID))
	})
}

// A ledger that does not start is reported. The other dead letters are discarded.
func TestAnUnavailableLedger(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutDeadLetter(5), order(1))
		o.payouts.absent = errors.New("connection refused")
		r := o.report(app.ExitBad, "discard", "--all", "--why", "x")
		require.Equal(t, []int{1, 1}, []int{r.Discarded, r.Refused}, "%+v", r)
		require.Contains(t, r.DeadLetters[0].Reason, "connection refused")
		out, code := o.run("show", payoutDeadLetter(5).ID)
		require.Equal(t, 0, code)
		require.Regexp(t, `now +unknown: the ledger is unavailable: .*connection refused`, out)
	})
}

// A dead letter of a plugin that this binary lacks is not replayed, and is discarded only with
// --unsettled.
func TestAMissingPlugin(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		l := Entry{ID: "stranger", Subject: "R:5", DeadLetter: pipeline.DeadLetter{Handler: "refunds.pay", Class: "rejected"}}
		o.put(l.row("refunds"))
		require.Equal(t, "this binary replays no dead letters of plugin refunds", o.report(0, "replay", "--all", "--dry-run").DeadLetters[0].Reason)
		why := "this binary has no plugin refunds to check it: use one that has, or --unsettled"
		for code, args := range map[int][]string{0: {"--dry-run"}, app.ExitBad: {"--why", "x"}} {
			r := o.report(code, append([]string{"discard", "--all"}, args...)...)
			require.Equal(t, []int{1, 0}, []int{r.Refused, r.Discarded}, "%+v", r)
			require.Equal(t, why, r.DeadLetters[0].Reason)
		}
		require.Equal(t, store.Open, o.state("stranger"))
		out, _ := o.run("show", "stranger")
		require.Contains(t, out, "it must not be discarded yet: "+why)
		require.Equal(t, 1, o.report(0, "discard", "--all", "--unsettled", "--why", "x").Discarded)
	})
}
