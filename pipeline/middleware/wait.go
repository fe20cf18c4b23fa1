package middleware

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// keepsDead reports whether r has a sink that keeps what can never be handled.
func keepsDead(r pipeline.Route) bool {
	return r.Policy.DeadLetter != nil && r.Policy.DeadLetter != pipeline.Drop
}

// waitRetryAfter waits for the delay of err (pipeline.RetryAfter) before its message is nacked: the
// transport's own back-off is shorter. The wait ends early with the longest hold, a drain, the loss
// of the message's partition, or when the transport abandons the message.
func (c *Chain) waitRetryAfter(r pipeline.Route, msg *message.Message, err error) {
	delay, ok := pipeline.RetryDelay(err)
	if !ok || delay <= 0 {
		return
	}
	if hold := r.Policy.Hold(); hold > 0 {
		delay = min(delay, hold)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.draining:
	case <-pipeline.DeliveryFrom(msg.Context()).Revoked:
	case <-msg.Context().Done():
	}
}

// Running implements pipeline.Phased.
func (*Chain) Running() {}

// Draining ends all waits of waitRetryAfter. It implements pipeline.Phased.
func (c *Chain) Draining() { c.drainOnce.Do(func() { close(c.draining) }) }

var _ pipeline.Phased = (*Chain)(nil)
