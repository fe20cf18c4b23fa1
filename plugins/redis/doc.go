// Package redis is the plugin "redis". It owns the process's shared client for Redis or Valkey, provides
// Sources and Sinks for routes, and trims the streams that routes read. A route reads a stream as a member
// of a group and writes to others (Example is the complete program):
//
//	r.Route(pipeline.Route{
//		Name:   "greet",
//		From:   g.redis.Source("names", "greeter"),
//		Handle: greet,
//		To:     g.redis.Sink("greetings"),
//		Policy: pipeline.Policy{DeadLetter: g.redis.Sink("names-dead")},
//	})
//
// Readers poll with XREADGROUP and never send a blocking command. Besides Source there are
//
//   - Domain, a stream that is divided into shards, which one instance at a time may read in order;
//   - Family, streams that other components create and delete;
//   - Server, the Redis of a handler, which imports no driver and sends commands and scripts with Do;
//   - Follower, which reads capped streams from their end, without a group.
//
// The plugin also keeps the presence of the instance, by which others see that it has died. Its parts are
// packages: entry has the fields of a stream entry, poll the reader, pubsub a publisher and a subscriber
// that also serve plain Watermill, and leftover the removal of what killed processes leave behind.
//
// # Non-obvious
//
//   - Trimming removes an entry when the groups of this process's routes, and the required groups, have
//     acknowledged it. A group that another process reads with is foreign and delays trimming for at most
//     its grace.
//   - A cancelled context does not interrupt a command of go-redis, but a deadline does, so each command
//     here has one.
package redis
