package broker

import (
	"context"
	"fmt"
	"time"
)

// stalledAfter is the time without progress, in addition to five intervals, after which a check
// fails. Redis may be unavailable for a moment.
const stalledAfter = 10 * time.Second

// mark stores the time in fields that Broker.mu guards.
func (b *Broker) mark(fields ...*time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range fields {
		*f = time.Now()
	}
}

// reads is the readiness check of the rank tables. It passes without users, and while any node
// answers. It fails on all brokers when Redis is unavailable. Open streams stay then, and newcomers
// get busy. So it does not count for a load balancer.
func (b *Broker) reads(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since := time.Since(b.lastRead); since > stalledAfter+5*b.opts.BroadcastInterval {
		return fmt.Errorf("no rank table was read for %s", since.Round(time.Second))
	}
	return nil
}

// loopsRun is the readiness check of the broker itself: its loops make rounds, with or without an
// answer from Redis.
func (b *Broker) loopsRun(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := b.lastBroadcast
	if b.lastSigns.Before(oldest) {
		oldest = b.lastSigns
	}
	if since := time.Since(oldest); since > stalledAfter+5*b.opts.BroadcastInterval {
		return fmt.Errorf("positions or signs of life have had no round for %s", since.Round(time.Second))
	}
	return nil
}
