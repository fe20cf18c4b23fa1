package broker_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// tick runs the ticks of the event in place of a dispatcher, until the condition holds.
func (w *world) tick(what string, cond func() bool) {
	w.t.Helper()
	redistest.Eventually(w.t, what, func() bool {
		_, err := w.rooms.Tick(w.t.Context(), w.event)
		require.NoError(w.t, err)
		return cond()
	})
}

// W7: no entry of DISPATCH arrives, and the next sign is an hour later. The rank table is enough.
func TestAPromotionWithoutADispatchedEntry(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.SeenInterval = time.Hour
		w.start("broker", "broker")
		w.open(1, 1)
		w.control(room.Change{Verb: room.Hold})
		g := w.guest("u").run().wait("connected WAITING")
		sign := func() float64 { return w.admin.ZScore(t.Context(), w.key1("WAITING_SEEN"), "u").Val() }
		entered := sign()
		w.tick("the sign of the first table", func() bool { return sign() != entered })
		w.control(room.Change{Verb: room.Resume})
		w.tick("promoted", func() bool { return g.seen("promoted") })
		require.Zero(t, w.admin.Exists(t.Context(), "DISPATCH_INSTANCES").Val())
	})
}

// W10: entries of DISPATCH that are old, repeated or bad change nothing.
func TestOldEntriesOfDispatch(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(1, 1)
		first := w.guest("u").run().wait("promoted")
		second := w.guest("v").run().wait("position 1")
		for _, values := range [][]any{
			{"userId", "u", "eventId", w.event}, {"userId", "v", "eventId", w.event}, {"userId", "u", "eventId", "gone"}, {"userId", "nobody", "eventId", w.event},
			{"userId", "", "eventId", w.event}, {"a", "b"},
		} {
			require.NoError(t, w.admin.XAdd(t.Context(), &goredis.XAddArgs{Stream: room.DispatchStream(p.name), Values: values}).Err())
		}
		redistest.Eventually(t, "the bad ones are dead letters", func() bool { return len(p.dead.Messages()) == 2 })
		_, err := w.rooms.Leave(t.Context(), w.event, "u", "left")
		require.NoError(t, err)
		second.wait("promoted")
		require.Equal(t, 1, first.count("promoted"))
		require.Equal(t, 1, second.count("promoted"))
	})
}

// The end of a lease closes the stream, and the next user is promoted.
func TestALeaseThatIsOver(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.TokenTTL, w.options.SeenInterval = 3*time.Second, time.Hour
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		g := w.guest("u").run().wait("promoted")
		w.guest("v").run().wait("promoted")
		g.wait("closed lease_over").ends()
	})
}

func TestMessagesAndTheEndOfARoom(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.SeenInterval = time.Hour
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		first := w.guest("u").run().wait("promoted")
		second := w.guest("v").run().wait("position 1")
		text := "we start at noon"
		w.control(room.Change{Verb: room.Message, Message: &text})
		first.wait("message we start at noon")
		second.wait("message we start at noon")
		w.control(room.Change{Verb: room.Close}) // first: no user takes the free slot
		w.control(room.Change{Verb: room.Kick, User: "u"})
		second.wait("closed room_closed").ends()
		first.wait("closed kicked").ends()
	})
}

// The end of a lease moves with an outage. Clients receive a token with the new end.
func TestAnOutageMovesTheEndOfALease(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.SeenInterval = time.Hour
		w.start("broker", "broker")
		w.open(10, 1)
		g := w.guest("u").run()
		w.tick("promoted", func() bool { return g.seen("promoted") })
		first := g.count("promoted") - 1
		// The last tick seems to be a minute ago. The time since then does not count.
		require.NoError(t, w.admin.HIncrBy(t.Context(), w.key1("ROOM"), "stopped", -time.Minute.Milliseconds()).Err())
		last := func() ticket { return g.ticket(g.count("promoted") - 1) }
		w.tick("a token with a later end", func() bool { return last().Until > g.ticket(first).Until })
		require.Equal(t, g.ticket(first).JTI, last().JTI)
	})
}

