package pipeline_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

type audit struct{}

func (audit) Name() string { return "audit" }

func (audit) Register(r *pipeline.Registry) error {
	r.Middleware(pipeline.Middleware{
		Name: "audit", Place: pipeline.PlaceReceived, Wrap: logged,
		Routes: []string{"greetings"}, // nil: all routes
	})
	return nil
}

func logged(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		out, err := next(m)
		fmt.Println("handled", string(m.Payload), err)
		return out, err
	}
}

// A plugin adds a middleware to a route of another plugin.
func ExampleMiddleware() {
	var topics pipelinetest.Topics
	began := make(chan struct{})
	greetings := shop{{
		Name: "greetings", From: topics.Source("greetings", "greetings"),
		Handle: func(*message.Message) ([]*message.Message, error) {
			close(began)
			return nil, nil
		},
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
	}}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, greetings, audit{})
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
	topics.Feed("greetings").SendPayloads("Hello Ann")
	<-began
	fmt.Println(rt.Stop(ctx))
	// Output:
	// handled Hello Ann <nil>
	// <nil>
}
