package middleware_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// parcels is a plugin whose handler always fails.
type parcels struct{ topics *pipelinetest.Topics }

func (parcels) Name() string { return "parcels" }

func (p parcels) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name:   "parcels",
		From:   p.topics.Source("parcels", "shop"),
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, errors.New("the printer is busy") },
		Policy: pipeline.Policy{
			Retry:      pipeline.RetryVia(p.topics, "parcels-retry", "shop-retry", 2, pipeline.Backoff{}),
			DeadLetter: p.topics.Sink("parcels-dead"),
		},
	})
	return nil
}

// The chain writes a failed message to the retry topic. After the last retry it writes a dead
// letter.
func Example() {
	var topics pipelinetest.Topics // in a service: the plugin of Kafka
	reg, err := pipeline.NewRegistry(pipeline.Env{}, parcels{&topics})
	if err != nil {
		fmt.Println(err)
		return
	}
	chain := middleware.New(reg, middleware.Options{})
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	topics.Feed("parcels").SendPayloads("label 7")
	dead, err := topics.Published("parcels-dead").Wait(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, record := range topics.Published("parcels-retry").Messages() {
		fmt.Println("retry", record.Metadata[pipeline.MetaAttempt], "of", string(record.Payload))
	}
	fmt.Println("dead after", dead[0].Metadata[pipeline.MetaDeadAttempts], "attempts:", dead[0].Metadata[pipeline.MetaDeadError])
	fmt.Println(rt.Stop(ctx))
	// Output:
	// retry 1 of label 7
	// retry 2 of label 7
	// dead after 3 attempts: the printer is busy
	// <nil>
}

// tenants is a plugin that adds a middleware to the routes of other plugins. It refuses messages
// without the name of a tenant before any handler sees them.
type tenants struct{}

func (tenants) Name() string { return "tenants" }

func (tenants) Register(r *pipeline.Registry) error {
	r.Middleware(pipeline.Middleware{
		Name:  "tenant",
		Place: pipeline.PlaceReceived,
		Wrap: func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				if m.Metadata.Get("tenant") == "" {
					return nil, pipeline.Permanent(errors.New("no tenant"))
				}
				return next(m)
			}
		},
	})
	return nil
}

// A plugin may add a step to the chain of every route.
func ExampleSteps() {
	var topics pipelinetest.Topics // in a service: the plugin of Kafka
	reg, err := pipeline.NewRegistry(pipeline.Env{}, tenants{}, parcels{&topics})
	if err != nil {
		fmt.Println(err)
		return
	}
	route := reg.Routes()[0]
	fmt.Println(middleware.Steps(route))
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(route)
	_, err = handle(message.NewMessage("1", []byte("label 7")))
	fmt.Println(err, topics.Published("parcels-dead").Messages()[0].Metadata[pipeline.MetaDeadError])
	// Output:
	// [metrics trace owner failure refuse hold tenant@received publish correlation recover timeout]
	// <nil> no tenant
}
