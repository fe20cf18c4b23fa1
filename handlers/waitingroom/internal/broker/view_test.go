package broker

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

var start = time.UnixMilli(1_700_000_000_000)

// queue returns the table of a room in which the indexes 1 to n wait.
func queue(n int64, asOf int64) *room.Table {
	t := &room.Table{AsOf: asOf, State: "open", Waiting: n, Capacity: 1_000_000, Concurrency: -1, PerMinute: -1}
	for i := range min(n, 100) {
		t.Ranks = append(t.Ranks, [2]int64{i + 1, i})
	}
	for rank := int64(100); rank < n; rank = rank*21/20 + 1 {
		t.Ranks = append(t.Ranks, [2]int64{rank + 1, rank})
	}
	return t
}

func waiting(index int64) room.Place { return room.Place{State: room.Waiting, Index: index, Ahead: -1} }

func names(steps []outgoing) (list []string) {
	for _, s := range steps {
		list = append(list, s.name)
	}
	return list
}

func TestAConnectionFromItsStartToItsEnd(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	steps := v.update(waiting(3), nil, start)
	require.Equal(t, []outgoing{{name: eventConnected, id: true}}, steps, "without a table")
	steps = v.update(waiting(3), queue(5, 1), start)
	require.Equal(t, []outgoing{{name: eventPosition, position: position{Position: new(int64(3)), Ahead: new(int64(2)), Waiting: 5, AsOf: 1, RoomState: "open"}}}, steps)
	require.Empty(t, v.update(room.Place{State: room.Ready, Index: 3, JTI: "a", Until: 9}, queue(2, 2), start), "a lease that is not claimed")
	lease := room.Place{State: room.Admitted, Index: 3, JTI: "a", Until: 10}
	require.Equal(t, []outgoing{{name: eventPromoted}}, v.update(lease, queue(2, 3), start))
	require.Empty(t, v.update(lease, queue(2, 4), start))
	lease.Until = 20
	require.Equal(t, []outgoing{{name: eventPromoted}}, v.update(lease, queue(2, 5), start), "an outage has moved the end")
	over := room.Place{State: room.Sold, Index: 3, Reason: "sold"}
	require.Equal(t, []outgoing{{name: eventClosed, text: "sold"}}, v.update(over, queue(2, 6), start))
	require.Empty(t, v.update(waiting(7), queue(9, 7), start), "nothing follows the end")
}

// A user up to the served index may have been promoted. It gets a position after an answer that is
// newer than the table.
func TestAUserThatMayBePromotedGetsNoPosition(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	table, p := queue(5, 10), waiting(3)
	table.Served = 3
	require.Equal(t, []string{eventConnected}, names(v.update(p, table, start)))
	p.Now = 10
	require.Equal(t, []string{eventPosition}, names(v.update(p, table, start)))
}

func TestAMessageIsSentOnceAndAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	table := queue(0, 1)
	table.Message = "soon"
	lease := room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: 1}
	require.Equal(t, []string{eventConnected, eventPromoted, eventMessage}, names(v.update(lease, table, start)))
	require.Empty(t, v.update(lease, table, start))
	table.Message = ""
	require.Equal(t, []outgoing{{name: eventMessage}}, v.update(lease, table, start))
}

// While there is no new tick the position comes again with its old time.
func TestAPositionThatIsOldComesAgain(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	v.update(waiting(1), queue(1, 1), start)
	require.Empty(t, v.update(waiting(1), queue(1, 1), start.Add(staleInterval-1)))
	steps := v.update(waiting(1), queue(1, 1), start.Add(staleInterval))
	require.Equal(t, []string{eventPosition}, names(steps))
	require.EqualValues(t, 1, steps[0].position.AsOf)
	require.Empty(t, v.update(waiting(1), queue(1, 1), start.Add(staleInterval+time.Second)))
}

func TestPositionsAreLessFrequentFarBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ index, want int64 }{{1, 60}, {100, 60}, {101, 30}, {1000, 30}, {1001, 12}, {10_001, 4}} {
		v := view{lowest: &lowest{}}
		var sent int64
		for second := range int64(60) {
			sent += int64(len(v.update(waiting(tt.index), queue(20_000, second+1), start.Add(time.Duration(second)*time.Second))))
		}
		require.Equal(t, tt.want+1, sent, "index %d, with the event connected", tt.index)
	}
}

func TestAChangeOfTheRoomIsShownAtOnce(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	v.update(waiting(5000), queue(9000, 1), start)
	paused := queue(9000, 2)
	paused.State = "paused"
	require.Equal(t, []string{eventPosition}, names(v.update(waiting(5000), paused, start)))
}

