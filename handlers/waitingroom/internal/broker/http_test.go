package broker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// settled repeats a request while the broker says that the room is unavailable. A machine that stands
// still may use up the time of its calls.
func settled(send func() (reply, error)) (a reply, err error) {
	for end := time.Now().Add(patience); ; {
		a, err = send()
		unavailable := a.word() == "503 unavailable" || strings.Contains(a.body, `event: busy`) && strings.Contains(a.body, `{"reason":"unavailable"}`)
		if err != nil || !unavailable || time.Now().After(end) {
			return a, err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// send sends a request of a user, as one that polls, until the room is available. Further headers are
// name and value in turn.
func (w *world) send(method, path, user string, headers ...string) reply {
	w.t.Helper()
	a, err := settled(func() (reply, error) { return w.sendOnce(method, path, user, headers...), nil })
	require.NoError(w.t, err)
	return a
}

func (w *world) sendOnce(method, path, user string, headers ...string) reply {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://room/events/"+path, http.NoBody)
	require.NoError(w.t, err)
	r.Header.Set("Accept", "application/json")
	if user != "" {
		r.Header.Set("X-User", user)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := (&http.Client{Transport: w.transport(), Timeout: time.Minute}).Do(r)
	require.NoError(w.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(w.t, err)
	return reply{answer.StatusCode, answer.Header, string(body)}
}

func (w *world) path() string { return w.event + "/tickets/waiting" }

// word returns status and word of a refusal.
func (a reply) word() string {
	var body struct{ Error string }
	_ = json.Unmarshal([]byte(a.body), &body)
	return fmt.Sprint(a.status, " ", body.Error)
}

// place is the JSON of a place.
type place struct {
	ticket
	State, Status, RoomState, Message string
	Idx, Position, Ahead, Waiting     int64
	RetryAfter, Now                   int64
	Resumed                           bool
}

func (a reply) place(t *testing.T) (p place) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &p), a.body)
	return p
}

const asStream = "text/event-stream"

func TestRequestsThatAreRefused(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		require.Equal(t, "401 no_user", w.send("GET", w.path(), "").word())
		require.Equal(t, "400 bad_event", w.send("GET", "a%7Bb%7D/tickets/waiting", "u").word())
		require.Equal(t, "400 bad_event", w.send("GET", strings.Repeat("a", 129)+"/tickets/waiting", "u").word())
		require.Equal(t, "403 foreign_origin", w.send("GET", w.path(), "u", "Origin", "https://foreign.example", "Accept", asStream).word())
		link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
		for _, path := range []string{w.path(), w.path() + "/status"} {
			require.Equal(t, "403 foreign_origin", w.send("GET", path, "u", link...).word(), "a link of another page")
		}

		require.Equal(t, "404 unknown_event", w.send("GET", w.path(), "u").word())
		p.known = func(string) error { return eventservice.ErrUnavailable }
		a := w.send("GET", w.path(), "u")
		require.Equal(t, "503 event_service", a.word())
		require.NotEmpty(t, a.header.Get("Retry-After"))
		a = w.send("GET", w.path(), "u", "Accept", asStream)
		require.Equal(t, http.StatusOK, a.status)
		require.Contains(t, a.body, "event: busy\ndata: {\"reason\":\"event_service\"}")
		require.Equal(t, "404 unknown_event", w.send("GET", w.path()+"/status", "u").word())
		require.Equal(t, http.StatusNoContent, w.send("DELETE", w.path(), "u").status)

		w.open(10, 10)
		sold := func(n int) { require.NoError(t, w.admin.HSet(t.Context(), "ROOM:{"+w.event+"}", "sold", n).Err()) }
		sold(10)
		require.Equal(t, "409 sold_out", w.send("GET", w.path(), "u", "Accept", asStream).word())
		require.Equal(t, "409 sold_out", w.send("GET", w.path(), "u", "Accept", "application/json").word())
		sold(0)
		w.control(room.Change{Verb: room.Drain})
		require.Equal(t, "409 draining", w.send("GET", w.path(), "u", "Accept", asStream).word())
		w.control(room.Change{Verb: room.Close})
		require.Equal(t, "410 room_closed", w.send("GET", w.path(), "u", "Accept", asStream).word())
	})
}

