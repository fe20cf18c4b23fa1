package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// The page of a waiting room whose connection is dead or far too many. Each case has a Redis of its
// own, because processes with other times share no rooms.
func TestThePageOfAWaitingRoomNoticesSilence(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	for name, test := range map[string]func(t *testing.T, b *browser, rooms *roomsOf){
		"a silent connection":     pageLeavesASilentConnection,
		"a frozen broker":         pageLeavesAFrozenBroker,
		"a place that is too old": pageSaysUntilWhenAPlaceIsKept,
		"seven tabs":              sevenTabsShareAStream,
		"a leader that hangs":     tabsTakeOverFromOneThatHangs,
		"a turn in the shop":      aTurnInTheShopGoesOn,
	} {
		t.Run(name, func(t *testing.T) {
			defaultBut(t, name, "a frozen broker", "a place that is too old", "a leader that hangs")
			t.Parallel()
			servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
			test(t, b, newRooms(t, servers.RedisAddr()))
		})
	}
}

// through opens the page of an event behind a forwarder.
func through(t *testing.T, b *browser, f *forwarder, event, user string) visitor {
	t.Helper()
	return visitor{tab: b.open(t, f.url()+"/rooms/"+event, 360, signedIn(user))}
}

// Two users lose their connections without a word: one waits, and the other one has a turn. Both are
// connected again before their time is over.
func pageLeavesASilentConnection(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "silent"
	s := rooms.startWith([]string{briefHeartbeat}, event, "grace: 30s", "seen_interval: 1s")
	rooms.open(event, 1)
	ofAnn, ofBob := newForwarder(t, s.url), newForwarder(t, s.url)
	ann := through(t, b, ofAnn, event, "ann")
	ann.says("It is your turn.")
	bob := through(t, b, ofBob, event, "bob")
	bob.says("You are next.")
	places := []room.Place{rooms.place(event, "ann"), rooms.place(event, "bob")}
	before := []int{ofAnn.connections(), ofBob.connections()}
	ofAnn.lose(s.url)
	ofBob.lose(s.url)
	bob.matches(status, `^Connection lost, connecting again… Your place is kept until \d|^Connected again`)
	bob.says("Connected again. Your place was kept.")
	bob.says("You are next.")
	require.Greater(t, ofBob.connections(), before[1])
	require.Eventually(t, func() bool { return ofAnn.connections() > before[0] }, 2*time.Minute, glance)
	for i, user := range []string{"ann", "bob"} {
		now := rooms.place(event, user)
		require.Equal(t, []any{places[i].Index, places[i].JTI, places[i].Until}, []any{now.Index, now.JTI, now.Until})
	}
	_, err := rooms.rooms.Finish(t.Context(), event, "ann", places[0].JTI, "", true)
	require.NoError(t, err)
	ann.says("Your purchase is complete.")
	bob.says("It is your turn.")
}

// A broker stands still, and its connections stay open. The page goes to the other one.
func pageLeavesAFrozenBroker(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "frozen"
	first := rooms.startWith([]string{briefHeartbeat}, "first", "grace: 30s", "seen_interval: 1s")
	other := rooms.startWith([]string{briefHeartbeat}, "other", "grace: 30s", "seen_interval: 1s")
	rooms.open(event, 0)
	f := newForwarder(t, first.url)
	v := through(t, b, f, event, "ann")
	v.says("You are next.")
	index := rooms.place(event, "ann").Index
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	f.redirect(other.url)
	v.says("Connected again. Your place was kept.")
	require.Equal(t, index, rooms.place(event, "ann").Index)
	one := int64(1)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &one})
	v.says("It is your turn.")
}

