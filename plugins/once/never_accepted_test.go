package once_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// orders is a plugin whose handler asks for an invoice per order.
type orders struct {
	*invoices
	topics *pipelinetest.Topics
}

func (o orders) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "orders", From: o.topics.Source("orders", "shop"), Policy: pipeline.Policy{DeadLetter: o.topics.Sink("orders-dead")},
		Calls:  []pipeline.Endpoint{o.effects.Describe()},
		Handle: pipeline.JSON(func(ctx context.Context, i invoice) error { return o.effects.Accept(ctx, i) }),
	})
	return o.invoices.Register(r)
}

// A record whose effect can never be accepted is a dead letter of the handler's route at once, and the ones after it are handled.
func TestWhatCanNeverBeAcceptedIsADeadLetter(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(orders{p, w.Topics})
		other, large := one, invoice{Customer: "acme", Number: "18"}
		other.Cents++
		w.Topics.Feed("orders").SendPayloads(one.payload(), `{"customer":"acme"}`, other.payload(), one.payload(), `{"customer":"zeta","number":"1"}`)
		require.Equal(t, map[string]int{"undecodable": 1, "effect_conflict": 1}, deadOf(t, w, "orders-dead", 2))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "zeta", ID: "1"}).State)
		require.Equal(t, 1, p.far.Executed(one.idempotency()))

		large.Number += strings.Repeat("x", 100)
		for _, i := range []invoice{{Customer: "acme"}, large} {
			_, err := p.effects.Enqueue(t.Context(), i)
			require.ErrorIs(t, err, once.ErrKey)
			require.True(t, pipeline.IsPermanent(err), err)
		}
	})
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) {
		k.Request = func(invoice) ([]byte, error) { return make([]byte, 64<<10+1), nil }
	})
	w.Start(p)
	err := p.effects.Accept(t.Context(), one)
	require.True(t, pipeline.IsPermanent(err), err)
	require.ErrorContains(t, err, "the limit is 65536")
}

// Publishers in other languages have headers that are numbers in binary form.
func TestARecordWithABinaryHeaderIsAnEffect(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var headers map[string]string
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
			c.Topic, c.Group = "invoice", "millrace-invoice"
			call := k.Call
			k.Call = func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
				headers = a.Headers
				return call(ctx, a)
			}
		})
		w.Start(p)
		m := message.NewMessage(watermill.NewULID(), []byte(one.payload()))
		m.Metadata.Set("kafka_original-offset", "\x00\x00\x00\x00\x00\x00\xff\x81")
		m.Metadata.Set("tenant", "acme")
		w.Topics.Feed("invoice").Send(m)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		require.Equal(t, "acme", headers["tenant"])
		require.NotContains(t, headers, "kafka_original-offset")
	})
}

// A record that comes again byte for byte is no conflict after a deployment that makes another request of it.
func TestARecordThatComesAgainIsKnown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		version := "1"
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) {
			k.Request = func(invoice) ([]byte, error) { return []byte("invoice of version " + version), nil }
		})
		w.Start(p)
		require.NoError(t, p.effects.Accept(t.Context(), one))
		version = "2"
		require.NoError(t, p.effects.Accept(t.Context(), one))
		other := one
		other.Cents++
		require.Error(t, p.effects.Accept(t.Context(), other))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
	})
}
