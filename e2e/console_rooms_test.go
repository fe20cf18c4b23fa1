package e2e

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// An operator with a browser opens a room, holds it, sends its users a message and finds one of them, while the
// page of a user follows. Everybody can use the pages.
func TestAnOperatorOfAWaitingRoomAtTheConsole(t *testing.T) {
	tier.Rest(t, tier.Room, tier.CLI)
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	listen, err := freePort()
	require.NoError(t, err)
	rooms := newRooms(t, servers.RedisAddr())
	s := rooms.startWith([]string{"MILLRACE__PLUGINS__CONSOLE__ENABLED=true", "MILLRACE__PLUGINS__CONSOLE__LISTEN=" + listen}, "console",
		`page: {colors: {accent: "#7a0019", accent_dark: "#ffcc33"}, links: [{text: "<b>Imprint</b>", url: "https://shop.example/imprint"}]}`)

	p := b.open(t, "http://"+listen+"/", desktop)
	p.follows(menu("Waiting rooms"), "Waiting rooms")
	p.reads("#rooms", "No event has a waiting room")
	p.follows(link("room open"), "room open")
	p.fills(`[name="in.event"]`, "42")
	p.fills(`[name="in.capacity"]`, "500")
	p.fills(`[name="in.concurrency"]`, "0")
	p.submits("Preview")
	p.reads("main", "Event 42 has no room. One would be created, and would be open.")
	p.fills("#why", "the sale begins")
	p.submits("Do it: room open")
	p.reads("main", "Event 42: opened. The room is open.")

	const hostile = `<img src=x onerror=alert(1)>`
	ann, other := visit(t, b, s, "42", "ann"), visit(t, b, s, "42", hostile)
	ann.says("You are in the queue.")
	other.says("You are in the queue. 1 ahead of you.")
	p.follows(menu("Waiting rooms"), "Waiting rooms")
	p.reads("#rooms td.ok", "capacity 500 ≥ 0 leases + 0 sold")
	p.rests()
	p.accessible("the list of rooms")
	p.follows(link("42"), "Waiting room")
	p.reads("#room .stats", "Waiting\n2")
	p.reads("#instances", "broker, dispatcher")
	address := value[string](p, `location.href`)

	p.acts("room hold", "The queue keeps the places of 2 users.", "the shop is slow")
	p.reads("main", "promotion stopped. The room is paused.")
	ann.matches("document.title", "^On hold · 42$")

	p.opens(address)
	p.follows(link("room message"), "room message")
	p.fills(`[name="in.text"]`, "We continue at <b>nine</b>.")
	p.submits("Preview")
	p.reads("main", "All users would read: We continue at <b>nine</b>.")
	p.fills("#why", "they ask")
	p.submits("Do it: room message")
	p.reads("main", "message changed")
	ann.text("message", "We continue at <b>nine</b>.")

	p.opens(address)
	p.reads("#room .stats dd.warn", "paused")
	p.reads("#room .stats", "We continue at <b>nine</b>.")
	p.reads("#audit td", "the shop is slow")
	p.rests()
	p.accessible("a room")
	b.showsPlain(t, address, "#room .stats dd.warn", "paused")
	seen := b.seesThePagesPlain(t, "http://"+listen, []string{"/rooms/room?event=42&user=ann"}, "rooms")
	require.Contains(t, seen["rooms/room"], "user=ann")
	p.fills("#find input[name=user]", hostile)
	p.submits("Show")
	p.reads("#person dd", "waits")
	p.reads("#person dd", hostile)
	require.Zero(t, value[int](p, `document.images.length`), "an id is text")
	p.rests()
	p.accessible("a person in a room")
	p.acts("room kick", hostile+" waits with 1 ahead. The place would end.", "a test")
	p.reads("main", "user removed")
	other.says("You were removed from the queue.")
	p.opens(address)
	p.fills("#find input[name=user]", hostile)
	p.submits("Show")
	p.reads("#person", "kicked")

	readsKorean(t, b, s.url)
	records, err := rooms.rooms.Audit(t.Context(), "42", "", 10)
	require.NoError(t, err)
	var verbs []string
	for _, one := range records {
		verbs = append(verbs, one.Verb)
		require.Contains(t, one.By, "(console")
	}
	require.Equal(t, []string{room.Open, room.Hold, room.Message, room.Kick}, verbs)
}

// readsKorean is a user whose browser asks for Korean. The policy of the page refuses nothing of what the shop has set.
func readsKorean(t *testing.T, b *browser, url string) {
	t.Helper()
	headers := chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{userHeader: "kim", "Accept-Language": "ko-KR,ko;q=0.9,en;q=0.5"}})
		return err
	})
	v := visitor{tab: b.open(t, url+"/rooms/42", 360, headers)}
	v.says("대기 줄이 잠시 멈췄습니다. 순서는 유지됩니다.")
	require.Equal(t, "ko", value[string](v.tab, `document.documentElement.lang`))
	require.Contains(t, value[string](v.tab, `document.getElementById("kept").innerText`), "2분 동안")
	v.matches("document.title", "^일시 중지 · 42$")
	require.Equal(t, "<b>Imprint</b> https://shop.example/imprint", value[string](v.tab, `[...document.querySelectorAll("footer a")].map((a) => a.innerText + " " + a.href).join()`))
	require.Equal(t, "rgb(122, 0, 25)", value[string](v.tab, `getComputedStyle(document.getElementById("status")).borderInlineStartColor`))
	v.accessible("the Korean page of a room")
	english := visit(t, b, &roomProcess{service: &service{url: url}}, "42", "lee")
	english.says("The queue is on hold. Your place is kept.")
}

// opens goes to another page in the same tab.
func (p *tab) opens(address string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Navigate(address)))
}
