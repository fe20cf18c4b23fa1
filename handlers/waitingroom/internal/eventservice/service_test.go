package eventservice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// instances are services on one server and one Event Service.
type instances struct {
	t     *testing.T
	sim   *sim.Service
	rooms *room.Store
	list  []*Service
}

func start(t *testing.T, n int, change ...func(*Config)) *instances {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{redistest.Mini(t).Addr}
	return startOn(t, own, n, change...)
}

func startOn(t *testing.T, own redis.ClientConfig, n int, change ...func(*Config)) *instances {
	t.Helper()
	server := redis.New().Server(&own)
	server.Log = slog.New(slog.DiscardHandler)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	s := &instances{t: t, sim: sim.New(map[string]int64{"42": 500, "43": 0, "44": 500, "45": 500, "46": 500, "47": 500, "48": 500})}
	web := httptest.NewServer(s.sim)
	t.Cleanup(web.Close)
	s.rooms = room.New(server, room.Options{PromoteInterval: time.Second, PromoteBatch: 1, TokenTTL: time.Minute, ReadyTTL: time.Minute, Grace: time.Minute, SeenInterval: time.Minute, ClearAfter: time.Hour, MaxEvents: 3})
	config := DefaultConfig()
	config.URL, config.Timeout = web.URL, 10*time.Second
	for _, f := range change {
		f(&config)
	}
	for range n {
		one, err := New(Options{Config: config, Rooms: s.rooms, Confirm: true, Fetch: true, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, one.Stop(context.Background())) })
		s.list = append(s.list, one)
	}
	return s
}

// capacity returns that of a room; an event without a room is an error.
func (s *instances) capacity(event string) int64 {
	s.t.Helper()
	status, err := s.rooms.RoomStatus(s.t.Context(), event)
	require.NoError(s.t, err)
	return status.Capacity
}

func TestAllInstancesShareOneCall(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	var callers sync.WaitGroup
	errs := make(chan error, 60)
	for i := range cap(errs) {
		callers.Go(func() { errs <- s.list[i%3].Confirm(t.Context(), "42") })
	}
	callers.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.EqualValues(t, 500, s.capacity("42"))
	require.Equal(t, 1, s.sim.Calls("42"))
	require.NoError(t, s.list[0].Confirm(t.Context(), "43"))
	require.Zero(t, s.capacity("43"), "no seats are not unknown seats")
}

// A node of a Cluster does not answer. The rooms of the other one get their capacities, also when
// the silent node has the set of events.
func TestASilentNodeDelaysNoCapacityOfAnother(t *testing.T) {
	t.Parallel()
	first, _, proxy := redistest.MiniCluster(t)
	own := redis.DefaultClientConfig()
	own.Addrs, own.Cluster = []string{first.Addr, proxy.Addr()}, true
	s := startOn(t, own, 1, func(c *Config) { c.Timeout = time.Second })
	var here, there string
	for _, event := range []string{"44", "45", "46", "47", "48"} {
		_, err := s.rooms.Control(t.Context(), event, room.Change{Verb: room.Open, By: "me", Why: "test"})
		require.NoError(t, err)
		if first.Mini.Exists("ROOM:{" + event + "}") {
			here = event
		} else {
			there = event
		}
	}
	require.NotEmpty(t, here)
	require.NotEmpty(t, there)
	ticks := func(event string) bool {
		tick, err := s.rooms.Tick(t.Context(), event)
		require.NoError(t, err)
		return tick.Ran
	}
	for _, event := range []string{here, there} {
		redistest.Eventually(t, "a table that says that the capacity is unknown", func() bool { return ticks(event) })
	}
	s.sim.Set(sim.Unavailable)
	require.NoError(t, s.list[0].Start(t.Context()))
	redistest.Eventually(t, "a call for each event", func() bool { return s.sim.Calls(here) > 0 && s.sim.Calls(there) > 0 })
	proxy.Mute()
	proxy.Cut()
	s.sim.Set(sim.Healthy)
	redistest.Eventually(t, "the capacity of the other node's event", func() bool {
		ticks(here)
		return s.capacity(here) == 500
	})
	proxy.SetDown(true)
}

func TestAMissingEventIsRemembered(t *testing.T) {
	t.Parallel()
	s := start(t, 2)
	for i := range 10 {
		require.ErrorIs(t, s.list[i%2].Confirm(t.Context(), "invented"), ErrNoEvent)
	}
	require.Equal(t, 1, s.sim.Calls("invented"))
	_, err := s.rooms.RoomStatus(t.Context(), "invented")
	require.ErrorIs(t, err, room.ErrUnknown)
	// An operator may still open it.
	_, err = s.rooms.Control(t.Context(), "invented", room.Change{Verb: room.Open, By: "me", Why: "test"})
	require.NoError(t, err)
}