// The last seats are held and free again with every tick. Only the users in front learn each change.
func TestAChangeOfTheSeatsComesWithThePosition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ahead, most int64 }{{50, 60}, {500, 30}, {5000, 12}, {50_000, 4}} {
		v, now := view{lowest: &lowest{}}, start
		var sent int64
		shown := func(sold, leases int64) []room.Halt {
			table := queue(100_000, v.asOf+1)
			table.Ranks = append(table.Ranks, [2]int64{100_000, 99_999})
			table.Capacity, table.Sold, table.Admitted = 10, sold, leases
			var list []room.Halt
			for _, s := range v.update(waiting(c.ahead+1), table, now) {
				if s.name == eventPosition {
					sent++
					list = append(list, s.position.Halted)
				}
			}
			return list
		}
		for tick := range int64(60) {
			shown(8, 1+tick%2)
			now = now.Add(time.Second)
		}
		require.Equal(t, c.most, sent, "%d users ahead", c.ahead)
		now = now.Add(interval(c.ahead))
		require.Equal(t, []room.Halt{room.SoldOut}, shown(10, 0), "it comes with the next position")
	}
}

// The signed id of a connection is renewed before it expires.
func TestTheIDIsRenewed(t *testing.T) {
	t.Parallel()
	require.Less(t, 2*renewID, idTime)
	v := view{lowest: &lowest{}}
	var signed []int
	for minute := range 60 {
		for _, s := range v.update(waiting(1), queue(1, int64(minute+1)), start.Add(time.Duration(minute)*time.Minute)) {
			if s.id {
				signed = append(signed, minute)
			}
		}
	}
	require.Contains(t, []int{4, 5}, len(signed), signed)
	require.Zero(t, signed[0])
	require.LessOrEqual(t, 10, signed[1], "the first renewal is at a random time")
	for i, minute := range signed[1:] {
		require.LessOrEqual(t, minute-signed[i], 15, signed)
	}
}

// A user with another index has another place: the client receives it, and its positions begin
// again.
func TestAnotherPlaceOfTheUser(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	v.update(waiting(1), queue(9, 1), start)
	steps := v.update(waiting(8), queue(9, 2), start)
	require.Equal(t, []string{eventConnected, eventPosition}, names(steps))
	require.EqualValues(t, 8, *steps[1].position.Position)
}

// In all histories the first event is connected, and the last one is closed. Positions never rise
// while the index is the same. The client has each lease and its end.
func TestEveryConnectionIsConsistent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := view{lowest: &lowest{}}
		now, asOf := start, int64(0)
		first, ended := true, false
		var index, ahead int64
		leases := map[entry]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "updates") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			p := room.Place{
				State:  room.State(rapid.SampledFrom([]string{"WAITING", "WAITING", "WAITING", "READY", "ADMITTED", "SOLD", ""}).Draw(t, "state")),
				Index:  rapid.Int64Range(1, 3).Draw(t, "index") * 150,
				Reason: rapid.SampledFrom([]string{"", "left"}).Draw(t, "reason"),
			}
			if p.State == room.Admitted {
				p.JTI, p.Until = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "jti"), rapid.Int64Range(1, 2).Draw(t, "until")
			}
			var table *room.Table
			if rapid.Bool().Draw(t, "table") {
				asOf += rapid.Int64Range(0, 1).Draw(t, "tick")
				table = queue(rapid.Int64Range(0, 600).Draw(t, "waiting"), asOf)
			}
			steps := v.update(p, table, now)
			if ended {
				require.Empty(t, steps)
			}
			for _, s := range steps {
				if first {
					require.Contains(t, []string{eventConnected, eventClosed}, s.name)
				}
				first = false
				switch s.name {
				case eventConnected:
					require.NotEqual(t, index, p.Index)
					index, ahead = p.Index, -1
				case eventPosition:
					require.Equal(t, room.Waiting, p.State)
					require.Equal(t, *s.position.Ahead+1, *s.position.Position)
					require.GreaterOrEqual(t, s.position.Waiting, *s.position.Position)
					require.True(t, ahead < 0 || *s.position.Ahead <= ahead, "it rises from %d to %d", ahead, *s.position.Ahead)
					ahead = *s.position.Ahead
				case eventPromoted:
					require.Equal(t, room.Admitted, p.State)
				case eventClosed:
					ended = true
				}
			}
			if promotions := slices.Index(names(steps), eventPromoted); promotions >= 0 {
				leases[entry{JTI: p.JTI, Until: p.Until}] = true
			}
			if p.State == room.Admitted && !ended {
				require.True(t, leases[entry{JTI: p.JTI, Until: p.Until}], "the client has each lease")
			}
		}
	})
}

// Positions of a user do not rise in another tab, or over a reconnect. Interpolated ones differ.
func TestPositionsOfAUserDoNotRise(t *testing.T) {
	t.Parallel()
	shown := &lowest{}
	ahead := func(v *view, index, waits, asOf int64) int64 {
		steps := v.update(waiting(index), queue(waits, asOf), start)
		return *steps[len(steps)-1].position.Ahead
	}
	first, second := view{lowest: shown}, view{lowest: shown}
	table := queue(400, 1)
	table.Ranks = [][2]int64{{1, 0}, {500, 50}}
	steps := first.update(waiting(300), table, start)
	low := *steps[len(steps)-1].position.Ahead
	require.Less(t, low, int64(100))
	require.Equal(t, low, ahead(&second, 300, 400, 2))
	b := Broker{events: map[string]*eventUsers{"e": {users: map[string]*user{"u": {lowest: *shown}}}}}
	require.Equal(t, low, *b.position("e", "u", queue(400, 2), waiting(300)).Ahead, "a poll")
	require.EqualValues(t, 299, *b.position("e", "v", queue(400, 2), waiting(300)).Ahead)
	require.EqualValues(t, 350, ahead(&second, 351, 400, 3), "another place")
}