func TestAUserThatSendsTooManyRequestsIsRefused(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.requests = 1
		w.start("broker", "broker")
		w.open(10, 10)
		require.Equal(t, http.StatusOK, w.send("GET", w.path(), "u").status)
		var refused reply
		redistest.Eventually(t, "refused", func() bool {
			refused = w.send("GET", w.path()+"/status", "u")
			return refused.word() == "429 too_many_requests"
		})
		wait, err := strconv.Atoi(refused.header.Get("Retry-After"))
		require.NoError(t, err)
		require.LessOrEqual(t, wait, 10)
		require.Equal(t, http.StatusOK, w.send("GET", w.path(), "another").status)
	})
}

// Invented events have no requests of their own: each costs a call to the Event Service and a key for the cache's time.
func TestAUserThatInventsEventsIsRefused(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		const invented = 20
		w.requests = 1
		p := w.start("broker", "broker")
		var asked atomic.Int64
		p.known = func(string) error { asked.Add(1); return eventservice.ErrNoEvent }
		words := map[string]int64{}
		for i := range invented {
			words[w.send("GET", fmt.Sprint("invented-", i, "/tickets/waiting"), "bot").word()]++
		}
		require.Equal(t, words["404 unknown_event"], asked.Load(), "%v", words)
		require.EqualValues(t, invented, words["404 unknown_event"]+words["429 too_many_requests"], "%v", words)
		require.Positive(t, words["429 too_many_requests"])
		require.Equal(t, "404 unknown_event", w.send("GET", "invented-0/tickets/waiting", "another").word())
	})
}

// The first user of an event that exists creates its room.
func TestTheFirstUserCreatesTheRoom(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		p.known = func(event string) error { return w.rooms.Create(t.Context(), event) }
		got := w.send("GET", w.path(), "u").place(t)
		require.Equal(t, []any{"WAITING", "IN_ENTRY", false}, []any{got.State, got.Status, got.Resumed})
	})
}

// A stream that reconnects after the event was cleared has ended, and creates no room. A failover
// that loses the room costs no place. A user without a place enters again.
func TestAUserWhoReturnsAfterTheEventWasCleared(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.ClearAfter = time.Millisecond
		known := func(event string) error { return w.rooms.Create(t.Context(), event) }
		first := w.start("broker", "broker")
		first.known = known
		w.open(1, 0)
		g := w.guest("u").run().wait("connected WAITING")
		index := g.idx()
		id := g.leave()
		first.kill() // it would report that the user has left, and restore the place to do so
		w.start("broker", "broker").known = known
		require.NoError(t, w.admin.Del(t.Context(), w.key1("ROOM")).Err())
		require.Equal(t, index, w.send("GET", w.path(), "u", "Last-Event-ID", id).place(t).Idx, "a failover has lost the room")
		require.EqualValues(t, 1, w.status().Waiting)

		w.control(room.Change{Verb: room.Close})
		w.start("dispatcher", "dispatcher")
		redistest.Eventually(t, "the event is cleared", func() bool {
			cleared, err := w.rooms.Cleared(t.Context(), w.event)
			return err == nil && cleared
		})
		require.Equal(t, http.StatusNoContent, w.send("GET", w.path(), "u", "Last-Event-ID", id).status)
		require.Equal(t, http.StatusNoContent, w.send("GET", w.path(), "u", "Last-Event-ID", "unsigned").status)
		_, err := w.rooms.RoomStatus(t.Context(), w.event)
		require.ErrorIs(t, err, room.ErrUnknown)
		require.Equal(t, "410 room_closed", w.send("GET", w.path(), "n").word(), "a new room would sell the seats again")
		w.open(1, 0)
		require.False(t, w.send("GET", w.path(), "u").place(t).Resumed)
	})
}

