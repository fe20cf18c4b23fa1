// Package poll reads a Redis stream for a consumer group without blocking commands: a Reader polls,
// and hands the messages to a channel. It keeps alive what it holds, batches acknowledgements, and
// claims idle entries of other consumers if it is told to.
//
// # Non-obvious
//
//   - The client never sends XREADGROUP again: that would hide that the first reply was lost, with its
//     entries. After any failed read the reader goes through its own pending entries again and runs
//     those that it does not have in flight. That counts no delivery. Only a reader's first look
//     does, of what an earlier process of the same name had.
//   - XACK is not fenced: anyone can acknowledge anyone's entry. An acknowledgement whose entry was
//     not confirmed to be ours within half of min_idle goes through a script that acks only what
//     still is.
//   - A bare XCLAIM … JUSTID would steal an entry back from whoever reclaimed it. Keeping alive and
//     releasing go through keep.lua, which touches only what still belongs to this reader.
//   - The server counts one delivery to a reader, however often the reader delivers a nacked entry
//     again. When an entry is left pending, its true count is written down for whoever reclaims it.
//   - An entry that waits in the buffer is as pending as one that is being handled. It is kept alive
//     too, and is not begun when the process was frozen for so long that another may have it.
package poll
