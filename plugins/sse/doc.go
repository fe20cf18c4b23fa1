// Package sse keeps streams of Server-Sent Events open on net/http. A Hub serves the streams of one
// plugin. Each stream has a bounded queue, and one slot per latest value. A client that reads too
// slowly is disconnected, and no sender waits for it.
//
// # Non-obvious
//
//   - An EventSource stops for good on any status but 200. A temporary refusal is therefore a
//     stream with the event busy (see Busy). The status 204 ends an EventSource that must not
//     reconnect.
//   - A browser hides comments from scripts, so the heartbeat is an event. A page without a
//     listener can not distinguish a dead connection from a quiet one.
//   - An EventSource repeats its first URL. The header Last-Event-ID is newer than the query.
//   - A write deadline of net/http stays set when the write has returned. On HTTP/2 it would then
//     end a stream that is idle, so it is removed after each flush.
//   - A write deadline of HTTP/2 ends the stream and not its connection. The server must set
//     http.HTTP2Config.WriteByteTimeout for connections that stop reading.
package sse
