package once_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

var noAnswer = once.Answer{Text: "no answer in time"}

// mute is a far side that knows nothing while it is set.
type mute struct{ atomic.Bool }

// kind is one of which each effect is sent once.
func (m *mute) kind(k *once.Kind[invoice], c *once.KindConfig) {
	c.MaxRetries, c.Retry = 0, pipeline.Backoff{First: millisecond, Max: millisecond}
	find := k.Lookup
	k.Lookup = func(ctx context.Context, l once.Lookup) once.Answer {
		if m.Load() {
			return once.Answer{Class: once.NotDone}
		}
		return find(ctx, l)
	}
}

// unknown has an effect end unknown.
func (m *mute) unknown(t *testing.T, p *invoices, i invoice, executed bool) {
	t.Helper()
	m.Store(true)
	require.Equal(t, rules.Unknown, p.settled(t, i, oncetest.Step{Execute: executed, Answer: noAnswer}).State)
	m.Store(false)
}

// What an operator states about an effect is compared with what the far side says of it now.
func TestAResolutionAsksTheFarSide(t *testing.T) {
	t.Parallel()
	const receipt = "receipt of invoice:acme:17"
	for name, c := range map[string]struct {
		executed bool
		turn     bool            // the last request is not under way any more
		old      bool            // so is its key
		answers  []oncetest.Step // of the lookup
		states   string          // done RECEIPT, or not-done
		refused  string
		says     string
	}{
		"done, and denied":          {executed: true, states: "not-done", refused: "the far side says that it is done, receipt " + receipt + ": --done " + receipt + " records that"},
		"done, and another receipt": {executed: true, states: "in_1", refused: "the far side names it " + receipt + " and not in_1"},
		"done":                      {executed: true, states: receipt, says: "it is done, receipt " + receipt},
		"not known, and done":       {turn: true, states: "in_1", refused: "the far side does not know it"},
		"not known":                 {turn: true, states: "not-done", says: "it is not known there"},
		"not known, and just sent":  {states: "not-done", refused: "the last request may still be under way"},
		"not known, and an old key": {turn: true, old: true, states: "not-done", refused: "its key is older than key_ttl"},
		"no answer, and not done":   {turn: true, answers: []oncetest.Step{{Answer: noAnswer}}, states: "not-done", refused: "has not answered that it does not know the effect, but nothing (unclear: no answer in time)"},
		"no answer, and done":       {turn: true, answers: []oncetest.Step{{Answer: noAnswer}}, states: "in_1", says: "nothing (unclear: no answer in time)"},
		"a panic":                   {turn: true, answers: []oncetest.Step{{Panic: true}}, states: "not-done", refused: "the call panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := oncetest.New(t)
			m := new(mute)
			p := newInvoices(w.Once, once.ByKey, m.kind)
			w.Start(p)
			o := operator{t, w}
			m.unknown(t, p, one, c.executed)
			if c.turn {
				w.Turn(minute)
			}
			if c.old {
				w.Turn(2 * hour)
			}
			in := input("17", "done", c.states)
			if c.states == "not-done" {
				in = input("17", "not-done", "true")
			}
			state := func() rules.State {
				s, err := p.effects.State(t.Context(), one.key())
				require.NoError(t, err)
				return s.State
			}
			resolve := func(in operate.Input) (operate.Answer, error) {
				p.far.Next(c.answers...)
				return o.action("once resolve").Do(t.Context(), nil, in, operate.Use{Who: "ann", Why: "ticket 7"})
			}
			p.far.Next(c.answers...)
			would := o.would("once resolve", in)
			a, err := resolve(in)
			if c.refused != "" {
				require.Contains(t, would, "Would be refused, because ")
				require.Contains(t, would, c.refused)
				require.ErrorContains(t, err, "invoice:acme:17: nothing was changed, because ")
				require.ErrorContains(t, err, c.refused)
				var exit *app.ExitError
				require.ErrorAs(t, err, &exit)
				require.Equal(t, app.ExitBad, exit.Code)
				require.Equal(t, rules.Unknown, state())
				in["force"] = []string{"true"}
				_, err = resolve(in)
				require.NoError(t, err)
				return
			}
			require.NoError(t, err)
			require.Contains(t, would, "Would be settled by hand: UNKNOWN to ")
			require.Contains(t, would, "The far side says: "+c.says+".")
			require.Equal(t, "The far side says: "+c.says+".", a.Lines[0])
			require.True(t, state().Settled() && state() != rules.Unknown)
			require.Contains(t, strings.Join(a.Tables[1].Rows[0], " "), " resolve ann ticket 7 UNKNOWN to ")
			require.Contains(t, strings.Join(a.Tables[1].Rows[0], " "), "; the far side says: "+c.says)
		})
	}
}

// An effect that is replayed while an operator asks the far side is not resolved by what was true before.
func TestAResolutionIsRefusedWhenTheEffectHasChanged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var meanwhile atomic.Pointer[func()]
		m := new(mute)
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
			m.kind(k, c)
			find := k.Lookup
			k.Lookup = func(ctx context.Context, l once.Lookup) once.Answer {
				a := find(ctx, l)
				if do := meanwhile.Swap(nil); do != nil {
					(*do)()
				}
				return a
			}
		})
		w.Start(p)
		o := operator{t, w}
		in := operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"17"}, "not-done": {"true"}}
		m.unknown(t, p, one, false)
		w.Turn(minute)
		replay := func() {
			m.Store(true)
			p.far.Next(oncetest.Step{Execute: true, Answer: noAnswer})
			o.must("once replay", in)
			require.Equal(t, rules.Unknown, oncetest.Settled(t, p.effects, one.key()).State)
		}
		meanwhile.Store(&replay)
		_, err := o.action("once resolve").Do(t.Context(), nil, in, operate.Use{Who: "ann", Why: "ticket 7"})
		require.ErrorContains(t, err, "it has changed since it was shown to you")
		s, err := p.effects.State(t.Context(), one.key())
		require.NoError(t, err)
		require.Equal(t, rules.Unknown, s.State)
	})
}

