package pipelinetest_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// labels is a plugin whose handler fails at the first delivery of each message.
type labels struct{ in *pipelinetest.Feed }

func (labels) Name() string { return "labels" }

func (p labels) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "labels",
		From: p.in,
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if pipeline.DeliveryFrom(m.Context()).Delivered == 1 {
				return nil, errors.New("the printer is busy")
			}
			return nil, nil
		},
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
	})
	return nil
}

// A feed delivers a nacked message again. Settled has the end of each delivery.
func ExampleFeed() {
	feed := pipelinetest.NewFeed("labels")
	reg, err := pipeline.NewRegistry(pipeline.Env{}, labels{feed})
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
	feed.SendPayloads("label 7")
	for range 2 {
		end := <-feed.Settled()
		fmt.Println(string(end.Message.Payload), "acked:", end.Acked)
	}
	fmt.Println(rt.Stop(ctx))
	// Output:
	// label 7 acked: false
	// label 7 acked: true
	// <nil>
}

// A recorder keeps copies of the published messages. FailWith makes it an unavailable broker.
func ExampleRecorder() {
	ctx := context.Background()
	labels := pipelinetest.NewRecorder("labels")
	m := message.NewMessage("1", []byte("label 7"))

	labels.FailWith(errors.New("no connection"))
	fmt.Println(labels.Publish(ctx, m))

	labels.FailWith(nil)
	fmt.Println(labels.Publish(ctx, m))
	published, err := labels.Wait(ctx, 1)
	fmt.Println(len(published), string(published[0].Payload), err)
	// Output:
	// no connection
	// <nil>
	// 1 label 7 <nil>
}

// The transport of example_directory_test.go reads a directory of files. It was written from the
// documents of package pipeline, and its whole test is:
//
//	root := t.TempDir()
//	pipelinetest.Transport(t, pipelinetest.TransportTest{
//		New: func() (pipeline.Topics, []pipeline.Plugin) {
//			d := &directory{root: root}
//			return d, []pipeline.Plugin{d}
//		},
//		Topic:  func(testing.TB) string { return watermill.NewULID() },
//		Bubble: true, // it needs no network
//	})
func ExampleTransport() {
	root, err := os.MkdirTemp("", "topics")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	d, ctx := &directory{root: root}, context.Background()
	if _, err := pipeline.NewRegistry(pipeline.Env{}, d); err != nil {
		panic(err)
	}
	sub, err := d.Source("orders", "billing").Open(ctx, pipeline.Flow{})
	if err != nil {
		panic(err)
	}
	orders, err := sub.Subscribe(ctx, "")
	if err != nil {
		panic(err)
	}
	if err := d.Sink("orders").Publish(ctx, message.NewMessage("1", []byte("a bag of rye"))); err != nil {
		panic(err)
	}
	m := <-orders
	origin := pipeline.DeliveryFrom(m.Context())
	fmt.Println(string(m.Payload), "from", origin.Source, "for", origin.Group)
	m.Ack()
	fmt.Println(sub.Drain(ctx))
	// Output:
	// a bag of rye from orders for billing
	// <nil>
}
