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

// goes is what "once status --json" says of the speed.
type goes struct {
	Waiting int64 `json:"waiting"`
	Rate    *struct {
		PerSecond     float64 `json:"per_second"`
		DonePerSecond float64 `json:"done_per_second"`
	} `json:"rate"`
	LimitedBy string `json:"limited_by"`
	Calls     struct {
		Answers map[string]int64 `json:"answers"`
	} `json:"calls"`
	Instances []struct {
		Gone        bool  `json:"gone"`
		Leases      int64 `json:"leases"`
		Calling     int   `json:"calling"`
		Concurrency int   `json:"concurrency"`
	} `json:"instances"`
}

func (o operator) goes(in operate.Input) (g goes) {
	o.t.Helper()
	text, err := json.Marshal(o.must("once status", in).Value)
	require.NoError(o.t, err)
	require.NoError(o.t, json.Unmarshal(text, &g))
	return g
}

// ofKind asks for a whole kind.
func ofKind() operate.Input { return operate.Input{"kind": {"invoice"}} }

// A command, which is a process of its own, knows how fast all instances go together, what limits them, and which are gone.
func TestHowFastAllInstancesGo(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, first *oncetest.World) {
		second := oncetest.On(t, first.Once.Settings().(*once.Config).Ledger.DSN.Reveal())
		worlds, all, end := []*oncetest.World{first, second}, []*invoices{nil, nil}, []func(){nil, nil}
		var effects []invoice
		for n := range 10 {
			effects = append(effects, invoice{Customer: "acme", Number: string(rune('a' + n))})
		}
		for i, w := range worlds {
			var started <-chan struct{}
			all[i] = newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
				c.Concurrency, c.CallTimeout = 2, hour/10
				started, end[i] = held(t, k)
			})
			w.Start(all[i])
			_, err := all[0].effects.Enqueue(t.Context(), effects...)
			require.NoError(t, err)
			<-started
			<-started
		}
		tell := func() {
			for _, p := range all {
				p.effects.Measure(t.Context())
			}
		}
		tell()
		o := command(t, first, nil)
		require.Len(t, o.goes(ofKind()).Instances, 2)
		tell() // all that they have done since the last time is to wait for their calls
		for _, in := range []operate.Input{input(""), ofKind()} {
			g := o.goes(in)
			require.EqualValues(t, 6, g.Waiting)
			require.Contains(t, g.LimitedBy, "the concurrency of the kind invoice in plugins.invoice: 4 of 4 calls run, on 2 instances.")
			require.Len(t, g.Instances, 2)
			for _, i := range g.Instances {
				require.Equal(t, []int{2, 2}, []int{i.Calling, i.Concurrency})
				require.EqualValues(t, 2, i.Leases)
				require.False(t, i.Gone)
			}
			require.Zero(t, g.Rate.PerSecond)
			require.Equal(t, "0/s", o.must("once", input("")).Tables[0].Rows[0][10])
			require.Contains(t, operator{t, first}.see("effects", "groups", nil), `"per_second":0`)
			require.Contains(t, o.must("once status", in).Lines, "limited by "+g.LimitedBy)
		}
		later := command(t, first, nil)
		later.w.Turn(minute / 2)
		g := later.goes(input(""))
		require.Nil(t, g.Rate, "nobody says it any more")
		require.Equal(t, []bool{true, true}, []bool{g.Instances[0].Gone, g.Instances[1].Gone})
		require.Regexp(t, `^test-\S+ is gone since \S+Z: it has 2 leases, which end by \S+Z$`, later.must("once status", input("")).Lines[2])

		end[0]()
		end[1]()
		for _, i := range effects {
			require.Equal(t, rules.Success, oncetest.Settled(t, all[0].effects, i.key()).State)
		}
		require.Eventually(t, func() bool {
			tell()
			return o.goes(input("")).Calls.Answers["done"] == 10
		}, minute, 5*millisecond)
		for _, in := range []operate.Input{input(""), ofKind()} {
			g = o.goes(in)
			require.Positive(t, g.Rate.DonePerSecond)
			require.GreaterOrEqual(t, g.Rate.PerSecond, g.Rate.DonePerSecond)
			require.Empty(t, g.LimitedBy, "nothing waits")
		}
		here := operator{t, first}
		require.Regexp(t, `"rate":[0-9.]*[1-9]`, here.see("effects/group", "speed", input("")))
		require.Regexp(t, `"expected_end":"nothing is open"`, here.see("effects/group", "speed", input("")))
		require.Contains(t, here.see("effects", "speed", nil), `"kind":"invoice","limited_by":"","open":0,"per_second":`)

		for _, w := range worlds {
			w.Turn(2 * minute)
		}
		tell()
		require.Empty(t, o.goes(ofKind()).Instances, "they are idle, which is nothing to say")
		_, err := o.ask("once status", operate.Input{"kind": {"nothing"}})
		require.ErrorContains(t, err, `"nothing"`)
	})
}

// An instance that has ended normally is not shown as gone.
func TestAnInstanceThatHasEndedIsNotGone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		stop := w.StartUntil(p)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		o := command(t, w, nil)
		p.effects.Measure(t.Context())
		require.Len(t, o.goes(input("")).Instances, 1)
		require.NoError(t, stop())
		require.Empty(t, o.goes(input("")).Instances)
	})
}
