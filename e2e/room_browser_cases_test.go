package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// beforehand runs a script in each document of a tab, before those of the page.
func beforehand(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// shifted makes the clock of a tab wrong. The variable wrong is by how many ms.
func shifted(by time.Duration) chromedp.Action[chromedp.Void] {
	return beforehand(fmt.Sprintf(`var wrong = %d; Date = class extends Date {
  constructor(...parts) { if (parts.length) super(...parts); else super(Date.now()); }
  static now() { return super.now() + wrong; }
};`, by.Milliseconds()))
}

// press presses keys.
func (p *tab) press(keys string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.KeyEvent(keys)))
}

// focused waits until an element has the focus.
func (v visitor) focused(id string) {
	v.t.Helper()
	v.matches(`document.activeElement.id`, "^"+id+"$")
}

// unreadable returns the elements that are outside the width of the page, or have too little
// contrast to their background.
const unreadable = `(() => {
  const wrong = [], width = innerWidth;
  if (document.scrollingElement.scrollWidth > width) wrong.push("the page scrolls sideways");
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = color => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style = "background: Canvas";
  const empty = getComputedStyle(probe).backgroundColor;
  probe.remove();
  for (const e of document.querySelectorAll("main, main *")) {
    const box = e.getBoundingClientRect();
    if (!e.checkVisibility() || !box.width || e.id === "spoken") continue;
    const name = e.id || e.tagName + " " + e.textContent.slice(0, 30);
    if (box.left < 0 || box.right > width + 0.5) wrong.push(name + " is outside");
    if (e.matches("button, a") && box.height < 44) wrong.push(name + " is too small");
    if (![...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim())) continue;
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const a = light(getComputedStyle(e).color), b = light(behind ? getComputedStyle(behind).backgroundColor : empty);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) wrong.push(name + " has a contrast of " + contrast);
  }
  return wrong;
})()`

// readable checks the page as it is, in light and dark colours.
func (v visitor) readable() {
	v.t.Helper()
	for _, scheme := range []string{"dark", "light"} {
		_, err := chromedp.Run(v.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
			return cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
		})
		require.NoError(v.t, err)
		require.Empty(v.t, value[[]string](v.tab, unreadable), "%s: %s", scheme, value[string](v.tab, status))
	}
}

// A user has two tabs before the opening: on a phone whose clock is two days fast, and on a
// computer whose clock is slow. Both show the same times. The user ends the turn in one tab
// with the keyboard. It ends in the other one too.
func twoTabsFromTheOpeningToTheEnd(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	event := "opening-" + strings.Repeat("x", 100)
	redis := goredis.NewClient(&goredis.Options{Addr: rooms.addr})
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	mode, seats, opens := room.Shuffle, int64(10), time.Now().Add(time.Hour).UnixMilli()
	rooms.change(event, room.Change{Verb: room.Open, Mode: &mode, Capacity: &seats, Concurrency: &seats, OpensAt: &opens})
	set, err := rooms.rooms.RoomStatus(t.Context(), event)
	require.NoError(t, err)
	phone := visitAt(t, b, 360, shared.url, event, "ann", shifted(48*time.Hour))
	desk := visit(t, b, shared, event, "ann", shifted(-5*time.Minute))
	tabs := []visitor{phone, desk}
	for _, tab := range tabs {
		tab.says("All users who are here at the opening get their places by lot: an early arrival is no advantage. It opens at ")
		tab.matches(`document.getElementById("opens").innerText`, `^(1:00:00|59:\d\d)$`)
		tab.text("commitment", set.Commitment)
		require.Equal(t, value[string](phone.tab, `document.getElementById("said").textContent`), value[string](tab.tab, `document.getElementById("said").textContent`))
		require.False(t, value[bool](tab.tab, `document.getElementById("position").checkVisibility()`), "no position before the draw")
	}
	phone.readable()
	state := func(s string) { require.NoError(t, redis.HSet(t.Context(), "ROOM:{"+event+"}", "state", s).Err()) }
	state(room.Drawing) // by hand: the draw itself is too quick
	for _, tab := range tabs {
		tab.says("The places are drawn now.")
	}
	phone.readable()
	state(room.PreQueue)
	phone.says("by lot")
	desk.click("leave")
	desk.focused("stay")
	opens = time.Now().UnixMilli()
	rooms.change(event, room.Change{Verb: room.Set, OpensAt: &opens})
	for _, tab := range tabs {
		tab.says("It is your turn.")
		tab.matches(`document.getElementById("left").innerText`, `^(5:00|4:\d\d)$`)
		tab.matches(`document.title`, "^Your turn · "+event)
		tab.focused("turn-name") // the question to leave the queue is over
	}
	phone.readable()

	phone.press(kb.Tab)
	phone.focused("leave")
	phone.press(kb.Enter)
	phone.focused("stay")
	phone.readable()
	phone.press(kb.Escape)
	phone.focused("leave")
	phone.press(kb.Enter)
	phone.press(kb.Tab)
	phone.focused("leave-now")
	phone.press(kb.Enter)
	for _, tab := range tabs {
		tab.says("You have left the queue.")
	}
	phone.focused("again")
	phone.readable()
	require.Empty(t, rooms.place(event, "ann").State)
	phone.press(kb.Enter)
	phone.says("It is your turn.")
	desk.says("You have left the queue.")
}

