// Package pubsub is a Watermill publisher and subscriber on Redis Streams. The publisher puts
// concurrent calls into common pipelines. The subscriber reads with the readers of package poll.
package pubsub
