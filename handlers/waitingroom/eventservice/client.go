package eventservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

const (
	// unknownSeats is the number of seats of an event for which the answer has no valid number.
	unknownSeats = -1

	maxCalls    = 16 // at the same time
	maxBody     = 64 << 10
	maxFailures = 5 // in a row, before no call is sent for breakerDelay

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

// client calls the Event Service.
type client struct {
	base    string
	timeout time.Duration
	http    *http.Client
	breaker circuitbreaker.CircuitBreaker[any]
}

func newClient(c Config) *client {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: maxCalls, MaxIdleConnsPerHost: maxCalls,
		IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
	}
	return &client{
		base: strings.TrimRight(c.URL, "/") + "/events/", timeout: c.Timeout, http: &http.Client{Transport: transport},
		breaker: circuitbreaker.NewBuilder[any]().WithFailureThreshold(maxFailures).WithDelay(breakerDelay).Build(),
	}
}

// seats returns the number of seats of an event, or unknownSeats. The error wraps ErrNoEvent or
// ErrUnavailable. The end of ctx does not end the call: its result counts for the breaker.
func (c *client) seats(ctx context.Context, event string) (int64, error) {
	if !c.breaker.TryAcquirePermit() {
		return 0, fmt.Errorf("%w: its last calls failed", ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	seats, err := c.get(ctx, event)
	if err == nil || errors.Is(err, ErrNoEvent) || errors.Is(err, errAnswer) {
		c.breaker.RecordSuccess()
	} else {
		c.breaker.RecordFailure()
	}
	if err != nil && !errors.Is(err, ErrNoEvent) {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return seats, err
}

func (c *client) get(ctx context.Context, event string) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+url.PathEscape(event), http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", "application/json")
	answer, err := c.http.Do(r)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL
		}
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
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
