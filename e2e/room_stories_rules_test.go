package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
)

// queued lets a user enter without a connection.
func (s *roomStory) queued(user string, broker int) said {
	s.t.Helper()
	status, place := s.call(http.MethodGet, user, broker, "")
	require.Equal(s.t, http.StatusOK, status)
	return place
}

// ticked waits until the room's clock is later by this time.
func (s *roomStory) ticked(duration time.Duration) {
	s.t.Helper()
	last := s.status().LastTick + duration.Milliseconds()
	s.await("the room ticks", func() error {
		if now := s.status().LastTick; now < last {
			return fmt.Errorf("it is %d, before %d", now, last)
		}
		return nil
	})
}

// ended waits until a user has no place, for this reason.
func (s *roomStory) ended(user, reason string) {
	s.t.Helper()
	s.equals(user+" has no place", []string{"", reason}, func() any {
		found := s.find(user)
		return []string{string(found.State), found.Reason}
	})
}

// Transition: a promotion alone leaves a user IN_ENTRY. The notification makes the user
// IN_PROGRESS.
func TestPromotionAndNotificationMakeAUserInProgress(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":1`)
		require.Equal(t, "IN_ENTRY", s.queued("ann", 0).Status)
		s.await("ann is promoted", func() error {
			found := s.find("ann")
			if found.State == "" {
				s.queued("ann", 0) // the test was slow
			}
			if found.State != room.Ready || found.Status != "IN_ENTRY" {
				return fmt.Errorf("found %+v", found)
			}
			return nil
		})
		answer := s.queued("ann", 1)
		require.Equal(t, []any{room.Admitted, "IN_PROGRESS"}, []any{answer.State, answer.Status})
		require.NotEmpty(t, answer.Token)
		found := s.find("ann")
		require.Equal(t, []any{"IN_PROGRESS", answer.JTI, answer.Until}, []any{found.Status, found.JTI, found.Until})
	}, roomApart)
}

// Transition: a waiting user without a connection is removed after the grace. The index is kept
// for who comes back.
func TestAWaitingUserWithoutAConnectionIsRemoved(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":0`)
		ann.stop()
		s.ended("ann", "grace")
		ben.stands(0, 1)
		require.False(t, s.redis.HExists(t.Context(), s.key("WAITING_QUEUE_INDEX_RECORD"), s.user("ann")).Val())
		require.False(t, s.redis.HExists(t.Context(), s.key("WAITING_USER_IDS"), s.user("ann")).Val())
		require.Equal(t, ann.all("connected")[0].Index, s.enter("ann", 1).all("connected")[0].Index)
	}, roomApart, roomRelease)
}

// Transition and failure: an admitted user without a connection loses the slot, once. With release
// that is soon after the connection is lost, otherwise at the end of the lease. The token is then
// void.
func TestTheSlotOfAnAdmittedUserWhoIsGoneIsFreeAgain(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":1`)
		lease := ann.promoted()
		ann.stop()
		next := ben.promoted()
		require.NotEqual(t, lease.JTI, next.JTI)
		status := s.status()
		require.LessOrEqual(t, status.Ready+status.Admitted, int64(1))
		_, err := s.gate(0).Verify(t.Context(), s.event, lease.Token, "session")
		require.ErrorIs(t, err, shopmiddleware.ErrEnded)
		require.NotEqual(t, lease.JTI, s.redis.Get(t.Context(), s.key("ENTRY_TOKEN")+":"+s.user("ann")).Val())
		s.ended("ann", map[bool]string{true: "abandoned", false: "lease_over"}[strings.HasSuffix(t.Name(), "release")])
	}, roomRelease, roomBrief)
}

// A user whose token the shop has verified is paying there. Neither a closed page nor a departure in
// another tab ends the turn, and the sale is no late one.
func TestATurnThatTheShopHasVerifiedEndsInTheShop(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":2,"concurrency":1`)
		lease := ann.promoted()
		_, err := s.gate(0).Verify(t.Context(), s.event, lease.Token, "session")
		require.NoError(t, err)
		ann.stop()
		status, answer := s.call(http.MethodDelete, "ann", 1, "")
		require.Equal(t, []any{http.StatusConflict, "in_shop"}, []any{status, answer.Error})
		s.ticked(15 * time.Second) // longer than grace and seen_interval
		require.Equal(t, room.Admitted, s.find("ann").State)
		require.Empty(t, ben.all("promoted"))
		require.NoError(t, s.gate(1).Finish(t.Context(), s.event, lease.Token, "session", true))
		s.ended("ann", "sold")
		ben.promoted()
		require.EqualValues(t, 1, s.status().Sold)
	}, roomApart, roomRelease)
}