// The shop gives a turn more time. All tabs, also on another broker, and clients that poll learn the
// new end, with a token that is as long valid.
func TestAShopExtendsATurn(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker", "dispatcher")
		w.open(10, 10)
		here := w.guest("u").run().wait("promoted")
		w.start("another", "broker")
		there := w.guest("u").run().wait("promoted")
		first := here.ticket(0)
		until := first.Until + (6 * time.Minute).Milliseconds()
		extend := func(by string) reply {
			return w.mustShop("extend", map[string]any{"token": first.Token, "by": by, "until": until})
		}
		require.Equal(t, "409 not_verified", extend("session").word())
		require.Equal(t, http.StatusOK, w.mustShop("verify", map[string]string{"token": first.Token, "by": "session"}).status)
		require.Equal(t, "409 used", extend("another").word())
		polled := func() int64 { return w.send("GET", w.path()+"/status", "u").place(t).Until }
		require.Less(t, polled(), until)
		for range 2 {
			var answer struct{ Until int64 }
			require.NoError(t, json.Unmarshal([]byte(extend("session").body), &answer))
			require.GreaterOrEqual(t, answer.Until, until, "a pause of the ticks makes it later")
		}
		require.GreaterOrEqual(t, polled(), until)
		for _, g := range []*guest{here, there} {
			var last ticket
			redistest.Eventually(t, "the new end", func() bool {
				last = g.ticket(g.count("promoted") - 1)
				return last.Until >= until
			})
			require.Equal(t, first.JTI, last.JTI)
			c, err := p.tokens.Verify(broker.EntryAudience(w.event), last.Token)
			require.NoError(t, err)
			require.Equal(t, last.Until/1000, c.Expires.Unix())
		}
	})
}

// With release, the broker reports the end of the last connection of a promoted user, and the slot
// is free an interval later. A second connection keeps the slot.
func TestALostConnectionReleasesTheSlot(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.Release, w.options.SeenInterval = true, time.Hour
		p := w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 2)
		stays, leaves := w.guest("stays").run().wait("promoted"), w.guest("leaves").run().wait("promoted")
		waits := w.guest("waits").run().wait("position 1")
		other := w.guest("stays").run().wait("promoted")
		streams := func(n float64) func() bool {
			return func() bool {
				return redistest.Gather(t, "millrace_web_open_streams", p.registry.Collectors()...)[0].Value == n
			}
		}
		gone := func() []string { return w.admin.ZRange(t.Context(), w.key1("ENTRY_GONE"), 0, -1).Val() }
		require.Empty(t, gone())
		stays.cancel()
		redistest.Eventually(t, "the first stream has ended", streams(3))
		leaves.cancel()
		redistest.Eventually(t, "the end of the last connection is reported", func() bool { return len(gone()) > 0 })
		require.Equal(t, []string{"leaves"}, gone())
		// More than an interval ago.
		require.NoError(t, w.admin.ZAdd(t.Context(), w.key1("ENTRY_GONE"), goredis.Z{Score: 1, Member: "leaves"}).Err())
		waits.wait("promoted")
		require.Zero(t, other.count("closed *"), "a second connection keeps the slot")
		got, err := w.rooms.Status(t.Context(), w.event, "leaves")
		require.NoError(t, err)
		require.Equal(t, "abandoned", got.Reason)
	})
}

// A user whose stream ends waits for the grace, from the last sign of life.
func TestALostConnectionIsNoDeparture(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.SeenInterval = time.Hour
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		w.guest("first").run().wait("promoted")
		g := w.guest("u").run().wait("position 1")
		seen := func() float64 { return w.admin.ZScore(context.Background(), w.key1("WAITING_SEEN"), "u").Val() }
		before := seen()
		g.cancel()
		redistest.Eventually(t, "a sign of life at the disconnect", func() bool { return seen() > before })
		require.Equal(t, g.idx(), w.guest("u").run().wait("connected WAITING").idx())
	})
}

// A broker that is full refuses streams. A user who keeps trying is not absent.
func TestARefusedStreamIsASignOfLife(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.SeenInterval, w.streams = time.Hour, 1
		w.start("broker", "broker")
		w.open(10, 10)
		w.control(room.Change{Verb: room.Hold})
		index := w.send("GET", w.path(), "u").place(t).Idx
		w.guest("v").run().wait("connected WAITING")
		seen := func() float64 { return w.admin.ZScore(context.Background(), w.key1("WAITING_SEEN"), "u").Val() }
		for _, accept := range []string{asStream, "application/json"} {
			before := seen()
			redistest.Eventually(t, "a sign of life", func() bool {
				a := w.send("GET", w.path(), "u", "Accept", accept)
				require.Contains(t, a.body, "full")
				require.Equal(t, accept == asStream, a.status == 200)
				return seen() > before
			})
		}
		require.Contains(t, w.send("GET", w.path(), "new", "Accept", asStream).body, "full")
		w.send("GET", "invented/tickets/waiting", "u")
		before := seen()
		redistest.Eventually(t, "the next round", func() bool { // which has the signs of both
			w.send("GET", w.path(), "u")
			return seen() > before
		})
		got, err := w.rooms.Status(t.Context(), w.event, "new")
		require.NoError(t, err)
		require.Empty(t, got.State, "a refused user has no place")
		got, err = w.rooms.Status(t.Context(), w.event, "u")
		require.NoError(t, err)
		require.Equal(t, index, got.Index)
		require.Zero(t, w.admin.Exists(t.Context(), "ROOM:{invented}").Val())
	})
}
