// Package poll reads a Redis stream for a consumer group without blocking commands. A Reader polls,
// sends the messages to a channel, keeps their entries alive, and batches acknowledgements. It can
// also claim idle entries of other consumers.
//
// A Reader consists of a poller, a pool of workers, an acker, a renewer and a claimer. They share
// the in-flight table. They have goroutines only while entries are in it. A Scheduler sends the
// reads of all readers without entries.
//
// # Non-obvious
//
//   - The client never re-sends XREADGROUP: that would hide that the first reply was lost, with its
//     entries. After a failed read the poller searches its own pending entries for those that are
//     not in flight here. Such a search counts as a delivery only at the start of a reader, for the
//     entries of an earlier process with the same name.
//   - XACK is not fenced: any consumer can acknowledge any entry. An entry that was not confirmed
//     as ours within half of min_idle is acknowledged by ack.lua, which checks the owner.
//   - A bare XCLAIM … JUSTID would take an entry from a consumer that reclaimed it. The reader uses
//     keep.lua, which changes only its own entries.
//   - The server counts one delivery per reader, however often the reader delivers a nacked entry
//     again. The reader writes the true count when it leaves an entry pending.
//   - An entry in the buffer is as pending as one in a handler, and is kept alive too. When the
//     process was frozen for too long, the entry is not started, because another consumer may have
//     it.
package poll