// A user who returns to a room that only an operator opens waits for it, and has the former place then.
func TestAUserWhoReturnsToARoomThatRedisHasLost(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		first := w.start("broker", "broker")
		w.open(1, 0)
		g := w.guest("u").run().wait("connected WAITING")
		id := g.leave()
		first.kill() // it would report that the user has left
		w.start("broker", "broker")
		require.NoError(t, w.admin.Del(t.Context(), w.admin.Keys(t.Context(), "*{"+w.event+"}*").Val()...).Err())
		require.Equal(t, "404 unknown_event", w.send("GET", w.path(), "u").word(), "nothing says that there was a room")
		require.Equal(t, "503 room_lost", w.send("GET", w.path(), "u", "Last-Event-ID", id).word())
		again := w.guest("u")
		again.client.LastEventID = id
		again.run().wait("busy room_lost")
		w.open(1, 0)
		again.wait("connected WAITING")
		require.Equal(t, g.idx(), again.idx())
	})
}

// A reload and a poll have no signed index. While other users of a lost room have streams here, they
// wait for the room as well.
func TestAReloadAndAPollOfARoomThatRedisHasLost(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.open(1, 0)
		w.guest("first").run().wait("connected WAITING")
		w.send("GET", w.path(), "u").place(t)
		require.NoError(t, w.admin.Del(t.Context(), w.admin.Keys(t.Context(), "*{"+w.event+"}*").Val()...).Err())
		require.Equal(t, "503 room_lost", w.send("GET", w.path()+"/status", "u").word())
		require.Equal(t, "503 room_lost", w.send("GET", w.path(), "u").word())
		require.Equal(t, "404 unknown_event", w.send("GET", "another/tickets/waiting", "u").word())
		w.open(1, 0)
		w.send("GET", w.path(), "u").place(t)
		require.Equal(t, 200, w.send("GET", w.path()+"/status", "u").status)
	})
}

// A user of an event beyond max_events is refused for now. The users of other events go on.
func TestAnEventTooMany(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		events := httptest.NewServer(sim.New(map[string]int64{w.event: 1, "concert-2": 1, "concert-3": 1, "concert-4": 1}))
		t.Cleanup(events.Close)
		w.events, w.options.MaxEvents = events.URL, 2
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.send("GET", w.path(), "u").place(t)
		w.send("GET", "concert-2/tickets/waiting", "u").place(t)
		for range 3 {
			a := w.send("GET", "concert-3/tickets/waiting", "v")
			require.Equal(t, "503 too_many_events", a.word())
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
		a := w.send("GET", "concert-4/tickets/waiting", "v", "Accept", asStream)
		require.Equal(t, http.StatusOK, a.status)
		require.Contains(t, a.body, "event: busy\ndata: {\"reason\":\"too_many_events\"}")
		for _, event := range []string{w.event, "concert-2"} {
			w.send("GET", event+"/tickets/waiting", "w").place(t)
			redistest.Eventually(t, "promoted", func() bool { return w.send("GET", event+"/tickets/waiting/status", "u").place(t).State == "ADMITTED" })
		}
		w.event = "concert-3"
		w.open(1, 1)
		w.send("GET", w.path(), "v").place(t)
	})
}

