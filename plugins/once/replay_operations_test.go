package once_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// many are the fields of a replay of a group, or with an empty one of the kind.
func many(group string, more ...string) operate.Input {
	in := operate.Input{"kind": {"invoice"}}
	if in["group"] = []string{group}; group == "" {
		in["all"] = []string{"true"}
	}
	for i := 0; i < len(more); i += 2 {
		in[more[i]] = []string{more[i+1]}
	}
	return in
}

// attemptsOnce is a kind whose effects have one attempt.
func attemptsOnce(_ *once.Kind[invoice], c *once.KindConfig) { c.MaxRetries = 0 }

// Answers that end such an effect, and their classes.
var (
	isRejected = once.IsRejected("no_such_customer", "unknown customer")
	isRefused  = once.Answer{Class: once.Retry, Text: "not now"}
)

// ended enqueues invoices of a customer, from the first number to the last, each of which gets the answer.
func (p *invoices) ended(t *testing.T, customer string, first, last int, a once.Answer, want rules.State) {
	t.Helper()
	for n := first; n <= last; n++ {
		require.Equal(t, want, p.settled(t, invoice{Customer: customer, Number: strconv.Itoa(n)}, oncetest.Step{Answer: a}).State)
	}
}

// answerOf returns what programs get, without times.
func answerOf(t *testing.T, a operate.Answer) string {
	t.Helper()
	text, err := json.Marshal(a.Value)
	require.NoError(t, err)
	return withoutTimes(string(text))
}

// replays returns how often operators have replayed an effect.
func (o operator) replays(i invoice) (n int) {
	o.t.Helper()
	var x struct{ Audit []struct{ Action string } }
	value, err := json.Marshal(o.must("once explain", operate.Input{"kind": {"invoice"}, "group": {i.Customer}, "id": {i.Number}}).Value)
	require.NoError(o.t, err)
	require.NoError(o.t, json.Unmarshal(value, &x))
	for _, a := range x.Audit {
		if a.Action == "replay" {
			n++
		}
	}
	return n
}

// After the cause is repaired, all that has failed is called for again: of a class, up to a limit, of a group and of the
// kind. The preview says so before, with the same numbers.
func TestManyEffectsAreReplayed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, attemptsOnce)
		w.Start(p)
		o := command(t, w, attemptsOnce)
		p.ended(t, "acme", 1, 3, isRejected, rules.Failed)
		p.ended(t, "acme", 4, 5, isRefused, rules.Failed)
		p.ended(t, "zeta", 1, 1, isRefused, rules.Failed)
		failed := func(want int) {
			t.Helper()
			require.Len(t, o.must("once problems", operate.Input{"limit": {"50"}}).Tables[0].Rows, want)
		}

		require.Equal(t, "5 FAILED effects of invoice acme: 5 would be replayed; nothing was changed.", o.would("once replay", many("acme")))
		require.Equal(t, "6 FAILED effects of invoice: 2 would be replayed, 4 would be left; nothing was changed.", o.would("once replay", many("", "limit", "2")))
		require.Equal(t, "No effect of invoice acme is UNKNOWN, so there is nothing to replay.", o.would("once replay", many("acme", "state", "unknown")))
		require.Equal(t, "No effect of invoice with the class unclear is FAILED, so there is nothing to replay.", o.would("once replay", many("", "class", "unclear")))
		a, err := o.preview("once replay", many(""))
		require.NoError(t, err)
		require.Equal(t, [][]string{{"3", "rejected", "would be replayed"}, {"3", "retry", "would be replayed"}}, a.Tables[0].Rows)
		require.Len(t, a.Tables[1].Rows, 6)
		require.Equal(t, []string{"acme", "1", "TIME", "rejected", "would be replayed", "no_such_customer: unknown customer"}, withoutTimesOf(a.Tables[1].Rows[0]))
		failed(6)

		a = o.must("once replay", many("acme", "class", "rejected", "limit", "2"))
		require.Equal(t, []string{"3 FAILED effects of invoice acme with the class rejected: 2 replayed, 1 left."}, a.Lines)
		require.JSONEq(t, `{"kind":"invoice","group":"acme","state":"FAILED","class":"rejected","selected":3,"replayed":2,"refused":0,"changed":0,"failed":0,"left":1,
			"results":[{"class":"rejected","result":"replayed","count":2}],"effects":[]}`, answerOf(t, a))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: "2"}).State)
		require.Equal(t, "1 FAILED effect of invoice acme with the class rejected: 1 replayed.", o.must("once replay", many("acme", "class", "rejected", "limit", "2")).Lines[0])
		failed(3)
		require.Equal(t, "2 FAILED effects of invoice acme: 2 replayed.", o.must("once replay", many("acme", "rate", "1000/s")).Lines[0])
		require.Equal(t, "1 FAILED effect of invoice: 1 replayed.", o.must("once replay", many("", "rate", "0")).Lines[0])
		failed(0)
		for _, group := range []string{"acme", "zeta"} {
			for n := 1; n <= map[string]int{"acme": 5, "zeta": 1}[group]; n++ {
				i := invoice{Customer: group, Number: strconv.Itoa(n)}
				require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, i.key()).State)
				require.Equal(t, []int{1, 1}, []int{p.far.Executed(i.idempotency()), o.replays(i)}, i)
			}
		}
		_, err = o.ask("once replay", many("nobody"))
		require.ErrorContains(t, err, "group nobody of kind invoice has no effect in the ledger")
		_, err = o.ask("once replay", operate.Input{"kind": {"nothing"}, "all": {"true"}})
		require.ErrorContains(t, err, `neither this program nor the ledger has the kind "nothing"`)
	})
}