// Failure: the connection is lost at the notification. Without release the turn goes on, and the
// same token is there for who connects again.
func TestAnAdmittedUserWhoLosesTheConnectionKeepsTheTurn(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":1`)
		lease := ann.promoted()
		ann.stop()
		s.ticked(12 * time.Second) // grace and seen_interval, and longer
		require.Equal(t, room.Admitted, s.find("ann").State)
		require.Empty(t, ben.all("promoted"))
		again := s.enter("ann", 1).promoted()
		require.Equal(t, []any{lease.JTI, lease.Until}, []any{again.JTI, again.Until})
		s.buys(0, again.Token, "session")
	}, roomApart)
}

// Failure: a promoted user has no connection. The slot is free again, and the next user is
// promoted. Without release the index is kept.
func TestAPromotedUserWithoutAConnectionIsPassedOver(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		index := s.queued("ann", 0).Index
		ben := s.enter("ben", 1)
		s.change("set", `,"capacity":1`)
		ben.promoted()
		status := s.status()
		require.LessOrEqual(t, status.Ready+status.Admitted, int64(1))
		release := strings.HasSuffix(t.Name(), "release")
		found := s.find("ann")
		require.Equal(t, map[bool]string{true: "abandoned", false: "lease_over"}[release], found.Reason)
		again := s.enter("ann", 1).all("connected")[0].Index
		require.Equal(t, release, again > index)
	}, roomRelease, roomBrief)
}

// Failure: records that can't be promoted are set aside and counted. All other users are promoted.
func TestBadRecordsAreSetAsideAndAllOthersArePromoted(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		ann := s.enter("ann", 0)
		bad := []string{`{broken`, `{"userId":5}`, `["ann"]`, `{"userId":"` + strings.Repeat("x", 129) + `"}`}
		for i, member := range bad {
			require.NoError(t, s.redis.ZAdd(t.Context(), s.key("WAITING"), goredis.Z{Score: float64(i + 1), Member: member}).Err())
		}
		ben := s.enter("ben", 1)
		s.change("set", `,"capacity":5`)
		ann.promoted()
		ben.promoted()
		require.EqualValues(t, len(bad), s.status().Aside)
		aside := s.redis.HGetAll(t.Context(), s.key("WAITING_ASIDE")).Val()
		for _, member := range bad {
			require.Equal(t, "undecodable", aside[member], member)
		}
	}, roomApart, roomRelease)
}

// Failure: a user enters many times at once, on both brokers. There is one place, all tabs are
// notified with one lease, and the eleventh stream of a broker gets busy.
func TestAUserWhoEntersManyTimesHasOnePlace(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		var tabs []*roomGuest
		for i := range 13 {
			broker := 0
			if i >= 10 {
				broker = 1
			}
			tabs = append(tabs, s.tab("ann", broker, ""))
		}
		first := tabs[0].await("connected", func(received) bool { return true }).Index
		for _, g := range tabs {
			require.Equal(t, first, g.await("connected", func(received) bool { return true }).Index)
		}
		s.tab("ann", 0, "").await("busy", func(e received) bool { return e.Reason == "too_many" })
		require.EqualValues(t, 1, s.redis.ZCard(t.Context(), s.key("WAITING")).Val())
		require.Equal(t, map[string]string{s.user("ann"): "true"}, s.redis.HGetAll(t.Context(), s.key("WAITING_USER_IDS")).Val())
		s.change("set", `,"capacity":5`)
		jti := tabs[0].promoted().JTI
		for _, g := range tabs {
			require.Equal(t, jti, g.promoted().JTI)
		}
		s.equals("one slot is used", "4", func() any { return s.slots() })
	}, roomApart, roomRelease)
}

