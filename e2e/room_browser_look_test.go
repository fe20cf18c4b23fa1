package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/pages"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// A shop has its name, its logo and its language, and texts that look like HTML. The policy of the page
// refuses nothing of it, because nothing of it is a script, and the logo runs none when it is opened.
func aShopDressesItsPages(t *testing.T, b *browser, rooms *roomsOf, _ *roomProcess) {
	const event, hostile = "dressed", `<img src=x onerror="alert(1)"><b>`
	logo := filepath.Join(t.TempDir(), "logo.svg")
	require.NoError(t, os.WriteFile(logo, []byte(`<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"><rect width="80" height="40"/><script>document.documentElement.id = "ran"</script></svg>`), 0o600))
	texts := pages.Texts()
	texts["next"], texts["your_turn"], texts["title_turn"] = "다음 차례입니다.", "지금 입장하세요. "+hostile, "입장하세요"
	var look strings.Builder
	fmt.Fprintf(&look, "page: {name: %q, logo: %q, sign_in: '/sign-in?next={page}', events: {%s: {title: %q, language: ko, texts: {", hostile, logo, event, "공연 "+hostile)
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&look, "%s: %q, ", key, texts[key])
	}
	look.WriteString("}}}}")
	s := rooms.start(event, look.String())
	rooms.open(event, 0)
	v := visitAt(t, b, 360, s.url, event, "ann")
	v.says("You are in the queue. 다음 차례입니다.")
	require.Equal(t, "ko", value[string](v.tab, `document.documentElement.lang`))
	v.text("name", hostile+" · Waiting room 공연 "+hostile)
	v.matches(`String(document.getElementById("logo").naturalWidth)`, "^80$")
	require.Contains(t, value[string](v.tab, `document.getElementById("kept").innerText`), "2분")
	require.Equal(t, 1, value[int](v.tab, `document.images.length`))
	v.readable()
	one := int64(1)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &one})
	v.says("지금 입장하세요. " + hostile)
	v.matches("document.title", "^입장하세요 · 공연 <img")
	require.Equal(t, 1, value[int](v.tab, `document.images.length`))
	v.readable()

	other := visitAt(t, b, 1000, s.url, "another", "ann")
	require.Equal(t, "en", value[string](other.tab, `document.documentElement.lang`))
	other.text("name", hostile+" · Waiting room another")
	stranger := b.open(t, s.url+"/rooms/another", 360)
	stranger.says("Sign in first, then open this page again.")
	require.Equal(t, s.url+"/sign-in?next="+url.QueryEscape(s.url+"/rooms/another"), value[string](stranger, `document.getElementById("sign-in").href`))
	require.Equal(t, "Sign in", value[string](stranger, `document.querySelector("main").querySelectorAll("a:not([hidden]), button:not([hidden])").values().filter(e => e.checkVisibility()).map(e => e.innerText).toArray().join()`))
	answer, err := http.Get(s.url + "/rooms/" + event + "/logo")
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	require.Equal(t, "image/svg+xml", answer.Header.Get("Content-Type"))
	image := b.open(t, s.url+"/rooms/"+event+"/logo", 360)
	image.blocked = "Content Security Policy"
	require.Empty(t, value[string](image, `document.documentElement.id`), "the script of a logo")
}

// calls records how the page makes itself noticed, which a browser without a screen does not show.
const calls = `window.calls = [];
var streams = []; window.EventSource = class extends EventSource {
  constructor(url) { super(url); streams.push(this); }
};
window.Notification = class { static permission = "granted"; constructor(...given) { calls.push(given[0]); } };
window.AudioContext = class extends AudioContext { createOscillator() { calls.push("sound"); return super.createOscillator(); } };`

// A user asks to be called and looks at another page. The title says that the turn has come, a screen reader
// is interrupted, and there is a sound and a notification. When the turn is over, the focus is not lost.
func theTurnReachesWhoLooksElsewhere(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "elsewhere"
	rooms.open(event, 0)
	v := visitAt(t, b, 360, shared.url, event, "ann", beforehand(calls))
	v.says("You are next.")
	v.matches("document.title", "^You are next · elsewhere$")
	rooms.change(event, room.Change{Verb: room.Hold})
	v.matches("document.title", "^On hold · elsewhere$")
	rooms.change(event, room.Change{Verb: room.Resume})
	v.matches("document.title", "^You are next · elsewhere$")
	quiet := visitAt(t, b, 360, shared.url, event, "ben", beforehand(calls))
	quiet.says("You are in the queue. 1 ahead of you.")
	quiet.matches("document.title", "^1 ahead · elsewhere$")
	quiet.network.SetDown(true)
	quiet.matches("document.title", "^Not connected · elsewhere$")
	quiet.network.SetDown(false)
	quiet.matches("document.title", "^1 ahead · elsewhere$")
	v.click("call")
	v.says("You will be called. Keep this page open.")
	v.focused("name")
	v.readable()
	front := b.open(t, "about:blank", 1000)
	require.NoError(t, chromedp.Do(front.ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.BringToFront, cdp.Empty{})
		return err
	})))
	two := int64(2)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &two})
	for _, user := range []visitor{v, quiet} {
		user.matches("document.title", "^Your turn · elsewhere$")
		user.matches(`document.getElementById("status").ariaLive`, "^assertive$")
		user.focused("turn-name")
	}
	require.Equal(t, []string{"sound", "sound", "sound", "It is your turn."}, value[[]string](v.tab, "calls"))
	require.Empty(t, value[[]string](quiet.tab, "calls"), "nobody asked for it")
	_, err := rooms.rooms.Finish(t.Context(), event, "ann", rooms.place(event, "ann").JTI, "", true)
	require.NoError(t, err)
	v.matches("document.title", "^Ended · elsewhere$")
	v.matches(`document.getElementById("status").ariaLive`, "^polite$")
	v.focused("again")

	// Another place than before, as after a loss of the lease: the turn is over, and its heading is gone.
	value[string](quiet.tab, `streams.at(-1).dispatchEvent(new MessageEvent("connected", {data: '{"state":"WAITING","idx":5}'})); ""`)
	quiet.focused("name")
	quiet.matches("document.title", "^Waiting · elsewhere$")
	quiet.matches(`document.getElementById("status").ariaLive`, "^polite$")
}
