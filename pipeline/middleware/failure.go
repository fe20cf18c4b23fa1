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
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// stepFailure is the step failure: it decides about the errors and panics of all steps inside of it.
// Whatever those have done to the message's payload and context is undone before.
func (w *route) stepFailure(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	ctx, payload, spent := msg.Context(), msg.Payload, spentBy(msg, w.retriers)
	settled := false
	defer func() {
		if !settled {
			msg.SetContext(ctx)
			w.count(msg, outcomeNacked, errUnsettled)
		}
	}()
	out, err := w.stepRecover(msg, next)
	if err == nil && len(out) > 0 {
		err = pipeline.Permanent(errOutputsLost)
	}
	msg.SetContext(ctx)
	err = w.settle(msg, payload, spent, err)
	settled = true
	return nil, err // nothing after it can fail a message
}

// stepRefuse is the step refuse: what was delivered too often, or is malformed, meets no handler.
func (w *route) stepRefuse(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	if err := refuse(w.Policy, pipeline.DeliveryFrom(msg.Context())); err != nil {
		return nil, err
	}
	return next(msg)
}

// settle decides about a message that was handled. The error of a failed message sends it to the
// retry topic, to the dead letters, or back to the transport (nack). A failed message is acked only
// when its retry record or dead letter is durable. The result is why it is nacked; nil: it is acked.
func (w *route) settle(msg *message.Message, payload message.Payload, spent history, err error) error {
	if err == nil {
		w.metrics.acked.Inc()
		markOutcome(trace.SpanFromContext(msg.Context()), outcomeAcked, nil)
		return nil
	}
	msg.Payload = payload
	outcome, err := w.decide(&w.Route, msg, err, spent)
	w.count(msg, outcome, err)
	if outcome != outcomeNacked {
		return nil
	}
	return err
}

// count counts and logs the outcome of a message that failed.
func (w *route) count(msg *message.Message, outcome string, err error) {
	w.Chain.metrics.messages.WithLabelValues(w.Name, outcome, pipeline.Class(err)).Inc()
	markOutcome(trace.SpanFromContext(msg.Context()), outcome, err)
	w.report(w.Route, msg, outcome, err)
	ended := outcome == outcomeNacked && msg.Context().Err() != nil // by the process, and not by what is wrong with the message
	if ended {
		return
	}
	w.work.failed.Add(1)
	if outcome == outcomeRetried || outcome == outcomeNacked {
		w.work.last.Store(&tried{time.Now(), pipeline.DeliveryFrom(msg.Context()).String(), err})
	}
}

// tried is a message that failed and is tried again.
type tried struct {
	at     time.Time
	origin string
	err    error
}

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
func refuse(p pipeline.Policy, d pipeline.Delivery) error {
	limit := p.MaxDeliveries
	switch {
	case d.Malformed != nil:
		return pipeline.Permanent(d.Malformed)
	case limit > 0 && d.Delivered-d.Excused > int64(limit):
		err := fmt.Errorf("delivered %d times, the limit is %d and no error of them is known", d.Delivered-d.Excused, limit)
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassDeliveryLimit)
	default:
		return nil
	}
}

// decide routes a message that failed with err, and returns the outcome and its error.
func (c *Chain) decide(r *pipeline.Route, msg *message.Message, err error, before history) (string, error) {
	again := r.Policy.Retry
	spent := again.Max > 0 && before.retries >= again.Max
	_, delayed := pipeline.RetryDelay(err)
	nack := again.To == nil || again.OnlyRetryAfter && !delayed
	// Nacked, a panic would come back at once, without end.
	hopeless := pipeline.Class(err) == pipeline.ClassPanic && nack
	if pipeline.IsPermanent(err) || spent || hopeless {
		return c.deadLetter(r, msg, err, before)
	}
	if nack {
		limit, d := r.Policy.MaxDeliveries, pipeline.DeliveryFrom(msg.Context())
		delivered := d.Delivered - d.Excused
		if limit == 0 || delivered < int64(limit) {
			c.waitRetryAfter(*r, msg, err)
			return outcomeNacked, err
		}
		err = fmt.Errorf("failed at delivery %d, the limit is %d: %w", delivered, limit, err)
		return c.deadLetter(r, msg, pipeline.WithClass(err, pipeline.ClassDeliveryLimit), before)
	}
	record, perr := retryRecord(r, msg, err, before)
	if perr != nil {
		return c.deadLetter(r, msg, errors.Join(err, perr), before)
	}
	if perr := c.send(msg.Context(), again.To, record); perr != nil {
		err = errors.Join(err, fmt.Errorf("publish retry record to %s: %w", again.To.Describe(), perr))
		if pipeline.IsPermanent(perr) { // it can never be published
			return c.deadLetter(r, msg, pipeline.WithClass(err, pipeline.Class(perr)), before)
		}
		return outcomeNacked, err
	}
	return outcomeRetried, err
}

