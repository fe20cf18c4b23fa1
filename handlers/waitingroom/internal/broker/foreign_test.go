package broker_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/token"
)

// Ids that are not valid are refused at each address. They write no key.
func TestIDsThatAreNotValid(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		p.known = func(string) error { t.Error("the Event Service is called"); return nil }
		keys := func() []string {
			keys, err := w.admin.Keys(t.Context(), "*{*").Result()
			require.NoError(t, err)
			return keys
		}
		before := keys()
		for _, event := range []string{
			"%7B42%7D", "42%7D", "%22", "a'b", "a%2Fb", "%00", "%0d%0aX", "%7F", "a%20b", "%C3%BC", "%F0%9F%8E%AB", "%FF", "*", "%25", "a:b",
			strings.Repeat("a", 129), strings.Repeat("a", 10<<10),
		} {
			for _, request := range [][]string{
				{"GET", "/tickets/waiting", asStream}, {"GET", "/tickets/waiting", "application/json"}, {"GET", "/tickets/waiting/status", ""},
				{"DELETE", "/tickets/waiting", ""}, {"POST", "/entry/verify", ""}, {"POST", "/entry/extend", ""}, {"POST", "/entry/finish", ""},
			} {
				a := w.send(request[0], event+request[1], "u", "Accept", request[2], "Authorization", "Bearer "+shopToken)
				require.Equal(t, "400 bad_event", a.word(), "%.40s %s", event, request)
			}
		}
		for _, event := range []string{".", "..", "a/.."} { // no browser sends them: it resolves them first
			a := w.send("GET", event+"/tickets/waiting", "u")
			require.Equal(t, "404 not_found", a.word())
			require.Empty(t, a.header.Get("Location"))
		}
		w.open(10, 10)
		w.control(room.Change{Verb: room.Hold})
		for _, user := range []string{"a\tb", "a\u0085b", "a\u00a0b", "a\u202eb", "a\u2028b", "\xff", strings.Repeat("ü", 129), strings.Repeat("x", 10<<10)} {
			for _, request := range [][]string{{"GET", ""}, {"GET", "/status"}, {"DELETE", ""}} {
				a := w.send(request[0], w.path()+request[1], user)
				require.Equal(t, "400 bad_user", a.word(), "%.40q", user)
				require.Contains(t, a.body, "a user id has 1 to 128 printable characters")
			}
		}
		require.Zero(t, w.status().Waiting)
		w.send("GET", w.path(), "%")
		require.EqualValues(t, 1, w.status().Waiting)
		for _, key := range keys() {
			require.True(t, strings.Contains(key, "{"+w.event+"}") || strings.Contains(fmt.Sprint(before), key), key)
		}
	})
}

// Ids of users in other scripts pass the room, from the entry to the sale.
func TestUsersOfAllScripts(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(100, 100)
		users := []string{"ünïcödé", "東京都 1", "🎫🎫", "עברית", "e\u0301", strings.Repeat("語", 128), "a/b/../c", "%2F%00"}
		guests := make([]*guest, len(users))
		for i, user := range users {
			guests[i] = w.guest(user).run()
		}
		for _, g := range guests {
			g.wait("promoted")
			a := w.mustShop("finish", map[string]string{"token": g.ticket(0).Token, "result": "sold"})
			require.Contains(t, a.body, `"state":"SOLD"`)
		}
		for i, user := range users {
			guests[i].wait("closed sold").ends()
			got, err := w.rooms.Status(t.Context(), w.event, user)
			require.NoError(t, err)
			require.Equal(t, "sold", got.Reason)
		}
		got := w.status()
		require.Equal(t, []int64{int64(len(users)), 0, 0}, []int64{got.Sold, got.Waiting, got.Aside})
	})
}

// A page of another origin opens no stream, gets no place and no answer, and ends no place.
func TestAForeignPageDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.open(10, 10)
		w.control(room.Change{Verb: room.Hold})
		own := w.guest("own").run().wait("connected WAITING")
		shop := "/" + w.event + "/entry/"
		for _, origin := range []string{"https://foreign.example", "null", "http://room.foreign.example"} {
			for _, user := range []string{"own", "new"} {
				for _, request := range [][]string{
					{"GET", w.path(), asStream}, {"GET", w.path(), "application/json"}, {"GET", w.path() + "/status", ""}, {"DELETE", w.path(), ""},
					{"POST", shop[1:] + "verify", ""}, {"POST", shop[1:] + "extend", ""}, {"POST", shop[1:] + "finish", ""},
				} {
					a := w.send(request[0], request[1], user, "Accept", request[2], "Origin", origin, "Sec-Fetch-Site", "cross-site")
					require.Equal(t, "403 foreign_origin", a.word(), request)
					require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
				}
			}
			a := w.send("OPTIONS", w.path(), "", "Origin", origin, "Access-Control-Request-Method", "DELETE")
			require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
		}
		require.False(t, own.ended())
		require.EqualValues(t, 1, w.status().Waiting)
	})
}