// Failure: without Redis a new user gets busy, and a poll 503 with the time of the next try. Open
// streams stay open. Afterwards all have their places, and are promoted in order.
func TestEnteringFailsWhileRedisIsUnavailable(t *testing.T) {
	restStories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":0`)
		ann := s.enter("ann", 0)
		ann.stands(0, 1)
		s.stopRedis()
		var ben *roomGuest
		s.await("a new user gets busy", func() error {
			ben = s.tab("ben", 1, "")
			busy := ben.await("busy", func(received) bool { return true })
			require.Equal(t, "unavailable", busy.Reason)
			return nil
		})
		status, header := s.send(http.MethodGet, s.waiting(0), "", http.Header{"X-User": {"cid"}, "Accept": {"application/json"}}, nil)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.NotEmpty(t, header.Get("Retry-After"))
		require.NoError(t, s.startRedis())
		index := ben.await("connected", func(received) bool { return true }).Index
		require.Greater(t, index, ann.all("connected")[0].Index)
		require.Equal(t, http.StatusOK, s.available("the change", func() int {
			return s.operate("set", `{"by":"eve","why":"test","capacity":1}`, nil)
		}))
		ann.promoted()
		require.Len(t, ann.all("connected"), 1, "the stream stayed open")
		require.Empty(t, ann.all("closed"))
		require.Empty(t, ben.all("promoted"))
	})
}

// Capacity: the first number of seats is that of the Event Service. Later answers do not change it.
// While there is no valid number, users wait.
func TestTheEventServiceGivesTheSeatsOnce(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.events.set(s.event, "null")
		ann := s.enter("ann", 0)
		ann.stands(0, 1)
		s.ticked(time.Second)
		require.EqualValues(t, -1, s.status().Capacity)
		require.Empty(t, ann.all("promoted"))
		s.events.set(s.event, "2")
		ann.promoted()
		s.events.set(s.event, "100")
		ben, cid := s.enter("ben", 1), s.enter("cid", 1)
		ben.promoted()
		cid.stands(0, 1)
		s.ticked(time.Second)
		require.EqualValues(t, 2, s.status().Capacity)
		require.Empty(t, cid.all("promoted"))
		require.Equal(t, "0", s.slots())
	}, roomApart)
}

// Capacity: a promotion takes a slot, and each end frees it once. A sale takes its seat for good.
func TestAPromotionTakesASlotAndItsEndFreesIt(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		free := func(n string) {
			t.Helper()
			s.equals("free slots", n, func() any { return s.slots() })
		}
		s.change("open", `,"capacity":4,"concurrency":3`)
		free("3")
		ann, ben := s.enter("ann", 0), s.enter("ben", 1)
		first, second := ann.promoted(), ben.promoted()
		free("1")
		for range 2 {
			require.NoError(t, s.gate(1).Finish(t.Context(), s.event, first.Token, "", false))
		}
		ann.closed("abandoned")
		free("2")
		s.buys(0, second.Token, "session")
		free("3")
		for i, name := range []string{"cid", "dan"} {
			s.buys(i, s.enter(name, i).promoted().Token, "session")
		}
		free("1")
		require.EqualValues(t, 3, s.status().Sold)
	}, roomApart)
}

// Capacity: an operator corrects the seats. Below the number of admitted users no lease ends, and
// no user is promoted. With more seats the next users are promoted.
func TestAnOperatorCorrectsTheNumberOfSeats(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ann, ben := s.openForTwo(`,"capacity":2`)
		first, second := ann.promoted(), ben.promoted()
		s.change("set", `,"capacity":1`)
		cid := s.enter("cid", 0)
		s.buys(0, first.Token, "session")
		s.ticked(time.Second)
		require.Empty(t, cid.all("promoted"))
		require.Equal(t, "0", s.slots())
		status := s.status()
		require.Equal(t, []int64{1, 1, 1}, []int64{status.Capacity, status.Sold, status.Admitted})
		require.NoError(t, s.gate(0).Finish(t.Context(), s.event, second.Token, "", false))
		s.ticked(time.Second)
		require.Empty(t, cid.all("promoted"))
		s.change("set", `,"capacity":2`)
		s.buys(1, cid.promoted().Token, "session")
		require.EqualValues(t, 2, s.status().Sold)
	}, roomApart)
}
