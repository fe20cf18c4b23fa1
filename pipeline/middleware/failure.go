package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// routeFailures acks on success, and otherwise sends the message where its error says: to the retry
// topic, to the dead letters, or back to the transport (nack). It acks a failed message only when
// the record that carries it on is durable.
func (c *Chain) routeFailures(r pipeline.Route, next message.HandlerFunc) message.HandlerFunc {
	acked := c.metrics.messages.WithLabelValues(r.Name, outcomeAcked, "")
	c.metrics.messages.WithLabelValues(r.Name, outcomeDropped, "") // there from the first scrape, so that the first one is an increase
	r.Policy.MaxDeliveries = maxDeliveries(r)
	return func(msg *message.Message) ([]*message.Message, error) {
		payload := msg.Payload // a handler may replace it; records carry it as it came
		err := refuse(r, pipeline.OriginFrom(msg.Context()))
		if err == nil {
			_, err = next(msg)
		}
		if err == nil {
			acked.Inc()
			return nil, nil
		}
		msg.Payload = payload
		outcome, err := c.decide(r, msg, err)
		c.metrics.messages.WithLabelValues(r.Name, outcome, pipeline.Class(err)).Inc()
		c.report(r, msg, outcome, err)
		if outcome == outcomeNacked {
			return nil, err
		}
		return nil, nil
	}
}

// classDeliveryLimit is the class of a message that was delivered too often.
const classDeliveryLimit = "delivery_limit"

// maxDeliveries returns how often a message of r may be delivered; zero means no limit.
func maxDeliveries(r pipeline.Route) int {
	n := r.Policy.MaxDeliveries
	if settings, ok := r.From.(pipeline.Limiter); ok && n == 0 {
		n = settings.MaxDeliveries()
	}
	if !keepsDead(r) {
		return 0 // dropped, it would be lost
	}
	return max(n, 0)
}

// refuse returns why a message must not be handled, or nil.
func refuse(r pipeline.Route, o pipeline.Origin) error {
	limit := r.Policy.MaxDeliveries
	switch {
	case o.Malformed != nil:
		return pipeline.Permanent(o.Malformed)
	case limit > 0 && o.Delivered > int64(limit):
		err := fmt.Errorf("delivered %d times, the limit is %d: whoever had it before did not say why", o.Delivered, limit)
		return pipeline.WithClass(pipeline.Permanent(err), classDeliveryLimit)
	default:
		return nil
	}
}

// decide carries out what err asks for and returns the outcome with the error it is about.
func (c *Chain) decide(r pipeline.Route, msg *message.Message, err error) (string, error) {
	retries := retriesSpent(msg)
	again := r.Policy.Retry
	spent := again.Max > 0 && retries >= again.Max
	_, asked := pipeline.RetryDelay(err)
	nack := again.To == nil || again.OnlyAsked && !asked
	// Nacked, a panic would come back at once and for ever.
	hopeless := pipeline.Class(err) == classPanic && nack
	if pipeline.IsPermanent(err) || spent || hopeless {
		return c.bury(r, msg, err, retries)
	}
	if nack {
		limit, o := r.Policy.MaxDeliveries, pipeline.OriginFrom(msg.Context())
		if limit == 0 || o.Delivered < int64(limit) {
			c.waitAsked(r, msg, err)
			return outcomeNacked, err
		}
		err = fmt.Errorf("failed at delivery %d, the limit is %d: %w", o.Delivered, limit, err)
		return c.bury(r, msg, pipeline.WithClass(err, classDeliveryLimit), retries)
	}
	record, perr := retryRecord(again, msg, err, retries)
	if perr != nil {
		return c.bury(r, msg, errors.Join(err, perr), retries)
	}
	if perr := c.send(msg.Context(), again.To, record); perr != nil {
		return outcomeNacked, errors.Join(err, fmt.Errorf("publish retry record to %s: %w", again.To.Describe(), perr))
	}
	return outcomeRetried, err
}

