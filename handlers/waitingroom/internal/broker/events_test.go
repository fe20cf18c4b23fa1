package broker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// eventService is a simulated Event Service. Single events may have answers of their own.
type eventService struct {
	*sim.Service

	mu    sync.Mutex
	own   map[string]http.HandlerFunc
	calls map[string]int
}

// withEvents returns a world with an Event Service, two brokers and two dispatchers.
func withEvents(t *testing.T, s redistest.Server, timeout time.Duration, seats map[string]int64) (*world, *eventService) {
	t.Helper()
	e := &eventService{Service: sim.New(seats), own: map[string]http.HandlerFunc{}, calls: map[string]int{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	w := newWorld(t, s)
	w.events, w.timeout = server.URL, timeout
	for _, role := range []string{"broker", "dispatcher"} {
		for i := range 2 {
			w.start(fmt.Sprint(role, "-", i), role)
		}
	}
	return w, e
}

func (e *eventService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event := path.Base(r.URL.Path)
	e.mu.Lock()
	e.calls[event]++
	own := e.own[event]
	e.mu.Unlock()
	if own == nil {
		own = e.Service.ServeHTTP
	}
	own(w, r)
}

// answers sets the text of all later answers about an event.
func (e *eventService) answers(event, text string) {
	e.handle(event, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

func (e *eventService) handle(event string, own http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own[event] = own
}

// called returns the number of calls for the events whose id begins with a text, and the most for
// one of them.
func (e *eventService) called(prefix string) (all, most int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for event, n := range e.calls {
		if strings.HasPrefix(event, prefix) {
			all, most = all+n, max(most, n)
		}
	}
	return all, most
}

// in returns a user of another event.
func (w *world) in(event, name string) *guest {
	g := w.guest(name)
	g.client.URL = "http://room/events/" + event + "/tickets/waiting"
	return g
}

// ticks waits until an event has had more ticks.
func (w *world) ticks(event string, n int64) {
	w.t.Helper()
	tick := func() int64 {
		number, err := w.admin.HGet(w.t.Context(), "ROOM:{"+event+"}", "tick").Int64()
		require.NoError(w.t, err)
		return number
	}
	last := tick() + n
	redistest.Eventually(w.t, "ticks of "+event, func() bool { return tick() >= last })
}

func (w *world) statusOf(event string) room.Status {
	w.t.Helper()
	s, err := w.rooms.RoomStatus(w.t.Context(), event)
	require.NoError(w.t, err)
	return s
}

// The first users of an event share one call to the Event Service, on all instances. A later number
// of seats changes nothing.
func TestTheSeatsOfAnEventAreFetchedOnce(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w, e := withEvents(t, s, 10*time.Second, map[string]int64{"concert-1": 3})
		var guests []*guest
		for i := range 40 {
			guests = append(guests, w.guest(fmt.Sprint("user-", i)).run())
		}
		redistest.Eventually(t, "all seats are given away", func() bool {
			n := 0
			for _, g := range guests {
				if g.seen("promoted") {
					n++
				}
			}
			return n == 3
		})
		e.answers("concert-1", `{"seatCount":500}`)
		w.ticks("concert-1", 15) // and searches for rooms without a capacity
		got := w.status()
		require.Equal(t, []int64{3, 3, 37}, []int64{got.Capacity, got.Admitted, got.Waiting})
		calls, _ := e.called("concert-1")
		require.Equal(t, 1, calls)
	})
}

// The answer that there is no event is remembered on all instances, for a time. Then the event may
// have been created.
func TestAnEventThatIsCreatedLater(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w, e := withEvents(t, s, 10*time.Second, nil)
		for range 5 {
			require.Equal(t, "404 unknown_event", w.send("GET", w.path(), "u").word())
			require.Equal(t, "404 unknown_event", w.send("GET", w.path(), "u", "Accept", asStream).word())
		}
		e.answers("concert-1", `{"seatCount":5}`)
		require.Equal(t, "404 unknown_event", w.send("GET", w.path(), "u").word())
		calls, _ := e.called("concert-1")
		require.Equal(t, 1, calls)
		require.Positive(t, w.admin.PTTL(t.Context(), w.key1("ROOM_ASK")).Val())
		w.admin.Del(t.Context(), w.key1("ROOM_ASK")) // its time is over
		w.guest("u").run().wait("promoted")
		require.EqualValues(t, 5, w.status().Capacity)
	})
}

// While the Event Service is unavailable, users of an event without a room are refused for now, and
// never with 404. Users of rooms notice nothing.
func TestTheEventServiceIsUnavailable(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w, e := withEvents(t, s, 300*time.Millisecond, map[string]int64{"concert-1": 2, "new": 7})
		first, second := w.guest("first").run().wait("promoted"), w.guest("second").run().wait("promoted")
		waits := w.guest("waits").run().wait("position 1")
		for _, mode := range []sim.Mode{sim.Unavailable, sim.Slow} {
			e.Set(mode)
			a := w.send("GET", "new/tickets/waiting", "u")
			require.Equal(t, "503 event_service", a.word())
			require.NotEmpty(t, a.header.Get("Retry-After"))
			a = w.send("GET", "new/tickets/waiting", "u", "Accept", asStream)
			require.Equal(t, http.StatusOK, a.status)
			require.Contains(t, a.body, "event: busy\ndata: {\"reason\":\"event_service\"}")
		}
		early := w.in("new", "early").run().wait("busy event_service")
		w.guest("late").run().wait("position 2")
		require.Equal(t, http.StatusNoContent, w.send("DELETE", w.path(), "first").status)
		first.wait("closed left").ends()
		waits.wait("promoted")
		e.Set(sim.Healthy)
		early.wait("promoted")
		require.Zero(t, second.count("closed *")+waits.count("busy *"))
		require.EqualValues(t, 7, w.statusOf("new").Capacity)
	})
}

