// Package pubsub is a Watermill publisher and subscriber on Redis Streams, for programs that use
// Watermill without this project's pipeline. Use it instead of watermill-redisstream where the server
// is managed, because such servers may refuse the blocking reads of that library, or where there are
// many streams, because each blocking read keeps a connection. Example is a complete program:
//
//	pub, err := pubsub.NewPublisher(client, pubsub.PublisherConfig{})
//	sub, err := pubsub.NewSubscriber(client, pubsub.SubscriberConfig{Group: "greeter"})
//	router.AddHandler("greet", "names", sub, "greetings", pub, greet)
//
// A Subscriber polls with XREADGROUP and never blocks in the server. It takes the client of
// redis.NewClient, whose commands end at their deadlines. A Publisher puts concurrent calls into common
// pipelines.
//
// The pipeline uses both as well: a sink of the plugin publishes with a Publisher, and its sources and
// Subscriber.Subscribe read with Open, which starts the readers of package poll.
package pubsub
