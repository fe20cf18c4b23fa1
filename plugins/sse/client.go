package sse

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// heartbeat is an event, because a browser hides comments from scripts. A client without a listener
// ignores it.
const heartbeat = "event: heartbeat\ndata: {}\n\n"

const (
	maxEvents     = 64        // that a client has not read
	maxBytes      = 256 << 10 // of them
	writeDeadline = 5 * time.Second
	keptFrames    = 8 // room of a queue that an idle client keeps
)

// errEnded is returned by Write when the stream has ended or is closing.
var errEnded = errors.New("the stream has ended")

// Reasons of the metric that no Close gave.
const (
	reasonSlow        = "slow"        // it did not read what was sent
	reasonGone        = "gone"        // it closed the connection
	reasonDraining    = "draining"    // the process stops
	reasonUnavailable = "unavailable" // begin failed
)

// Client is one open stream. Its methods may be called from any goroutine, unless they say
// otherwise.
type Client struct {
	hub     *Hub
	life    context.Context // ends with the stream
	end     context.CancelFunc
	out     http.ResponseWriter
	control *http.ResponseController
	bucket  uint8 // of the heartbeats
	wake    chan struct{}

	mu     sync.Mutex
	queue  [][]byte
	spare  [][]byte // the queue before, for reuse
	latest []slot   // in the order of the first change
	events int      // in the queue and in the write that is under way
	bytes  int
	began  time.Time // of the write that is under way; zero: none is
	beat   bool      // a heartbeat is due
	reason string    // why the stream ends; empty while it is open
	cut    bool      // nothing more is written
}

// slot is a latest value that was not written yet.
type slot struct {
	name  string
	frame []byte
}

// Send queues an event. It never waits. A client that has 64 unread events or 256 KiB is
// disconnected. Send then returns false, and also when the stream has ended or is closing.
func (c *Client) Send(e Event) bool {
	frame := e.Prepare().frame
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != "" {
		return false
	}
	if c.events == maxEvents || c.events > 0 && c.bytes+len(frame) > maxBytes {
		c.cutOff(reasonSlow)
		return false
	}
	c.queue = append(c.queue, frame)
	c.events++
	c.bytes += len(frame)
	c.hub.metrics.unread.Inc()
	c.signal()
	return true
}

// HasCapacity reports whether Send accepts a number of events with a size in bytes now. It is for a
// caller that would rather wait than have the client disconnected. A client that has ended takes any
// number. A client whose write has not returned for the time wait will have no capacity soon, so it is
// useless to wait for it.
func (c *Client) HasCapacity(events, size int, wait time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.began.IsZero() && time.Since(c.began) >= wait {
		return true
	}
	return c.reason != "" || c.events == 0 || c.events+events <= maxEvents && c.bytes+size <= maxBytes
}

// Latest replaces the value of name that was not written yet. Values are written after the queued
// events. It never waits.
func (c *Client) Latest(name string, e Event) {
	frame := e.Prepare().frame
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != "" {
		return
	}
	if i := slices.IndexFunc(c.latest, func(s slot) bool { return s.name == name }); i >= 0 {
		c.latest[i].frame = frame
		c.hub.metrics.conflated.Inc()
		return
	}
	c.latest = append(c.latest, slot{name, frame})
	c.signal()
}

// Remove drops the value of name if it was not written yet. It would be written after the queued
// events.
func (c *Client) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = slices.DeleteFunc(c.latest, func(s slot) bool { return s.name == name })
}

// Close ends the stream after everything that is queued, with the event closed and the reason. The
// first reason counts. It does not wait. The reason is a label of a metric: a constant.
func (c *Client) Close(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == "" {
		c.reason = reason
		c.end()
		c.signal()
	}
}

// Write writes events to the socket and returns when they are sent. It waits 5 seconds at most per
// 256 KiB. It is for the backlog: only begin may call it. The error means that the stream has ended
// or is closing.
func (c *Client) Write(events ...Event) error {
	var frames [][]byte
	size := 0
	for i, e := range events {
		frames = append(frames, e.Prepare().frame)
		size += len(frames[len(frames)-1])
		if size < maxBytes && i < len(events)-1 {
			continue
		}
		if c.life.Err() != nil {
			return errEnded
		}
		if err := c.flush(frames); err != nil {
			return err
		}
		c.hub.metrics.fromBacklog.Add(float64(len(frames)))
		frames, size = frames[:0], 0
	}
	return nil
}

// signal wakes the goroutine of the stream.
func (c *Client) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

func (c *Client) heartbeat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat = true
	c.signal()
}

// cutOff ends the stream without a further write. The first reason counts. The caller has mu.
func (c *Client) cutOff(reason string) {
	if c.reason == "" {
		c.reason = reason
	}
	c.cut = true
	c.queue, c.spare, c.latest = nil, nil, nil
	c.hub.metrics.unread.Sub(float64(c.events))
	c.events = 0
	c.end()
	c.signal()
}

// batch is what one flush writes: queued events, latest values, a heartbeat, closed.
type batch struct {
	frames         [][]byte
	queued, latest int
	bytes          int  // of the queued
	last           bool // the stream ends after it
}

// takeBatch removes what is to be written. With aborted, queued events are not sent: they may lack those
// of an unfinished backlog before them.
func (c *Client) takeBatch(aborted bool) (b batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return batch{last: true}
	}
	if !aborted {
		b = batch{frames: c.queue, queued: len(c.queue), latest: len(c.latest), bytes: c.bytes}
		for _, s := range c.latest {
			b.frames = append(b.frames, s.frame)
		}
	}
	c.queue, c.spare = c.spare, nil
	clear(c.latest)
	c.latest = c.latest[:0]
	if c.beat {
		b.frames = append(b.frames, []byte(heartbeat))
		c.beat = false
	}
	if c.reason != "" {
		b.frames = append(b.frames, withReason("closed", c.reason))
		b.last = true
	}
	if len(b.frames) > 0 {
		c.began = time.Now()
	}
	return b
}

// written counts what was written, and keeps the room of its frames.
func (c *Client) written(b batch) {
	c.hub.metrics.queued.Add(float64(b.queued))
	c.hub.metrics.latest.Add(float64(b.latest))
	clear(b.frames)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return
	}
	c.began = time.Time{}
	c.events -= b.queued
	c.bytes -= b.bytes
	c.hub.metrics.unread.Sub(float64(b.queued))
	if cap(b.frames) <= keptFrames {
		c.spare = b.frames[:0]
	}
}

// flush writes frames and sends them at once. After an error the stream is cut off.
func (c *Client) flush(frames [][]byte) error {
	begin := time.Now()
	err := c.control.SetWriteDeadline(begin.Add(writeDeadline))
	for _, frame := range frames {
		if err == nil {
			_, err = c.out.Write(frame)
		}
	}
	if err == nil {
		err = c.control.Flush()
	}
	took := time.Since(begin)
	c.hub.metrics.writes.Observe(took.Seconds())
	if err == nil {
		return c.control.SetWriteDeadline(time.Time{})
	}
	reason := reasonGone
	if took >= writeDeadline {
		reason = reasonSlow
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutOff(reason)
	return err
}
