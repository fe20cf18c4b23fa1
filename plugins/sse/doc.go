// Package sse keeps streams of Server-Sent Events open on net/http. A Hub serves the streams of one plugin (Example
// is the complete program):
//
//	hub.Serve(w, r, func(ctx context.Context, c *sse.Client) error {
//		return c.Write(sse.Event{ID: "1", Name: "time", Data: []byte("noon")}) // the backlog, then c.Send
//	})
//
// Each stream has a bounded queue and one slot per latest value. A client that reads too slowly is disconnected,
// because a sender that waited for it would delay all others.
//
// # Non-obvious
//
//   - An EventSource stops for good on any status but 200, so a temporary refusal is a stream with the event busy
//     (see Busy). The status 204 ends an EventSource that must not reconnect.
//   - The heartbeat is an event, because a browser hides comments from scripts. A page without a listener can not
//     distinguish a dead connection from a quiet one.
//   - An EventSource repeats its first URL, so the header Last-Event-ID is newer than the query.
//   - A write deadline of net/http stays set when the write has returned. On HTTP/2 it would then end a stream that
//     is idle, so it is removed after each flush.
//   - A write deadline of HTTP/2 ends the stream and not its connection. The server must therefore set
//     http.HTTP2Config.WriteByteTimeout for connections that stop reading.
package sse
