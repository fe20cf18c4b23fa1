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
	return func(msg *message.Message) ([]*message.Message, error) {
		payload := msg.Payload // a handler may replace it; records carry it as it came
		_, err := next(msg)
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

// decide carries out what err asks for and returns the outcome with the error it is about.
func (c *Chain) decide(r pipeline.Route, msg *message.Message, err error) (string, error) {
	retries, _ := strconv.Atoi(msg.Metadata.Get(pipeline.MetaAttempt))
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
		return outcomeNacked, err
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
	if r.Policy.DeadLetter == nil {
		return outcomeDropped, err
	}
	now := time.Now()
	o := pipeline.OriginFrom(msg.Context())
	dead := pipeline.DeadLetter{
		Payload:       msg.Payload,
		Metadata:      msg.Metadata,
		Key:           o.Key,
		Class:         pipeline.Class(err),
		Error:         err.Error(),
		Handler:       r.Name,
		Origin:        o.String(),
		Attempts:      max(retries+1, int(o.Delivered)),
		FirstFailedAt: firstFailedAt(msg, now),
		FailedAt:      now,
	}.Message()
	pipeline.InjectTrace(msg.Context(), dead)
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
	pipeline.InjectTrace(msg.Context(), m)
	return m, nil
}

func firstFailedAt(msg *message.Message, now time.Time) time.Time {
	if t, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(pipeline.MetaFirstFailedAt)); err == nil {
		return t
	}
	return now
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
