package once_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// said returns the conditions of the kind, a line each.
func said(t *testing.T, w *oncetest.World) string {
	t.Helper()
	var lines []string
	for _, c := range w.Once.Conditions() {
		require.Equal(t, pipeline.Endpoint{Kind: "ledger", Name: "invoice"}, c.Place)
		require.Equal(t, "kind invoice", c.Name)
		require.Equal(t, "effects", c.Page)
		lines = append(lines, string(c.Level)+" "+c.Text)
	}
	return strings.Join(lines, "\n")
}

// A paused group is told while it holds an effect back, and no longer.
func TestAPausedGroupIsACondition(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		require.Empty(t, w.Once.Conditions(), "the ledger is not open")
		w.Start(p)
		o := operator{t, w}
		measured := func() string {
			p.effects.Measure(t.Context())
			return said(t, w)
		}
		enqueue := func(customer, number string) {
			_, err := p.effects.Enqueue(t.Context(), invoice{Customer: customer, Number: number})
			require.NoError(t, err)
		}
		for _, customer := range []string{"acme", "brot", "zeta"} {
			enqueue(customer, "1")
			require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: customer, ID: "1"}).State)
		}
		require.Empty(t, measured())
		of := func(customer string) operate.Input {
			return operate.Input{"kind": {"invoice"}, "group": {customer}}
		}
		o.must("once pause", of("acme"))
		o.must("once pause", of("brot"))
		require.Empty(t, measured(), "nothing waits for it")
		enqueue("acme", "2")
		require.Eventually(t, func() bool { return measured() == "warn 1 group is paused, which holds effects back" }, minute, 5*millisecond)
		enqueue("acme", "3")
		enqueue("brot", "2")
		require.Eventually(t, func() bool { return measured() == "warn 2 groups are paused, which holds effects back" }, minute, 5*millisecond)
		require.Contains(t, o.see("effects", "kinds", nil), `"state":"2 groups are paused, which holds effects back"`)
		o.must("once resume", of("acme"))
		o.must("once resume", of("brot"))
		require.Empty(t, measured(), "also before their effects are due again")
	})
}

// registered is a plugin that keeps the registry.
type registered struct{ *pipeline.Registry }

func (*registered) Name() string { return "registered" }

func (k *registered) Register(r *pipeline.Registry) error {
	k.Registry = r
	return nil
}

// What is unknown is told until a person has decided, from the last measurement. What has failed is decided.
func TestWhatAPersonMustDecideIsACondition(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, nil)
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}}, oncetest.Step{Answer: once.IsRejected("no", "no")})
		kept := &registered{}
		w.Start(p, kept)
		o := operator{t, w}
		for i, state := range []rules.State{rules.Unknown, rules.Failed} {
			next := invoice{Customer: "acme", Number: string(rune('1' + i))}
			_, err := p.effects.Enqueue(t.Context(), next)
			require.NoError(t, err)
			require.Equal(t, state, oncetest.Settled(t, p.effects, next.key()).State)
		}
		p.effects.Measure(t.Context())
		require.Equal(t, "fail 1 effect is unknown: perhaps done, so none is sent again", said(t, w))
		o.must("once resolve", operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"1"}, "not-done": {"true"}})
		operate.Remeasure(t.Context(), kept.Registry)
		require.Empty(t, said(t, w), "the one that failed may stay as it is")
	})
}

// Each cause why nothing is called for has a line, and since when the far side works for nothing.
func TestTheStateOfAKindHasEachCause(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	var refuses atomic.Bool
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) {
		k.Gate = gate(func() bool { return !refuses.Load() })
	})
	down := oncetest.Step{Answer: once.Answer{Class: once.NotSent, Text: "connection refused"}}
	p.far.Next(down, down, down, down, down, down, down, down)
	w.Start(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		w.Turn(minute)
		return strings.Contains(said(t, w), "the far side has carried out nothing since ")
	}, minute, 5*millisecond)
	refuses.Store(true)
	state := `calls nothing, because its client says that the far side would not be called now; the far side has carried out nothing since `
	require.Contains(t, operator{t, w}.see("effects", "kinds", nil), state)
	require.Contains(t, said(t, w), "warn calls nothing, because its client says that the far side would not be called now\nwarn the far side has carried out nothing since ")
	require.Contains(t, said(t, w), "its last answer: not_sent: connection refused")
	refuses.Store(false)
	require.Equal(t, rules.Success, oncetest.SettledInTurns(t, w, p.effects, one.key()).State)
	require.NotContains(t, said(t, w), "far side")
}

// What the database refuses of the work of every instance, such as for a missing right, is seen without the log.
func TestWhatTheDatabaseRefusesIsACondition(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		w := oncetest.On(t, dsn)
		w.Start(newInvoices(w.Once, once.ByKey, nil))
		db := tablesOf(t, dsn)
		defer func() { require.NoError(t, db.Close()) }()
		_, err := db.ExecContext(t.Context(), "ALTER TABLE once_due RENAME TO once_away")
		require.NoError(t, err)
		var found operate.Condition
		require.Eventually(t, func() bool {
			all := w.Once.Conditions()
			i := slices.IndexFunc(all, func(c operate.Condition) bool { return c.Name == "ledger of effects" })
			if i < 0 {
				return false
			}
			found = all[i]
			return true
		}, minute, 5*millisecond)
		require.Equal(t, operate.Fail, found.Level)
		require.Regexp(t, "^the database refuses statements of this instance, since .*: .*once_due", found.Text)
		require.NotEmpty(t, found.Remedy)
		_, err = db.ExecContext(t.Context(), "ALTER TABLE once_away RENAME TO once_due")
		require.NoError(t, err)
	})
}
