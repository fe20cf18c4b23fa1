package once_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

func (o operator) next(i invoice) string { return o.must("once explain", input(i.Number)).Notes[0] }

// command is an operator with a process of its own, whose kind is that of invoices as change has it.
func command(t *testing.T, w *oncetest.World, change func(*once.Kind[invoice], *once.KindConfig)) operator {
	t.Helper()
	return commandOf(t, w.Once.Settings().(*once.Config).Ledger.DSN.Reveal(), func(o *once.Plugin) pipeline.Plugin { return newInvoices(o, once.ByKey, change) })
}

func commandOf(t *testing.T, dsn string, plugin func(*once.Plugin) pipeline.Plugin) operator {
	t.Helper()
	own := oncetest.On(t, dsn)
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "command"}, own.Once, plugin(own.Once))
	require.NoError(t, err)
	closed, err := own.Once.OpenForCommand(t.Context(), reg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closed(context.Background())) })
	return operator{t, own}
}

// The trace in which an effect was accepted is found again, and an effect without one has no line about it.
func TestExplainNamesTheTrace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0xab, 15: 1}, SpanID: trace.SpanID{7: 2}, TraceFlags: trace.FlagsSampled})
		_, err := p.effects.Enqueue(trace.ContextWithRemoteSpanContext(t.Context(), at), one)
		require.NoError(t, err)
		second := invoice{Customer: "acme", Number: "18"}
		_, err = p.effects.Enqueue(t.Context(), second)
		require.NoError(t, err)
		a := o.must("once explain", input(one.Number))
		require.Contains(t, a.Lines, "  trace           ab000000000000000000000000000001, span 0000000000000002")
		answer, err := json.Marshal(a.Value)
		require.NoError(t, err)
		require.Contains(t, string(answer), `"trace_id":"ab000000000000000000000000000001","span_id":"0000000000000002"`)
		require.NotContains(t, strings.Join(o.must("once explain", input(second.Number)).Lines, "\n"), "trace")
		for number, id := range map[string]string{one.Number: "ab000000000000000000000000000001", second.Number: ""} {
			page, err := o.open("effects/effect", "effect", input(number))
			require.NoError(t, err)
			require.Contains(t, page.(console.Blocks)[0].(console.Record).Fields, console.Stat{Name: "Trace", Cell: console.Trace(id)})
		}
	})
}

// An effect that is due and waits for a token is not "sent now".
func TestWhatWaitsForARateIsExplained(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Limits.PerSecond = fewest })
		w.Start(p)
		o := operator{t, w}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, one.key())
		second, third := invoice{Customer: "acme", Number: "18"}, invoice{Customer: "acme", Number: "19"}
		for _, i := range []invoice{second, third} {
			_, err = p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
		}
		require.Regexp(t, `^Next: the request is sent when the limit of the kind invoice allows it, which is 0.001/s \(settings\): in about 16m\d+s\.$`, o.next(second))
		require.Regexp(t, `^Next: the request is sent when the limit .*, while 1 effect of the kind waited before it: in about 33m\d+s\.$`, o.next(third))
		require.Regexp(t, `"next":"the request is sent when the limit of the kind invoice allows it`, o.see("effects/effect", "effect", input("18")))
	})
}

// An effect that waits for the end of a call says so.
func TestWhatWaitsForASlotIsExplained(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var started <-chan struct{}
		var finish func()
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
			c.Limits.InFlight, c.CallTimeout = 1, hour/10
			started, finish = held(t, k)
		})
		w.Start(p)
		o := operator{t, w}
		second := invoice{Customer: "acme", Number: "18"}
		for _, i := range []invoice{one, second} {
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
			if i == one {
				<-started
			}
		}
		require.Equal(t, "Next: the request is sent when calls end, because the kind invoice has a limit of 1 in flight (settings) and 1 run.", o.next(second))
		finish()
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, second.key()).State)
		require.Equal(t, "Next: nothing. It is done.", o.next(second))
	})
}