// A screen reader hears what matters: not the position every second.
func roomSpeaksToAScreenReader(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event, others = "heard", 20
	rooms.open(event, 0)
	for i := range others {
		_, err := rooms.rooms.Enter(t.Context(), event, fmt.Sprint("other-", i), "elsewhere", 0)
		require.NoError(t, err)
	}
	v := visitAt(t, b, 360, shared.url, event, "ann", beforehand(`let passed = 0; performance.now = () => passed;`))
	v.says("You are in the queue. 20 ahead of you.")
	value[bool](v.tab, `(() => {
  window.heard = [];
  window.positions = new Set();
  for (const id of ["status", "message"])
    new MutationObserver(() => heard.push(document.getElementById(id).textContent)).observe(document.getElementById(id), {childList: true, characterData: true, subtree: true});
  new MutationObserver(() => positions.add(document.getElementById("position").textContent)).observe(document.getElementById("position"), {childList: true});
  return true;
})()`)
	heard := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return value[int](v.tab, "heard.length") >= len(want) }, 2*time.Minute, glance, "%s is not said", want)
		require.Equal(t, append([]string{}, want...), value[[]string](v.tab, "heard.splice(0)"))
	}
	leaves := func(first, last int) {
		for i := first; i <= last; i++ {
			_, err := rooms.rooms.Leave(t.Context(), event, fmt.Sprint("other-", i), "left")
			require.NoError(t, err)
			v.text("ahead", fmt.Sprint(others-1-i))
		}
	}
	leaves(0, 5)
	require.Greater(t, value[int](v.tab, "positions.size"), 3)
	heard()
	value[int](v.tab, `passed = 31_000`)
	heard("You are in the queue. 14 ahead of you.")

	rooms.change(event, room.Change{Verb: room.Hold})
	heard("The queue is on hold. Your place is kept. 14 ahead of you.")
	v.readable()
	text := "The doors open later: " + strings.Repeat("y", 300)
	rooms.change(event, room.Change{Verb: room.Message, Message: &text})
	heard(text)
	v.readable()
	v.network.Cut()
	v.says("Connected again. Your place was kept.")
	value[int](v.tab, `passed += 31_000`)
	v.says("The queue is on hold.")
	require.NotContains(t, value[[]string](v.tab, "heard.splice(0)"), text, "the message is the same")
	none := ""
	rooms.change(event, room.Change{Verb: room.Message, Message: &none})
	heard("")
	rooms.change(event, room.Change{Verb: room.Resume})
	heard("You are in the queue. 14 ahead of you.")

	tree := v.tree()
	for _, want := range []element{
		{role: "heading", name: "Waiting room heard"}, {role: "StaticText", name: "You are in the queue."},
		{role: "StaticText", name: "15"}, {role: "region", name: "Your place"}, {role: "button", name: "Leave the queue"},
	} {
		require.True(t, slices.ContainsFunc(tree, func(e element) bool { return e.role == want.role && e.name == want.name }), "%+v is not in %+v", want, tree)
	}
	for _, e := range tree {
		switch e.role {
		case "status":
			require.Equal(t, "polite", e.live)
		case "progressbar":
			require.Equal(t, element{id: e.id, role: e.role, name: "Progress to the front", value: "30"}, e)
		default:
			require.Contains(t, []string{"", "off"}, e.live, "%+v", e)
		}
	}
	leaves(6, others-1)
	heard("You are in the queue. You are next.")
	title := `document.title`
	v.matches(title, "^You are next · heard$")
	front := b.open(t, "about:blank", 1000)
	require.NoError(t, chromedp.Do(front.ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.BringToFront, cdp.Empty{})
		return err
	})))
	one := int64(1)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &one})
	v.matches(title, "^Your turn · heard$")
	heard("It is your turn.")
}