func (c *Chain) bury(r pipeline.Route, msg *message.Message, err error, retries int) (string, error) {
	switch r.Policy.DeadLetter {
	case pipeline.Drop:
		return outcomeDropped, err
	case nil: // refused at registration; never acked without a record
		return outcomeNacked, err
	}
	now := time.Now()
	o := pipeline.OriginFrom(msg.Context())
	dead := pipeline.DeadLetter{
		Payload:       msg.Payload,
		Metadata:      msg.Metadata,
		UUID:          msg.UUID,
		Key:           o.Key,
		Class:         pipeline.Class(err),
		Error:         err.Error(),
		Handler:       r.Name,
		Origin:        o.String(),
		Attempts:      max(retries+1, int(o.Delivered)),
		FirstFailedAt: firstFailedAt(msg, now),
		FailedAt:      now,
	}.Message()
	pipeline.InjectTrace(msg.Context(), dead.Metadata)
	if perr := c.send(msg.Context(), r.Policy.DeadLetter, dead); perr != nil {
		return outcomeNacked, errors.Join(err, fmt.Errorf("publish dead letter to %s: %w", r.Policy.DeadLetter.Describe(), perr))
	}
	return outcomeDead, err
}

func retryRecord(again pipeline.Retry, msg *message.Message, err error, retries int) (*message.Message, error) {
	payload := []byte(msg.Payload)
	if again.Payload != nil {
		var perr error
		if payload, perr = again.Payload(msg.Payload, retries+1); perr != nil {
			return nil, fmt.Errorf("make retry payload: %w", perr)
		}
	}
	delay, given := pipeline.RetryDelay(err)
	if !given {
		delay = again.Backoff.Delay(retries + 1)
	}
	now := time.Now()
	m := message.NewMessage(watermill.NewULID(), payload)
	m.Metadata = maps.Clone(msg.Metadata)
	if m.Metadata == nil {
		m.Metadata = message.Metadata{}
	}
	if o := pipeline.OriginFrom(msg.Context()); o.Key != "" {
		m.Metadata.Set(pipeline.MetaKey, o.Key)
	}
	m.Metadata.Set(pipeline.MetaDue, now.Add(delay).UTC().Format(time.RFC3339Nano))
	m.Metadata.Set(pipeline.MetaAttempt, strconv.Itoa(retries+1))
	m.Metadata.Set(pipeline.MetaFirstFailedAt, firstFailedAt(msg, now).UTC().Format(time.RFC3339Nano))
	pipeline.InjectTrace(msg.Context(), m.Metadata)
	return m, nil
}

func firstFailedAt(msg *message.Message, now time.Time) time.Time {
	if t, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(pipeline.MetaFirstFailedAt)); err == nil && t.Before(now) {
		return t
	}
	return now
}

// mostRetries is what a count on the wire is believed to be at most.
const mostRetries = 1 << 30

// retriesSpent returns how many retries a message has behind it. Its header can be written by any client: what is no
// count is none.
func retriesSpent(msg *message.Message) int {
	n, err := strconv.Atoi(msg.Metadata.Get(pipeline.MetaAttempt))
	if err != nil {
		return 0
	}
	return min(max(n, 0), mostRetries)
}

// report logs what a person can act on: a nack repeats and is metered by the transport's back-off, a
// retry is the ordinary way, a dead letter waits for a person.
func (c *Chain) report(r pipeline.Route, msg *message.Message, outcome string, err error) {
	level := slog.LevelDebug
	switch outcome {
	case outcomeNacked, outcomeDead:
		level = slog.LevelWarn
	case outcomeDropped:
		level = slog.LevelError
	}
	ctx := context.Background()
	if !c.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String(pipeline.LogRoute, r.Name),
		slog.String(pipeline.LogOrigin, pipeline.OriginFrom(msg.Context()).String()),
		slog.String("outcome", outcome),
		slog.String("class", pipeline.Class(err)),
		pipeline.Err(err),
	}
	var p *panicError
	if errors.As(err, &p) {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	c.log.LogAttrs(ctx, level, "message not handled", attrs...)
}
