package producer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/plugins/redis"
)

func Example() {
	ctx, mini := context.Background(), miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()

	config := redis.DefaultClientConfig()
	config.Addrs = []string{mini.Addr()}
	server := redis.New().Server(&config)
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer func() { _ = server.Stop(ctx) }()

	p := producer.New(server, redis.DomainConfig{Prefix: "scan:events", Shards: 4, MaxLen: 2}, event.DefaultStages())
	ocr := &event.Event{JobID: "job-1", Stage: "ocr", Data: []byte(`{"page":1}`)}
	fmt.Println(p.Publish(ctx, ocr), ocr.Seq)
	fmt.Println(p.Publish(ctx, ocr), ocr.Seq) // the same event again: it is added once

	done := &event.Event{JobID: "job-1", Stage: "done"}
	late := &event.Event{JobID: "job-1", Stage: "ocr"}
	err := p.Publish(ctx, done, late)
	fmt.Println(done.Seq, errors.Is(err, producer.ErrFull))
	// Output:
	// <nil> 1
	// <nil> 1
	// 2 true
}
