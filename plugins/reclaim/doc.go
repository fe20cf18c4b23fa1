// Package reclaim claims stream entries whose reader does not finish them. These are entries that
// were pending and not renewed for min_idle, and at once those of an instance that is gone. This
// instance's own reader of the same stream gets them, and handles them like any other entry.
//
// It works on Targets. A target is a domain: the elastic streams of a kind (plugins/streams), or
// the shards of a stream (the setting plugins.redis.domains). Targets run in parallel, the streams
// of a target in sequence. A stream that fails does not delay the others.
//
// # Non-obvious
//
//   - XPENDING with IDLE finds idle entries behind any number of renewed ones, and exactly these
//     are claimed. XAUTOCLAIM would examine ten entries for each one, and claim again the entries
//     that are stuck in this instance.
//   - A round that could not claim all is continued by the next one at that place. Otherwise
//     entries that fail repeatedly would keep the ones behind them pending.
//   - One reclaimer per stream works at a time, by a lease in the stream's meta. It claims in small
//     steps, because a large claim blocks Redis for milliseconds.
//   - A stream that failed or was slow comes last in the next round of its domain. Its first
//     failure delays the others by at most one command timeout.
//   - It never claims more than the free capacity of the reader.
//   - Deleted ids in a reply are entries that were trimmed or deleted while pending. This program
//     never does that, so each is reported as a loss.
//   - The client never sends a claim again. The second would find nothing idle and return an empty
//     list without an error, and the entries of the first would wait for another min_idle. After an
//     error that is no reply the reader checks its own pending entries.
//   - Only an instance that had a presence can be gone. A name that looks like an instance's proves
//     nothing.
//   - A claim adds one to the delivery count, whether or not the entry was ever handled.
package reclaim
