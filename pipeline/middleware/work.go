package middleware

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// work is what the chain tells of a route.
type work struct {
	failed atomic.Uint64         // messages, whatever became of them
	last   atomic.Pointer[tried] // nil: none has failed that is tried again
	pace   pace
}

// workOf returns that of a route.
func (c *Chain) workOf(route string) *work {
	one, known := c.works.Load(route)
	if !known {
		one, _ = c.works.LoadOrStore(route, &work{})
	}
	w, _ := one.(*work)
	return w
}

// Work implements operate.WorkTeller.
func (c *Chain) Work(route string) pipeline.RouteWork {
	one := c.workOf(route)
	w := pipeline.RouteWork{InFlight: c.metrics.held(route), Done: c.metrics.acked(route), Failed: one.failed.Load()}
	w.DonePerSecond, w.FailedPerSecond = one.pace.measure(func() counted {
		return counted{time.Now(), c.metrics.acked(route), one.failed.Load()}
	})
	if last := one.last.Load(); last != nil {
		w.LastError = &pipeline.LastError{At: last.at.UTC(), Record: textOf(last.origin, maxRecord), Class: pipeline.Class(last.err), Text: headerText(last.err.Error())}
	}
	return w
}

const (
	paceWindow = 15 * time.Second // a rate is over this time at most
	paceLeast  = time.Second      // and over this time at least
)

// pace measures how fast a route works. It counts when somebody asks, as the presence in Redis does every five
// seconds, so a rate is known from the second time on. The zero value is ready. It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex
	taken []counted // within the window, the oldest first
}

// counted has the counters of a route at a moment.
type counted struct {
	at           time.Time
	done, failed uint64
}

// measure returns the messages per second since the oldest count within the window. Nil: there is none that is old
// enough. count is called with the mutex held, so that a later count is never the smaller one.
func (p *pace) measure(count func() counted) (done, failed *float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := count()
	for len(p.taken) > 0 && now.at.Sub(p.taken[0].at) > paceWindow {
		p.taken = p.taken[1:]
	}
	if len(p.taken) > 0 && now.at.Sub(p.taken[0].at) >= paceLeast {
		first := p.taken[0]
		seconds := now.at.Sub(first.at).Seconds()
		done, failed = new(float64(now.done-first.done)/seconds), new(float64(now.failed-first.failed)/seconds)
	}
	if n := len(p.taken); n == 0 || now.at.Sub(p.taken[n-1].at) >= paceLeast {
		p.taken = append(p.taken, now)
	}
	return done, failed
}
