package money

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Why a call was not made. They reach callers in Answer.Err, for errors.Is; ErrStopping is an error of Slot.
var (
	ErrDeadline    = errors.New("the deadline had passed")
	ErrStopping    = errors.New("the process stops")
	ErrBreakerOpen = errors.New("breaker open")
	ErrGateClosed  = errors.New("a Retry-After holds")
	ErrClosed      = errors.New("client closed")
	ErrKey         = errors.New("the idempotency key can't be sent: it must be 1 to 128 printable ASCII characters without a slash")
)

// Slot implements API. Slots are given in the order in which they were asked for.
func (c *Client) Slot(ctx context.Context) (release func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return c.release, nil
	default:
	}
	select {
	case c.slots <- struct{}{}:
		return c.release, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.draining.Done():
		return nil, ErrStopping
	}
}

func (c *Client) release() { <-c.slots }

// Drain ends all waits for a slot, now and later. A slot that is free is still given. It may be called more than once.
func (c *Client) Drain() { c.drain() }

// Charge implements API.
func (c *Client) Charge(ctx context.Context, ch Charge) Answer {
	o := c.operation(ch.Operation)
	if !validKey(ch.Key) {
		return o.refuse(Answer{Class: Rejected, Err: ErrKey})
	}
	return c.call(ctx, o, o.request, request{key: ch.Key, body: ch.Body})
}

// Lookup implements API.
func (c *Client) Lookup(ctx context.Context, key string) Answer {
	if !validKey(key) {
		return c.lookups.refuse(Answer{Class: Rejected, Err: ErrKey})
	}
	return c.call(ctx, &c.lookups, c.newRequest(http.MethodGet, lookupPath+key), request{lookup: true, key: key})
}

// validKey reports whether key can travel in a header and as one element of a path. The API may
// want more of it.
func validKey(key string) bool {
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' || c == '/' {
			return false
		}
	}
	return key != "" && len(key) <= maxKeyLen && key != "." && key != ".."
}

// refuse counts an answer to a call that is not made.
func (o *operation) refuse(a Answer) Answer {
	a.Text = a.Err.Error()
	o.metrics.observe(a.Class, false, 0)
	return a
}

// call makes one call.
func (c *Client) call(ctx context.Context, o *operation, template *http.Request, req request) Answer {
	if err := c.usable(ctx); err != nil {
		return o.refuse(Answer{Class: NotSent, Err: err})
	}
	if wait := c.gate.remaining(); wait > 0 {
		return o.refuse(Answer{Class: NotSent, RetryAfter: wait, Err: ErrGateClosed})
	}
	permit, wait, ok := c.breaker.acquire()
	if !ok {
		return o.refuse(Answer{Class: NotSent, RetryAfter: wait, Err: ErrBreakerOpen})
	}

	began := time.Now()
	ctx, span := startSpan(ctx, o.name, req.key)
	used := c.tokens.current.Load()
	req.secret = used.token
	a, v, sent := c.exchange(ctx, template, &req, used)
	c.judge(&a, permit, req.key, v, used)
	endSpan(span, &a)
	o.metrics.observe(a.Class, sent, time.Since(began))
	return a
}

// usable says why a call must not be begun.
func (c *Client) usable(ctx context.Context) error {
	// Not ctx.Err() alone: in a process that was frozen the timer may not have fired yet.
	if at, ok := ctx.Deadline(); ok && c.dialer.clock.passed(at) {
		return ErrDeadline
	}
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return ErrDeadline
	case err != nil:
		return err
	case c.dialer.life.Err() != nil:
		return ErrClosed
	}
	return nil
}

