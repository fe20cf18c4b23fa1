package sse_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// Example serves a stream of two events and reads it. A reconnect is answered with 204, which ends
// an EventSource.
func Example() {
	events := sse.New()                               // in a service: from the list of plugins
	if c, ok := events.Settings().(*sse.Config); ok { // in a service: plugins.sse
		c.Heartbeat = 5 * time.Second
	}
	hub := events.Hub("clock")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sse.LastEventID(r) == "2" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		hub.Serve(w, r, func(_ context.Context, c *sse.Client) error {
			if err := c.Write(sse.Event{ID: "1", Name: "time", Data: []byte("noon")}); err != nil {
				return err
			}
			c.Send(sse.Event{ID: "2", Name: "time", Data: []byte("one o'clock")})
			c.Close("done")
			return nil
		})
	}))
	defer server.Close()

	client := ssetest.Client{
		URL: server.URL, HTTP: server.Client(),
		Retry: func(time.Duration) time.Duration { return 0 },
		Event: func(e ssetest.Event) error {
			fmt.Println(e.ID, e.Name, e.Data)
			return nil
		},
	}
	fmt.Println(client.Run(context.Background()))
	// Output:
	// 1 time noon
	// 2 time one o'clock
	// 2 closed {"reason":"done"}
	// <nil>
}

// ExampleModule serves the module to pages that import it from an address of the server.
func ExampleModule() {
	w := httptest.NewRecorder()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = io.WriteString(w, sse.Module())
	})
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stream.js", http.NoBody))
	fmt.Println(strings.Contains(w.Body.String(), "export function follow("))
	// Output: true
}
