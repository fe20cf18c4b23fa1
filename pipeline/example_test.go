package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// invoices is a plugin that writes one invoice per sale.
type invoices struct {
	sales  pipeline.Source
	issued pipeline.Sink
	dead   pipeline.Sink
}

type sale struct {
	ID     int `json:"id"`
	Amount int `json:"amount"`
}

// Validate makes a sale without an amount a dead letter.
func (s sale) Validate() error {
	if s.Amount <= 0 {
		return fmt.Errorf("amount: must be > 0, got %d", s.Amount)
	}
	return nil
}

type invoice struct {
	Sale  int `json:"sale"`
	Total int `json:"total"`
}

func (invoices) Name() string { return "invoices" }

func (p invoices) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "invoices",
		From: p.sales,
		Handle: pipeline.JSONTo(func(_ context.Context, s sale) ([]invoice, error) {
			return []invoice{{Sale: s.ID, Total: s.Amount * 119 / 100}}, nil
		}),
		To:     p.issued,
		Policy: pipeline.Policy{DeadLetter: p.dead},
	})
	return nil
}

// A complete plugin, on topics in memory. In a test, pipelinetest.Start builds the registry, the
// chain and the runtime.
func ExamplePlugin() {
	var topics pipelinetest.Topics // in a service: the plugin of Kafka
	plugin := invoices{topics.Source("sales", "invoices"), topics.Sink("invoices"), topics.Sink("sales-dead")}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, plugin)
	if err != nil {
		fmt.Println(err)
		return
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	topics.Feed("sales").SendPayloads(`{"id":1,"amount":200}`, `{"id":2}`)
	issued, err := topics.Published("invoices").Wait(ctx, 1)
	fmt.Println(string(issued[0].Payload), err)
	dead, err := topics.Published("sales-dead").Wait(ctx, 1)
	fmt.Println(string(dead[0].Payload), dead[0].Metadata[pipeline.MetaDeadError], err)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// {"sale":1,"total":238} <nil>
	// {"id":2} amount: must be > 0, got 0 <nil>
	// <nil>
}

// shop is a plugin with the routes that it is made of.
type shop []pipeline.Route

func (shop) Name() string { return "shop" }

func (s shop) Register(r *pipeline.Registry) error {
	for _, route := range s {
		r.Route(route)
	}
	return nil
}

// A route is data. NewRegistry reports the mistakes of all routes at once, and opens nothing.
func ExampleRoute() {
	pack := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	reg, err := pipeline.NewRegistry(pipeline.Env{}, shop{
		{
			Name:   "parcels",
			From:   pipelinetest.NewFeed("parcels"),
			Handle: pack,
			Policy: pipeline.Policy{Timeout: 5 * time.Second, DeadLetter: pipelinetest.NewRecorder("parcels-dead")},
			Flow:   pipeline.Flow{Window: 10, Order: pipeline.OrderKey},
		},
		{Name: "returns", From: pipelinetest.NewFeed("returns"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop}},
		{Name: "gifts", Handle: pack, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}},
	})
	parcels := reg.Routes()[0]
	fmt.Println(parcels.From.Describe(), "by", parcels.Flow.Order, "to", parcels.Policy.DeadLetter.Describe())
	fmt.Println(err)
	// Output:
	// feed parcels by key to recorder parcels-dead
	// plugin shop: route returns: Handle and HandleBatch are nil
	// plugin shop: route gifts: From is nil
}

