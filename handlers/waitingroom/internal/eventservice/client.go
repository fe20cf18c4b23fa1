package eventservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	// unknownSeats is the number of seats of an event for which the answer has no valid number.
	unknownSeats = -1

	maxCalls    = 16 // at the same time
	maxBody     = 64 << 10
	maxFailures = 5 // events in a row that fail, before no call is sent for breakerDelay

	breakerDelay = 5 * time.Second
)

var (
	// ErrNoEvent means that the Event Service has no such event. The caller answers 404.
	ErrNoEvent = errors.New("the event does not exist")
	// ErrUnavailable means that it is not known whether the event exists. The caller answers busy.
	ErrUnavailable = errors.New("the event service is unavailable")
	// errAnswer means that the service works, and that its answer about this event is not valid.
	errAnswer = errors.New("the answer is not valid")
)

// The results of a call.
const (
	resultSeats   = "seats"
	resultNoSeats = "no_seats" // the event exists
	resultNoEvent = "no_event"
	resultInvalid = "invalid"
	resultFailed  = "failed"
	resultNotSent = "not_sent"
)

// client calls the Event Service.
type client struct {
	base    string
	timeout time.Duration
	http    *http.Client
	tracer  trace.Tracer
	slots   chan struct{} // a call in progress has one
	breaker circuitbreaker.CircuitBreaker[any]
	calls   *prometheus.CounterVec

	mu     sync.Mutex
	failed map[string]bool // events whose calls have failed since the last success
}

func newClient(c Config, log *slog.Logger) (*client, error) {
	transport, err := httpclient.NewTransport(c.Config, &http.Transport{
		MaxConnsPerHost: maxCalls, MaxIdleConnsPerHost: maxCalls, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
	}, "plugins.waitingroom.event_service", log)
	if err != nil {
		return nil, setting.FieldErrorsUnder("plugins.waitingroom.event_service", err)
	}
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_room_event_service_calls_total",
		Help: "Calls to the Event Service, by result: seats, no_seats, no_event, invalid, failed, not_sent (after failures, without a token, or too many calls at once).",
	}, []string{"result"})
	for _, result := range []string{resultSeats, resultNoSeats, resultNoEvent, resultInvalid, resultFailed, resultNotSent} {
		calls.WithLabelValues(result)
	}
	return &client{
		tracer: noop.Tracer{}, calls: calls, slots: make(chan struct{}, maxCalls), failed: map[string]bool{},
		base: strings.TrimRight(c.URL, "/") + "/events/", timeout: c.Timeout, http: &http.Client{Transport: transport, CheckRedirect: httpclient.NoRedirect},
		breaker: circuitbreaker.NewBuilder[any]().WithFailureThreshold(maxFailures).WithDelay(breakerDelay).Build(),
	}, nil
}

// seats returns the number of seats of an event, or unknownSeats. The error wraps ErrNoEvent or
// ErrUnavailable. The end of ctx does not end the call: its result counts for the breaker. A wait
// for other calls ends with ctx, and does not count.
func (c *client) seats(ctx context.Context, event string) (int64, error) {
	if !c.acquire(ctx) {
		return c.notSent("too many calls are in progress")
	}
	defer func() { <-c.slots }()
	if !c.breaker.TryAcquirePermit() {
		return c.notSent("its last calls failed")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	ctx, span := c.startSpan(ctx)
	seats, err := c.get(ctx, event)
	endSpan(span, err)
	c.calls.WithLabelValues(resultOf(seats, err)).Inc()
	c.record(event, err == nil || errors.Is(err, ErrNoEvent) || errors.Is(err, errAnswer))
	if err != nil && !errors.Is(err, ErrNoEvent) {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return seats, err
}

// record counts a result for the breaker. While it is closed, the failures of one event count once:
// an event whose calls always fail stops no other.
func (c *client) record(event string, success bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case success:
		clear(c.failed)
		c.breaker.RecordSuccess()
	case !c.breaker.IsClosed():
		c.breaker.RecordFailure()
	case !c.failed[event]:
		c.failed[event] = true
		c.breaker.RecordFailure()
	}
}

// acquire takes a slot. It waits for one at most the timeout of a call.
func (c *client) acquire(ctx context.Context) bool {
	select {
	case c.slots <- struct{}{}:
		return true
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *client) notSent(reason string) (int64, error) {
	c.calls.WithLabelValues(resultNotSent).Inc()
	return 0, fmt.Errorf("%w: %s", ErrUnavailable, reason)
}

func resultOf(seats int64, err error) string {
	switch {
	case errors.Is(err, ErrNoEvent):
		return resultNoEvent
	case errors.Is(err, errAnswer):
		return resultInvalid
	case errors.Is(err, httpclient.ErrNotSent):
		return resultNotSent
	case err != nil:
		return resultFailed
	case seats == unknownSeats:
		return resultNoSeats
	}
	return resultSeats
}

func (c *client) get(ctx context.Context, event string) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+url.PathEscape(event), http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", "application/json")
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, httpclient.WithoutURL(err)
	}
	defer func() { _ = answer.Body.Close() }()
	trace.SpanFromContext(ctx).SetAttributes(attribute.Int("http.response.status_code", answer.StatusCode))
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return 0, ErrNoEvent
	default:
		if answer.StatusCode >= http.StatusInternalServerError {
			return 0, fmt.Errorf("status %d", answer.StatusCode)
		}
		return 0, fmt.Errorf("%w: status %d", errAnswer, answer.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxBody))
	if err != nil {
		return 0, err
	}
	return decode(text)
}

// decode reads the number of an answer. Any object confirms the event; anything else may be the
// page of a proxy.
func decode(text []byte) (int64, error) {
	var body *struct {
		SeatCount json.RawMessage `json:"seatCount"`
	}
	if err := json.Unmarshal(text, &body); err != nil || body == nil {
		return 0, fmt.Errorf("%w: it is not a JSON object", errAnswer)
	}
	var seats int64
	if err := json.Unmarshal(body.SeatCount, &seats); err != nil || string(body.SeatCount) == "null" || seats < 0 || seats > room.MaxSeats {
		return unknownSeats, nil //nolint:nilerr // an answer without a valid number
	}
	return seats, nil
}