func withoutTimesOf(row []string) (all []string) {
	for _, cell := range row {
		all = append(all, regexp.MustCompile(`^[0-9-]{10}T.*`).ReplaceAllString(cell, "TIME"))
	}
	return all
}

// What no rule allows is refused, counted with its reason, and makes the exit code that of an answer that is bad.
func TestRefusedReplaysAreCounted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, attemptsOnce)
		w.Start(p)
		o := operator{t, w}
		unclear := once.Answer{Text: "no answer within 3s"}
		p.ended(t, "acme", 1, 2, isRejected, rules.Failed)
		p.ended(t, "acme", 3, 9, unclear, rules.Unknown)
		p.ended(t, "paused", 1, 1, isRejected, rules.Failed)
		p.ended(t, "cancelled", 1, 1, isRejected, rules.Failed)
		o.must("once pause", many("paused"))
		o.must("once cancel", many("cancelled"))

		const would = "4 FAILED effects of invoice: 3 would be replayed, 1 would be refused; nothing was changed."
		require.Equal(t, would, o.would("once replay", many("")))
		a, err := o.ask("once replay", many(""))
		var exit *app.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, app.ExitBad, exit.Code)
		require.ErrorContains(t, err, "some of the selected effects were not replayed")
		require.Equal(t, "4 FAILED effects of invoice: 3 replayed, 1 refused.", a.Lines[0])
		require.Equal(t, [][]string{{"3", "rejected", "replayed"}, {"1", "rejected", "refused, because its group is cancelled, so nothing would be sent"}}, a.Tables[0].Rows)
		require.Equal(t, "cancelled", a.Tables[1].Rows[0][0], "what was replayed is left out")
		require.Len(t, a.Tables[1].Rows, 1)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: "1"}).State)
		s, err := p.effects.State(t.Context(), once.Key{Group: "paused", ID: "1"})
		require.NoError(t, err)
		require.Equal(t, rules.Pending, s.State)
		require.Equal(t, rules.Failed, oncetest.Settled(t, p.effects, once.Key{Group: "cancelled", ID: "1"}).State)

		a, err = o.ask("once replay", many("acme", "state", "UNKNOWN", "limit", "1"))
		require.ErrorAs(t, err, &exit)
		require.Equal(t, "7 UNKNOWN effects of invoice acme: 7 refused.", a.Lines[0])
		require.Len(t, a.Tables[1].Rows, 5, "a few of them")
		var value struct {
			Results []struct{ Class, Result, Reason string }
		}
		require.NoError(t, json.Unmarshal([]byte(answerOf(t, a)), &value))
		require.Equal(t, "it may have been done, and no call can find that out: look at the far side and resolve it", value.Results[0].Reason)

		p.ended(t, "zeta", 1, 1, isRejected, rules.Failed)
		o.must("once pause", many("zeta"))
		o.must("once pause", many(""))
		a = o.must("once replay", many("zeta"))
		require.Len(t, a.Notes, 2)
		require.Equal(t, "The group is paused, so nothing of it is called for until it is resumed.", a.Notes[0])
		require.Contains(t, a.Notes[1], "by me: ticket 4711. Nothing of it is called for until it is resumed.")
		require.Empty(t, o.must("once replay", many("zeta")).Notes, "nothing is left")
	})
}

// An UNKNOWN effect that its kind can look up is looked up, and is not sent again if it was done.
func TestManyUnknownEffectsAreLookedUp(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByLookup, attemptsOnce)
		w.Start(p)
		o := operator{t, w}
		lost := once.Answer{Class: once.Unclear, Code: "away", Text: "no answer"}
		for n := range 2 {
			i := invoice{Customer: "acme", Number: strconv.Itoa(n)}
			p.far.Next(oncetest.Step{Execute: true, Answer: lost}, oncetest.Step{Answer: lost}) // the send, and the only lookup
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
			require.Equal(t, rules.Unknown, oncetest.SettledInTurns(t, w, p.effects, i.key()).State)
		}
		require.Equal(t, "2 UNKNOWN effects of invoice acme: 2 replayed.", o.must("once replay", many("acme", "state", "UNKNOWN")).Lines[0])
		for n := range 2 {
			i := invoice{Customer: "acme", Number: strconv.Itoa(n)}
			require.Equal(t, rules.Success, oncetest.SettledInTurns(t, w, p.effects, i.key()).State)
			require.Equal(t, 1, p.far.Executed(i.idempotency()))
		}
	})
}