func pageSaysUntilWhenAPlaceIsKept(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "kept"
	s := rooms.startWith([]string{briefHeartbeat}, event, "grace: 15s", "seen_interval: 1s")
	rooms.open(event, 0)
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("You are next.")
	before := time.Now()
	v.network.SetDown(true)
	const kept = "Connection lost, connecting again… Your place is kept until "
	var until string // what is said may change before it is read again
	require.Eventually(t, func() bool {
		until = value[string](v.tab, status)
		return strings.Contains(until, kept)
	}, 2*time.Minute, glance, "the page does not say %q", kept)
	v.readable()
	v.says("Your place was kept until ")
	require.GreaterOrEqual(t, time.Since(before), 10*time.Second, "the last sign of life was sent up to 5 s before, if the machine stood still")
	var shown string
	_, err := fmt.Sscanf(until, kept+"%s", &shown)
	require.NoError(t, err)
	require.Contains(t, value[string](v.tab, status), "Your place was kept until "+shown, "the same time")
	v.says("whether you still have it shows when you are connected again.")
	v.readable()
	v.network.SetDown(false)
	v.matches(status, "^Connected again|^You were away for too long")
}

// connections returns how many streams of a hub a process has.
func (p *roomProcess) connections(hub string) (count int) {
	p.t.Helper()
	resp, err := http.Get(p.ops + "/metrics")
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return streamsIn(p.t, string(text), hub)
}

// A browser opens six connections to a server over HTTP/1.1. Seven tabs need one of them, and one
// tab after the other may be closed.
func sevenTabsShareAStream(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "seven"
	s := rooms.startWith([]string{briefHeartbeat}, event, "seen_interval: 1s")
	rooms.open(event, 0)
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute) // a tab without a connection would load without end
	t.Cleanup(cancel)
	b = &browser{ctx}
	var tabs []*tab
	for range 7 {
		p := b.open(t, s.url+"/rooms/"+event, 360, signedIn("ann"))
		p.says("You are in the queue. You are next.")
		tabs = append(tabs, p)
	}
	other := b.open(t, s.url+"/rooms/"+event, 360, signedIn("bob"))
	other.says("1 ahead of you.")
	require.Equal(t, 2, s.connections("room"), "one per user")
	answer := fmt.Sprintf(`fetch("/events/%s/tickets/waiting/status").then(answer => { window.answered = answer.status; }); ""`, event)
	value[string](tabs[6], answer)
	require.Eventually(t, func() bool { return value[string](tabs[6], `String(window.answered)`) == "200" }, 2*time.Minute, glance)

	index := rooms.place(event, "ann").Index
	for _, p := range tabs[2:] {
		value[string](p, `window.said = [];
new MutationObserver(() => said.push(document.getElementById("status").textContent)).observe(document.getElementById("status"), {childList: true, characterData: true, subtree: true}); ""`)
	}
	for _, p := range tabs[:2] { // the first has the stream, and then another one
		require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate("about:blank")))
	}
	two := int64(2)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &two})
	for _, p := range append(tabs[2:], other) {
		p.says("It is your turn.")
	}
	for _, p := range tabs[2:] {
		require.NotContains(t, strings.Join(value[[]string](p, "said"), "\n"), "Not connected", "the server has refused nothing")
		require.True(t, value[bool](p, `document.getElementById("connect").hidden`))
	}
	require.Equal(t, index, rooms.place(event, "ann").Index)
	require.Eventually(t, func() bool { return s.connections("room") == 2 }, 2*time.Minute, glance, "one per user")
	tabs[6].click("leave")
	tabs[6].click("leave-now")
	for _, p := range tabs[2:] {
		p.says("You have left the queue.")
	}
	require.Empty(t, rooms.place(event, "ann").State)
}

// lifecycle freezes a page, or makes it active again.
func (p *tab) lifecycle(state page.SetWebLifecycleStateState) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.SetWebLifecycleState, page.SetWebLifecycleStateParams{State: state})
		return err
	})))
}

