package money

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The reasons for a call that was not made.
var (
	errDeadline    = errors.New("the deadline had passed")
	errBreakerOpen = errors.New("breaker open")
	errThrottled   = errors.New("a Retry-After holds")
	errClosed      = errors.New("client closed")
	errKey         = errors.New("the idempotency key can't be sent: it must be 1 to 128 printable ASCII characters without a slash")
)

// Slot implements API. Slots are given in the order of the calls.
func (c *Client) Slot(ctx context.Context) (release func(), err error) {
	if err := c.slots.Acquire(ctx); err != nil {
		return nil, err
	}
	return c.slots.Release, nil
}

// Drain ends all waits for a slot, now and later. A free slot is still given. Drain is idempotent.
func (c *Client) Drain() { c.slots.Close() }

// Charge implements API.
func (c *Client) Charge(ctx context.Context, ch Charge) Answer {
	o := c.operation(ch.Operation)
	if !validKey(ch.Key) {
		return o.refuse(Answer{Class: Rejected, Err: errKey})
	}
	return c.call(ctx, o, o.request, request{key: ch.Key, body: ch.Body})
}

// Lookup implements API.
func (c *Client) Lookup(ctx context.Context, key string) Answer {
	if !validKey(key) {
		return c.lookups.refuse(Answer{Class: Rejected, Err: errKey})
	}
	return c.call(ctx, &c.lookups, c.newRequest(http.MethodGet, lookupPath+key), request{lookup: true, key: key})
}

// validKey reports whether key can be sent in a header and as one element of a path.
func validKey(key string) bool {
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' || c == '/' {
			return false
		}
	}
	return key != "" && len(key) <= maxKeyLen && key != "." && key != ".."
}

func (o *operation) refuse(a Answer) Answer {
	a.Text = a.Err.Error()
	o.metrics.observe(a.Class, false, 0)
	return a
}

func (c *Client) call(ctx context.Context, o *operation, template *http.Request, req request) Answer {
	if err := c.usable(ctx); err != nil {
		return o.refuse(Answer{Class: NotSent, Err: err})
	}
	if wait := c.throttle.remaining(); wait > 0 {
		return o.refuse(Answer{Class: NotSent, RetryAfter: wait, Err: errThrottled})
	}
	permit, wait, ok := c.breaker.acquire()
	if !ok {
		return o.refuse(Answer{Class: NotSent, RetryAfter: wait, Err: errBreakerOpen})
	}

	start := time.Now()
	ctx, span := startSpan(ctx, o.name, template)
	used := c.tokens.get(ctx)
	req.secret = used.token
	a, v, sent := c.exchange(ctx, template, &req, used)
	c.evaluate(ctx, &a, permit, req.key, v, used)
	endSpan(span, &a)
	o.metrics.observe(a.Class, sent, time.Since(start))
	return a
}

// usable returns the reason why a call must not start.
func (c *Client) usable(ctx context.Context) error {
	// Not ctx.Err() alone: in a process that was frozen the timer may not have fired yet.
	if at, ok := ctx.Deadline(); ok && c.dialer.clock.passed(at) {
		return errDeadline
	}
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return errDeadline
	case err != nil:
		return err
	case c.dialer.life.Err() != nil:
		return errClosed
	}
	return nil
}