// The shop's addresses and the gate refuse tokens that are forged, or for something else. The end
// of a token counts for the gate without a session, and the lease for all others.
func TestForgedTokensAtTheShopAndTheGate(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 10)
		shop, err := shopmiddleware.New(shopmiddleware.Options{
			URL: "http://" + p.web.Addr(), ShopToken: shopToken, Event: func(*http.Request) string { return w.event },
			Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		})
		require.NoError(t, err)
		g := w.guest("u").run().wait("promoted")
		ours := g.ticket(0)
		foreign := token.New()
		key := t.TempDir() + "/foreign.pem"
		require.NoError(t, token.CreateKey(key))
		foreign.Settings().(*token.Config).Keys = []token.KeyConfig{{Kid: "test", File: key}}
		_, err = pipeline.NewRegistry(pipeline.Env{Instance: "foreign", Logger: redistest.Logger(t)}, foreign)
		require.NoError(t, err)
		sign := func(by *token.Plugin, change func(*token.Claims)) string {
			c := token.Claims{Audience: broker.EntryAudience(w.event), Subject: "u", ID: ours.JTI, Expires: time.Now().Add(time.Hour)}
			change(&c)
			raw, err := by.Sign(c)
			require.NoError(t, err)
			return raw
		}
		head, rest, _ := strings.Cut(ours.Token, ".")
		body, signature, _ := strings.Cut(rest, ".")
		for name, tc := range map[string]struct {
			raw            string
			verify, finish string
			gate           error
		}{
			"none":                 {"", "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"10 KiB":               {strings.Repeat("a", 10<<10), "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"a changed signature":  {head + "." + body + "." + strings.Repeat("A", len(signature)), "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"no signature":         {head + "." + body + ".", "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"without an algorithm": {"eyJhbGciOiJub25lIn0." + body + ".", "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"a foreign key":        {sign(foreign, func(*token.Claims) {}), "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"without a user":       {sign(p.tokens, func(c *token.Claims) { c.Subject = "" }), "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"without a lease":      {sign(p.tokens, func(c *token.Claims) { c.ID = "" }), "401 forged", "401 forged", shopmiddleware.ErrNoEntry},
			"for another event":    {sign(p.tokens, func(c *token.Claims) { c.Audience = broker.EntryAudience("other") }), "403 other_event", "403 other_event", shopmiddleware.ErrOtherEvent},
			"for a job":            {sign(p.tokens, func(c *token.Claims) { c.Audience = "millrace-jobs" }), "403 other_event", "403 other_event", shopmiddleware.ErrOtherEvent},
			"an id of the stream":  {g.lastID(), "403 other_event", "403 other_event", shopmiddleware.ErrOtherEvent},
			"of an invented lease": {sign(p.tokens, func(c *token.Claims) { c.ID = "1-x" }), "410 ended", "409 conflict", nil},
		} {
			body := map[string]string{"token": tc.raw, "by": "s", "result": "sold"}
			require.Equal(t, tc.verify, w.mustShop("verify", body).word(), name)
			require.Equal(t, tc.finish, w.mustShop("finish", body).word(), name)
			_, err := shop.Check(t.Context(), w.event, tc.raw)
			require.ErrorIs(t, err, tc.gate, name)
		}
		require.EqualValues(t, 1, w.status().Admitted, "the lease is as it was")

		expired := sign(p.tokens, func(c *token.Claims) { c.Expires = time.Now().Add(-time.Hour) })
		_, err = shop.Check(t.Context(), w.event, expired)
		require.ErrorIs(t, err, shopmiddleware.ErrNoEntry)
		_, err = shop.Verify(t.Context(), w.event, expired, "s")
		require.NoError(t, err, "the lease decides")
		_, err = shop.Verify(t.Context(), w.event, ours.Token, "another")
		require.ErrorIs(t, err, shopmiddleware.ErrUsed)
		for range 2 {
			require.NoError(t, shop.Finish(t.Context(), w.event, ours.Token, "s", true), "the same answer again")
		}
		require.ErrorIs(t, shop.Finish(t.Context(), w.event, ours.Token, "s", false), shopmiddleware.ErrUsed)
		_, err = shop.Verify(t.Context(), w.event, ours.Token, "s")
		require.ErrorIs(t, err, shopmiddleware.ErrEnded)
		_, err = shop.Check(t.Context(), w.event, ours.Token)
		require.NoError(t, err, "offline, nothing has changed")
		require.EqualValues(t, 1, w.status().Sold)
	})
}