// Many users may enter between two tables. Each is shown the place that it has.
func TestAPlaceThatIsNewerThanTheTable(t *testing.T) {
	t.Parallel()
	for i := range int64(3) {
		entered := waiting(100 + i)
		entered.Ahead = 5 + i
		v := view{lowest: &lowest{}}
		steps := v.update(entered, queue(5, 1), start)
		require.Equal(t, 6+i, *steps[len(steps)-1].position.Position)
		require.Equal(t, 6+i, steps[len(steps)-1].position.Waiting)
	}
}

// It comes no later than a sign of life.
func TestTheTimeOfTheNextPoll(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[int64]int64{0: 1, 99: 1, 100: 2, 1000: 5, 10_000: 15} {
		require.Equal(t, want, pollAgain(ahead, 30*time.Second), ahead)
	}
	require.EqualValues(t, 10, pollAgain(10_000, 10*time.Second))
	require.EqualValues(t, 1, pollAgain(10_000, time.Millisecond))
}

// After another place the page has hidden the message: it comes again.
func TestAMessageComesAgainAtAnotherPlace(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	table := queue(0, 1)
	table.Message = "soon"
	lease := room.Place{State: room.Ready, Index: 1}
	require.Equal(t, []string{eventConnected, eventMessage}, names(v.update(lease, table, start)))
	lease.Index = 2
	require.Equal(t, []string{eventConnected, eventMessage}, names(v.update(lease, table, start)))
}

// A latest value is written after the queued events. So a position that was not written is dropped.
func TestNoPositionComesAfterAPromotion(t *testing.T) {
	t.Parallel()
	b := &Broker{metrics: newMetrics(&Broker{opts: Options{Labels: topevents.New()}}), sampled: logs.NewThrottle(warnEvery), log: slog.New(slog.DiscardHandler)}
	u := &user{id: "u", place: waiting(1), conns: map[*conn]struct{}{}}
	l := &eventUsers{users: map[string]*user{"u": u}, table: queue(1, 1)}
	hub := sse.New().Hub("room")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hub.Serve(w, r, func(_ context.Context, client *sse.Client) error {
			u.conns[&conn{user: u, local: l, client: client, view: view{lowest: &u.lowest}, id: signedID{1, "id"}}] = struct{}{}
			b.push(l, u, start)
			u.place = room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: 9}
			u.promotion = entry{Token: "t", JTI: "a", Until: 9}
			b.push(l, u, start)
			client.Close("expired")
			return nil
		})
	}))
	defer server.Close()
	var got []string
	client := ssetest.Client{URL: server.URL, HTTP: server.Client(), Event: func(e ssetest.Event) error {
		got = append(got, e.Name)
		if e.Name == eventClosed {
			return io.EOF
		}
		return nil
	}}
	require.ErrorIs(t, client.Run(t.Context()), io.EOF)
	require.Equal(t, []string{eventConnected, eventPromoted, eventClosed}, got)
}

// Before a draw there is no position, and after it none at the former index.
func TestNoPositionBeforeADraw(t *testing.T) {
	t.Parallel()
	v := view{lowest: &lowest{}}
	table := queue(5, 1)
	table.State, table.Commitment = room.PreQueue, "abc"
	shown := v.update(waiting(3), table, start)[1].position
	require.Equal(t, position{Waiting: 5, AsOf: 1, RoomState: room.PreQueue, Halted: room.NotOpen, Commitment: "abc"}, shown)
	for asOf, state := range map[int64]string{2: room.Drawing, 3: "open"} {
		table := *table
		table.AsOf, table.State, table.Cut = asOf, state, 4
		shown := (&lowest{}).position(&table, waiting(3))
		require.Nil(t, shown.Position)
		require.Nil(t, shown.Ahead)
		require.Nil(t, shown.WaitSeconds)
	}
	for asOf := range int64(4) { // as often as far back
		table.AsOf = 2 + asOf
		require.Empty(t, v.update(waiting(3), table, start.Add(time.Duration(asOf)*time.Second)))
	}
	table.AsOf, table.State, table.Cut = 9, "open", 4
	steps := v.update(waiting(5), table, start.Add(4*time.Second))
	require.Equal(t, []string{eventConnected, eventPosition}, names(steps))
	require.EqualValues(t, 4, *steps[1].position.Ahead, "the first one may be higher than any other")
	require.Empty(t, steps[1].position.Commitment)
}
