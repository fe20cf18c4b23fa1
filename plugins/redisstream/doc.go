// Package redisstream is the bridge to services that use watermill-redisstream. It has that
// library's own publisher as a Sink and its own subscriber as a Source. Reading needs it only for
// the library's own behaviour: plugins/redis reads the same entries, without blocking.
//
// # Non-obvious
//
//   - The subscriber sends XREADGROUP BLOCK, by default every 100 ms. So each Source has its own
//     client: blocking reads would use up the shared pool, and the library closes its client. Some
//     managed servers refuse BLOCK.
//   - The library's first read would block forever (BLOCK 0). It is disabled. Its BlockTime -1
//     makes a busy loop. Validate refuses it.
//   - The library delivers one message at a time. Its Close drops the ack in progress. So Drain
//     waits for the message and the reply to its XACK, and then closes.
//   - The library ends the subscription at an entry that it can't decode. Here such an entry
//     becomes a marked message without payload (entry.Malformed), which can be dead-lettered.
//   - The library does not keep a message alive, so that others claim it after MaxIdleTime. Here a
//     script renews it.
//   - The library does not search its own pending entries after a restart. Here Drain releases the
//     entries that it had read ahead.
package redisstream
