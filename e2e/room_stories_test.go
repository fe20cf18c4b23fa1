package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
)

// A waiting user sees the own position and the number of waiting users, live. The position never
// rises.
func TestAWaitingUserSeesThePositionLive(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		ann, ben, cid := s.enter("ann", 0), s.enter("ben", 1), s.enter("cid", 0)
		ann.stands(0, 3)
		ben.stands(1, 3)
		cid.stands(2, 3)
		dan := s.enter("dan", 1)
		cid.stands(2, 4)
		status, _ := s.call(http.MethodDelete, "ann", 1, "")
		require.Equal(t, http.StatusNoContent, status)
		ann.closed("left")
		ben.stands(0, 3)
		dan.stands(2, 3)
		first := dan.all("position")[0].AsOf
		dan.await("position", func(e received) bool { return e.AsOf > first && e.RoomState == "open" && e.WaitSeconds == nil })
		for _, g := range []*roomGuest{ben, cid, dan} {
			least := int64(10)
			for _, e := range g.all("position") {
				require.LessOrEqual(t, *e.Ahead, least, g.name)
				least = *e.Ahead
			}
		}
	}, roomApart, roomRelease)
}

// A user whose turn has come receives a token at once, on each broker. The shop accepts it with the
// public keys alone, and buys at another broker.
func TestAPromotedUserReceivesATokenForTheShop(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":2,"concurrency":1`)
		first := ann.promoted()
		entry, err := s.gate(1).Check(t.Context(), s.event, first.Token)
		require.NoError(t, err)
		require.Equal(t, shopmiddleware.Entry{Event: s.event, UserID: s.user("ann"), JTI: first.JTI, Until: entry.Until}, entry)
		require.InDelta(t, first.Until, entry.Until.UnixMilli(), 1000)
		require.Empty(t, ben.all("promoted"), "there is one slot")
		s.buys(1, first.Token, "session")
		ann.closed("sold")
		second := ben.promoted()
		require.NotEqual(t, first.JTI, second.JTI)
		s.buys(0, second.Token, "session")
		ben.closed("sold")
		require.EqualValues(t, 2, s.status().Sold)
	}, roomApart, roomRelease)
}

// A user who connects again, at another broker too, has the same place or lease, and no second one.
func TestAUserWhoConnectsAgainKeepsPlaceAndLease(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":0`)
		index := ann.all("connected")[0].Index
		ann.stop()
		again := s.tab("ann", 1, ann.cursor())
		place := again.await("connected", func(received) bool { return true })
		require.Equal(t, []any{index, true, "IN_ENTRY"}, []any{place.Index, place.Resumed, place.Status})
		other := s.enter("ann", 0)
		require.Equal(t, index, other.all("connected")[0].Index, "a second tab, without an id")
		again.stands(0, 2)
		ben.stands(1, 2)
		for _, key := range []string{"WAITING_QUEUE_INDEX_RECORD", "WAITING_USER_IDS"} {
			require.EqualValues(t, 2, s.redis.HLen(t.Context(), s.key(key)).Val(), key)
		}

		s.change("set", `,"capacity":1`)
		lease, same := again.promoted(), other.promoted()
		require.Equal(t, []any{lease.JTI, lease.Until}, []any{same.JTI, same.Until}, "both tabs")
		again.stop()
		other.stop()
		third := s.tab("ann", 0, again.cursor()).promoted()
		require.Equal(t, []any{lease.JTI, lease.Until}, []any{third.JTI, third.Until}, "a reconnect extends nothing")
		require.Empty(t, ben.all("promoted"))
		require.Equal(t, "0", s.slots())
	}, roomApart)
}

