package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The page of a waiting room in a browser.
func TestThePageOfAWaitingRoomInABrowser(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	rooms := newRooms(t, servers.RedisAddr())
	shared := rooms.start("shared", "seen_interval: 1s")
	for name, test := range map[string]func(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess){
		"two users and one slot": twoUsersAndOneSlot,
		"pages of other origins": foreignPagesQueueNobody,
		"sold out":               theLastTicketIsSold,
		"progress":               theProgressOutlivesAReload,
		"an opening":             twoTabsFromTheOpeningToTheEnd,
		"a screen reader":        roomSpeaksToAScreenReader,
		"ends":                   pageNamesTheEnd,
		"a proxy without server": pageReturnsAfterAProxyWithoutServer,
		"a shop of its own":      aShopDressesItsPages,
		"a turn from elsewhere":  theTurnReachesWhoLooksElsewhere,
	} {
		t.Run(name, func(t *testing.T) {
			defaultBut(t, name, "a shop of its own", "sold out", "progress", "ends", "a proxy without server")
			t.Parallel()
			test(t, b, rooms, shared)
		})
	}
}

// visitor is a user with a page, and with a network of its own.
type visitor struct {
	*tab
	network *redistest.Proxy
}

// visit opens the page of an event.
func visit(t *testing.T, b *browser, s *roomProcess, event, user string, before ...chromedp.Action[chromedp.Void]) visitor {
	t.Helper()
	return visitAt(t, b, 1000, s.url, event, user, before...)
}

// visitAt is visit with a width of the page, at the address of a broker or of its proxy.
func visitAt(t *testing.T, b *browser, width int64, url, event, user string, before ...chromedp.Action[chromedp.Void]) visitor {
	t.Helper()
	network := redistest.NewProxy(t, strings.TrimPrefix(url, "http://"))
	p := b.open(t, "http://"+network.Addr()+"/rooms/"+event, width, append(before, signedIn(user))...)
	return visitor{p, network}
}

// text waits until an element of the page has a text.
func (v visitor) text(id, want string) {
	v.t.Helper()
	v.matches(fmt.Sprintf("document.getElementById(%q).innerText", id), "^"+regexp.QuoteMeta(want)+"$")
}

// matches waits until the value of a script matches a pattern.
func (v visitor) matches(script, pattern string) {
	v.t.Helper()
	got := ""
	require.Eventually(v.t, func() bool {
		got = value[string](v.tab, script)
		return regexp.MustCompile(pattern).MatchString(got)
	}, 2*time.Minute, glance, "%s: not %s", script, pattern)
}

// ticketShop is a shop behind the gate. Each browser has a session of its own.
func ticketShop(t *testing.T, event string) (shop *httptest.Server, g func(broker string) *shopmiddleware.Gate) {
	t.Helper()
	var checked *shopmiddleware.Gate
	shop = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const session = "session"
		if _, err := r.Cookie(session); err != nil {
			http.SetCookie(w, &http.Cookie{Name: session, Value: rand.Text()})
			http.Redirect(w, r, r.URL.String(), http.StatusSeeOther)
			return
		}
		checked.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			entry, _ := shopmiddleware.EntryOf(r.Context())
			_, _ = fmt.Fprintf(w, "Welcome, %s.%s", entry.UserID, r.Referer())
		})).ServeHTTP(w, r)
	}))
	t.Cleanup(shop.Close)
	return shop, func(broker string) *shopmiddleware.Gate {
		var err error
		checked, err = shopmiddleware.New(shopmiddleware.Options{
			URL: broker, ShopToken: roomShop, Event: func(*http.Request) string { return event },
			Session: func(r *http.Request) string {
				c, _ := r.Cookie("session")
				return c.Value
			},
		})
		require.NoError(t, err)
		return checked
	}
}

