// Package redis is the plugin "redis". It owns the process's shared client for Redis or Valkey, the
// presence of the instance, and the domains (streams that are cut into shards). It gives routes
// their Sources and Sinks, and trims the streams that routes read.
//
// Its parts are packages of their own:
//
//   - entry: the fields of a stream entry;
//   - poll: the reader, which never sends a blocking command, for plugins that run many readers into
//     one channel (plugins/streams);
//   - pubsub: a publisher and a subscriber, for anything that speaks plain Watermill;
//   - sweep: the removal of what killed processes left in Redis.
//
// # Non-obvious
//
//   - Trimming removes an entry when the groups of this process's routes, and the required groups,
//     have acknowledged it. A group that another process reads with is foreign, and delays trimming
//     for its grace at most.
//   - A cancelled context doesn't interrupt go-redis in the middle of a command, a deadline does:
//     every command here has one.
package redis