// Two operators replay the same effects at once, and each of these is replayed once.
func TestTwoOperatorsReplayAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		const n = 30
		p := newInvoices(w.Once, once.ByKey, attemptsOnce)
		w.Start(p)
		operators := []operator{command(t, w, attemptsOnce), command(t, w, attemptsOnce)}
		p.ended(t, "acme", 1, n, isRejected, rules.Failed)
		answers, errs := make([]operate.Answer, len(operators)), make([]error, len(operators))
		var work sync.WaitGroup
		for i, o := range operators {
			work.Go(func() { answers[i], errs[i] = o.ask("once replay", many("acme")) })
		}
		work.Wait()
		replayed := int64(0)
		for i, a := range answers {
			require.NoError(t, errs[i], "what the other one has replayed is not refused")
			var value struct{ Selected, Replayed, Changed, Left int64 }
			require.NoError(t, json.Unmarshal([]byte(answerOf(t, a)), &value))
			require.LessOrEqual(t, value.Replayed+value.Changed, value.Selected)
			require.Zero(t, value.Left)
			replayed += value.Replayed
		}
		require.EqualValues(t, n, replayed)
		for i := 1; i <= n; i++ {
			one := invoice{Customer: "acme", Number: strconv.Itoa(i)}
			require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
			require.Equal(t, []int{1, 1}, []int{p.far.Executed(one.idempotency()), operators[0].replays(one)})
		}
	})
}

// An effect whose row is locked for long is left to the next replay, and three in a row end one, because then it is the
// database that does not answer.
func TestAReplayEndsWhenTheLedgerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("a lock: %w", ledger.ErrUnavailable)
	a, err := once.ReplayAnswers(away, nil, away, away, nil)
	require.ErrorContains(t, err, "some of the selected effects were not replayed")
	require.Equal(t, "5 FAILED effects of invoice: 2 replayed, 3 failed.", a.Lines[0])
	require.Len(t, a.Tables[1].Rows, 3, "each is named")
	a, err = once.ReplayAnswers(nil, away, away, away, nil)
	require.ErrorIs(t, err, away)
	require.Equal(t, "5 FAILED effects of invoice: 1 replayed, 2 failed, 2 left.", a.Lines[0])
	_, err = once.ReplayAnswers(io.ErrUnexpectedEOF)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A replay that is stopped says what it has done, and the same one goes on.
func TestAStoppedReplayGoesOn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, attemptsOnce)
		w.Start(p)
		o := operator{t, w}
		p.ended(t, "acme", 1, 5, isRejected, rules.Failed)
		ctx, stop := context.WithCancel(t.Context())
		var steps []int64
		a, err := o.action("once replay").Do(ctx, nil, many("acme"), operate.Use{Who: "me", Why: "ticket", Progress: func(done, total int64) {
			require.EqualValues(t, 5, total)
			if steps = append(steps, done); done == 2 {
				stop()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []int64{0, 1, 2}, steps)
		require.Equal(t, "5 FAILED effects of invoice acme: 2 replayed, 3 left.", a.Lines[0])
		require.Equal(t, "3 FAILED effects of invoice acme: 3 replayed.", o.must("once replay", many("acme")).Lines[0])
		for n := 1; n <= 5; n++ {
			require.Equal(t, 1, o.replays(invoice{Customer: "acme", Number: strconv.Itoa(n)}))
		}
	})
}

// The environment of a replay in a process of its own: after how many effects it stands still until it is killed.
const replayUntil = "ONCE_TEST_REPLAY_UNTIL"

func replayAndStand(until int64) error {
	o := once.NewPlugin(nil, nil)
	o.Settings().(*once.Config).Ledger.DSN = setting.NewSecret(os.Getenv(workerDSN))
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "command", Logger: slog.New(slog.DiscardHandler)}, o, newInvoices(o, once.ByKey, attemptsOnce))
	if err != nil {
		return err
	}
	closed, err := o.OpenForCommand(context.Background(), reg)
	if err != nil {
		return err
	}
	for _, a := range o.Operations().Actions {
		if a.Name != "once replay" {
			continue
		}
		if _, err := a.Do(context.Background(), reg, many("acme"), operate.Use{Who: "me", Why: "a test", Progress: func(done, _ int64) {
			if done == until {
				fmt.Fprintln(os.Stdout, done)
				_, _ = io.Copy(io.Discard, os.Stdin)
			}
		}}); err != nil {
			return err
		}
	}
	return closed(context.Background())
}

