package redispoll_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// A subscriber for plain Watermill: two messages at a time, none of them blocking a connection.
func ExampleNewSubscriber() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	settings := redispoll.DefaultClientConfig()
	settings.Addrs = []string{server.Addr()}
	client, err := redispoll.NewClient(settings)
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()

	pub, err := redispoll.NewPublisher(client, redispoll.PublisherConfig{})
	if err != nil {
		panic(err)
	}
	sub, err := redispoll.NewSubscriber(client, redispoll.SubscriberConfig{
		Group:        "mill",
		ReaderConfig: redispoll.ReaderConfig{Slots: 2},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = sub.Close() }()

	messages, err := sub.Subscribe(context.Background(), "grain")
	if err != nil {
		panic(err)
	}
	if err := pub.Publish("grain", message.NewMessage("1", []byte("rye"))); err != nil {
		panic(err)
	}
	m := <-messages
	fmt.Println(string(m.Payload), "from", pipeline.OriginFrom(m.Context()).Name)
	m.Ack()
	// Output: rye from grain
}

// What any client writes into a stream with XADD is a message.
func ExampleDecodeEntry() {
	m, err := redispoll.DecodeEntry(redis.XMessage{ID: "1-0", Values: map[string]any{"key": "777", "message": `{"n":1}`}})
	fmt.Println(string(m.Payload), m.Metadata.Get(pipeline.MetaKey), m.UUID, err)
	m, err = redispoll.DecodeEntry(redis.XMessage{ID: "2-0", Values: map[string]any{"foo": "bar"}})
	fmt.Println(pipeline.Class(err), pipeline.IsPermanent(redispoll.Malformed(m)))
	// Output:
	// {"n":1} 777 1-0 <nil>
	// missing_message true
}

// Many readers can share one channel; each is resized, paused and drained by its owner.
func ExampleNewReader() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	messages := make(chan *message.Message)
	var readers []*redispoll.Reader
	for _, stream := range []string{"rye", "oats"} {
		client.XGroupCreateMkStream(ctx, stream, "mill", "0")
		client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: redispoll.Entry{Message: []byte("sack of " + stream)}.Values()})
		r := redispoll.NewReader(client, redispoll.ReaderConfig{
			Stream: stream, Group: "mill", Consumer: "miller-0", Slots: 1,
		}, messages, redispoll.Hooks{}, nil, nil)
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
