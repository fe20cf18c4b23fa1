package eventservice

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/eventservice/sim"
)

func newSim(t *testing.T, timeout time.Duration) (*sim.Service, *client) {
	t.Helper()
	s := sim.New(map[string]int64{"42": 500, "empty": 0})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c := newClient(Config{URL: server.URL + "/", Timeout: timeout})
	t.Cleanup(c.http.CloseIdleConnections)
	return s, c
}

func TestTheNumberOfSeats(t *testing.T) {
	t.Parallel()
	_, c := newSim(t, time.Minute)
	for event, want := range map[string]int64{"42": 500, "empty": 0} {
		seats, err := c.seats(t.Context(), event)
		require.NoError(t, err)
		require.Equal(t, want, seats)
	}
	_, err := c.seats(t.Context(), "43")
	require.ErrorIs(t, err, ErrNoEvent)
}

// An object without a number confirms the event; it has no seats that could be given away.
func TestNonsenseIsNoNumber(t *testing.T) {
	t.Parallel()
	for _, text := range sim.Nonsenses() {
		seats, err := decode([]byte(text))
		if text != "" && text[0] == '{' {
			require.NoError(t, err, text)
			require.EqualValues(t, unknownSeats, seats, text)
		} else {
			require.Error(t, err, text)
		}
	}
}

func TestAFailingServiceIsLeftAlone(t *testing.T) {
	t.Parallel()
	s, c := newSim(t, time.Minute)
	s.Set(sim.Unavailable)
	for range maxFailures + 3 {
		_, err := c.seats(t.Context(), "42")
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNoEvent)
	}
	require.Equal(t, maxFailures, s.Calls("42"))
	s.Set(sim.Healthy)
	c.breaker.HalfOpen() // after breakerDelay
	seats, err := c.seats(t.Context(), "42")
	require.NoError(t, err)
	require.EqualValues(t, 500, seats)
	require.True(t, c.breaker.IsClosed())
}

// Such an answer says something about one event: the others are not refused for it.
func TestAnAnswerThatIsNotValidClosesNoEvent(t *testing.T) {
	t.Parallel()
	answers := []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) },
	}
	for _, answer := range answers {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/events/bad" {
				answer(w)
				return
			}
			_, _ = w.Write([]byte(`{"seatCount":500}`))
		}))
		t.Cleanup(server.Close)
		c := newClient(Config{URL: server.URL, Timeout: time.Minute})
		t.Cleanup(c.http.CloseIdleConnections)
		for range maxFailures + 1 {
			_, err := c.seats(t.Context(), "bad")
			require.ErrorIs(t, err, ErrUnavailable)
		}
		seats, err := c.seats(t.Context(), "42")
		require.NoError(t, err)
		require.EqualValues(t, 500, seats)
	}
}

func TestASlowServiceIsUnavailable(t *testing.T) {
	t.Parallel()
	s, c := newSim(t, 50*time.Millisecond)
	s.Set(sim.Slow)
	_, err := c.seats(t.Context(), "42")
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A visitor that is gone says nothing about the service.
func TestTheEndOfARequestDoesNotEndTheCall(t *testing.T) {
	t.Parallel()
	_, c := newSim(t, time.Minute)
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	seats, err := c.seats(gone, "42")
	require.NoError(t, err)
	require.EqualValues(t, 500, seats)
}

func TestMistakesInSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"":                      func(c *Config) { c.URL = "https://events.example/api" },
		"url: must be http://":  func(c *Config) { c.URL = "events.example" },
		"url: must be http":     func(c *Config) { c.URL = "https://user:word@events.example" },
		"timeout: must be > 0":  func(c *Config) { c.Timeout = 0 },
		"at most 10s, got 1m0s": func(c *Config) { c.Timeout = time.Minute },
		"cache: must be > 0":    func(c *Config) { c.Cache = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "user:word")
		}
	}
}
