package pubsub_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// greet answers a name with a greeting.
func greet(m *message.Message) ([]*message.Message, error) {
	return message.Messages{message.NewMessage(m.UUID, append([]byte("hello "), m.Payload...))}, nil
}

// Example is a program on Watermill's own Router: one handler greets the names of a stream in another
// stream, and a second one prints the greetings.
func Example() {
	server := miniredis.NewMiniRedis() // in a service: a real server
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	settings := redis.DefaultClientConfig()
	settings.Addrs = []string{server.Addr()}
	client, err := redis.NewClient(settings, nil)
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()

	pub, err := pubsub.NewPublisher(client, pubsub.PublisherConfig{})
	if err != nil {
		panic(err)
	}
	sub, err := pubsub.NewSubscriber(client, pubsub.SubscriberConfig{
		Group:  "greeter",
		Config: poll.Config{Concurrency: 2}, // messages in a handler at once
	})
	if err != nil {
		panic(err)
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	heard, ended := make(chan string), make(chan error, 1)
	router.AddHandler("greet", "names", sub, "greetings", pub, greet)
	router.AddConsumerHandler("tell", "greetings", sub, func(m *message.Message) error {
		heard <- string(m.Payload)
		return nil
	})
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()

	if err := pub.Publish("names", message.NewMessage("1", []byte("Ada"))); err != nil {
		panic(err)
	}
	fmt.Println(<-heard)
	fmt.Println(router.Close(), <-ended) // Close also closes the subscriber, which finishes its messages
	// Output:
	// hello Ada
	// <nil> <nil>
}
