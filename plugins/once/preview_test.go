package once_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// would returns what the preview of an action says first. Programs get the same.
func (o operator) would(name string, in operate.Input) string {
	o.t.Helper()
	a, err := o.preview(name, in)
	require.NoError(o.t, err)
	text, err := json.Marshal(a.Value)
	require.NoError(o.t, err)
	var value struct{ Would string }
	require.NoError(o.t, json.Unmarshal(text, &value))
	require.Equal(o.t, a.Lines[0], value.Would)
	return value.Would
}

// A preview says what would be done, or why it would be refused, and changes nothing.
func TestEachPreviewSaysWhatWouldBeDone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, nil)
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}}, oncetest.Step{Answer: once.IsRejected("no", "no")}, oncetest.Step{Execute: true, Answer: once.IsDone("r")})
		w.Start(p)
		o := operator{t, w}
		for i, state := range []rules.State{rules.Unknown, rules.Failed, rules.Success} {
			number := string(rune('1' + i))
			_, err := p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: number})
			require.NoError(t, err)
			require.Equal(t, state, oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: number}).State)
		}

		require.Equal(t, "Would give it all its attempts again, with the same key and the same bytes: FAILED to PENDING.", o.would("once replay", input("2")))
		require.Equal(t, "Would be refused, because it is done.", o.would("once replay", input("3")))
		require.Equal(t, "Would be refused, because it may have been done, and no call can find that out: look at the far side and resolve it.", o.would("once replay", input("1")))
		require.Equal(t, "Would be settled by hand: UNKNOWN to SUCCESS, receipt in_1.", o.would("once resolve", input("1", "done", "in_1")))
		require.Equal(t, "Would be settled by hand: UNKNOWN to FAILED: not done.", o.would("once resolve", input("1", "not-done", "true")))
		require.Equal(t, "Would be refused, because it is not UNKNOWN.", o.would("once resolve", input("3", "not-done", "true")))
		_, err := o.preview("once resolve", input("1"))
		require.ErrorContains(t, err, "give either --done RECEIPT or --not-done")
		_, err = o.preview("once replay", input("404"))
		require.ErrorContains(t, err, "invoice:acme:404 is not in the ledger")

		require.Equal(t, "Would start no call any more until it is resumed: effects that wait (0) would stay; none is being called.", o.would("once pause", input("")))
		require.Equal(t, "Would change nothing, because it is not paused.", o.would("once resume", input("")))
		require.Equal(t, "Would start no call any more until it is resumed: effects that wait (0) would stay; none is being called.", o.would("once pause", wholeKind()))
		require.Equal(t, "Would change nothing, because it is not paused.", o.would("once resume", wholeKind()))
		o.must("once pause", input(""))
		_, err = p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: "4"})
		require.NoError(t, err)
		require.Equal(t, "Would change nothing, because it is paused already.", o.would("once pause", input("")))
		require.Equal(t, "Would resume it: calls for effects that wait (1) would start again within seconds.", o.would("once resume", input("")))
		o.must("once pause", wholeKind())
		require.Equal(t, "Would resume it: calls for effects that wait (1) would start when the kind is resumed, too.", o.would("once resume", input("")))
		require.Equal(t, "Would resume it: calls for effects that wait (1) would start again within seconds.", o.would("once resume", wholeKind()))
		require.Equal(t, "Would cancel it for good: of effects that wait (1), those that certainly were not done would end, and of others nothing would be sent: they end UNKNOWN, because their kind has no lookup; none is being called.",
			o.would("once cancel", input("")))
		o.must("once cancel", input(""))
		require.Equal(t, "It is cancelled already. Of effects that wait (0), those that certainly were not done would be cancelled.", o.would("once cancel", input("")))
		require.Equal(t, "Would be refused, because it is cancelled, which is final.", o.would("once resume", input("")))

		require.Equal(t, "Would set the limits to 2/s (operator), within seconds.", o.would("once limit", input("", "per-second", "2")))
		require.Equal(t, "Would end what operators have set, so that the limits of the settings apply again.", o.would("once limit", input("", "settings", "true")))
		a, err := o.preview("once recover", input("", "since", "2026-11-28T02:00:00Z"))
		require.NoError(t, err)
		require.Contains(t, a.Lines[0], "Would note ")

		state, err := p.effects.State(t.Context(), once.Key{Group: "acme", ID: "2"})
		require.NoError(t, err)
		require.Equal(t, rules.Failed, state.State)
	})
}
