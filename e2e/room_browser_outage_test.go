package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The page of a waiting room while something is unavailable, or over. Each case has a Redis of its
// own, because processes with other times share no rooms.
func TestThePageOfAWaitingRoomInAnOutage(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Room, tier.Web)
	b := startBrowser(t)
	for name, test := range map[string]func(t *testing.T, b *browser, rooms *roomsOf){
		"Redis is unavailable": pageShowsTheAgeOfAPosition,
		"a busy server":        roomPageWaitsForABusyServer,
		"a turn is over":       pageSaysThatATurnIsOver,
		"too many tabs":        pageNamesTooManyTabs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
			test(t, b, newRooms(t, servers.RedisAddr()))
		})
	}
}

// A broker without Redis keeps the stream open, and the page shows how old the position is.
func pageShowsTheAgeOfAPosition(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "outage"
	direct := rooms.addr
	redis := redistest.NewProxy(t, direct)
	rooms.addr = redis.Addr()
	s := rooms.start("outage")
	rooms.open(event, 0)
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("You are next.")
	place := rooms.place(event, "ann").Index
	redis.SetDown(true)
	v.says("Your position is not current: the waiting room has a problem. Your place is kept until ")
	v.matches(`document.getElementById("age").innerText`, `^This position is \d\d seconds old\.$`)
	v.text("position", "1")
	v.readable()
	redis.SetDown(false)
	v.says("You are in the queue. You are next.")
	require.False(t, value[bool](v.tab, `document.getElementById("age").checkVisibility()`))
	require.Equal(t, place, rooms.place(event, "ann").Index)
}

// streams opens streams of a user without a browser. They end with the returned function.
func (r *roomsOf) streams(s *roomProcess, event, user string, n int) (end func()) {
	r.t.Helper()
	ctx, end := context.WithCancel(r.t.Context())
	for range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/events/"+event+"/tickets/waiting", nil)
		require.NoError(r.t, err)
		req.Header = http.Header{userHeader: {user}, "Accept": {"text/event-stream"}}
		answer, err := http.DefaultClient.Do(req)
		require.NoError(r.t, err)
		r.t.Cleanup(func() { _ = answer.Body.Close() })
	}
	return end
}

func roomPageWaitsForABusyServer(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "busy"
	s := rooms.start("busy")
	s.kill()
	s.env = append(s.env, "MILLRACE__PLUGINS__WEB__MAX_STREAMS=1")
	s.start()
	rooms.open(event, 0)
	end := rooms.streams(s, event, "bob", 1)
	defer end()
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("The waiting room is busy, trying again soon.")
	v.readable()
	end()
	v.says("You are in the queue. 1 ahead of you.")
}

func pageNamesTooManyTabs(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "tabs"
	s := rooms.start("tabs")
	rooms.open(event, 0)
	end := rooms.streams(s, event, "ann", 10)
	defer end()
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("You have this page open too often: close other tabs.")
	end()
	v.says("You are next.")
}

// The end of a turn has a warning, a text, and a way back to the end of the queue.
func pageSaysThatATurnIsOver(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "over"
	s := rooms.start("over", "token_ttl: 62s", "seen_interval: 1s")
	rooms.open(event, 1)
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("It is your turn.")
	bob := visitAt(t, b, 360, s.url, event, "bob")
	bob.says("You are next.")
	v.says("It is your turn. One minute is left.")
	require.Eventually(t, func() bool { return value[string](v.tab, status) == "The time of your turn is over." }, 3*time.Minute, 100*time.Millisecond)
	bob.says("It is your turn.")
	v.click("again")
	v.says("You are next.")
	v.matches(fmt.Sprintf("document.getElementById(%q).innerText", "position"), "^1$")
}

// Ann holds the last ticket, and Bob waits. She buys it, and Eve comes too late. A ticket is returned:
// Bob is next.
func theLastTicketIsSold(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "sold-out"
	seats := func(verb string, n int64) { rooms.change(event, room.Change{Verb: verb, Capacity: &n}) }
	seats(room.Open, 1)
	ann := visit(t, b, shared, event, "ann")
	ann.says("It is your turn.")
	bob := visit(t, b, shared, event, "bob")
	unknown := func() {
		t.Helper()
		bob.matches(`String(document.getElementById("wait").checkVisibility())`, "^false$")
	}
	bob.says("All tickets are sold or held by users in the shop.")
	unknown()
	_, err := rooms.rooms.Finish(t.Context(), event, "ann", rooms.place(event, "ann").JTI, "", true)
	require.NoError(t, err)
	bob.says("All tickets are sold. Your place is kept in case more become available.")
	unknown()
	bob.text("position", "1")
	bob.readable()
	eve := visit(t, b, shared, event, "eve")
	eve.says("All tickets are sold.")
	require.Empty(t, rooms.place(event, "eve").State)
	seats(room.Set, 2)
	bob.says("It is your turn.")
	eve.click("again")
	eve.says("All tickets are sold or held by users in the shop.")
}

// The bar shows how far the user has come since the first position, also after a reload.
func theProgressOutlivesAReload(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "progress"
	rooms.open(event, 0)
	for i := range 4 {
		_, err := rooms.rooms.Enter(t.Context(), event, fmt.Sprint("other-", i), "elsewhere", 0)
		require.NoError(t, err)
	}
	ann := visit(t, b, shared, event, "ann")
	ann.text("ahead", "4")
	for i := range 2 {
		_, err := rooms.rooms.Leave(t.Context(), event, fmt.Sprint("other-", i), "left")
		require.NoError(t, err)
	}
	const progress = `String(document.getElementById("progress").value)`
	ann.matches(progress, "^50$")
	require.NoError(t, chromedp.Do(ann.ctx, chromedp.Reload()))
	ann.text("ahead", "2")
	ann.matches(progress, "^50$")
}
