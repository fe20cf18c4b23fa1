package sse

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// heartbeatBuckets is how many parts of the clients get their heartbeats one after the other.
const heartbeatBuckets = 15

// Hub serves the streams of one plugin. Plugin.Hub makes it. It is safe for concurrent use.
type Hub struct {
	plugin  *Plugin
	name    string
	metrics hubMetrics
	sampled *logs.Throttle

	mu       sync.Mutex
	clients  [heartbeatBuckets]map[*Client]struct{}
	next     uint8 // bucket of the next client
	draining bool
}

// Serve answers a request with a stream, and returns when the stream has ended. The response begins
// at once. begin then runs on the same goroutine: it may write a backlog with Client.Write, and it
// makes the client known to those that send. Sent events are queued until begin has returned.
//
// ctx of begin ends with the stream: the client is gone or too slow, or Close was called. If begin
// fails, the stream ends with the event busy and the reason unavailable, and the error is logged.
// While the process stops, each request is refused.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, begin func(ctx context.Context, c *Client) error) {
	c := &Client{
		hub: h, out: w, control: http.NewResponseController(w), wake: make(chan struct{}, 1),
	}
	c.life, c.end = context.WithCancel(r.Context())
	defer c.end()
	if err := c.control.SetWriteDeadline(time.Now().Add(writeDeadline)); err != nil {
		h.plugin.log.ErrorContext(r.Context(), "response can't be streamed", slog.String("hub", h.name), logs.Err(err))
		http.Error(w, "the response can't be streamed", http.StatusInternalServerError)
		return
	}
	if !h.join(c) {
		h.Refuse(w, reasonDraining)
		return
	}
	defer h.leave(c, r)
	// The server writes the end of the response after this handler.
	defer func() { _ = c.control.SetWriteDeadline(time.Now().Add(writeDeadline)) }()

	setHeaders(w)
	if c.flush([][]byte{append(retry(time.Second, 5*time.Second), '\n')}) != nil {
		return
	}
	err := begin(c.life, c)
	if err != nil && c.open() {
		h.sampled.Warn(h.plugin.log, "stream did not begin", slog.String("hub", h.name), logs.Err(err))
		_ = c.flush([][]byte{busy(reasonUnavailable)})
		c.Close(reasonUnavailable)
		return
	}
	c.run(r.Context(), err != nil)
}

// run writes what is sent until the stream ends.
func (c *Client) run(connected context.Context, aborted bool) {
	for {
		b := c.takeBatch(aborted)
		if len(b.frames) > 0 {
			if c.flush(b.frames) != nil {
				return
			}
			c.written(b)
		}
		if b.last {
			return
		}
		select {
		case <-c.wake:
		case <-connected.Done():
			return
		}
	}
}

func (c *Client) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason == ""
}

// Refuse answers a request as Busy does, and counts it.
func (h *Hub) Refuse(w http.ResponseWriter, reason string) {
	h.metrics.refused.WithLabelValues(reason).Inc()
	Busy(w, reason)
}

// join adds a client unless the process stops.
func (h *Hub) join(c *Client) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return false
	}
	c.bucket = h.next
	h.next = (h.next + 1) % heartbeatBuckets
	h.clients[c.bucket][c] = struct{}{}
	h.metrics.opened.Inc()
	h.metrics.connections.Inc()
	return true
}

func (h *Hub) leave(c *Client, r *http.Request) {
	c.mu.Lock()
	c.cutOff(reasonGone)
	reason := c.reason
	c.mu.Unlock()
	h.metrics.closed.WithLabelValues(reason).Inc()
	if reason == reasonSlow {
		h.sampled.Warn(h.plugin.log, "client read too slowly and was disconnected",
			slog.String("hub", h.name), slog.String("address", r.RemoteAddr))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients[c.bucket], c)
	h.metrics.connections.Dec()
}

// beat sends the heartbeats of one bucket.
func (h *Hub) beat(bucket int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients[bucket] {
		c.heartbeat()
	}
}

// drain refuses new clients from now on, and returns those that are open.
func (h *Hub) drain() []*Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	var open []*Client
	for _, bucket := range h.clients {
		for c := range bucket {
			open = append(open, c)
		}
	}
	return open
}

func (h *Hub) open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, bucket := range h.clients {
		n += len(bucket)
	}
	return n
}
