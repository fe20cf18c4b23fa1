package poll_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Many readers can share one channel; each is resized, paused and drained by its owner.
func ExampleNewReader() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	messages := make(chan *message.Message)
	var readers []*poll.Reader
	for _, stream := range []string{"rye", "oats"} {
		client.XGroupCreateMkStream(ctx, stream, "mill", "0")
		client.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: entry.Entry{Message: []byte("sack of " + stream)}.Values()})
		r := poll.NewReader(client, poll.Options{
			Config: poll.Config{Concurrency: 1}, Stream: stream, Group: "mill", Consumer: "miller-0",
		}, messages, nil, nil)
		r.Start()
		readers = append(readers, r)
	}
	for range readers {
		m := <-messages
		fmt.Println(string(m.Payload))
		m.Ack()
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, r := range readers {
		if err := r.Drain(ctx); err != nil {
			panic(err)
		}
	}
	// Unordered output:
	// sack of rye
	// sack of oats
}
