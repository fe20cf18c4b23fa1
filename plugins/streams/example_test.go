package streams_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// memorySet is an active set for one process. A real one is durable and shared by all instances.
type memorySet struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (s *memorySet) Active(context.Context) (out []streams.Activation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.ids {
		out = append(out, streams.Activation{ID: id, TotalCount: 1000})
	}
	return out, nil
}

func (s *memorySet) Activate(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[id] = true
	return nil
}

func (s *memorySet) Deactivate(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	return nil
}

// The first entry of a campaign: its stream is activated, created and read.
func Example() {
	ctx := context.Background()
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Protocol: 2})
	defer func() { _ = client.Close() }()

	active := &memorySet{ids: map[string]bool{}}
	manager := streams.NewManager(streams.Options{
		Kind:        streams.Kind{Type: "POINT", StreamPrefix: "campaign-promotion-stream:POINT:", GroupPrefix: "campaign-promotion-group:POINT:"},
		Config:      streams.DefaultConfig,
		Client:      func() goredis.UniversalClient { return client },
		Activations: active,
		Instance:    "host-1",
	})
	fmt.Println(manager.Source().Describe())

	// In a service, a route opens the source:
	// pipeline.Route{From: manager.Source(), Activity: manager.Activity(), …}.
	sub, err := manager.Source().Open(ctx, pipeline.Flow{})
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := sub.Subscribe(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}

	entries := []entry.Entry{{Key: "777", Message: []byte(`{"amount":500}`)}}
	added, outcome, err := manager.EnqueueBatch(ctx, "12345", entries)
	fmt.Println(added, outcome, err)
	msg := <-messages
	fmt.Println(pipeline.DeliveryFrom(msg.Context()).Source, string(msg.Payload))
	msg.Ack()
	fmt.Println(sub.Drain(ctx))
	// Output:
	// elastic-streams campaign-promotion-stream:POINT:<id> (campaign-promotion-group:POINT:<id>)
	// 1 added <nil>
	// campaign-promotion-stream:POINT:12345 {"amount":500}
	// <nil>
}

func ExampleConsumers() {
	for _, total := range []int64{0, 1_000, 1_000_000} {
		fmt.Println(total, streams.Consumers(streams.DefaultTiers(), total, 1, 32))
	}
	// Output:
	// 0 1
	// 1000 2
	// 1000000 32
}
