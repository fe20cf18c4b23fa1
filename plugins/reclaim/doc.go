// Package reclaim takes over stream entries whose reader does not finish them: what has been pending
// without a sign of life for min_idle, and at once what belongs to an instance that is gone. It hands
// them to this instance's own reader of the same stream, which handles them like any other entry.
//
// It works on Targets. A target is a domain: the elastic streams of a kind (plugins/streams), or the
// shards of a stream (the setting plugins.redis.domains, which is all that they need). Targets are served in parallel,
// the streams of a target in sequence, and one that fails holds up nobody.
//
// # Non-obvious
//
//   - XPENDING with IDLE finds what is idle behind any number of entries that are kept alive, and exactly that is claimed.
//     XAUTOCLAIM would examine ten entries for each one, and claim again what is stuck in this instance.
//   - A round that could not claim all is continued by the next one at that place. Otherwise entries that fail again and again,
//     and are idle again when their turn comes, would keep the ones behind them pending.
//   - One reclaimer a stream at a time, by a lease in the stream's meta, and small steps: a large claim
//     blocks Redis for milliseconds.
//   - A stream that failed or was slow comes last in the next round of its domain. In its first bad round it holds up the
//     others for one call's time limit.
//   - It never claims more than the reader has room for: a claimed entry that waits is no better off.
//   - A reply's deleted ids are entries that were trimmed or deleted while pending. Nothing of ours does
//     that, so each is reported as a loss.
//   - Claims are never sent again by the client. The second would find nothing idle and answer an empty list without an
//     error, and the entries of the first would wait for another min_idle. After an error that is no reply the reader looks
//     through its own pending entries.
//   - Only an instance that had a presence can be gone. A name that looks like an instance's proves nothing.
//   - A claim adds one to the delivery count, whether or not the entry was ever handled.
package reclaim
