package eventservice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

func newSim(t *testing.T, timeout time.Duration) (*sim.Service, *client) {
	t.Helper()
	s := sim.New(map[string]int64{"42": 500, "empty": 0})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := newClient(Config{URL: server.URL + "/", Timeout: timeout}, nil)
	require.NoError(t, err)
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
	for range maxFailures + 1 { // invented events close no other one
		_, err := c.seats(t.Context(), "43")
		require.ErrorIs(t, err, ErrNoEvent)
	}
	require.True(t, c.breaker.IsClosed())
}

// The answer of another address is not believed.
func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	s := sim.New(map[string]int64{"42": 500})
	other := httptest.NewServer(s)
	t.Cleanup(other.Close)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusFound)
	}))
	t.Cleanup(first.Close)
	c, err := newClient(Config{URL: first.URL, Timeout: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	_, err = c.seats(t.Context(), "42")
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "a redirect to "+other.URL+" is not followed")
	require.InDelta(t, 1, testutil.ToFloat64(c.calls.WithLabelValues(resultFailed)), 0)
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
	calls := 0
	for i := range maxFailures + 3 {
		_, err := c.seats(t.Context(), fmt.Sprint(i))
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNoEvent)
		calls += s.Calls(fmt.Sprint(i))
	}
	require.Equal(t, maxFailures, calls)
	c.breaker.HalfOpen() // after breakerDelay
	for range maxFailures {
		_, err := c.seats(t.Context(), "0")
		require.ErrorIs(t, err, ErrUnavailable)
	}
	require.True(t, c.breaker.IsOpen())
	s.Set(sim.Healthy)
	c.breaker.HalfOpen() // after breakerDelay
	seats, err := c.seats(t.Context(), "42")
	require.NoError(t, err)
	require.EqualValues(t, 500, seats)
	require.True(t, c.breaker.IsClosed())
}

// An event whose calls always fail opens no breaker.
func TestAnEventThatFailsStopsNoOther(t *testing.T) {
	t.Parallel()
	s, c := newSim(t, time.Minute)
	s.Set(sim.Unavailable)
	for range 3 * maxFailures {
		_, err := c.seats(t.Context(), "broken")
		require.ErrorIs(t, err, ErrUnavailable)
	}
	require.Equal(t, 3*maxFailures, s.Calls("broken"))
	s.Set(sim.Healthy)
	_, err := c.seats(t.Context(), "42")
	require.NoError(t, err)
	require.Empty(t, c.failed)
}

// Such an answer says something about one event: the others are not refused for it.
func TestAnAnswerThatIsNotValidClosesNoEvent(t *testing.T) {
	t.Parallel()
	answers := []func(w http.ResponseWriter){func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }}
	for _, status := range []int{300, 304, 400, 401, 403, 405, 406, 410, 414, 422, 429, 451} {
		answers = append(answers, func(w http.ResponseWriter) { w.WriteHeader(status) })
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
		c, err := newClient(Config{URL: server.URL, Timeout: time.Minute}, nil)
		require.NoError(t, err)
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

// Many calls at once, perhaps of invented events, say nothing about the service.
func TestAWaitForOtherCallsIsNoFailure(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	arrived := make(chan struct{}, maxCalls)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = w.Write([]byte(`{"seatCount":500}`))
	}))
	t.Cleanup(server.Close)
	c, err := newClient(Config{URL: server.URL, Timeout: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	var calls sync.WaitGroup
	for range maxCalls {
		calls.Go(func() {
			_, err := c.seats(context.Background(), "slow")
			assert.NoError(t, err)
		})
	}
	for range maxCalls {
		<-arrived
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxFailures + 1 {
		_, err := c.seats(gone, "42")
		require.ErrorIs(t, err, ErrUnavailable)
	}
	close(release)
	calls.Wait()
	require.Zero(t, c.breaker.Metrics().Failures())
	seats, err := c.seats(t.Context(), "42")
	require.NoError(t, err)
	require.EqualValues(t, 500, seats)
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

func TestCallsAreCountedByResult(t *testing.T) {
	t.Parallel()
	s, c := newSim(t, time.Minute)
	calls := func(mode sim.Mode, event string, times int) {
		s.Set(mode)
		for range times {
			_, _ = c.seats(t.Context(), event) // the counters are compared
		}
	}
	calls(sim.Healthy, "42", 1)
	calls(sim.Healthy, "none", 2)
	calls(sim.Nonsense, "42", len(sim.Nonsenses()))
	for i := range maxFailures + 1 {
		calls(sim.Unavailable, fmt.Sprint(i), 1)
	}
	require.NoError(t, testutil.CollectAndCompare(c.calls, strings.NewReader(`
# HELP millrace_room_event_service_calls_total Calls to the Event Service, by result: seats, no_seats, no_event, invalid, failed, not_sent (after failures, without a token, or too many calls at once).
# TYPE millrace_room_event_service_calls_total counter
millrace_room_event_service_calls_total{result="failed"} 5
millrace_room_event_service_calls_total{result="invalid"} 5
millrace_room_event_service_calls_total{result="no_event"} 2
millrace_room_event_service_calls_total{result="no_seats"} 7
millrace_room_event_service_calls_total{result="not_sent"} 1
millrace_room_event_service_calls_total{result="seats"} 1
`)))
}

// The Event Service is reached through the proxy of the environment.
func TestTheProxyOfTheEnvironmentIsUsed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(sim.New(map[string]int64{"42": 500}))
	t.Cleanup(server.Close)
	pipelinetest.BehindProxy(t, map[string]string{"events.invalid:80": server.Listener.Addr().String()}, func() error {
		c, err := newClient(Config{URL: "http://events.invalid", Timeout: time.Minute}, nil)
		require.NoError(t, err)
		t.Cleanup(c.http.CloseIdleConnections)
		_, err = c.seats(t.Context(), "42")
		return err
	})
}

// Without a token no call is sent, which is no answer about the event.
func TestACallWithoutATokenIsNotSent(t *testing.T) {
	t.Parallel()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		calls++
	}))
	t.Cleanup(server.Close)
	config := Config{URL: server.URL, Timeout: time.Minute, Config: httpclient.Config{
		OAuth2: httpclient.OAuth2{TokenURL: server.URL + "/token", ClientID: "room", ClientSecret: setting.NewSecret("s3cret")},
	}}
	c, err := newClient(config, nil)
	require.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	_, err = c.seats(t.Context(), "42")
	require.ErrorIs(t, err, ErrUnavailable)
	require.InDelta(t, 1, testutil.ToFloat64(c.calls.WithLabelValues(resultNotSent)), 0)
	require.Zero(t, calls)
}
