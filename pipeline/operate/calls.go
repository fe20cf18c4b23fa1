package operate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// lastingCalls is the number of calls that failed in a row from which on people are told.
const lastingCalls = 3

// quietCalls is how long ago the last failure is when people are told that nothing has been called since, because then
// it says little about the present.
const quietCalls = time.Minute

// slowShare is the part of the calls in flight that must have waited for half of their time until people are
// told. A few slow ones among many are normal, and calls that hang soon hold most of the places.
const slowShare = 0.25

// Calls remembers how the calls of a server ended and which wait for an answer, and is a Conditioned. A plugin
// sets the fields, offers it in Register, and notes each call. It is safe for concurrent use.
type Calls struct {
	Name  string            // what people call the server, such as "the shop's API"
	Place pipeline.Endpoint // such as pipeline.ServerOf(url), as in Route.Calls
	Then  string            // what follows a call that failed, such as "each message waits for its retry"

	mu       sync.Mutex
	answered bool
	failed   int       // in a row
	since    time.Time // the first of these
	last     string    // why the last one failed that did
	lastAt   time.Time // when
	absent   bool      // it did not reach the server

	next     uint64              // key in underWay
	underWay map[uint64]callTime // calls that have not ended
}

// callTime is when a call began, and how long it may take.
type callTime struct {
	since time.Time
	limit time.Duration
}

// Began notes a call that begins, and that may take until the deadline of ctx. The caller calls ended when the call
// has ended, whatever its end.
func (c *Calls) Began(ctx context.Context) (ended func()) {
	call := callTime{since: time.Now()}
	if until, bounded := ctx.Deadline(); bounded {
		call.limit = until.Sub(call.since)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay == nil {
		c.underWay = map[uint64]callTime{}
	}
	key := c.next
	c.next++
	c.underWay[key] = call
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.underWay, key)
	}
}

// slow counts the calls that have waited for more than half of their time, and returns the one that has waited
// longest. The caller holds c.mu.
func (c *Calls) slow(now time.Time) (n int, longest time.Duration, limit time.Duration) {
	for _, call := range c.underWay {
		waited := now.Sub(call.since)
		if call.limit <= 0 || waited <= call.limit/2 {
			continue
		}
		n++
		if waited > longest {
			longest, limit = waited, call.limit
		}
	}
	return n, longest, limit
}

// Answered notes a call after which the server works, also if it has refused what was asked for.
func (c *Calls) Answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered, c.failed = true, 0
}

// Failed notes a call that says that the server does not work, and why, such as its answer without secrets.
func (c *Calls) Failed(why string) { c.note(why, false) }

// Unreached is Failed for a call that did not reach the server, whose address may be wrong (httpclient.Unreached).
func (c *Calls) Unreached(why string) { c.note(why, true) }

func (c *Calls) note(why string, absent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.failed == 0 {
		c.since = now
	}
	c.failed++
	c.last, c.lastAt, c.absent = why, now, absent
}

// ToDo returns what a person does about the last call that failed.
func (c *Calls) ToDo() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.toDo()
}

func (c *Calls) toDo() string {
	if c.absent {
		return "correct its address in the settings, or let this machine reach it: doctor connects to it and says what is wrong"
	}
	return "ask who runs it"
}

// Last returns why the last call failed of those that did.
func (c *Calls) Last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Conditions implements Conditioned. It has a warning after three calls in a row that failed, and one while many
// calls in flight have waited for more than half of their time. The first stays while nothing is called, and says so.
// Before the first answer it is empty otherwise.
func (c *Calls) Conditions() []Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	var all []Condition
	add := func(level Level, remedy, format string, args ...any) {
		all = append(all, Condition{Check: Check{Name: c.Name, Level: level, Text: fmt.Sprintf(format, args...), Remedy: remedy}, Place: c.Place})
	}
	if c.failed >= lastingCalls {
		then := ""
		if c.Then != "" {
			then = "; " + c.Then
		}
		if len(c.underWay) == 0 && now.Sub(c.lastAt) >= quietCalls {
			then += "; none has been made since, so nobody knows whether it works now"
		}
		add(Warn, c.toDo(), "no call has succeeded %s, and %d have failed; the last one%s: %s%s", Since(c.since, now), c.failed, ago(now.Sub(c.lastAt)), c.last, then)
	}
	if slow, longest, limit := c.slow(now); slow > 0 && float64(slow) >= slowShare*float64(len(c.underWay)) {
		add(Warn, "ask who runs it; a call without an answer in its time has failed",
			"%d of %d calls in flight: no answer yet for more than half of the time that a call may take; the longest has waited %s of %s",
			slow, len(c.underWay), exact(longest), limit.Round(time.Millisecond))
	}
	if all == nil && c.answered {
		add(OK, "", "it answers")
	}
	return all
}

// exact is for a duration that stands beside another one, of which either may be below a second.
func exact(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return short(d)
}

func ago(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	return ", " + short(d) + " ago"
}