// The process of a replay is killed. What it has replayed is called for, the rest waits, and the same command goes on.
func TestAKilledReplayGoesOn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, attemptsOnce)
		w.Start(p)
		o := operator{t, w}
		p.ended(t, "acme", 1, 9, isRejected, rules.Failed)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerDSN+"="+w.Once.Settings().(*once.Config).Ledger.DSN.Reveal(), replayUntil+"=4")
		cmd.Stderr = t.Output()
		_, err := cmd.StdinPipe() // closed when this process ends
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "4\n", line)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())

		require.Len(t, o.must("once problems", operate.Input{"limit": {"50"}}).Tables[0].Rows, 5)
		require.Equal(t, "5 FAILED effects of invoice acme: 5 replayed.", o.must("once replay", many("acme")).Lines[0])
		for n := 1; n <= 9; n++ {
			i := invoice{Customer: "acme", Number: strconv.Itoa(n)}
			require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, i.key()).State)
			require.Equal(t, []int{1, 1}, []int{p.far.Executed(i.idempotency()), o.replays(i)})
		}
	})
}

// One effect is named, or many are selected, and never both.
func TestAReplayNamesOneEffectOrSelectsMany(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	newInvoices(w.Once, once.Never, nil)
	replay := operator{t, w}.action("once replay")
	for _, in := range []operate.Input{
		{"kind": {"invoice"}, "group": {"acme"}, "id": {"17"}}, many("acme"), many(""), many("", "state", "unknown", "class", "unclear", "limit", "5", "rate", "30/m"),
		many("acme", "rate", "0"),
	} {
		require.NoError(t, replay.Check(replay.Complete(in)), in)
	}
	for problem, in := range map[string]operate.Input{
		"--kind is required": {"group": {"acme"}},
		"--group is required, or --all for the whole kind":               {"kind": {"invoice"}},
		"give --group or --all, not both":                                many("acme", "all", "true"),
		"--group is required, because --id names an effect in its group": {"kind": {"invoice"}, "id": {"17"}},
		"--state must be FAILED or UNKNOWN":                              many("acme", "state", "SUCCESS"),
		"--limit must be >= 0":                                           many("acme", "limit", "-1"),
		"--rate must be a number per second, minute or hour":             many("acme", "rate", "fast"),
	} {
		require.ErrorContains(t, replay.Check(replay.Complete(in)), problem)
	}
	for field, value := range map[string]string{"all": "true", "state": "FAILED", "class": "rejected", "limit": "5", "rate": "5/s"} {
		in := operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"17"}, field: {value}}
		require.ErrorContains(t, replay.Check(replay.Complete(in)), "--id is one effect", field)
	}
}

// The command shows how far it is, and ends with the exit code of what became of the effects.
func TestTheCommandOfAReplay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Always, attemptsOnce)
		stop := w.StartUntil(p)
		p.ended(t, "acme", 1, 3, isRejected, rules.Failed)
		require.NoError(t, stop())
		run := func(want int, args ...string) (stdout, stderr string) {
			t.Helper()
			stdout, stderr, code := commandLine(t, w, attemptsOnce, append([]string{"once", "replay", "--kind", "invoice"}, args...)...)
			require.Equal(t, want, code, stdout+stderr)
			return stdout, stderr
		}
		_, stderr := run(app.ExitUsage, "--group", "acme")
		require.Contains(t, stderr, "--why REASON required, for the audit")
		stdout, _ := run(app.ExitOK, "--group", "acme", "--dry-run")
		require.Contains(t, stdout, "3 FAILED effects of invoice acme: 3 would be replayed; nothing was changed.\nCOUNT  CLASS     RESULT\n3      rejected  would be replayed\n")
		stdout, stderr = run(app.ExitOK, "--all", "--limit", "1", "--why", "they are back")
		require.Equal(t, "3 FAILED effects of invoice: 1 replayed, 2 left.\nCOUNT  CLASS     RESULT\n1      rejected  replayed\n", stdout)
		require.Contains(t, stderr, "once replay: 1 of 1 (100 %)\n")
		stdout, _ = run(app.ExitOK, "--group", "acme", "--json", "--why", "they are back")
		require.JSONEq(t, `{"kind":"invoice","group":"acme","state":"FAILED","selected":2,"replayed":2,"refused":0,"changed":0,"failed":0,"left":0,
			"results":[{"class":"rejected","result":"replayed","count":2}],"effects":[]}`, stdout)
		stdout, _ = run(app.ExitOK, "--group", "acme", "--why", "they are back")
		require.Equal(t, "No effect of invoice acme is FAILED, so there is nothing to replay.\n", stdout)
	})
}
