// Package redis is the plugin "redis". It owns the process's shared client for Redis or Valkey, the
// presence of the instance, and the domains (streams that are divided into shards). It provides
// Sources and Sinks for routes, and trims the streams that routes read.
//
// Its parts are packages:
//
//   - entry: the fields of a stream entry;
//   - poll: the reader, which never sends a blocking command;
//   - pubsub: a publisher and a subscriber for plain Watermill;
//   - sweep: the removal of the remains of killed processes.
//
// # Non-obvious
//
//   - Trimming removes an entry when the groups of this process's routes, and the required groups,
//     have acknowledged it. A group that another process reads with is foreign. It delays trimming
//     for at most its grace.
//   - A cancelled context does not interrupt a command of go-redis, but a deadline does. Each
//     command here has one.
package redis