func (c *Client) exchange(caller context.Context, template *http.Request, req *request, cred *credential) (a Answer, v verdict, sent bool) {
	ctx, cancel := context.WithTimeout(caller, c.cfg.CallTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	tracker := newSendTracker(deadline)
	resp, err := c.transport.RoundTrip(build(httptrace.WithClientTrace(ctx, &tracker.trace), template, req, cred))
	if tracker.conns > 1 {
		c.metrics.replays.Add(float64(tracker.conns - 1))
	}
	if err != nil {
		a, v = unanswered(caller, ctx, err, tracker.sent())
		return a, v, tracker.sent()
	}
	buf := c.buffers.Get().(*bytes.Buffer)
	defer c.buffers.Put(buf)
	buf.Reset()
	r := reply{status: resp.StatusCode, header: resp.Header, readErr: readBody(resp, buf)}
	r.body = buf.Bytes()
	a, v = classify(req, &r, time.Now(), &c.cfg)
	if r.readErr != nil && v == failing && errors.Is(caller.Err(), context.Canceled) {
		v = neutral
	}
	return a, v, true
}

// build completes the template. It writes headers by their canonical names, which is faster. The
// body is a bytes.Reader: with another type net/http sends headers and body in two packets.
func build(ctx context.Context, template *http.Request, r *request, cred *credential) *http.Request {
	req := template.WithContext(ctx)
	h := maps.Clone(cred.header)
	if !r.lookup {
		h["Content-Type"] = h["Accept"]
		h["Idempotency-Key"] = []string{r.key}
		req.ContentLength = int64(len(r.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.body)), nil }
		req.Body, _ = req.GetBody()
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	req.Header = h
	return req
}

// readBody appends the answer's body to buf. The connection can be used again only if it was read
// to its end.
func readBody(resp *http.Response, buf *bytes.Buffer) error {
	defer resp.Body.Close()
	_, err := buf.ReadFrom(io.LimitReader(resp.Body, maxBodyBytes+1))
	if buf.Len() > maxBodyBytes {
		return errors.New("answer too large")
	}
	return err
}

// unanswered classifies a call without an answer.
func unanswered(caller, ctx context.Context, err error, sent bool) (Answer, verdict) {
	a, text := Answer{Class: NotSent, Err: err}, "not sent: "
	if sent {
		a.Class, text = Ambiguous, "sent, but no answer: "
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		a.Err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	a.Text = clean(text+a.Err.Error(), maxTextLen)
	if errors.Is(caller.Err(), context.Canceled) {
		return a, neutral
	}
	return a, failing
}

// evaluate updates what all calls share: breaker, throttle, credential and metrics.
func (c *Client) evaluate(ctx context.Context, a *Answer, p permit, key string, v verdict, used *credential) {
	refused := a.Status == http.StatusUnauthorized // the credential, which all payouts share
	if refused {
		if c.tokens.renew(ctx, used) {
			v = neutral
		}
	}
	if c.breaker.record(p, key, v) {
		c.throttle.extend(a.RetryAfter)
	}
	many := c.breaker.manyMisconfigured(key, v)
	switch {
	case v == misconfigured:
		c.metrics.misconfigured.WithLabelValues(strconv.Itoa(a.Status)).Inc()
		if (many || refused) && c.misconfigured.CompareAndSwap(false, true) {
			c.log.Error("money api refuses our credential, permission or address", "status", a.Status, "answer", a.Text)
		}
	case v == healthy && c.misconfigured.CompareAndSwap(true, false):
		c.log.Info("money api accepts our calls again")
	}
	a.General = refused || c.breaker.current() != stateClosed || c.throttle.within(c.cfg.Breaker.Window)
}

// startSpan starts a client span under the caller's span. Without a recorded parent it starts none,
// and the caller's trace context is sent unchanged. It has neither the idempotency key nor the address
// of a lookup, because both name the target.
func startSpan(ctx context.Context, name string, req *http.Request) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	attrs := []attribute.KeyValue{
		attribute.String("http.request.method", req.Method), attribute.String("server.address", req.URL.Hostname()),
		attribute.String("millrace.money.operation", name),
	}
	if port, err := strconv.Atoi(req.URL.Port()); err == nil {
		attrs = append(attrs, attribute.Int("server.port", port))
	}
	return parent.TracerProvider().Tracer("github.com/millrace-io/millrace/handlers/promotion/money").
		Start(ctx, "money "+name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// endSpan ends a span with the class of the answer. Its text stays out, because the API may quote the target in it.
func endSpan(span trace.Span, a *Answer) {
	if span == nil {
		return
	}
	class := a.Class.String()
	span.SetAttributes(attribute.String("millrace.money.class", class))
	if a.Status != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", a.Status))
	}
	if a.Class != Paid && a.Class != NoCharge {
		kind := class
		if a.Status >= http.StatusBadRequest {
			kind = strconv.Itoa(a.Status)
		}
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, class)
	}
	span.End()
}