// exchange sends the request and classifies what came of it.
func (c *Client) exchange(caller context.Context, template *http.Request, req *request, cred *credential) (a Answer, v verdict, sent bool) {
	ctx, cancel := context.WithTimeout(caller, c.cfg.CallTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	f := newFlight(deadline)
	resp, err := c.transport.RoundTrip(build(httptrace.WithClientTrace(ctx, &f.trace), template, req, cred))
	if f.conns > 1 {
		c.metrics.replays.Add(float64(f.conns - 1))
	}
	if err != nil {
		a, v = unanswered(caller, ctx, err, f.sent())
		return a, v, f.sent()
	}
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	r := reply{status: resp.StatusCode, header: resp.Header}
	r.body, r.readErr = readBody(resp, (*buf)[:0])
	*buf = r.body
	a, v = classify(req, &r, time.Now(), &c.cfg)
	if r.readErr != nil && v == failing && errors.Is(caller.Err(), context.Canceled) {
		v = neutral
	}
	return a, v, true
}

// build fills in the template. Headers are written by their canonical names, which spares looking
// at every one of them again.
func build(ctx context.Context, template *http.Request, r *request, cred *credential) *http.Request {
	req := template.WithContext(ctx)
	h := make(http.Header, 6)
	h["Accept"] = []string{"application/json"}
	if cred.header != nil {
		h["Authorization"] = cred.header
	}
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

// readBody appends the answer's body to buf. The connection can be used again only if all of it
// was read.
func readBody(resp *http.Response, buf []byte) ([]byte, error) {
	defer resp.Body.Close()
	limited := io.LimitedReader{R: resp.Body, N: maxBodyBytes + 1}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := limited.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case limited.N <= 0:
			return buf, errTooLarge
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// unanswered classifies a call without an answer.
func unanswered(caller, ctx context.Context, err error, sent bool) (Answer, verdict) {
	a := Answer{Class: NotSent, Err: err}
	if sent {
		a.Class = Ambiguous
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		a.Err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if sent {
		a.Text = clean("sent, but no answer: "+a.Err.Error(), maxTextLen)
	} else {
		a.Text = clean("not sent: "+a.Err.Error(), maxTextLen)
	}
	if errors.Is(caller.Err(), context.Canceled) {
		return a, neutral // the caller went away; that says nothing about the API
	}
	return a, failing
}

// judge does what follows from an answer for everyone: breaker, gate, credential and alarm.
func (c *Client) judge(a *Answer, p permit, key string, v verdict, used *credential) {
	if a.Status == http.StatusUnauthorized {
		renewed, err := c.tokens.renew(used)
		if err != nil {
			c.log.Error("money api token can't be renewed", "error", err)
		}
		if renewed {
			c.log.Info("money api token renewed")
			v = neutral
		}
	}
	if c.breaker.record(p, key, v) {
		c.gate.closeFor(a.RetryAfter)
	}
	// A credential is never about one payout. Anything else is our fault when several keys in a row are answered so.
	accused := c.breaker.accused(key, v) || v == misconfigured && a.Status == http.StatusUnauthorized
	switch {
	case v == misconfigured:
		c.metrics.ownFault(a.Status)
		if accused && c.ownFault.CompareAndSwap(false, true) {
			c.log.Error("money api says that we are not set up right", "status", a.Status, "answer", a.Text)
		}
	case v == healthy && c.ownFault.Load():
		if c.ownFault.CompareAndSwap(true, false) {
			c.log.Info("money api accepts us again")
		}
	}
	a.General = a.Status == http.StatusUnauthorized || c.breaker.state.Load() != stateClosed || c.gate.held(c.cfg.Breaker.Window)
}

// startSpan begins a client span under the caller's, with the caller's provider. Without a
// recorded parent there is none, and the caller's trace context travels on as it is.
func startSpan(ctx context.Context, name, key string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	return parent.TracerProvider().Tracer("github.com/millrace-io/millrace/handlers/promotion/money").
		Start(ctx, "money "+name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("idempotency_key", key)))
}

func endSpan(span trace.Span, a *Answer) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("money.class", a.Class.String()))
	if a.Status != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", a.Status))
	}
	if a.Class != Paid && a.Class != NoCharge {
		span.SetStatus(codes.Error, a.Text)
	}
	span.End()
}
