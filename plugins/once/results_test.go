package once_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

const told = "invoice-results"

// telling is a change of the kind: it publishes what became of its effects.
func telling(_ *once.Kind[invoice], c *once.KindConfig) { c.Results = told }

// whole is a record about an end.
type whole struct {
	once.Result
	Record invoice `json:"record"`
}

// toldOf waits for n records and returns each by its effect and state. Records that were published again have the same id.
func toldOf(t *testing.T, w *oncetest.World, n int) map[string]whole {
	t.Helper()
	all, ids := map[string]whole{}, map[string]string{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, m := range w.Topics.Published(told).Messages() {
			var r whole
			require.NoError(c, json.Unmarshal(m.Payload, &r))
			require.Equal(c, once.Key{Group: r.Group, ID: r.ID}.String(), m.Metadata.Get(pipeline.MetaKey))
			what := fmt.Sprint(r.Group, ":", r.ID, " ", r.State)
			if ids[what] == "" {
				ids[what] = m.UUID
			}
			require.Equal(c, ids[what], m.UUID, "one end, one id")
			all[what] = r
		}
		require.Len(c, all, n)
	}, minute, 5*millisecond)
	return all
}

// Whatever became of an effect, a record says so, with what the effect is about.
func TestTheEndOfEachEffectIsTold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, func(k *once.Kind[invoice], c *once.KindConfig) {
			telling(k, c)
			c.Topic, c.Group = "invoice", "millrace-invoice"
			k.Key = func(i invoice) (once.Key, error) {
				return once.Key{Group: i.Customer, ID: i.Number, Part: fmt.Sprint(i.Cents)}, nil
			}
		})
		p.far.Next(oncetest.Step{Answer: once.IsRejected("no_such_customer", "unknown customer")})
		w.Start(p)
		began := time.Now().Add(-time.Second)
		enqueue := func(number string) rules.State {
			_, err := p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: number, Cents: 7})
			require.NoError(t, err)
			return oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: number}).State
		}
		require.Equal(t, rules.Failed, enqueue("1"))
		require.Equal(t, rules.Success, enqueue("2"))
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}})
		require.Equal(t, rules.Unknown, enqueue("3"))
		p.far.Next(oncetest.Step{Answer: once.Answer{Text: "no answer within 3s"}})
		require.Equal(t, rules.Unknown, enqueue("5"))
		o := operator{t, w}
		o.must("once resolve", operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"5"}, "not-done": {"true"}})
		o.must("once cancel", operate.Input{"kind": {"invoice"}, "group": {"acme"}})
		require.Equal(t, rules.Cancelled, enqueue("4"))
		o.must("once resolve", operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"3"}, "done": {"found"}})
		m := message.NewMessage("1", []byte(`{"customer":"zeta","number":"1"}`))
		m.Metadata.Set(pipeline.MetaTraceParent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		w.Topics.Feed("invoice").Send(m)

		all := toldOf(t, w, 8)
		for what, want := range map[string]once.Result{
			"acme:1 FAILED":    {Attempts: 1, Class: "rejected", Error: "no_such_customer: unknown customer"},
			"acme:2 SUCCESS":   {Attempts: 1, Receipt: "receipt of invoice:acme:2"},
			"acme:3 UNKNOWN":   {Attempts: 1, Class: "unclear", Error: "no answer within 3s"},
			"acme:3 SUCCESS":   {Attempts: 1, Receipt: "found"},
			"acme:4 CANCELLED": {},
			"acme:5 UNKNOWN":   {Attempts: 1, Class: "unclear", Error: "no answer within 3s"},
			"acme:5 FAILED":    {Attempts: 1, Class: rules.ClassResolved, Error: "ticket 4711"},
			"zeta:1 SUCCESS":   {Attempts: 1, Receipt: "receipt of invoice:zeta:1"},
		} {
			got, ok := all[what]
			require.True(t, ok, "%s: %v", what, all)
			require.Equal(t, []any{want.Attempts, want.Class, want.Error, want.Receipt}, []any{got.Attempts, got.Class, got.Error, got.Receipt}, what)
			require.Equal(t, "invoice", got.Kind)
			require.Equal(t, fmt.Sprint(got.Record.Cents), got.Part)
			require.Equal(t, invoice{got.Group, got.ID, got.Record.Cents}, got.Record)
			require.True(t, !got.AcceptedAt.Before(began) && !got.SettledAt.Before(got.AcceptedAt), "%s: accepted at %s, settled at %s", what, got.AcceptedAt, got.SettledAt)
		}
		for _, m := range w.Topics.Published(told).Messages() {
			traced := strings.HasPrefix(m.UUID, "invoice:zeta:1@")
			require.Equal(t, traced, strings.Contains(m.Metadata.Get(pipeline.MetaTraceParent), "4bf92f3577b34da6a3ce929d0e0e4736"), m.UUID)
		}
	})
}