// deadLetter publishes the dead letter of msg. When its sink permanently refuses even the cut dead
// letter, the process fails: the message must neither be lost nor repeat forever.
func (c *Chain) deadLetter(r *pipeline.Route, msg *message.Message, err error, before history) (string, error) {
	to := r.Policy.DeadLetter
	switch to {
	case pipeline.Drop:
		return outcomeDropped, err
	case nil: // refused at registration; never acked without a record
		return outcomeNacked, err
	}
	now := time.Now()
	d := pipeline.DeliveryFrom(msg.Context())
	dead := pipeline.DeadLetter{
		Payload:       msg.Payload,
		Metadata:      msg.Metadata,
		UUID:          msg.UUID,
		Key:           d.Key,
		Class:         pipeline.Class(err),
		Error:         err.Error(),
		Handler:       r.Name,
		SourceKind:    d.Kind,
		Source:        d.Source,
		Origin:        d.String(),
		Attempts:      max(before.retries+1, int(d.Delivered)),
		FirstFailedAt: before.firstFailed(now),
		FailedAt:      now,
	}.Message()
	if d.Malformed == nil { // any client can send the mark, and it would stop a replay
		delete(dead.Metadata, pipeline.MetaMalformed)
	}
	pipeline.InjectTrace(msg.Context(), dead.Metadata)
	ctx, cancel := c.publishContext(msg.Context())
	defer cancel()
	ctx, span := c.sendSpan(ctx, to.Describe(), nil, dead)
	perr := errUnsettled // if the sink panics
	defer func() { endCall(span, perr) }()
	if perr = pipeline.PublishDeadLetter(ctx, to, dead); perr != nil {
		perr = fmt.Errorf("publish dead letter to %s: %w", to.Describe(), perr)
		if pipeline.IsPermanent(perr) {
			c.fail(fmt.Errorf("route %s: %s can be neither handled nor dead-lettered: %w", r.Name, d.Origin, perr))
		}
		return outcomeNacked, errors.Join(err, perr)
	}
	return outcomeDead, err
}

func retryRecord(r *pipeline.Route, msg *message.Message, err error, before history) (*message.Message, error) {
	again := r.Policy.Retry
	payload := []byte(msg.Payload)
	if again.Payload != nil {
		var perr error
		if payload, perr = again.Payload(msg.Payload, before.retries+1); perr != nil {
			return nil, fmt.Errorf("make retry payload: %w", perr)
		}
	}
	delay, given := pipeline.RetryDelay(err)
	if !given {
		delay = again.Backoff.Delay(before.retries + 1)
	}
	now := time.Now()
	m := message.NewMessage(watermill.NewULID(), payload)
	m.Metadata = maps.Clone(msg.Metadata)
	if m.Metadata == nil {
		m.Metadata = message.Metadata{}
	}
	if key := pipeline.DeliveryFrom(msg.Context()).Key; key != "" {
		m.Metadata.Set(pipeline.MetaKey, key)
	}
	m.Metadata.Set(pipeline.MetaRetryOf, r.Name)
	m.Metadata.Set(pipeline.MetaDue, now.Add(delay).UTC().Format(time.RFC3339Nano))
	m.Metadata.Set(pipeline.MetaAttempt, strconv.Itoa(before.retries+1))
	m.Metadata.Set(pipeline.MetaFirstFailedAt, before.firstFailed(now).UTC().Format(time.RFC3339Nano))
	m.Metadata.Set(pipeline.MetaLastError, headerText(err.Error()))
	pipeline.InjectTrace(msg.Context(), m.Metadata)
	return m, nil
}

// report logs the outcome of a failed message. Lines of nacks, retries and dead letters are
// sampled. Each dropped message has its own line, because it is lost.
func (c *Chain) report(r pipeline.Route, msg *message.Message, outcome string, err error) {
	f := failed{pipeline.DeliveryFrom(msg.Context()).String(), err, trace.SpanContextFromContext(msg.Context())}
	key := failureKey{r.Name, outcome, pipeline.Class(err)}
	if outcome == outcomeDropped {
		c.logFailure(slog.LevelError, key, f, 0, slog.Attr{})
		return
	}
	c.failures.Add(key, f)
}

// failureKey is what has log lines of its own, failed the message that such a line names.
type (
	failureKey struct{ route, outcome, class string }
	failed     struct {
		origin string
		err    error
		at     trace.SpanContext // may be invalid
	}
)

func (c *Chain) logFailure(level slog.Level, key failureKey, f failed, suppressed int, late slog.Attr) {
	attrs := []slog.Attr{
		slog.String(logs.Route, key.route),
		slog.String(logs.Origin, f.origin),
		slog.String("outcome", key.outcome),
		slog.String("class", key.class),
		logs.Err(f.err),
	}
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	attrs = append(attrs, late)
	var p *panicError
	if errors.As(f.err, &p) {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	c.log.LogAttrs(trace.ContextWithSpanContext(context.Background(), f.at), level, "message not handled", attrs...)
}