// Ann has the slot and Bob waits. His network is cut, the process is killed, Ann buys, and Bob is
// promoted. The shop accepts his token in one session.
func twoUsersAndOneSlot(t *testing.T, b *browser, rooms *roomsOf, _ *roomProcess) {
	const event = "one-slot"
	shop, gateTo := ticketShop(t, event)
	s := rooms.start("killed", `entry_url: "`+shop.URL+`/enter?token={token}"`)
	g := gateTo(s.url)
	rooms.open(event, 1)
	ann := visit(t, b, s, event, "ann")
	ann.says("It is your turn.")
	bob := visit(t, b, s, event, "bob", beforehand(`var streams = []; window.EventSource = class extends EventSource {
  constructor(url) { super(url); streams.push(this); }
};`))
	bob.says("You are next.")
	for id, want := range map[string]string{"ahead": "0", "position": "1", "waiting": "1"} {
		bob.text(id, want)
	}
	place := rooms.place(event, "bob").Index
	require.Equal(t, "1", value[string](bob.tab, `
streams.at(-1).dispatchEvent(new MessageEvent("position", {data: '{"position":9,"ahead":8,"waiting":9,"asOf":1,"roomState":"open"}'}));
document.getElementById("position").innerText`), "a position does not rise")

	bob.network.SetDown(true)
	bob.says("Connection lost, connecting again… Your place is kept until ")
	bob.network.SetDown(false)
	bob.says("Connected again. Your place was kept.")
	require.Equal(t, place, rooms.place(event, "bob").Index)

	s.kill()
	bob.says("Connection lost")
	ann.says("Connection lost, connecting again… Your turn goes on.")
	s.start()
	bob.says("Connected again. Your place was kept.")
	bob.text("position", "1")
	require.Equal(t, place, rooms.place(event, "bob").Index)
	ann.says("It is your turn.")

	buys := func(user string, v visitor) string {
		link := value[string](v.tab, `document.getElementById("shop").href`)
		address, err := url.Parse(link)
		require.NoError(t, err)
		entry := address.Query().Get("token")
		require.NotEmpty(t, entry)
		require.NotContains(t, value[string](v.tab, `location.href + performance.getEntries().map(e => e.name).join()`), entry)
		v.click("shop")
		body := `document.body.innerText`
		require.Eventually(t, func() bool { return value[string](v.tab, body) == "Welcome, "+user+"." }, 2*time.Minute, glance, "%s", s.log)
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		answer, err := (&http.Client{Jar: jar}).Get(link)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		text, _ := io.ReadAll(answer.Body)
		require.Equal(t, http.StatusConflict, answer.StatusCode, "another session: %s", text)
		require.NoError(t, chromedp.Do(v.ctx, chromedp.Navigate(link)), "the same session")
		require.Equal(t, "Welcome, "+user+".", value[string](v.tab, body))
		return entry
	}
	entry := buys("ann", ann)
	require.NoError(t, g.Finish(t.Context(), event, entry, rooms.session(event, "ann"), true))
	bob.says("It is your turn.")
	other := buys("bob", bob)
	require.NoError(t, g.Finish(t.Context(), event, other, rooms.session(event, "bob"), true))
	for _, secret := range []string{entry, other, roomShop} {
		require.NotContains(t, s.log.String(), secret)
	}
	status, err := rooms.rooms.RoomStatus(t.Context(), event)
	require.NoError(t, err)
	require.EqualValues(t, 2, status.Sold)
}

// foreignRoom is a page that tries to queue its visitor, and to read the place.
const foreignRoom = `<!doctype html><title>foreign</title><img src="%[1]s"><img src="%[1]s/status"><iframe src="%[1]s/status"></iframe>
<a id="enter" href="%[1]s">Enter</a> <a id="status" href="%[1]s/status">Status</a><script>
const results = {}, url = %[1]q;
const stream = new EventSource(url);
stream.onopen = () => results.stream = "open";
stream.onerror = () => { if (stream.readyState === EventSource.CLOSED && !results.stream) results.stream = "closed"; };
async function ask(name, address, options) {
  try { results[name] = (await (await fetch(address, options)).text()); } catch { results[name] = "refused"; }
}
ask("enter", url, {headers: {Accept: "application/json"}});
ask("status", url + "/status");
ask("opaque enter", url, {mode: "no-cors"});
ask("opaque status", url + "/status", {mode: "no-cors"});
ask("leave", url, {method: "DELETE"});
</script>`

// A page of another origin, and a link in it, change nothing.
func foreignPagesQueueNobody(t *testing.T, b *browser, rooms *roomsOf, shared *roomProcess) {
	const event = "foreign"
	rooms.open(event, 1)
	target := shared.url + "/events/" + event + "/tickets/waiting"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, foreignRoom, target)
	}))
	t.Cleanup(s.Close)
	// The first user has no place, and the second a lease that is not claimed.
	_, err := rooms.rooms.Enter(t.Context(), event, "ready", "elsewhere", 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return rooms.place(event, "ready").State == room.Ready }, 2*time.Minute, 50*time.Millisecond)
	for user, state := range map[string]room.State{"victim": "", "ready": room.Ready} {
		for _, site := range []string{s.URL, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)} {
			p := b.open(t, site, 1000, signedIn(user))
			p.blocked = "frame-ancestors 'none'"
			var results map[string]string
			require.Eventually(t, func() bool {
				results = value[map[string]string](p, "results")
				return len(results) == 6
			}, 2*time.Minute, glance, "the page has not tried everything: %v", results)
			require.Equal(t, map[string]string{
				"stream": "closed", "enter": "refused", "status": "refused", "opaque enter": "refused", "opaque status": "refused", "leave": "refused",
			}, results)
			for _, link := range []string{"enter", "status"} {
				require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(site)))
				p.click(link)
				require.Eventually(t, func() bool { return strings.Contains(value[string](p, `document.body.innerText`), "foreign_origin") },
					2*time.Minute, glance, "the link %s of %s as %s", link, site, user)
			}
			require.Equal(t, state, rooms.place(event, user).State, "%s on %s", user, site)
		}
	}
	// The same requests of the page itself are answered.
	visit(t, b, shared, event, "ready").says("It is your turn.")
	visit(t, b, shared, event, "victim").says("You are next.")
}