func TestAClientThatPolls(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(1, 1)
		require.Equal(t, "404 unknown", w.send("GET", w.path()+"/status", "u").word())
		first := w.send("GET", w.path(), "u").place(t)
		is := func(user, part string) func() bool {
			return func() bool { return strings.Contains(w.send("GET", w.path()+"/status", user).body, part) }
		}
		redistest.Eventually(t, "promoted", is("u", `"state":"ADMITTED"`))
		got := w.send("GET", w.path()+"/status", "u").place(t)
		require.Equal(t, []any{"IN_PROGRESS", first.Idx}, []any{got.Status, got.Idx})
		require.NotEmpty(t, got.Token)
		require.Positive(t, got.Now)
		require.Less(t, got.Now, got.Until)
		require.Positive(t, got.RetryAfter)
		require.Equal(t, got.JTI, w.send("GET", w.path(), "u").place(t).JTI, "entering again attaches")

		w.send("GET", w.path(), "v")
		redistest.Eventually(t, "a position", is("v", `"position":1,`))
		require.Equal(t, http.StatusNoContent, w.send("DELETE", w.path(), "u").status)
		require.Equal(t, http.StatusNoContent, w.send("DELETE", w.path(), "u").status, "again")
		require.Equal(t, "410 left", w.send("GET", w.path()+"/status", "u").word())
		redistest.Eventually(t, "the slot is free", is("v", `"state":"ADMITTED"`))
	})
}

// HEAD queues no user and is no sign of life: programs that check links send it with the user's header.
func TestHeadHasNoEffect(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.open(1, 1)
		for _, path := range []string{w.path(), w.path() + "/status"} {
			a := w.send("HEAD", path, "u")
			require.Equal(t, http.StatusMethodNotAllowed, a.status)
			require.Equal(t, "GET", a.header.Get("Allow"))
		}
		require.Equal(t, "404 unknown", w.send("GET", w.path()+"/status", "u").word())
	})
}

// Only the shop and an operator end a lease that the shop has verified.
func TestAUserWhoIsInTheShopDoesNotEndTheTurn(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker", "dispatcher")
		w.open(1, 1)
		g := w.guest("u").run()
		g.wait("promoted")
		require.Equal(t, http.StatusOK, w.mustShop("verify", map[string]string{"token": g.ticket(0).Token, "by": "session"}).status)
		refused := w.send("DELETE", w.path(), "u")
		require.Equal(t, "409 in_shop", refused.word())
		require.Contains(t, refused.body, "finish or cancel the purchase there")
		require.Equal(t, g.ticket(0).JTI, w.send("GET", w.path()+"/status", "u").place(t).JTI)
		require.False(t, g.ended())
		require.Equal(t, http.StatusOK, w.mustShop("finish", map[string]string{"token": g.ticket(0).Token, "by": "session", "result": "sold"}).status)
		g.wait("closed sold")
		require.Equal(t, http.StatusNoContent, w.send("DELETE", w.path(), "u").status, "the lease has ended")
	})
}

// A user who has made all purchases is told so before the queue, as a stream and as JSON. A stream that
// comes back is only told how its turn ended.
func TestAUserWhoHasBoughtDoesNotEnterAgain(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.PurchasesPerUser = 1
		w.start("broker", "broker", "dispatcher")
		w.open(10, 10)
		g := w.guest("u").run().wait("promoted")
		require.Equal(t, http.StatusOK, w.mustShop("finish", map[string]string{"token": g.ticket(0).Token, "result": "sold"}).status)
		g.wait("closed sold").ends()
		for _, accept := range []string{asStream, "application/json"} {
			a := w.send("GET", w.path(), "u", "Accept", accept)
			require.Equal(t, "409 bought", a.word())
			require.Contains(t, a.body, "all purchases that the event allows")
		}
		require.Equal(t, http.StatusNoContent, w.send("GET", w.path(), "u", "Accept", asStream, "Last-Event-ID", g.lastID()).status)
		require.Equal(t, "410 sold", w.send("GET", w.path()+"/status", "u").word())
		w.guest("v").run().wait("promoted")
	})
}

