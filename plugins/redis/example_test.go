package redis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/plugins/redis"
)

// greeter is a plugin that answers each name of a stream in another stream.
type greeter struct {
	redis *redis.Plugin
	heard chan string
}

func (greeter) Name() string { return "greeter" }

func (g greeter) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "greet",
		From: g.redis.Source("names", "greeter"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage(m.UUID, append([]byte("hello "), m.Payload...))}, nil
		},
		To: g.redis.Sink("greetings"),
		Policy: pipeline.Policy{
			Retry:      pipeline.RetryVia(g.redis, "names-retry", "greeter", 5, pipeline.Backoff{First: time.Second, Max: time.Minute}),
			DeadLetter: g.redis.Sink("names-dead"),
		},
	})
	r.Route(pipeline.Route{
		Name: "tell",
		From: g.redis.Source("greetings", "greeter"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			g.heard <- string(m.Payload)
			return nil, nil
		},
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, // a greeting may be lost
	})
	return nil
}

// Example runs a flow from one stream to another.
func Example() {
	mini := miniredis.NewMiniRedis() // in a service: a real server
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()
	r := redis.New()
	r.Settings().(*redis.Config).Addrs = []string{mini.Addr()} // in a service: plugins.redis.addrs
	g := greeter{r, make(chan string)}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "example"}, r, g)
	if err != nil {
		panic(err)
	}
	rt, ctx := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap}), context.Background()
	if err := rt.Start(ctx); err != nil {
		panic(err)
	}
	if err := r.Sink("names").Publish(ctx, message.NewMessage("1", []byte("Ada"))); err != nil {
		panic(err)
	}
	fmt.Println(<-g.heard)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// hello Ada
	// <nil>
}

func ExampleServer() {
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{mini.Addr()}
	server, ctx := redis.New().Server(&own), context.Background()
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer func() { _ = server.Stop(ctx) }()

	grind := redis.NewScript("-- grind.lua: adds flour.\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
	rye := grind.Call([]string{"flour:rye"}, 3)
	oats := redis.Command("GET", "flour:oats")
	if err := server.Do(ctx, rye, oats); err != nil {
		panic(err)
	}
	sum, err := rye.Int()
	fmt.Println(sum, err, oats.Missing())
	// Output: 3 <nil> true
}
