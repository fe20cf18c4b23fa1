package once_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// A group with a size says how many of its effects are accepted, and it is finished when all of them have ended. Commands
// and pages say so.
func TestAGroupWithASizeIsFinished(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		require.ErrorContains(t, p.effects.Expect(t.Context(), "acme", 2), "the ledger is not open")
		w.Start(p)
		o := operator{t, w}
		require.NoError(t, p.effects.Expect(t.Context(), "acme", 2))
		said := func(state, accepted string, finished bool) {
			t.Helper()
			a := o.must("once status", input(""))
			require.Equal(t, "invoice acme is "+state+", "+accepted+" accepted", a.Lines[0])
			value, err := json.Marshal(a.Value)
			require.NoError(t, err)
			var got struct {
				State    string
				Expected int64
				Finished bool
			}
			require.NoError(t, json.Unmarshal(value, &got))
			require.EqualValues(t, 2, got.Expected)
			require.Equal(t, []any{string(rules.GroupRunning), finished}, []any{got.State, got.Finished})
			row := o.must("once", operate.Input{"limit": {"50"}}).Tables[0].Rows[0]
			require.Equal(t, []string{state, accepted}, []string{row[2], row[4]})
			b, err := o.open("effects", "groups", nil)
			require.NoError(t, err)
			require.Equal(t, accepted, b.(console.Table).Rows[0][3].Text)
			if finished {
				require.Contains(t, o.see("effects/group", "group", input("")), `"state":"finished"`)
				require.Contains(t, o.see("effects", "groups", nil), `"state":"finished"`)
			} else {
				require.NotContains(t, o.see("effects/group", "group", input("")), `"state":"finished"`)
			}
		}
		said("RUNNING", "0 of 2", false)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		said("RUNNING", "1 of 2", false)
		second := invoice{Customer: "acme", Number: "18"}
		_, err = p.effects.Enqueue(t.Context(), second)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, second.key()).State)
		said("FINISHED", "2 of 2", true)

		third := invoice{Customer: "zeta", Number: "1"}
		_, err = p.effects.Enqueue(t.Context(), third)
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, third.key())
		require.Equal(t, "invoice zeta is RUNNING", o.must("once status", input("", "group", "zeta")).Lines[0], "more may come, because nobody has said how many")
	})
}

// A group is paused or cancelled before its first effect, or when it is finished, if the operator says so.
func TestAGroupIsSteeredBeforeItsFirstEffect(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		for _, name := range []string{"once pause", "once cancel"} {
			_, err := o.ask(name, input(""))
			require.ErrorContains(t, err, "group acme of kind invoice has no effect in the ledger")
			require.ErrorContains(t, err, "--future")
		}
		future := input("", "future", "true")
		require.Contains(t, o.would("once pause", future), "Would start no call any more until it is resumed")
		_, err := o.ask("once status", input(""))
		require.ErrorContains(t, err, "has no effect", "the preview has changed nothing")
		require.Equal(t, "invoice acme is PAUSED", o.must("once pause", future).Lines[1])
		_, err = p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, "invoice acme is PAUSED", o.must("once status", input("")).Lines[0])
		require.NoError(t, p.effects.Expect(t.Context(), "acme", 1))
		o.must("once resume", input(""))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)

		const finished = "because all effects of group acme of kind invoice that were expected are done or cancelled. --future does it for effects that are still to come"
		for _, name := range []string{"once pause", "once cancel"} {
			require.Equal(t, "Would be refused, "+finished+".", o.would(name, input("")))
			_, err = o.ask(name, input(""))
			require.ErrorContains(t, err, "nothing was changed, "+finished)
		}
		require.Equal(t, "Would change nothing, because it is not paused.", o.would("once resume", input("")))
		require.Contains(t, o.would("once cancel", future), "Would cancel it for good")
		require.Equal(t, "invoice acme is CANCELLED, 1 of 1 accepted", o.must("once cancel", future).Lines[1])
		require.Contains(t, o.would("once cancel", input("")), "It is cancelled already.")

		for _, a := range w.Once.Operations().Actions {
			if a.Name == "once pause" {
				require.NoError(t, a.Check(future))
				require.ErrorContains(t, a.Check(operate.Input{"kind": {"invoice"}, "all": {"true"}, "future": {"true"}}), "--future is for a group")
			}
		}
	})
}