// stops are the lines of the status about instances that call for nothing.
func (o operator) stops() []string {
	o.t.Helper()
	return slices.DeleteFunc(o.must("once status", input("")).Lines, func(line string) bool { return !strings.Contains(line, " has made no call since ") })
}

// A command, which is a process of its own, knows that an instance calls for nothing.
func TestWhatWaitsForABreakerIsExplained(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var open atomic.Bool
		open.Store(true)
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(func() bool { return !open.Load() }) })
		w.Start(p)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		p.effects.Measure(t.Context())

		o := command(t, w, nil) // its client has no breaker that is open
		why := `.* has made no call since .*Z: its client would send nothing now, such as while the breaker of the far side is open`
		require.Regexp(t, `^Next: the request is sent when an instance calls for the kind invoice again. At the moment `+why+`\.$`, o.next(one))
		require.Regexp(t, why, o.stops()[0])

		open.Store(false)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		p.effects.Measure(t.Context())
		require.Empty(t, o.stops())
	})
}

// An instance that starts measures before its client is ready, which is no stop of its kind.
func TestAnInstanceThatStartsIsNoStop(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		var starting *invoices
		commandOf(t, w.Once.Settings().(*once.Config).Ledger.DSN.Reveal(), func(o *once.Plugin) pipeline.Plugin {
			starting = newInvoices(o, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(func() bool { return false }) })
			return starting
		})
		starting.effects.Measure(t.Context())
		require.Empty(t, operator{t, w}.stops())
	})
}

// So does trouble that the far side has with all effects.
func TestWhatWaitsForAFarSideIsExplained(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, nil)
	step := oncetest.Step{Answer: once.Answer{Class: once.Throttled, General: true, Text: "quota", RetryAfter: time.Hour}}
	p.far.Next(step, step)
	w.Start(p)
	o := operator{t, w}
	_, err := p.effects.Enqueue(t.Context(), one, invoice{Customer: "acme", Number: "18"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		p.effects.Measure(t.Context())
		return len(o.stops()) == 1
	}, minute, 5*millisecond)
	waiting := invoice{Customer: "acme", Number: "19"}
	_, err = p.effects.Enqueue(t.Context(), waiting)
	require.NoError(t, err)
	require.Regexp(t, `the far side has carried out nothing since \d{4}-\d\d-\d\dT[\d:]+Z, so one call at a time tests it; its last answer: throttled: quota\.`, o.next(waiting))
}

// A program without the kind doesn't say what only one that has it knows.
func TestAKindOfAnotherProgramIsExplained(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(func() bool { return false }) })
	w.Start(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	o := command(t, w, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Name = "receipt" })
	require.Equal(t, "Next: this binary does not have the kind invoice, so a program that has it decides. If none runs, nothing happens.", o.next(one))
}

// pausing keeps the order that a route is paused.
type pausing string

func (pausing) Name() string                          { return "pausing" }
func (p pausing) Register(r *pipeline.Registry) error { r.Offer(p); return nil }

func (p pausing) ReadPauses(context.Context, []pipeline.Route) ([]operate.Condition, error) {
	return []operate.Condition{{Route: string(p), Check: operate.Check{Text: "paused since noon, by ann, because: ticket 7"}}}, nil
}

// An effect that is not in the ledger is not lost: its route is paused, and who asks learns by whom.
func TestExplainKnowsThatTheRouteIsPaused(t *testing.T) {
	t.Parallel()
	for route, paused := range map[string]bool{"invoice.accept": true, "parcel.accept": false} {
		w := oncetest.New(t)
		w.Start(newInvoices(w.Once, once.ByKey, nil), pausing(route))
		_, err := operator{t, w}.ask("once explain", input("404"))
		require.ErrorContains(t, err, "invoice:acme:404 is not in the ledger. If its record was published")
		const note = ". The route invoice.accept, which accepts it, is paused since noon, by ann, because: ticket 7"
		require.Equal(t, paused, strings.HasSuffix(err.Error(), note), err)
		require.Equal(t, paused, strings.Contains(operator{t, w}.see("effects/effect", "effect", input("404")), note+"."))
	}
}
