package oncehttp

import (
	"bytes"
	"cmp"
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

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/plugins/once"
)

// The reasons for a call that was not made.
var (
	errNotOpen     = errors.New("the client is not open: call Client.Open when the plugin's services start")
	errDeadline    = errors.New("the deadline had passed")
	errBreakerOpen = errors.New("breaker open")
	errThrottled   = errors.New("a Retry-After holds")
	errClosed      = errors.New("client closed")
)

// Post sends the stored request of an attempt to path, with its idempotency key, and classifies the answer.
// Mapping.Method may say that the API wants PUT or PATCH instead.
// It never starts a request after ctx's deadline, never retries, and returns when ctx ends at the latest.
//
// path is below Config.URL and may have a query. {key} in it stands for the idempotency key, {group} and
// {id} for the parts of the effect's key, each escaped.
//
// The request is JSON. An idempotency key that can't be sent, or an id that can't be an element of the path, such as
// "..", is Rejected, because it is the same on every attempt. CheckCall says so when the effect is accepted.
func Post[T any](ctx context.Context, c *Client, path string, a once.Attempt[T]) once.Answer {
	return c.call(ctx, cmp.Or(a.Kind, operationSend), path, a.Key,
		request{key: a.Idempotency, body: a.Request, replay: a.Repeat == once.ByKey})
}

// Find asks with GET at path what became of an effect. path is as for Post, such as
// "/v1/invoices/by-key/{key}". A 404 is NotDone only with one of Mapping.NotFound. A lookup that is Rejected
// proves nothing about the effect.
func Find(ctx context.Context, c *Client, path string, l once.Lookup) once.Answer {
	return c.call(ctx, operationLookup, path, l.Key, request{lookup: true, key: l.Idempotency})
}

func (c *Client) call(ctx context.Context, operation, path string, k once.Key, req request) once.Answer {
	o := c.metrics.operation(operation)
	n := c.opened.Load()
	if n == nil {
		return o.refuse(once.Answer{Class: once.NotSent, Err: errNotOpen, General: true})
	}
	if err := n.mapping.checkKey(req.key); err != nil {
		return o.refuse(once.Answer{Class: once.Rejected, Err: err})
	}
	method := n.mapping.Method
	if req.lookup {
		method = http.MethodGet
	}
	template, err := n.targets.request(method, path, k, req.key)
	var unfit *unfitError
	switch {
	case errors.As(err, &unfit): // of this effect, on every attempt
		return o.refuse(once.Answer{Class: once.Rejected, Err: err})
	case err != nil:
		return o.refuse(once.Answer{Class: once.NotSent, Err: err, General: true})
	}
	return n.call(ctx, operation, o, template, req)
}

func (o *operationMetrics) refuse(a once.Answer) once.Answer {
	a.Text = clean(a.Err.Error(), maxTextLen)
	o.observe(a.Class, false, 0)
	return a
}

func (n *connection) call(ctx context.Context, operation string, o *operationMetrics, template *http.Request, req request) once.Answer {
	if err := n.usable(ctx); err != nil {
		return o.refuse(once.Answer{Class: once.NotSent, Err: err})
	}
	if wait := n.throttle.remaining(); wait > 0 {
		return o.refuse(once.Answer{Class: once.NotSent, RetryAfter: wait, Err: errThrottled, General: true})
	}
	permit, wait, ok := n.breaker.acquire()
	if !ok {
		return o.refuse(once.Answer{Class: once.NotSent, RetryAfter: wait, Err: errBreakerOpen, General: true})
	}

	start := time.Now()
	ctx, span := n.startSpan(ctx, operation, template)
	used := n.tokens.get(ctx)
	req.secret, req.headers = used.token, used.further
	a, v, sent := n.exchange(ctx, template, &req, used)
	n.pace.answered(start, time.Now(), v)
	n.evaluate(ctx, &a, start, permit, req.key, v, used)
	endSpan(span, &a)
	o.observe(a.Class, sent, time.Since(start))
	return a
}

// usable returns the reason why a call must not start.
func (n *connection) usable(ctx context.Context) error {
	// Not ctx.Err() alone: in a process that was frozen the timer may not have fired yet.
	if at, ok := ctx.Deadline(); ok && n.dialer.clock.passed(at) {
		return errDeadline
	}
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return errDeadline
	case err != nil:
		return err
	case n.dialer.life.Err() != nil:
		return errClosed
	}
	return nil
}