// All streams of a user have one place and one lease, on all brokers. The eleventh on a broker is
// refused for now.
func TestAUserWithManyStreams(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.open(10, 10)
		w.control(room.Change{Verb: room.Hold})
		w.start("broker-1", "broker")
		w.start("dispatcher", "dispatcher")
		var tabs []*guest
		for range 10 {
			tabs = append(tabs, w.guest("u").run().wait("position 1"))
		}
		a := w.send("GET", w.path(), "u", "Accept", asStream)
		require.Contains(t, a.body, `{"reason":"too_many"}`)
		w.start("broker-2", "broker")
		for range 4 { // on both brokers in turn
			tabs = append(tabs, w.guest("u").run())
		}
		w.control(room.Change{Verb: room.Resume})
		for _, tab := range tabs {
			tab.wait("promoted")
			require.Equal(t, tabs[0].ticket(0), tab.ticket(0))
			require.Equal(t, tabs[0].idx(), tab.idx())
		}
		w.send("DELETE", w.path(), "u")
		for _, tab := range tabs {
			tab.wait("closed left").ends()
		}
	})
}

// A request with Last-Event-ID never enters. It is attached to the place, a lost place is restored,
// and after an end the answer is 204.
func TestAClientThatReturns(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.open(10, 10)
		w.control(room.Change{Verb: room.Hold})
		g := w.guest("u").run().wait("connected WAITING")
		id := g.leave()
		back := func(user, id string) reply { return w.send("GET", w.path(), user, "Last-Event-ID", id) }
		require.Equal(t, g.idx(), back("u", id).place(t).Idx)
		require.Equal(t, g.idx(), back("u", "forged").place(t).Idx, "it is attached")
		require.Equal(t, http.StatusNoContent, back("v", id).status, "the id of another user")

		redistest.Eventually(t, "an index without a signature", func() bool {
			w.loses("u") // again, when the sign for the end of the stream has restored the place
			return back("u", "1700000000000000").status == http.StatusNoContent
		})
		restored := back("u", id).place(t)
		require.Equal(t, []any{g.idx(), true}, []any{restored.Idx, restored.Resumed})

		w.send("DELETE", w.path(), "u")
		require.Equal(t, http.StatusNoContent, back("u", id).status)
		again := w.send("GET", w.path(), "u").place(t)
		require.Greater(t, again.Idx, g.idx(), "entering without an id is a new place")
	})
}

// loses removes the place of a user, as a failover that loses its join does.
func (w *world) loses(user string) {
	w.t.Helper()
	member := fmt.Sprintf(`{"userId":%q}`, user)
	var n *goredis.IntCmd
	// No sign of life comes between these commands.
	_, err := w.admin.TxPipelined(w.t.Context(), func(all goredis.Pipeliner) error {
		n = all.ZRem(w.t.Context(), w.key1("WAITING"), member)
		all.ZRem(w.t.Context(), w.key1("WAITING_SEEN"), user)
		for _, name := range []string{"WAITING_QUEUE_INDEX_RECORD", "WAITING_USER_IDS"} {
			all.HDel(w.t.Context(), w.key1(name), user)
		}
		return nil
	})
	require.NoError(w.t, err)
	require.EqualValues(w.t, 1, n.Val())
}

// While Redis is unavailable streams stay open, and requests are refused for now. Afterwards
// signs of life restore what a failover has lost.
func TestAnOutageOfRedis(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		w.guest("first").run().wait("promoted")
		g := w.guest("u").run().wait("position 1")
		p.toRedis.SetDown(true)
		a := w.sendOnce("GET", w.path(), "v")
		require.Equal(t, "503 unavailable", a.word())
		a = w.sendOnce("GET", w.path(), "v", "Accept", asStream)
		require.Contains(t, a.body, `event: busy`)
		require.Equal(t, "503 unavailable", w.sendOnce("GET", w.path()+"/status", "u").word())
		require.Equal(t, "503 unavailable", w.sendOnce("DELETE", w.path(), "u").word())
		w.loses("u")
		p.passes("waitingroom.broker.loops")
		p.toRedis.SetDown(false)
		redistest.Eventually(t, "restored", func() bool {
			got, err := w.rooms.Status(t.Context(), w.event, "u")
			return err == nil && got.State == room.Waiting && got.Index == g.idx()
		})
		require.False(t, g.ended())
		require.Equal(t, 1, g.count("connected *"))
	})
}
