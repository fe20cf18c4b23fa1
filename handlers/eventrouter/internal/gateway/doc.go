// Package gateway sends the events of jobs to their watchers as Server-Sent Events.
//
// The log of a job is the truth, and the feed of a shard carries news of it. The gateway follows
// the feeds of all domains. It notes their positions before it reads a log, so an event is in the
// log or comes with the feed. After a failed read of a feed, or when entries were trimmed that it
// has not read, it reads the logs of all watched jobs.
//
// # Order
//
// A watcher receives number n after n-1. A missing number is looked for in the log, at once and
// then at growing intervals. After gap_wait the event gap reports it, and the next number follows.
// The wait begins when this gateway has first seen a higher number of the job. While Redis is not
// available, no number is reported as missing. The terminal event always arrives, and closed after
// it.
//
// An event can arrive after its number was reported as missing, because a router was slower than gap_wait.
// The gateway then goes back to this number: its watchers receive a gap that takes the numbers from there on
// back, and the events of the log in their order. Numbers that are still missing are reported again at once.
//
// Transient events are sent in the order of the feed. While a number is missing, they wait behind
// the numbered events that were before them in the feed. At most 64 per job wait, and further ones
// are dropped. The id of the last numbered event stays the Last-Event-ID.
//
// A router can stand still after it has checked its lease. It then adds transient events to the
// feed later than the next owner of the shard. Those that are older than the last one are not sent.
//
// A failover or the expiry of a log can make a producer give a number to another event. The gateway
// then searches the log for the first such number, by the entry ids. A watcher receives a gap of
// the numbers that it has and that are given again, and the state. The id of this gap is the number
// before them, and the new events follow. A repetition with the same content is not sent again, if
// its number is among the last 64.
//
// The feed of a gateway can be behind such a loss, and still bring the earlier events and their end. An item
// of the feed whose entry is older than that of an event that was sent, although its number is higher or it
// ends the job, is therefore taken from the log only: the log has it if its router was slow.
//
// # Bursts
//
// A job sends at most 16 events in one round, when the queues of all its watchers have room. The
// next events wait. A round waits 100 ms at most, and then the clients without room are
// disconnected. It does not wait for a client to which a write has hung for 100 ms. At most 512
// events or 1 MiB wait per job. Further numbered events are read from the log later, and further
// transient events are dropped.
//
// # Cursors
//
// The id of a numbered event is its number and the id of its stream entry, such as
// 37.1732662934123-0, which is the same at every gateway. The id of a gap is its last missing
// number with the entry of the event before it, and the number of that event as a third part. In front
// of all events that entry is 0-0 and its number 0, as in 5.0-0.0. The last four gaps before that event
// follow, as in 37.1732662934123-0~2-5~8. In a stream with several jobs, an
// id has the cursors of all: name:cursor, with commas between them. The name is the first 6 bytes of
// the SHA-256 of <domain>/<job_id>, in base64 for URLs. A client may reconnect with other jobs. With
// 32 jobs, which is the limit, an id has at most 2 KiB, so it may lack the gaps of some.
//
// When a client comes back, the entry of its cursor is compared with the log, because Redis may
// have lost the event and the producer may have given its number to another one. If the log has
// another entry under the number, or lacks the number and has newer entries, the log is searched
// for the first number up to the cursor whose entry is newer than that of the client. The client
// receives the gap from this number on, as live watchers do, then the state and the new events.
// Without a newer entry, because a clock was put back, the gap begins with 1. A client whose number
// is not in the log yet receives this gap when a number that it has arrives in a newer entry. A
// terminal event that alone is newer may be late, so it arrives without such a gap, unless its number is 1:
// a job that ends with its first event has no numbers before it that a client could keep.
//
// A client that has received a gap may come back when the log has a number of the gap, because the event was
// late or because the number was given again. It then receives a second gap that takes the first one back from
// this number on, and the events. If the number comes after the client is back, the gateway knows from the
// cursor that the client lacks it, also when no other client here has received the gap.
//
// A stream with several jobs stays open until all have ended. When an operator resets one that has ended,
// its clients receive the gap of all numbers and the second run, and the stream waits for its end again.
//
// These rules hold for unusual cursors:
//
//   - A number without an entry is accepted and trusted, so numbers that are given again can go
//     unnoticed.
//   - A text that is no cursor counts as none. The stream begins with the oldest event of the log.
//   - A cursor whose event has left the log, because of log_max or its lifetime, can't be compared
//     and is trusted.
//   - A cursor older than the log receives a gap and the state, and continues with the log.
//   - A cursor above all numbers stays unless the log has newer entries. The client receives greater
//     numbers, and the terminal event in any case. So a client whose events Redis has lost receives
//     none of them twice when the same entries are delivered again.
//   - The cursor of the terminal event is answered with 204, which ends an EventSource. So is its
//     number without an entry.
//
// With from=now a stream begins with the state, whose id is the cursor.
package gateway