// A result that can't be made, or that its topic refuses, delays no other one, and comes when it can.
func TestOneBadResultDelaysNoOther(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var broken atomic.Bool
		broken.Store(true)
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
			telling(k, c)
			k.Result = func(r once.Result) ([]byte, error) {
				switch {
				case r.ID == "panics" && broken.Load():
					panic("a nil map")
				case r.ID == "fails" && broken.Load():
					return nil, errors.New("no schema")
				case r.ID == "silent":
					return nil, nil
				}
				return []byte(r.ID), nil
			}
		})
		w.Start(p)
		all := []invoice{{"acme", "1", 0}, {"acme", "panics", 0}, {"acme", "fails", 0}, {"acme", "silent", 0}, {"acme", "2", 0}}
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		for _, one := range all {
			oncetest.Settled(t, p.effects, one.key())
		}
		payloads := func() (all []string) {
			for _, m := range w.Topics.Published(told).Messages() {
				all = append(all, string(m.Payload))
			}
			return all
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			require.Subset(c, payloads(), []string{"1", "2"})
		}, minute, 5*millisecond)
		w.Turn(2 * minute)
		require.Eventually(t, func() bool {
			p.effects.Measure(t.Context())
			return strings.HasPrefix(said(t, w), "warn 2 results are waiting to be published, the oldest for 2m")
		}, minute, 5*millisecond, "%s", said(t, w))
		require.NotContains(t, payloads(), "fails")
		broken.Store(false)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			w.Turn(minute)
			require.ElementsMatch(c, []string{"1", "2", "fails", "panics"}, payloads())
		}, minute, 50*millisecond)
		require.Eventually(t, func() bool { // a row is deleted after its record was published
			p.effects.Measure(t.Context())
			return said(t, w) == ""
		}, minute, 5*millisecond)
	})
}

// While the topic takes nothing, effects are called for all the same, and the results come afterwards.
func TestResultsWaitForTheirTopic(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, telling)
	w.Topics.Published(told).FailWith(errors.New("the broker is away"))
	w.Start(p)
	for n := range 3 {
		_, err := p.effects.Enqueue(t.Context(), invoice{"acme", fmt.Sprint(n), 0})
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: fmt.Sprint(n)}).State)
	}
	w.Topics.Published(told).FailWith(nil)
	require.Eventually(t, func() bool {
		w.Turn(minute)
		return len(w.Topics.Published(told).Messages()) >= 3
	}, minute, 50*millisecond)
	require.Len(t, toldOf(t, w, 3), 3)
}

// A stop ends when the results of the last calls are published, and what could not be is published by the next start.
func TestAStopTellsTheLastResults(t *testing.T) {
	t.Parallel()
	dsn := "sqlite:" + filepath.Join(t.TempDir(), "once.db")
	w := oncetest.On(t, dsn)
	calling, end := make(chan struct{}), make(chan struct{})
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
		telling(k, c)
		call := k.Call
		k.Call = func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
			close(calling)
			<-end
			return call(ctx, a)
		}
	})
	stop := w.StartUntil(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	<-calling
	time.AfterFunc(100*millisecond, func() { close(end) })
	require.NoError(t, stop())
	require.Len(t, w.Topics.Published(told).Messages(), 1)

	w = oncetest.On(t, dsn)
	p = newInvoices(w.Once, once.ByKey, telling)
	w.Topics.Published(told).FailWith(errors.New("the broker is away"))
	stop = w.StartUntil(p)
	_, err = p.effects.Enqueue(t.Context(), invoice{"acme", "18", 0})
	require.NoError(t, err)
	oncetest.Settled(t, p.effects, once.Key{Group: "acme", ID: "18"})
	require.NoError(t, stop())
	w = oncetest.On(t, dsn)
	w.Start(newInvoices(w.Once, once.ByKey, telling))
	w.Turn(hour)
	require.Contains(t, toldOf(t, w, 1), "acme:18 SUCCESS")
}

// A topic of results is a place that the kind writes, and is not the one that it reads.
func TestTheTopicOfResults(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a"}, w.Once, newInvoices(w.Once, once.ByKey, telling))
	require.NoError(t, err)
	var writes []string
	for _, e := range reg.Endpoints() {
		if e.Use == pipeline.UseWrites {
			writes = append(writes, e.Name)
		}
	}
	require.Equal(t, []string{told}, writes)

	o := once.NewPlugin(nil, nil)
	_, err = pipeline.NewRegistry(pipeline.Env{Instance: "a"}, o, newInvoices(o, once.ByKey, telling))
	require.ErrorContains(t, err, `once: kind "invoice" has the topic invoice-results for results, and the plugin once was built without topics`)

	file := filepath.Join(t.TempDir(), "mill.yaml")
	require.NoError(t, os.WriteFile(file, []byte("plugins: {once: {ledger: {dsn: \"sqlite:once.db\"}}, invoice: {topic: invoice, results: invoice}}\n"), 0o600))
	var out bytes.Buffer
	code := app.Main(t.Context(), app.Options{
		Name: "mill", Plugins: []pipeline.Plugin{w.Once, newInvoices(w.Once, once.ByKey, nil)}, Environ: []string{}, Stdout: &out, Stderr: &out,
		Args: []string{"validate", "--config", file},
	})
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, out.String(), `plugins.invoice.results: must be another topic than topic, because its records ask for effects, got "invoice"`)
}
