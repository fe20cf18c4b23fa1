package sse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// Event is one event of a stream.
type Event struct {
	// ID becomes the Last-Event-ID of the client. It is not sent if it is empty, or if it has a
	// line break or NUL, which the format does not allow.
	ID string
	// Name is the type of the event; empty: message. Line breaks in it become spaces.
	Name string
	// Data may have several lines. Each line break arrives as a line feed. It must be UTF-8.
	Data []byte

	frame []byte // the bytes on the wire; nil before Prepare
}

// Prepare returns the event with its bytes on the wire. All clients that the result is sent to
// share them. Later changes of the event have no effect.
func (e Event) Prepare() Event {
	if e.frame == nil {
		e.frame = e.encode()
	}
	return e
}

func (e Event) encode() []byte {
	frame := make([]byte, 0, len(e.ID)+len(e.Name)+len(e.Data)+32)
	if e.ID != "" && !strings.ContainsAny(e.ID, "\r\n\x00") {
		frame = append(append(append(frame, "id: "...), e.ID...), '\n')
	}
	if e.Name != "" {
		frame = append(append(append(frame, "event: "...), strings.Map(noBreak, e.Name)...), '\n')
	}
	for data, more := e.Data, true; more; {
		var line []byte
		line, data, more = cutLine(data)
		frame = append(append(append(frame, "data: "...), line...), '\n')
	}
	return append(frame, '\n')
}

func noBreak(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

// cutLine returns the text before the first line break, and the text after it.
func cutLine(text []byte) (line, rest []byte, more bool) {
	at := bytes.IndexAny(text, "\r\n")
	if at < 0 {
		return text, nil, false
	}
	rest = text[at+1:]
	if text[at] == '\r' {
		rest = bytes.TrimPrefix(rest, []byte("\n"))
	}
	return text[:at], rest, true
}

// LastEventID returns the id of the last event that the client has received, or "". The header wins
// over the query last_event_id, because a browser repeats its first URL.
func LastEventID(r *http.Request) string {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		return id
	}
	return r.URL.Query().Get("last_event_id")
}

// Busy answers a request for a stream that is refused for now. The client reconnects after 5 to 30
// seconds. The reason is one word of the caller, such as full.
func Busy(w http.ResponseWriter, reason string) {
	setHeaders(w)
	// The client that this write fails for is gone.
	_, _ = w.Write(busy(reason))
}

func busy(reason string) []byte {
	return append(retry(5*time.Second, 30*time.Second), withReason("busy", reason)...)
}

// retry is the line with the time after which the client reconnects, at random between two limits.
func retry(low, high time.Duration) []byte {
	return fmt.Appendf(nil, "retry: %d\n", (low + rand.N(high-low)).Milliseconds())
}

func withReason(name, reason string) []byte {
	data, _ := json.Marshal(map[string]string{"reason": reason}) // strings are always encoded
	return Event{Name: name, Data: data}.encode()
}

func setHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	// A proxy that compresses or rewrites an answer would hold events back.
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
}
