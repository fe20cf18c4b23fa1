package deadletter_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
)

// recorders stands in for plugins/kafka.
type recorders map[string]*pipelinetest.Recorder

func (recorders) Kind() string { return "kafka" }

func (r recorders) Sink(topic string) pipeline.Sink { return r[topic] }

// orders is a plugin whose route has dead letters and no ledger.
type orders struct {
	in   *pipelinetest.Feed
	dead *deadletter.Plugin
}

func (orders) Name() string { return "orders" }

func (o orders) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "orders",
		From: o.in,
		Handle: func(*message.Message) ([]*message.Message, error) {
			return nil, pipeline.WithClass(pipeline.Permanent(errors.New("amount is negative")), "rejected")
		},
		Policy: pipeline.Policy{DeadLetter: o.dead.Sink("orders-dead")},
	})
	return nil
}

// Example sends what a route can't handle to a dead-letter topic.
func Example() {
	topics := recorders{"orders-dead": pipelinetest.NewRecorder("orders-dead")}
	dead := deadletter.New(topics) // in a service: deadletter.New(kafka, redis)
	o := orders{pipelinetest.NewFeed("orders"), dead}

	reg, err := pipeline.NewRegistry(pipeline.Env{}, dead, o)
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
	o.in.SendPayloads(`{"amount":-1}`)
	letters, err := topics["orders-dead"].Wait(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(letters[0].Payload))
	fmt.Println(letters[0].Metadata[pipeline.MetaDeadClass], "-", letters[0].Metadata[pipeline.MetaDeadError])
	fmt.Println(rt.Stop(ctx))
	// Output:
	// {"amount":-1}
	// rejected - amount is negative
	// <nil>
}
