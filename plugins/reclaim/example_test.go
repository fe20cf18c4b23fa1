package reclaim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
)

// oneStream is a Target with one stream. plugins/streams brings a Target of its own.
type oneStream struct {
	client goredis.UniversalClient
	stream reclaim.Stream
}

func (t oneStream) Domain() string                  { return "orders" }
func (t oneStream) Client() goredis.UniversalClient { return t.client }
func (t oneStream) MinIdle() time.Duration          { return time.Minute }
func (t oneStream) Streams() []reclaim.Stream       { return []reclaim.Stream{t.stream} }

// printer is a Reader that shows what it is given. *poll.Reader is the real one.
type printer chan string

func (printer) Free() int { return 10 }

func (p printer) Adopt(_ context.Context, entries []goredis.XMessage, delivered map[string]int64, _ func()) error {
	for _, e := range entries {
		p <- fmt.Sprintf("%s, delivered %d times", e.Values["message"], delivered[e.ID])
	}
	return nil
}

// An instance has read an order and was killed. Another one handles it.
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
	client.XGroupCreateMkStream(ctx, "orders:0", "shop", "0")
	client.XAdd(ctx, &goredis.XAddArgs{Stream: "orders:0", Values: []any{"message", "one coffee"}})
	client.HSet(ctx, "millrace:instances", "dead-7", time.Now().UnixMilli()) // its presence
	client.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: "shop", Consumer: "dead-7-0", Streams: []string{"orders:0", ">"}, Block: -1})

	config := reclaim.DefaultConfig()
	config.DeadCheck, config.PresenceTimeout = 10*time.Millisecond, 50*time.Millisecond
	reader := make(printer, 1)
	target := oneStream{client, reclaim.Stream{
		Shard: "0", Name: "orders:0", Group: "shop", Consumer: "host-1-0", Meta: "{orders:0}:meta", Reader: reader,
	}}
	reclaimer := reclaim.NewReclaimer(reclaim.Options{
		Config:   config,
		Instance: "host-1",
		Targets:  []reclaim.Target{target},
		Alive: func(ctx context.Context, instances ...string) (map[string]bool, error) {
			return redis.Alive(ctx, client, instances...)
		},
	})
	if err := reclaimer.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-reader)
	fmt.Println(reclaimer.Stop(ctx))
	// Output:
	// one coffee, delivered 2 times
	// <nil>
}

// events is a handler plugin that reads the domain scan:events.
type events struct {
	redis *redis.Plugin
	seen  chan string
}

func (events) Name() string { return "events" }

func (e events) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name:   "events.scan",
		From:   e.redis.Domain("scan:events").Source(),
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, // an event may be lost
		Handle: func(m *message.Message) ([]*message.Message, error) {
			d := pipeline.DeliveryFrom(m.Context())
			e.seen <- fmt.Sprintf("%s: %s, delivered %d times", d.Source, m.Payload, d.Delivered)
			return nil, nil
		},
	})
	return nil
}

// A domain is declared once, in the settings of the plugin redis. Its route reads it, and the
// plugin reclaim finds it there.
func ExamplePlugin() {
	ctx := context.Background()
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Protocol: 2})
	defer func() { _ = client.Close() }()
	client.XGroupCreateMkStream(ctx, "scan:events:3", "router", "0")
	client.XAdd(ctx, &goredis.XAddArgs{Stream: "scan:events:3", Values: []any{"message", "one page"}})
	client.HSet(ctx, "millrace:instances", "dead-7", time.Now().UnixMilli()) // its presence
	client.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: "router", Consumer: "dead-7-0", Streams: []string{"scan:events:3", ">"}, Block: -1})

	shared := redis.New()
	claims := reclaim.New(shared)
	configure(shared.Settings(), claims.Settings(), server.Addr())
	handler := events{shared, make(chan string, 1)}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "host-1"}, shared, claims, handler)
	if err != nil {
		fmt.Println(err)
		return
	}
	chain := middleware.New(reg, middleware.Options{})
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap})
	if err := rt.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-handler.seen)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// scan:events:3: one page, delivered 2 times
	// <nil>
}

// configure stands for the settings file.
func configure(shared, claims any, addr string) {
	if c, ok := shared.(*redis.Config); ok {
		c.Addrs = []string{addr}
		c.Domains = []redis.DomainConfig{{Prefix: "scan:events", Shards: 4, Group: "router", MaxDeliveries: 10}}
	}
	if c, ok := claims.(*reclaim.Config); ok {
		c.DeadCheck, c.PresenceTimeout = 10*time.Millisecond, 50*time.Millisecond
	}
}