// A lookup changes nothing, and says whether the ledger agrees.
func TestTheFarSideIsAsked(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	m := new(mute)
	p := newInvoices(w.Once, once.ByKey, m.kind)
	w.Start(p)
	o := operator{t, w}
	ask := func(id string) (level operate.Level, check, first string) {
		t.Helper()
		a := o.must("once lookup", input(id))
		require.Len(t, a.Checks, 1)
		text, err := json.Marshal(a.Value)
		require.NoError(t, err)
		require.Contains(t, string(text), `"far_side":{"class":`)
		require.Contains(t, string(text), `"state":"`)
		return a.Checks[0].Level, a.Checks[0].Text, a.Lines[0]
	}
	of := func(id string) invoice { return invoice{Customer: "acme", Number: id} }
	require.Equal(t, rules.Success, p.settled(t, of("1")).State)
	level, check, first := ask("1")
	require.Equal(t, []string{"ok", "agree", "The far side says: it is done, receipt receipt of invoice:acme:1."}, []string{string(level), check, first})

	require.Equal(t, rules.Success, p.settled(t, of("2"), oncetest.Step{Answer: once.IsDone("in_2")}).State)
	level, check, _ = ask("2")
	require.Equal(t, operate.Fail, level)
	require.Contains(t, check, "it is done in the ledger and not known there")

	require.Equal(t, rules.Failed, p.settled(t, of("3"), oncetest.Step{Execute: true, Answer: once.IsRejected("no", "never")}).State)
	level, check, _ = ask("3")
	require.Equal(t, operate.Fail, level)
	require.Contains(t, check, "it is FAILED in the ledger and done there")

	m.unknown(t, p, of("4"), true)
	level, check, _ = ask("4")
	require.Equal(t, operate.Warn, level)
	require.Equal(t, "the far side knows what the ledger does not", check)
	s, err := p.effects.State(t.Context(), of("4").key())
	require.NoError(t, err)
	require.Equal(t, rules.Unknown, s.State, "it was only asked")

	p.far.Next(oncetest.Step{Answer: once.Answer{Class: once.Throttled, Text: "later"}})
	level, _, first = ask("4")
	require.Equal(t, operate.Warn, level)
	require.Equal(t, "The far side says: nothing (throttled: later).", first)

	_, err = o.ask("once lookup", input("5"))
	require.ErrorContains(t, err, "is not in the ledger")
	_, err = o.ask("once lookup", operate.Input{"kind": {"bill"}, "group": {"acme"}, "id": {"1"}})
	require.ErrorContains(t, err, "this program has invoice")
}

// A kind without a lookup has nobody to ask, and its effects are resolved by what the operator knows.
func TestAKindWithoutALookupIsNotAsked(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.Never, nil)
	w.Start(p)
	o := operator{t, w}
	require.Equal(t, rules.Unknown, p.settled(t, one, oncetest.Step{Answer: noAnswer}).State)
	_, err := o.ask("once lookup", input("17"))
	require.ErrorContains(t, err, "the kind invoice has no lookup")
	a := o.must("once resolve", input("17", "not-done", "true"))
	require.NotContains(t, a.Lines[0], "far side")
}

// noClient is the client of a far side that can't start.
type noClient struct{}

func (noClient) Start(context.Context) error { return errors.New("no credential") }
func (noClient) Stop(context.Context) error  { panic("it has not started") }

// clientless is the plugin of a kind with such a client.
type clientless struct{ *invoices }

func (c clientless) Register(r *pipeline.Registry) error {
	r.Service("invoice.client", noClient{})
	return c.invoices.Register(r)
}

// An operator without the credential of the far side can state what became of an effect.
func TestAResolutionWithoutAClient(t *testing.T) {
	t.Parallel()
	w := oncetest.On(t, sqldbtest.File(t))
	m := new(mute)
	p := newInvoices(w.Once, once.ByKey, m.kind)
	w.Start(p)
	m.unknown(t, p, one, false)
	dsn := w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
	config := fileOf(t, "mill.yaml", fmt.Sprintf("log: {level: error}\nplugins: {once: {ledger: {dsn: %q}}}", dsn))
	run := func(want int, args ...string) string {
		t.Helper()
		own := oncetest.On(t, dsn).Once
		var out bytes.Buffer
		code := app.Main(t.Context(), app.Options{
			Name: "mill", Plugins: []pipeline.Plugin{own, clientless{newInvoices(own, once.ByKey, m.kind)}}, Environ: []string{}, Stdout: &out, Stderr: &out,
			Args: append(append([]string{"once"}, args...), "--kind", "invoice", "--group", "acme", "--id", "17", "--config", config),
		})
		require.Equal(t, want, code, out.String())
		return out.String()
	}
	require.Contains(t, run(app.ExitOK, "lookup"), "The far side says: nothing (not_asked: no credential).")
	require.Contains(t, run(app.ExitBad, "resolve", "--not-done", "--why", "w"), "but nothing (not_asked: no credential)")
	require.Contains(t, run(app.ExitOK, "resolve", "--not-done", "--why", "w", "--force"), "FAILED")
}
