// Package reclaim claims stream entries whose reader does not finish them: those that were pending and not
// renewed for min_idle, and at once those of an instance that is gone. This instance's own reader of the
// same stream gets them, and handles them like any other entry.
//
//	pending to A-0 --- A is gone, or not renewed for min_idle ---> claimed for B-0 --> route --> handler
//
// A domain that is declared in the settings (plugins.redis.domains) and read by a route here needs nothing
// more. Another plugin offers a Target in Register:
//
//	r.Offer(manager.ReclaimTarget())   // the elastic streams of a kind (plugins/streams)
//	r.Offer(reclaim.Shards(family))    // a family of plugins/redis
//
// Targets run in parallel and the streams of a target in sequence, so a stream that fails does not delay
// the other targets.
//
// # Non-obvious
//
//   - XPENDING with IDLE finds idle entries behind any number of renewed ones, and exactly these are
//     claimed. XAUTOCLAIM would examine ten entries for each one, and claim again the entries that are
//     stuck in this instance.
//   - A round that could not claim all is continued by the next one at that place, because otherwise
//     entries that fail repeatedly would keep the ones behind them pending.
//   - One reclaimer per stream works at a time, by a lease in the stream's meta. It claims in small steps,
//     because a large claim blocks Redis for milliseconds.
//   - A stream that failed or was slow comes last in the next round of its domain, so its first failure
//     delays the others by at most one command timeout.
//   - It never claims more than the free capacity of the reader.
//   - Deleted ids in a reply are entries that were trimmed or deleted while pending. This program never
//     does that, so each is reported as a loss.
//   - The client never sends a claim again. The second would find nothing idle and return an empty list
//     without an error, and the entries of the first would wait for another min_idle. After an error that
//     is no reply the reader therefore checks its own pending entries.
//   - Only an instance that had a presence can be gone, because a name that looks like an instance's
//     proves nothing.
//   - A claim adds one to the delivery count, whether or not the entry was ever handled.
package reclaim