func TestWithoutAServiceNoEventIsConfirmed(t *testing.T) {
	t.Parallel()
	s := start(t, 1, func(c *Config) { c.URL = "" })
	require.ErrorIs(t, s.list[0].Confirm(t.Context(), "42"), ErrNoEvent)
}

// An unavailable service is no answer: the event may exist.
func TestAnUnavailableServiceConfirmsNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 1, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	for _, mode := range []sim.Mode{sim.Unavailable, sim.Slow} {
		s.sim.Set(mode)
		err := s.list[0].Confirm(t.Context(), "42")
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNoEvent)
		_, err = s.rooms.RoomStatus(t.Context(), "42")
		require.ErrorIs(t, err, room.ErrUnknown)
	}
}

func TestTheNumberOfRoomsIsLimited(t *testing.T) {
	t.Parallel()
	s := start(t, 1)
	for _, event := range []string{"a", "b", "c"} {
		require.NoError(t, s.rooms.Create(t.Context(), event))
	}
	err := s.list[0].Confirm(t.Context(), "42")
	require.ErrorIs(t, err, room.ErrTooMany)
	require.NotErrorIs(t, err, ErrUnavailable, "the service has answered")
	// An operator may open it.
	_, err = s.rooms.Control(t.Context(), "42", room.Change{Verb: room.Open, By: "me", Why: "test"})
	require.NoError(t, err)
}

// While the capacity is unknown, no user is promoted. A later answer of the service sets it, once.
func TestAMissingCapacityIsFetchedInTheBackground(t *testing.T) {
	t.Parallel()
	s := start(t, 2, func(c *Config) { c.Timeout = 500 * time.Millisecond })
	require.NoError(t, s.rooms.Create(t.Context(), "42"))
	_, err := s.rooms.Enter(t.Context(), "42", "ann", "broker", 0)
	require.NoError(t, err)
	require.EqualValues(t, -1, s.capacity("42"))
	tick := func() room.Tick {
		got, err := s.rooms.Tick(t.Context(), "42")
		require.NoError(t, err)
		return got
	}
	require.Eventually(t, func() bool { return tick().Ran }, 2*time.Minute, 10*time.Millisecond)
	s.sim.Set(sim.Nonsense)
	for _, one := range s.list {
		require.NoError(t, one.Start(t.Context()))
	}
	require.Eventually(t, func() bool { return s.sim.Calls("42") >= 2 }, 2*time.Minute, 10*time.Millisecond)
	require.EqualValues(t, -1, s.capacity("42"))
	tick()
	place, err := s.rooms.Status(t.Context(), "42", "ann")
	require.NoError(t, err)
	require.Equal(t, room.Waiting, place.State)
	s.sim.Set(sim.Healthy)
	require.Eventually(t, func() bool {
		tick() // the loop reads the tables, which expire
		return s.capacity("42") == 500
	}, 2*time.Minute, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		tick()
		place, err := s.rooms.Status(t.Context(), "42", "ann")
		return err == nil && place.State == room.Ready
	}, 2*time.Minute, 50*time.Millisecond)
}

// While the call for one event has no answer, the capacity of another one is fetched.
func TestASlowEventDelaysNoOther(t *testing.T) {
	t.Parallel()
	slow, other := make(chan struct{}, 1), sim.New(map[string]int64{"42": 500})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events/slow" {
			other.ServeHTTP(w, r)
			return
		}
		slow <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(web.Close)
	s := start(t, 1, func(c *Config) { c.URL, c.Timeout = web.URL, time.Minute })
	one := s.list[0]
	fetched := func(event string, done func() bool) {
		require.NoError(t, s.rooms.Create(t.Context(), event))
		require.Eventually(t, func() bool {
			_, err := s.rooms.Tick(t.Context(), event)
			require.NoError(t, err)
			one.fetch(t.Context())
			return done()
		}, 2*time.Minute, 50*time.Millisecond, event)
	}
	fetched("slow", func() bool { return len(slow) == 1 })
	fetched("42", func() bool { return s.capacity("42") == 500 })
	require.EqualValues(t, -1, s.capacity("slow"))
	web.CloseClientConnections()
	one.reads.Wait() // they begin fetches
	require.NoError(t, one.fetches.Wait())
}

// Calls may wait for others. Their answers count.
func TestAWaitForOtherCallsLosesNoAnswer(t *testing.T) {
	tier.Rest(t) // two calls of 6 s in a row
	t.Parallel()
	const timeout, events = 10 * time.Second, 2 * maxCalls
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(6 * time.Second)
		_, _ = w.Write([]byte(`{"seatCount":500}`))
	}))
	t.Cleanup(web.Close)
	s := start(t, 1, func(c *Config) { c.URL, c.Timeout = web.URL, timeout })
	errs := make(chan error, events)
	for i := range events {
		go func() { errs <- s.list[0].Confirm(t.Context(), fmt.Sprint("event-", i)) }()
	}
	for range events {
		if err := <-errs; !errors.Is(err, room.ErrTooMany) {
			require.NoError(t, err)
		}
	}
}