func (n *connection) exchange(caller context.Context, template *http.Request, req *request, cred *credential) (a once.Answer, v verdict, sent bool) {
	ctx, cancel := context.WithTimeout(caller, n.cfg.CallTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	ended := n.ended.Began(ctx)
	defer ended()
	tracker := newSendTracker(deadline, n.cfg.OAuth2.Enabled())
	resp, err := n.transport.RoundTrip(n.build(httptrace.WithClientTrace(ctx, &tracker.trace), template, req, cred))
	if tracker.conns > 1 {
		n.metrics.replays.Add(float64(tracker.conns - 1))
	}
	if err != nil {
		a, v = unanswered(caller, ctx, err, tracker.sent())
		return a, v, tracker.sent()
	}
	if token := tracker.token.Load(); token != nil {
		req.secret = *token
	}
	buf := n.buffers.Get().(*bytes.Buffer)
	defer n.buffers.Put(buf)
	buf.Reset()
	r := reply{status: resp.StatusCode, header: resp.Header, readErr: readBody(resp, buf)}
	r.body = buf.Bytes()
	a, v = classify(n.mapping, req, &r, time.Now(), &n.cfg)
	if r.readErr != nil && v == failing && errors.Is(caller.Err(), context.Canceled) {
		v = neutral
	}
	return a, v, true
}

// build completes the template. It writes headers by their canonical names, which is faster. The
// body is a bytes.Reader: with another type net/http sends headers and body in two packets. Without GetBody
// the transport can't send a request with a body again.
func (n *connection) build(ctx context.Context, template *http.Request, r *request, cred *credential) *http.Request {
	req := template.WithContext(ctx)
	h := maps.Clone(cred.header)
	if !r.lookup {
		h["Content-Type"] = []string{"application/json"}
		h[n.mapping.Header] = []string{r.key}
		req.ContentLength = int64(len(r.body))
		body := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.body)), nil }
		req.Body, _ = body()
		if r.replay {
			req.GetBody = body
		}
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
func unanswered(caller, ctx context.Context, err error, sent bool) (once.Answer, verdict) {
	a, text := once.Answer{Class: once.NotSent, Err: err}, "not sent: "
	if sent {
		a.Class, text = once.Unclear, "sent, but no answer: "
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

// evaluate updates what all calls share: breaker, throttle, pace, credential and metrics.
func (n *connection) evaluate(ctx context.Context, a *once.Answer, began time.Time, p permit, key string, v verdict, used *credential) {
	refused := a.Status == http.StatusUnauthorized // the credential, which all effects share
	if refused {
		if n.tokens.renew(ctx, used) {
			v = neutral
		} else {
			n.refused.Store(used)
		}
	}
	if n.breaker.record(p, key, v) {
		n.throttle.extend(a.RetryAfter)
		n.pace.lower(began, time.Now())
	}
	switch {
	case v == healthy:
		n.ended.Answered()
	case (v == failing || v == misconfigured) && httpclient.Unreached(a.Err):
		n.ended.Unreached(a.Text)
	case v == failing || v == misconfigured:
		n.ended.Failed(a.Text)
	}
	many := n.breaker.manyMisconfigured(key, v)
	switch v {
	case misconfigured:
		n.metrics.misconfigured.WithLabelValues(strconv.Itoa(a.Status)).Inc()
		if many || refused {
			n.misconfigured.Store(true)
			n.told.refuses(n.log, a.Status, a.Text)
		}
	case healthy:
		if n.misconfigured.CompareAndSwap(true, false) {
			n.refused.Store(nil)
		}
		n.told.accepts(n.log)
	}
	a.General = v != healthy && (refused || errors.Is(a.Err, httpclient.ErrNotSent) || n.breaker.current() != stateClosed || n.throttle.within(n.cfg.Breaker.Window))
}

// tryNewToken ends the wait of an open breaker when there is another token than the one that was refused.
func (n *connection) tryNewToken() {
	refused := n.refused.Load()
	if refused == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.dialer.life, tokenLook) // a token may come from a server
	defer cancel()
	if n.tokens.get(ctx) != refused && n.refused.CompareAndSwap(refused, nil) {
		n.breaker.probe()
	}
}

// startSpan starts a client span under the caller's span. Without a recorded parent it starts none,
// and the caller's trace context is sent unchanged. It has neither the idempotency key nor the address
// of a call, because both may name people.
func (n *connection) startSpan(ctx context.Context, operation string, req *http.Request) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	attrs := append(httpclient.SpanAttributes(req.Method, req.URL), attribute.String("millrace.once.operation", operation))
	return parent.TracerProvider().Tracer("github.com/millrace-io/millrace/plugins/once/oncehttp").
		Start(ctx, n.mapping.Name+" "+operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// endSpan ends a span with the class of the answer. Its text stays out, because the far side may quote the request in it.
func endSpan(span trace.Span, a *once.Answer) {
	if span == nil {
		return
	}
	class := a.Class.String()
	span.SetAttributes(attribute.String("millrace.once.class", class))
	if a.Status != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", a.Status))
	}
	if a.Class != once.Done && a.Class != once.NotDone {
		kind := class
		if a.Status >= http.StatusBadRequest {
			kind = strconv.Itoa(a.Status)
		}
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, class)
	}
	span.End()
}
