package once_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// waits returns what the page of the group acme says that it waits for, and the rows of what waits.
func (o operator) waits() (next string, rows [][]console.Cell) {
	o.t.Helper()
	b, err := o.open("effects/group", "waiting", input(""))
	require.NoError(o.t, err)
	blocks := b.(console.Blocks)
	return blocks[0].(console.Stats)[0].Cell.Text, blocks[1].(console.Table).Rows
}

// The page of a group and the command say why its effects wait in the words of explain, whichever the reason is. The
// page lists them, those that have waited longest first.
func TestTheReasonWhyAGroupWaitsIsThatOfItsEffects(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(func() bool { return false }) })
		w.Start(p)
		o := operator{t, w}
		second := invoice{Customer: "acme", Number: "16"}
		for _, i := range []invoice{one, second} {
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
		}
		p.effects.Measure(t.Context())
		same := func(reason string) {
			t.Helper()
			next, rows := o.waits()
			require.Contains(t, next, reason)
			explained := o.next(one)
			require.Contains(t, explained, reason)
			require.Equal(t, "of 17, which has waited longest: "+strings.TrimPrefix(explained, "Next: "), next)
			require.Contains(t, o.must("once status", input("")).Notes, "Next "+next)
			require.Equal(t, []string{"17", "16"}, []string{rows[0][0].Text, rows[1][0].Text})
			require.Equal(t, "effects/effect?group=acme&id=17&kind=invoice", rows[0][0].Link)
		}
		same("its client would send nothing now")
		o.must("once pause", wholeKind())
		same("nothing until the kind invoice is resumed")
		o.must("once resume", wholeKind())
		_, rows := o.waits()
		require.Equal(t, "now", rows[0][2].Text)
		o.must("once pause", input(""))
		next, _ := o.waits()
		require.Contains(t, next, "nothing until its group is resumed")
		require.Contains(t, o.see("effects/group", "group", operate.Input{"kind": {"invoice"}, "group": {"acme"}}), `"why":"ticket 4711"`, "who changed the group")
	})
}

// A far side that is down is the reason also between two calls, and each effect has its last answer and its next call.
func TestTheReasonOfAGroupIsAFarSideThatIsDown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Retry = pipeline.Backoff{First: hour, Max: hour} })
		down := oncetest.Step{Answer: once.Answer{Class: once.NotSent, Text: "connection refused"}}
		p.far.Next(down, down)
		w.Start(p)
		o := operator{t, w}
		_, err := p.effects.Enqueue(t.Context(), one, invoice{Customer: "acme", Number: "18"})
		require.NoError(t, err)
		var next string
		var rows [][]console.Cell
		require.Eventually(t, func() bool {
			p.effects.Measure(t.Context())
			next, rows = o.waits()
			unanswered := func(row []console.Cell) bool { return row[3].Text == "" }
			return strings.Contains(next, "the far side has carried out nothing since ") && !slices.ContainsFunc(rows, unanswered)
		}, minute, 5*millisecond)
		require.Regexp(t, `: the request is sent in \d\S* at the earliest, when an instance calls for the kind invoice again. At the moment .*; its last answer: not_sent: connection refused\.$`, next)
		require.Len(t, rows, 2)
		for _, row := range rows {
			require.Regexp(t, `^in \d`, row[2].Text)
			require.Equal(t, []string{"not_sent", "connection refused"}, []string{row[3].Text, row[4].Text})
		}
	})
}

// Sends and lookups are counted apart, with their times, and those that count as attempts are named apart from those that
// were none for the far side.
func TestExplainSaysWhichCallsCount(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByLookup, nil)
	down := oncetest.Step{Answer: once.Answer{Class: once.NotSent, Text: "connection refused"}}
	p.far.Next(down, down, oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}}, down, down)
	w.Start(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	require.Equal(t, rules.Success, oncetest.SettledInTurns(t, w, p.effects, one.key()).State)
	o := operator{t, w}
	x := o.must("once explain", input("17"))
	var calls []string
	for _, row := range x.Tables[0].Rows {
		calls = append(calls, row[0])
	}
	lines := withoutTimes(strings.Join(x.Lines, "\n"))
	require.Contains(t, lines, "  sends           3, from TIME to TIME; 1 counts as an attempt, of at most 6\n")
	require.Regexp(t, `  lookups         3, from TIME to TIME; [123] counts? as (an attempt|attempts), of at most 6\n`, lines)
	require.Equal(t, []string{"send 1", "send 2", "send 3", "lookup 1", "lookup 2", "lookup 3"}, calls)
	require.Contains(t, withoutTimes(o.see("effects/effect", "effect", input("17"))), `"sends":"3, from TIME to TIME; 1 counts as an attempt, of at most 6"`)
}
