package kafka_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// greeter is a plugin that answers every name on one topic with a greeting on another.
type greeter struct {
	kafka *kafka.Plugin
	heard chan string
}

func (greeter) Name() string { return "greeter" }

func (g greeter) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "greet",
		From: g.kafka.Source("names", "greeter"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage(m.UUID, append([]byte("hello "), m.Payload...))}, nil
		},
		To:     g.kafka.Sink("greetings"),
		Policy: pipeline.Policy{DeadLetter: g.kafka.Sink("names-dead")},
		Flow:   pipeline.Flow{Window: 64, Order: pipeline.OrderKey},
	})
	r.Route(pipeline.Route{
		Name: "tell",
		From: g.kafka.Source("greetings", "greeter"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			g.heard <- string(m.Payload)
			return nil, nil
		},
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, // a greeting may be lost
	})
	return nil
}

// Example runs a flow from one topic to another, on an embedded broker.
func Example() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1)) // in a service: a real one
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	k := kafka.New()
	// In a service: the setting plugins.kafka.brokers.
	k.Settings().(*kafka.Config).Brokers = broker.ListenAddrs()
	g := greeter{k, make(chan string)}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, k, g)
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
	name := message.NewMessage(watermill.NewUUID(), []byte("Ada"))
	name.Metadata.Set(pipeline.MetaKey, "ada")
	if err := k.Sink("names").Publish(ctx, name); err != nil {
		fmt.Println(err)
	}
	fmt.Println(<-g.heard)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// hello Ada
	// <nil>
}