// RetryVia adds a second route, which reads the retry topic with the same handler.
func ExampleRetryVia() {
	var topics pipelinetest.Topics // in a service: the plugin of Kafka
	handled := make(chan string, 1)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, shop{{
		Name: "parcels",
		From: topics.Source("parcels", "shop"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			source := pipeline.DeliveryFrom(m.Context()).Source
			if source == "parcels" {
				return nil, errors.New("the printer is busy")
			}
			handled <- fmt.Sprintf("%s from %s, retry %s", m.Payload, source, m.Metadata[pipeline.MetaAttempt])
			return nil, nil
		},
		Policy: pipeline.Policy{
			Retry:      pipeline.RetryVia(&topics, "parcels-retry", "shop-retry", 3, pipeline.Backoff{First: time.Minute}),
			DeadLetter: topics.Sink("parcels-dead"),
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, route := range reg.Routes() {
		fmt.Println(route.Name, "reads", route.From.Describe())
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	topics.Feed("parcels").SendPayloads("label 7") // topics in memory do not wait for the delay
	fmt.Println(<-handled)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// parcels reads feed parcels
	// parcels.retry reads feed parcels-retry
	// label 7 from parcels-retry, retry 1
	// <nil>
}

// A batch handler stores all messages with one statement. Each message has its own result. The
// delivery of a parcel is slow, so it runs after the statement and delays no other parcel.
func ExampleRoute_batch() {
	parcels, dead := pipelinetest.NewFeed("parcels"), pipelinetest.NewRecorder("parcels-dead")
	deliver := func(m *message.Message) ([]*message.Message, error) {
		fmt.Println("deliver", string(m.Payload))
		return nil, nil
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, shop{{
		Name: "parcels",
		From: parcels,
		HandleBatch: func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
			results := make([]pipeline.BatchResult, len(msgs)) // one statement for all of msgs
			for i, m := range msgs {
				if len(m.Payload) == 0 {
					results[i].Err = pipeline.Permanent(errors.New("a parcel needs a label"))
					continue
				}
				results[i].Then = deliver
			}
			return results
		},
		Batch:  pipeline.Batch{MaxRecords: 100},
		Policy: pipeline.Policy{DeadLetter: dead},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	parcels.SendPayloads("label 7", "")
	refused, err := dead.Wait(ctx, 1)
	fmt.Println(refused[0].Metadata[pipeline.MetaDeadError], err)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// deliver label 7
	// a parcel needs a label <nil>
	// <nil>
}

// A route with two outputs: what the handler returns goes to To, and what SendTo has made goes to the
// output that it names. Both are published before the ack.
func ExampleSendTo() {
	var topics pipelinetest.Topics // in a service: the plugin of Kafka
	reg, err := pipeline.NewRegistry(pipeline.Env{}, shop{{
		Name: "parcels",
		From: topics.Source("parcels", "shop"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			label := message.NewMessage(m.UUID, append([]byte("label for "), m.Payload...))
			return []*message.Message{label, pipeline.SendTo(m, "audit")}, nil
		},
		To:      topics.Sink("labels"),
		Outputs: map[string]pipeline.Sink{"audit": topics.Sink("parcels-audit")},
		Policy:  pipeline.Policy{DeadLetter: topics.Sink("parcels-dead")},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, output := range reg.Routes()[0].AllOutputs() {
		fmt.Printf("%q writes %s\n", output.Name, output.Describe())
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	topics.Feed("parcels").SendPayloads("7")
	for _, topic := range []string{"labels", "parcels-audit"} {
		published, err := topics.Published(topic).Wait(ctx, 1)
		fmt.Printf("%s: %s %v\n", topic, published[0].Payload, err)
	}
	fmt.Println(rt.Stop(ctx))
	// Output:
	// "" writes feed labels
	// "audit" writes feed parcels-audit
	// labels: label for 7 <nil>
	// parcels-audit: 7 <nil>
	// <nil>
}

// refusal is a value for the output refused of a route.
type refusal struct {
	Sale   int    `json:"sale"`
	Reason string `json:"reason"`
}

// Output is the name of the output.
func (refusal) Output() string { return "refused" }

// With JSONTo, the type of a value says to which output it goes.
func ExampleJSONTo_outputs() {
	handle := pipeline.JSONTo(func(_ context.Context, s sale) ([]any, error) {
		if s.Amount > 1000 {
			return []any{refusal{s.ID, "too large"}}, nil
		}
		return []any{invoice{s.ID, s.Amount * 119 / 100}}, nil
	})
	for _, payload := range []string{`{"id":1,"amount":200}`, `{"id":2,"amount":2000}`} {
		out, err := handle(message.NewMessage("1", []byte(payload)))
		fmt.Printf("%q %s %v\n", pipeline.OutputOf(out[0]), out[0].Payload, err)
	}
	// Output:
	// "" {"sale":1,"total":238} <nil>
	// "refused" {"sale":2,"reason":"too large"} <nil>
}
