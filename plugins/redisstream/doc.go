// Package redisstream is the bridge to services that speak watermill-redisstream: that library's
// own publisher as a Sink and its own subscriber as a Source, so that what is on the wire is
// exactly what the library writes and reads.
//
// Reading needs the bridge only when the library's own behaviour is wanted: redis reads the
// library's entries too, without blocking, many at a time.
//
// # Non-obvious
//
//   - The subscriber sends XREADGROUP BLOCK (every 100 ms by default). That is why every Source opens a client
//     of its own: blocking reads would eat the shared pool, and the library closes the client it is given.
//     Some managed servers refuse BLOCK. Nothing in Millrace uses a Source of this package by default.
//   - The library's first read would block forever (BLOCK 0) and its BlockTime -1 spins at full speed: the
//     first is switched off here, the second is refused by Validate.
//   - The library hands over one message at a time and drops the ack of what is in flight when it is closed.
//     Drain therefore lets the message finish, waits until its XACK was answered, and closes then.
//   - The library ends the whole subscription over one entry that it can't decode. Here such an entry becomes a
//     message without payload that is marked (entry.Malformed) and can be dead-lettered.
//   - The library doesn't keep a message alive while it is handled, so that others claim it after MaxIdleTime;
//     here a script renews it meanwhile.
//   - The library never looks at its own pending entries after a restart; what it had read ahead is given
//     back at Drain instead.
package redisstream