// Each end has its text, and the way back.
func pageNamesTheEnd(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "ends"
	rooms.open(event, 2)
	visits := map[string]visitor{}
	for _, user := range []string{"buys", "cancels", "is-removed", "waits"} {
		visits[user] = visitAt(t, b, 360, shared.url, event, user)
		visits[user].says(map[bool]string{true: "It is your turn.", false: "You are in the queue."}[user == "buys" || user == "cancels"])
	}
	none, ends := int64(0), func(user, text string) {
		visits[user].says(text)
		visits[user].matches(`String(document.getElementById("again").hidden)`, fmt.Sprint("^", text == "The waiting room is closed.", "$"))
		visits[user].matches("document.title", "^Ended · ends$")
		visits[user].readable()
	}
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &none})
	for user, sold := range map[string]bool{"buys": true, "cancels": false} {
		_, err := rooms.rooms.Finish(t.Context(), event, user, rooms.place(event, user).JTI, "", sold)
		require.NoError(t, err)
	}
	ends("buys", "Your purchase is complete.")
	ends("cancels", "Your purchase was cancelled, and your turn has ended.")
	rooms.change(event, room.Change{Verb: room.Kick, User: "is-removed"})
	ends("is-removed", "You were removed from the queue.")
	rooms.change(event, room.Change{Verb: room.Close})
	ends("waits", "The waiting room is closed.")
	visits["buys"].click("again")
	ends("buys", "The waiting room is closed.")

	redis := goredis.NewClient(&goredis.Options{Addr: rooms.addr})
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	keys, err := redis.Keys(t.Context(), "*:{"+event+"}*").Result()
	require.NoError(t, err)
	require.NoError(t, redis.Del(t.Context(), keys...).Err(), "the room is cleared")
	v := visits["is-removed"]
	v.click("again")
	v.says("There is no waiting room for this event.")
	v.focused("connect")
	v.readable()
	rooms.open(event, 0)
	v.press(kb.Enter)
	v.says("You are next.")
}

// A load balancer answers with an error for a while. Two pages come back to the same place, without
// a reload. One has a turn, whose last minute begins meanwhile.
func pageReturnsAfterAProxyWithoutServer(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "proxied"
	target, err := url.Parse(shared.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	var broken atomic.Bool
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "<h1>Bad Gateway</h1>", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(balancer.Close)
	rooms.open(event, 1)
	ann := visitAt(t, b, 360, balancer.URL, event, "ann", shifted(0))
	ann.says("It is your turn.")
	bob := visitAt(t, b, 360, balancer.URL, event, "bob")
	bob.says("You are next.")
	places := []room.Place{rooms.place(event, "ann"), rooms.place(event, "bob")}
	broken.Store(true)
	ann.network.Cut()
	bob.network.Cut()
	ann.says("Not connected, trying again soon. Your turn goes on.")
	value[int](ann.tab, `wrong = 241_000`)
	bob.says("Not connected, trying again soon. Your place is kept until ")
	ann.says("It is your turn. One minute is left.")
	ann.readable()
	bob.readable()
	broken.Store(false)
	bob.says("Connected again. Your place was kept.")
	bob.says("You are next.")
	ann.matches(status, "^It is your turn.$")
	for i, user := range []string{"ann", "bob"} {
		now := rooms.place(event, user)
		require.Equal(t, []any{places[i].Index, places[i].JTI, places[i].Until}, []any{now.Index, now.JTI, now.Until})
	}
}