// Users of two brokers are promoted in the order in which they entered, by two dispatchers, while
// others buy, abandon and leave. No more than the slots are in use.
func TestUsersOfTwoBrokersArePromotedInOrder(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		const users, concurrency = 24, 3
		// A group that reads nothing keeps the stream of promotions.
		require.NoError(t, s.redis.XGroupCreateMkStream(t.Context(), s.key("ENTRY"), "observer", "0").Err())
		s.change("open", fmt.Sprintf(`,"capacity":0,"concurrency":%d`, concurrency))
		var guests []*roomGuest
		var expected []string
		for i := range users {
			g := s.enter(fmt.Sprint("user-", i), i%2)
			guests = append(guests, g)
			if i%6 == 4 {
				status, _ := s.call(http.MethodDelete, g.name, (i+1)%2, "")
				require.Equal(t, http.StatusNoContent, status)
				g.closed("left")
				continue
			}
			expected = append(expected, s.user(g.name))
		}
		s.change("set", fmt.Sprintf(`,"capacity":%d`, users))
		for i, g := range guests {
			if i%6 == 4 {
				continue
			}
			raw, shop, sold := g.promoted().Token, s.gate(i%2), i%3 > 0
			status := s.status()
			require.LessOrEqual(t, status.Ready+status.Admitted, int64(concurrency))
			_, err := shop.Verify(t.Context(), s.event, raw, "session")
			require.NoError(t, err)
			require.NoError(t, shop.Finish(t.Context(), s.event, raw, "session", sold))
		}
		entries, err := s.redis.XRange(t.Context(), s.key("ENTRY"), "-", "+").Result()
		require.NoError(t, err)
		var order []string
		for _, e := range entries {
			order = append(order, e.Values["userId"].(string))
		}
		require.Equal(t, expected, order)
	}, roomApart)
}

// Use case: join. The first users of an event share one call of the Event Service, over all
// brokers. An event that it does not have is 404, and remembered. While it is unavailable the
// answer is busy.
func TestTheFirstUsersJoinAnEventOfTheEventService(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		for i := range 4 {
			status, answer := s.call(http.MethodGet, "ann", i%2, "")
			require.Equal(t, []any{http.StatusNotFound, "unknown_event"}, []any{status, answer.Error})
		}
		require.Equal(t, 1, s.events.called(s.event))
		status, _ := s.send(http.MethodGet, s.waiting(0), "", http.Header{}, nil)
		require.Equal(t, http.StatusUnauthorized, status, "there are no anonymous visitors")

		s.event += "-2"
		s.events.set(s.event, "unavailable")
		status, header := s.send(http.MethodGet, s.waiting(0), "", http.Header{userHeader: {s.user("ann")}}, nil)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.NotEmpty(t, header.Get("Retry-After"))
		ann := s.tab("ann", 0, "")
		ann.await("busy", func(e received) bool { return e.Reason == "event_service" })
		s.events.set(s.event, "500")
		ann.await("connected", func(received) bool { return true })

		s.event += "-3"
		s.events.set(s.event, "500")
		var guests []*roomGuest
		for i := range 6 {
			guests = append(guests, s.tab(fmt.Sprint("user-", i), i%2, ""))
		}
		for _, g := range guests {
			g.await("connected", func(e received) bool { return e.Index > 0 })
		}
		require.Equal(t, 1, s.events.called(s.event))
		require.EqualValues(t, 500, s.status().Capacity)
	}, roomApart)
}

// Use case: receive the position. A client that polls receives that of a stream, and when to
// poll again.
func TestAClientThatPollsSeesThePositionOfAStream(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		s.enter("ann", 0)
		status, place := s.call(http.MethodGet, "ben", 1, "")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, []any{room.Waiting, "IN_ENTRY", false}, []any{place.State, place.Status, place.Resumed})
		s.equals("the position of a poll", []int64{1, 2, 2, 1}, func() any {
			_, p := s.call(http.MethodGet, "ben", 0, "/status")
			require.Equal(t, place.Index, p.Index)
			if p.Position == nil {
				return "no position yet"
			}
			return []int64{*p.Ahead, *p.Position, p.Waiting, p.RetryAfter}
		})
		s.enter("ben", 1).stands(1, 2)
	}, roomApart)
}

// Use case: receive the token. One session of the shop gets a token accepted; others are refused,
// and so is a token of another event.
func TestOneSessionOfTheShopUsesAToken(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":1`)
		var entry said
		s.await("a poll receives the token", func() error {
			status, answer := s.call(http.MethodGet, "ann", 1, "")
			require.Equal(t, http.StatusOK, status)
			if entry = answer; entry.Token == "" {
				return fmt.Errorf("received %+v", entry)
			}
			return nil
		})
		require.Equal(t, "IN_PROGRESS", entry.Status)
		shop := s.gate(0)
		for range 2 {
			_, err := shop.Verify(t.Context(), s.event, entry.Token, "session")
			require.NoError(t, err, "the same session may ask again")
		}
		_, err := s.gate(1).Verify(t.Context(), s.event, entry.Token, "session of a thief")
		require.ErrorIs(t, err, shopmiddleware.ErrUsed)
		_, err = shop.Verify(t.Context(), s.event+"-2", entry.Token, "session")
		require.ErrorIs(t, err, shopmiddleware.ErrOtherEvent)
		_, err = shop.Verify(t.Context(), s.event, entry.Token+"x", "session")
		require.ErrorIs(t, err, shopmiddleware.ErrNoEntry)
		for range 2 {
			require.NoError(t, shop.Finish(t.Context(), s.event, entry.Token, "session", true), "the same answer again")
		}
		require.ErrorIs(t, shop.Finish(t.Context(), s.event, entry.Token, "session", false), shopmiddleware.ErrUsed)
		require.ErrorIs(t, shop.Finish(t.Context(), s.event, entry.Token, "session of a thief", true), shopmiddleware.ErrUsed)
		_, err = shop.Verify(t.Context(), s.event, entry.Token, "session")
		require.ErrorIs(t, err, shopmiddleware.ErrEnded)
		require.EqualValues(t, 1, s.status().Sold)
	}, roomApart)
}