// An event whose call has no answer delays no user of another event. Its own users are refused for
// now.
func TestASlowEventDelaysNoUserOfAnother(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w, e := withEvents(t, s, 300*time.Millisecond, map[string]int64{"concert-1": 1, "new": 1})
		arrived := make(chan struct{}, 100)
		e.handle("slow", func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
		})
		e.answers("later", `{}`)
		slow := w.in("slow", "u").run()
		<-arrived
		later := w.in("later", "u").run().wait("position 1")
		w.in("new", "u").run().wait("promoted")
		w.guest("u").run().wait("promoted")
		slow.wait("busy event_service")
		<-arrived // again
		e.answers("later", `{"seatCount":1}`)
		later.wait("promoted")
		e.answers("slow", `{"seatCount":1}`)
		slow.wait("promoted")
	})
}

// An answer without a valid number is no number, and a capacity that is unknown is not zero. The
// users wait, or are refused for now, until there is a number.
func TestAnswersOfTheEventServiceThatAreNonsense(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w, e := withEvents(t, s, 300*time.Millisecond, nil)
		texts := []string{
			`null`, `-1`, `"many"`, `<html>try later</html>`, ``, `[]`,
			`{}`, `{"seatCount":null}`, `{"seatCount":-1}`, `{"seatCount":"many"}`, `{"seatCount":1e30}`, `{"seatCount":1` + strings.Repeat("0", 30) + `}`,
			`{"seatCount":[]}`, `{"seatCount":{}}`, `{"seatCount":true}`,
		}
		const objects = 6 // the first of them
		guests := make([]*guest, len(texts))
		for i, text := range texts {
			e.answers(fmt.Sprint("event-", i), text)
			guests[i] = w.in(fmt.Sprint("event-", i), "u").run()
		}
		e.answers("sold-out", `{"seatCount":0}`)
		none := w.in("sold-out", "u").run().wait("position 1")
		for _, g := range guests[objects:] {
			g.wait("position 1")
		}
		w.ticks(fmt.Sprint("event-", objects), 5)
		for i, text := range texts {
			event := fmt.Sprint("event-", i)
			if i < objects {
				guests[i].wait("busy event_service")
				_, err := w.rooms.RoomStatus(t.Context(), event)
				require.ErrorIs(t, err, room.ErrUnknown, text)
				continue
			}
			got := w.statusOf(event)
			require.Equal(t, []int64{-1, 1, 0}, []int64{got.Capacity, got.Waiting, got.Promoted}, text)
		}
		for i := range texts {
			e.answers(fmt.Sprint("event-", i), `{"seatCount":1}`)
		}
		e.answers("sold-out", `{"seatCount":1}`)
		for _, g := range guests {
			g.wait("promoted")
		}
		require.Zero(t, none.count("promoted"), "no seats are a number")
		require.Zero(t, w.statusOf("sold-out").Capacity)
	})
}

// Invented events cost one call each, and a key that expires. Users of real events go on. No other
// test runs at the same time.
func TestInventedEventsCostLittle(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		invented := 500
		if tier.IsRest(t) {
			invented = 10_000
		}
		w, e := withEvents(t, s, 10*time.Second, map[string]int64{"concert-1": 100, "new": 1})
		w.guest("before").run().wait("promoted")
		clients := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}, Timeout: time.Minute}
		t.Cleanup(clients.CloseIdleConnections)
		var crowd errgroup.Group
		var busy atomic.Int64 // each perhaps after a call of the Event Service
		crowd.SetLimit(32)
		for i := range invented {
			crowd.Go(func() error {
				url := fmt.Sprintf("http://%s/events/invented-%d/tickets/waiting", w.brokers[i%2].web.Addr(), i)
				r, _ := http.NewRequest(http.MethodGet, url, http.NoBody)
				r.Header.Set("X-User", fmt.Sprint("bot-", i%100))
				for end := time.Now().Add(patience); ; {
					answer, err := clients.Do(r)
					if err != nil {
						return err
					}
					switch err := answer.Body.Close(); {
					case answer.StatusCode == http.StatusNotFound:
						return err
					case answer.StatusCode != http.StatusServiceUnavailable || time.Now().After(end):
						return fmt.Errorf("status %d", answer.StatusCode)
					}
					busy.Add(1)
				}
			})
			if i%(invented/20) == 0 {
				w.guest(fmt.Sprint("user-", i)).run().wait("promoted")
			}
			if i == invented/2 {
				w.in("new", "u").run().wait("promoted")
			}
		}
		require.NoError(t, crowd.Wait())
		w.in("new", "v").run().wait("position 1")
		all, most := e.called("invented-")
		require.GreaterOrEqual(t, all, invented)
		require.LessOrEqual(t, all, invented+int(busy.Load()))
		require.LessOrEqual(t, most, 1+int(busy.Load()))
		events, err := w.rooms.Events(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"concert-1", "new"}, events)
		keys, err := w.admin.Keys(t.Context(), "*{invented-*").Result()
		require.NoError(t, err)
		require.LessOrEqual(t, len(keys), invented, "one for each")
		for _, key := range keys {
			require.NotEqual(t, time.Duration(-1), w.admin.PTTL(t.Context(), key).Val(), key)
		}
		for _, p := range w.brokers {
			require.Zero(t, p.value("event_service_calls_total", "failed")+p.value("event_service_calls_total", "not_sent"))
		}
	})
}