// One tab has the stream. It is frozen, and later its script hangs: another tab takes over, and the
// first one follows again.
func tabsTakeOverFromOneThatHangs(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "hangs"
	s := rooms.startWith([]string{briefHeartbeat}, event, "seen_interval: 1s")
	rooms.open(event, 0)
	first := b.open(t, s.url+"/rooms/"+event, 360, signedIn("ann"))
	first.says("You are next.")
	second := b.open(t, s.url+"/rooms/"+event, 360, signedIn("ann"))
	second.says("You are next.")
	message := func(text string) { rooms.change(event, room.Change{Verb: room.Message, Message: &text}) }
	hears := func(p *tab, text string) {
		t.Helper()
		require.Eventually(t, func() bool { return value[string](p, `document.getElementById("message").innerText`) == text }, 2*time.Minute, glance, text)
	}
	first.lifecycle(page.SetWebLifecycleStateStateFrozen)
	message("while the first one is frozen")
	hears(second, "while the first one is frozen")
	first.lifecycle(page.SetWebLifecycleStateStateActive)
	hears(first, "while the first one is frozen")

	value[string](second, `setTimeout(() => { const end = Date.now() + 20000; while (Date.now() < end); }, 0); ""`)
	message("while the second one hangs")
	hears(first, "while the second one hangs")
	hears(second, "while the second one hangs")
	require.Eventually(t, func() bool { return s.connections("room") == 1 }, 2*time.Minute, glance)
}

// session waits until the shop has verified the turn of a user, and returns the session for which it did.
func (r *roomsOf) session(event, user string) string {
	r.t.Helper()
	redis := goredis.NewClient(&goredis.Options{Addr: r.addr})
	defer func() { require.NoError(r.t, redis.Close()) }()
	var lease struct{ By string }
	require.Eventually(r.t, func() bool {
		record, err := redis.HGet(r.t.Context(), "ENTRY_RECORD:{"+event+"}", user).Result()
		return err == nil && json.Unmarshal([]byte(record), &lease) == nil && lease.By != ""
	}, 2*time.Minute, glance, "the shop has not verified the token")
	return lease.By
}

// With absent: release, the user goes to the shop by the link of the page, which stays connected. The
// shop verifies the token. Then the user ends the turn on the page, and closes the page. The sale is
// stored in time.
func aTurnInTheShopGoesOn(t *testing.T, b *browser, rooms *roomsOf) {
	const event = "in-shop"
	shop, gateTo := ticketShop(t, event)
	s := rooms.start(event, "absent: release", "seen_interval: 3s", "grace: 3s", "purchases_per_user: 1", `entry_url: "`+shop.URL+`/enter?token={token}"`)
	g := gateTo(s.url)
	rooms.open(event, 1)
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("It is your turn.")
	entry := value[string](v.tab, `new URL(document.getElementById("shop").href).searchParams.get("token")`)
	lease := rooms.place(event, "ann")
	v.click("shop")
	session := rooms.session(event, "ann")
	longer, err := g.Extend(t.Context(), event, entry, session, time.UnixMilli(lease.Until).Add(5*time.Minute))
	require.NoError(t, err)
	require.GreaterOrEqual(t, longer.Until.UnixMilli(), lease.Until+(5*time.Minute).Milliseconds())
	v.says("It is your turn. You have more time now.")
	v.matches("location.pathname", "^/rooms/"+event+"$")
	v.click("leave")
	v.click("leave-now")
	v.says("You are in the shop with this turn: finish or cancel your purchase there.")
	require.NoError(t, chromedp.Do(v.ctx, chromedp.Navigate("about:blank")))
	tick := func() int64 {
		status, err := rooms.rooms.RoomStatus(t.Context(), event)
		require.NoError(t, err)
		return status.LastTick
	}
	later := tick() + 8_000
	require.Eventually(t, func() bool { return tick() > later }, 2*time.Minute, glance)
	require.Equal(t, lease.JTI, rooms.place(event, "ann").JTI)
	require.NoError(t, g.Finish(t.Context(), event, entry, session, true))
	visitAt(t, b, 360, s.url, event, "ann").says("You have made all purchases that this event allows.")
	status, err := rooms.rooms.RoomStatus(t.Context(), event)
	require.NoError(t, err)
	require.EqualValues(t, 1, status.Sold)
}
