// Package redispoll moves messages through Redis Streams without ever sending a blocking command:
// a polling reader that feeds a number of slots, and a publisher that coalesces concurrent calls into
// pipelines. It owns the process's shared Redis client (the plugin "redis").
//
// Three ways in:
//
//   - Plugin.Source and Plugin.Sink, for routes of a pipeline;
//   - NewSubscriber and NewPublisher, for anything that speaks plain Watermill;
//   - NewReader, for plugins that run many readers into one channel (plugins/streams).
//
// # Non-obvious
//
//   - XREADGROUP is the one command that is never re-sent by the client: a re-sent read would hide that
//     the reply of the first one, with its entries, was lost. After any failed read the reader goes
//     through its own pending entries again and runs those that it doesn't have in hand.
//     That look counts no delivery. Only a reader's first one does, of what an earlier process of the same name had.
//   - XACK is not fenced: anyone can acknowledge anyone's entry. An acknowledgement whose entry was not
//     confirmed to be ours within half of min_idle goes through a script that acks only what still is.
//   - A bare XCLAIM … JUSTID would steal an entry back from whoever reclaimed it. Keeping alive and
//     giving back go through keep.lua, which touches only what still belongs to this reader.
//   - The server counts one delivery to a reader, however often the reader delivers a nacked entry again. When an entry
//     is left pending its true count is written down, so that whoever reclaims it counts on.
//   - An entry that waits in the buffer is as pending as one that is being handled: it is kept alive too,
//     and it is not begun when the process was frozen for so long that somebody else may have it.
//   - Trimming removes an entry when the groups of this process's routes, and the required groups, have acknowledged it. A
//     group that another process reads with is foreign, and is waited for no longer than its grace.
//   - A cancelled context doesn't interrupt go-redis in the middle of a command, a deadline does: every
//     command here has one.
package redispoll

// Kind is the kind of the endpoints and origins of this package.
const Kind = "redis-stream"
