package redisstream_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redisstream"
)

// Results for services that use watermill-redisstream.
func ExampleNewSink() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	shared := redis.New()
	shared.Settings().(*redis.Config).Addrs = []string{server.Addr()}
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "example"}, shared)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	services := registry.Services()
	for _, s := range services {
		if err := s.Start(ctx); err != nil {
			panic(err)
		}
	}
	defer func() {
		for _, s := range services {
			_ = s.Stop(ctx)
		}
	}()
	results := redisstream.NewSink(shared, "campaign-promotion-results")
	if err := results.Publish(ctx, message.NewMessage("1", []byte(`{"status":"SUCCESS"}`))); err != nil {
		panic(err)
	}
	n, err := shared.Client().XLen(ctx, "campaign-promotion-results").Result()
	fmt.Println(results.Describe(), n, err)
	// Output: watermill-redisstream campaign-promotion-results 1 <nil>
}