// Use case: disconnect cleanly. A user who leaves has no place on any broker, and no tab connects
// again. The slot of an admitted user is free.
func TestAUserLeavesOnAllBrokers(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":1`)
		tab := s.enter("ben", 0)
		lease := ann.promoted()
		for _, g := range []*roomGuest{ben, ann} {
			for broker := range 2 {
				status, _ := s.call(http.MethodDelete, g.name, broker, "")
				require.Equal(t, http.StatusNoContent, status)
			}
			g.closed("left")
			back := s.tab(g.name, 1, g.cursor())
			require.NoError(t, <-back.ends, "204 ends an EventSource")
			require.Empty(t, back.all(""))
		}
		tab.closed("left")
		require.Empty(t, s.redis.Exists(t.Context(), s.key("WAITING"), s.key("WAITING_QUEUE_INDEX_RECORD"), s.key("WAITING_USER_IDS"),
			s.key("WAITING_SEEN"), s.key("ENTRY_LEASES"), s.key("ENTRY_RECORD"), s.key("ENTRY_TOKEN")+":"+s.user("ann")).Val())
		_, err := s.gate(0).Verify(t.Context(), s.event, lease.Token, "session")
		require.ErrorIs(t, err, shopmiddleware.ErrEnded)
		s.equals("the slot is free", "1", func() any { return s.slots() })
		require.Greater(t, s.enter("ann", 1).all("connected")[0].Index, ann.all("connected")[0].Index, "who enters again is a new user")
	}, roomApart, roomRelease)
}

// Use case: monitor the queue. Command, API and metrics of each process show the same.
func TestAnOperatorMonitorsTheQueue(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":1,"concurrency":5`)
		ann := s.enter("ann", 0)
		ann.promoted()
		s.enter("ben", 1)
		s.enter("cid", 0)
		var listed struct{ Rooms []room.Status }
		s.equals("the command shows the room", []int64{2, 1, 0, 1}, func() any {
			cmd := *s.processes[0].service
			cmd.t = t
			out, code := cmd.command("", "room", "status", s.event, "--json")
			require.Zero(t, code, out)
			require.NoError(t, json.Unmarshal([]byte(out), &listed), out)
			r := listed.Rooms[0]
			return []int64{r.Waiting, r.Admitted, r.Free, r.Capacity}
		})
		status := s.status()
		require.Equal(t, []any{int64(2), int64(1), "open"}, []any{status.Waiting, status.Admitted, status.State})
		label := `{event="` + s.event + `"`
		for _, line := range []string{
			"millrace_room_waiting" + label + "} 2", "millrace_room_leases" + label + `,state="ADMITTED"} 1`,
			"millrace_room_slots_free" + label + "} 0", "millrace_room_promoted_total" + label + "} 1",
			"millrace_room_joins_total" + label + `,kind="new"} 2`, `millrace_sse_connections{hub="room"}`, "millrace_room_promotion_delay_duration_seconds_count",
		} {
			s.await("a process shows "+line, func() error {
				for _, ops := range s.operations {
					resp, err := http.Get(ops + "/metrics")
					if err != nil {
						return err
					}
					text, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err == nil && strings.Contains(string(text), line) {
						return nil
					}
				}
				return fmt.Errorf("no process has it")
			})
		}
		for _, ops := range s.operations {
			resp, err := http.Get(ops + "/readyz")
			require.NoError(t, err)
			_ = resp.Body.Close()
			require.Equal(t, http.StatusOK, resp.StatusCode)
		}
	}, roomApart)
}
