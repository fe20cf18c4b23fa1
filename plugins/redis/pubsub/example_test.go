package pubsub_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// A subscriber for plain Watermill: two messages at a time, none of them blocking a connection.
func ExampleNewSubscriber() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	settings := redis.DefaultClientConfig()
	settings.Addrs = []string{server.Addr()}
	client, err := redis.NewClient(settings)
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()

	pub, err := pubsub.NewPublisher(client, pubsub.PublisherConfig{})
	if err != nil {
		panic(err)
	}
	sub, err := pubsub.NewSubscriber(client, pubsub.SubscriberConfig{
		Group:  "mill",
		Config: poll.Config{Concurrency: 2},
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
	fmt.Println(string(m.Payload), "from", pipeline.OriginFrom(m.Context()).Source)
	m.Ack()
	// Output: rye from grain
}
