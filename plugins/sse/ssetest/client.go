package ssetest

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"
)

// defaultRetry is the time before a reconnect when the server gave none.
const defaultRetry = 3 * time.Second

// Client is an EventSource. It reconnects when a response ends. Fields are set before Run.
type Client struct {
	URL         string
	HTTP        *http.Client // nil: http.DefaultClient
	Header      http.Header  // of each request
	LastEventID string       // of the first request; then the id that was received last
	// Opened is called when a response has started. It may be nil.
	Opened func(*http.Response)
	// Event is called for each event. An error ends Run.
	Event func(Event) error
	// Retry returns the time before a reconnect. Nil: the time that the server gave.
	Retry func(given time.Duration) time.Duration
}

// StatusError is the answer that ends an EventSource for good.
type StatusError struct {
	Code        int
	ContentType string
	Body        []byte // the first 64 KiB of it; an EventSource in a browser can't read it
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the stream was refused: status %d, content type %q", e.Code, e.ContentType)
}

// Run reads the stream until ctx ends, Event fails, or the server answers with another status than
// 200. It returns nil for the status 204.
func (c *Client) Run(ctx context.Context) error {
	retry := defaultRetry
	for {
		if err := c.connect(ctx, &retry); err != nil {
			return err.cause
		}
		wait := retry
		if c.Retry != nil {
			wait = c.Retry(retry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// final is the end of a Run; its cause is nil after the status 204.
type final struct{ cause error }

// connect reads one response. It returns nil if the client must reconnect.
func (c *Client) connect(ctx context.Context, retry *time.Duration) *final {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return &final{err}
	}
	for name, values := range c.Header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", "text/event-stream")
	if c.LastEventID != "" {
		req.Header.Set("Last-Event-ID", c.LastEventID)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return &final{ctx.Err()}
		}
		return nil // a network error
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return &final{}
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // cut off: what has come
		return &final{&StatusError{resp.StatusCode, kind, body}}
	}
	if c.Opened != nil {
		c.Opened(resp)
	}
	events := NewReader(resp.Body, c.LastEventID)
	for {
		e, err := events.Next()
		c.LastEventID = events.LastEventID
		if events.Retry > 0 {
			*retry = events.Retry
		}
		if err != nil {
			if ctx.Err() != nil {
				return &final{ctx.Err()}
			}
			return nil
		}
		if err := c.Event(e); err != nil {
			return &final{err}
		}
	}
}
