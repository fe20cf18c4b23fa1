package broker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// shop sends a request of the shop to one of the brokers, until the room is available. It may run on any
// goroutine.
func (w *world) shop(path string, body any) (reply, error) {
	return w.shopOf(w.event, path, body)
}

func (w *world) shopOf(event, path string, body any) (reply, error) {
	return settled(func() (reply, error) { return w.shopOnce(event, path, body) })
}

func (w *world) shopOnce(event, path string, body any) (reply, error) {
	text, _ := json.Marshal(body)
	r, err := http.NewRequest(http.MethodPost, "http://room/events/"+event+"/entry/"+path, bytes.NewReader(text))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Authorization", "Bearer "+shopToken)
	answer, err := (&http.Client{Transport: w.transport(), Timeout: time.Minute}).Do(r)
	if err != nil {
		return reply{}, err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, answer.Header, string(got)}, err
}

func (w *world) mustShop(path string, body any) reply {
	w.t.Helper()
	a, err := w.shop(path, body)
	require.NoError(w.t, err)
	return a
}

func (w *world) status() room.Status {
	w.t.Helper()
	s, err := w.rooms.RoomStatus(w.t.Context(), w.event)
	require.NoError(w.t, err)
	return s
}

// Users move between two brokers while they are promoted. Each keeps the index, and has one lease.
func TestUsersWhoMoveDuringThePromotion(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users = 20
		w := newWorld(t, s)
		brokers := []*process{w.start("broker-1", "broker"), w.start("broker-2", "broker")}
		w.start("dispatcher", "dispatcher")
		w.open(users, users)
		w.control(room.Change{Verb: room.Hold})
		var guests []*guest
		for i := range users {
			guests = append(guests, w.guest(fmt.Sprint("user-", i)).run())
		}
		for _, g := range guests {
			g.wait("connected WAITING")
		}
		w.control(room.Change{Verb: room.Resume})
		for i := range 20 {
			brokers[i%2].toWeb.Cut()
			<-time.After(10 * time.Millisecond)
		}
		leases := map[string]bool{}
		for _, g := range guests {
			g.wait("promoted")
			require.False(t, g.ended(), "%s: %v", g.name, g.err)
			leases[g.ticket(0).JTI] = true
			a := w.mustShop("verify", map[string]string{"token": g.ticket(0).Token, "by": g.name})
			require.Equal(t, http.StatusOK, a.status, a.body)
		}
		require.Len(t, leases, users)
		require.EqualValues(t, users, w.status().Promoted)
	})
}

// Users leave at the moment of their promotion. No slot is lost.
func TestUsersWhoLeaveAtTheMomentOfThePromotion(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users = 30
		w := newWorld(t, s)
		w.options.PromoteBatch = 1
		w.start("broker-1", "broker")
		w.start("broker-2", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(users, users)
		w.control(room.Change{Verb: room.Hold})
		var guests []*guest
		for i := range users {
			guests = append(guests, w.guest(fmt.Sprint("user-", i)).run().wait("connected WAITING"))
		}
		w.control(room.Change{Verb: room.Resume})
		var leaving sync.WaitGroup
		for _, g := range guests {
			leaving.Go(func() {
				for end := time.Now().Add(patience); ; {
					r, _ := http.NewRequest(http.MethodDelete, g.client.URL, http.NoBody)
					r.Header.Set("X-User", g.name)
					answer, err := g.client.HTTP.Do(r)
					if err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusServiceUnavailable && time.Now().Before(end) {
						continue // this machine may be slow
					}
					if err != nil || answer.StatusCode != http.StatusNoContent {
						t.Errorf("%s: %v, %v", g.name, answer, err)
					}
					return
				}
			})
		}
		leaving.Wait()
		for _, g := range guests {
			g.ends()
			require.Equal(t, 1, g.count("closed left"), "%v", g.events)
		}
		got := w.status()
		require.Equal(t, []int64{0, 0, 0, 0, users}, []int64{got.Waiting, got.Ready, got.Admitted, got.Sold, got.Free})
	})
}

// Users buy at the moment at which their lease ends. A late sale needs a free seat. A sale
// that is sent again is sold again.
func TestUsersWhoFinishAtTheMomentOfTheExpiry(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users, seats = 12, 4
		w := newWorld(t, s)
		w.options.TokenTTL = 3 * time.Second
		w.start("broker-1", "broker")
		w.start("broker-2", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(seats, seats)
		var sold, answered atomic.Int64
		var buying sync.WaitGroup
		buying.Add(users)
		for i := range users {
			w.guest(fmt.Sprint("user-", i)).watch(func(g *guest, e ticket, now int64) {
				defer buying.Done()
				<-time.After(time.Duration(e.Until-now+int64(i%3-1)*50) * time.Millisecond)
				bought := false
				for range 2 {
					a, err := w.shop("finish", map[string]string{"token": e.Token, "result": "sold"})
					if err != nil || a.status != http.StatusOK && a.status != http.StatusConflict || bought && a.status != http.StatusOK {
						t.Errorf("%s: %v, %v, bought before: %t", g.name, a, err, bought)
					}
					bought = a.status == http.StatusOK
					answered.Add(1)
				}
				if bought {
					sold.Add(1)
				}
			}).run()
		}
		finished := make(chan struct{})
		go func() { buying.Wait(); close(finished) }()
		redistest.Eventually(t, "all seats are sold", func() bool {
			got := w.status()
			require.LessOrEqual(t, got.Sold+got.Ready+got.Admitted, int64(seats))
			return got.Sold == seats
		})
		redistest.Eventually(t, "no lease is left", func() bool {
			got := w.status()
			return got.Ready+got.Admitted == 0
		})
		redistest.Eventually(t, "all answers", func() bool { return answered.Load() == 2*w.status().Promoted })
		require.EqualValues(t, seats, sold.Load())
		require.EqualValues(t, seats, w.status().Sold)
		for range users - int(w.status().Promoted) {
			buying.Done() // they still wait
		}
		<-finished
	})
}

// watch calls f once, with the first token and the time of the server.
func (g *guest) watch(f func(g *guest, e ticket, now int64)) *guest {
	g.promoted = func(string) {
		g.mu.Lock()
		e, now := g.entries[0], g.now
		g.mu.Unlock()
		f(g, e, now)
	}
	return g
}

// Ten streams of a user on three brokers have one place. A stream that is closed is no departure.
func TestTenStreamsOnThreeBrokers(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.Release, w.options.SeenInterval = true, 20*time.Second
		for i := range 3 {
			w.start(fmt.Sprint("broker-", i), "broker")
		}
		w.start("dispatcher", "dispatcher")
		w.open(1, 1)
		w.control(room.Change{Verb: room.Hold})
		var tabs []*guest
		for range 10 {
			tabs = append(tabs, w.guest("u").run().wait("position 1"))
		}
		w.control(room.Change{Verb: room.Resume})
		for _, tab := range tabs {
			tab.wait("promoted")
			require.Equal(t, tabs[0].ticket(0), tab.ticket(0))
		}
		for _, tab := range tabs[1:] {
			tab.cancel()
			<-tab.done
		}
		// A broker without streams of the user has reported the end of the last one.
		gone := goredis.Z{Score: float64(time.Now().UnixMilli()), Member: "u"}
		require.NoError(t, w.admin.ZAdd(t.Context(), w.key1("ENTRY_GONE"), gone).Err())
		redistest.Eventually(t, "a sign of life of another broker", func() bool { return w.admin.ZCard(t.Context(), w.key1("ENTRY_GONE")).Val() == 0 })
		require.EqualValues(t, 1, w.status().Admitted)
		require.Zero(t, tabs[0].count("closed *"), "the last one keeps the slot")
	})
}

// A promoted user without a connection loses the slot soon with release, also before the first
// notification.
func TestAReadyUserWithoutAConnectionReleasesTheSlot(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.options.Release, w.options.SeenInterval = true, time.Hour
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(1, 1)
		w.control(room.Change{Verb: room.Hold})
		first := w.send("GET", w.path(), "u").place(t).Idx
		waits := w.guest("v").run().wait("connected WAITING")
		w.control(room.Change{Verb: room.Resume})
		gone := func() float64 { return w.admin.ZScore(t.Context(), w.key1("ENTRY_GONE"), "u").Val() }
		redistest.Eventually(t, "u is promoted, and has no connection", func() bool { return gone() > 0 })
		// A long time ago.
		require.NoError(t, w.admin.ZAdd(t.Context(), w.key1("ENTRY_GONE"), goredis.Z{Score: 1, Member: "u"}).Err())
		waits.wait("promoted")
		got, err := w.rooms.Status(t.Context(), w.event, "u")
		require.NoError(t, err)
		require.Equal(t, "abandoned", got.Reason)
		require.Greater(t, w.send("GET", w.path(), "u").place(t).Idx, first)
	})
}

// User ids are data. Each of them passes the room, from the entry to the sale.
func TestUnusualUsersPassTheRoom(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(100, 100)
		users := []string{`{"userId":"x"}`, `a"b\c`, "{42}", "%s:*?[a]", "<b>&'", strings.Repeat("x", 128)}
		for _, user := range users {
			g := w.guest(user).run().wait("promoted")
			body := map[string]string{"token": g.ticket(0).Token, "by": user, "result": "sold"}
			require.Contains(t, w.mustShop("verify", body).body, `"state":"ADMITTED"`)
			require.Contains(t, w.mustShop("finish", body).body, `"state":"SOLD"`)
			g.wait("closed sold").ends()
		}
		got := w.status()
		require.Equal(t, []int64{int64(len(users)), 0, 0, 0}, []int64{got.Sold, got.Waiting, got.Ready, got.Aside})
		long := strings.Repeat("x", 10<<10)
		require.Equal(t, "400 bad_user", w.send("GET", w.path(), long).word())
		require.Equal(t, "400 bad_event", w.send("GET", long+"/tickets/waiting", "u").word())
		require.Equal(t, "400 bad_event", w.send("GET", "%7B42%7D%22/tickets/waiting", "u").word())
	})
}

// The room refuses tokens of another event or kind, changed ones, those of another session, and
// those of a lease that has ended.
func TestTokensThatAreRefused(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 10)
		g := w.guest("u").run().wait("promoted")
		ours := g.ticket(0).Token
		verify := func(token, by string) string {
			return w.mustShop("verify", map[string]string{"token": token, "by": by}).word()
		}
		require.Equal(t, "401", verify(ours[:len(ours)-4]+"AAAA", "s")[:3], "changed")
		require.Equal(t, "403", verify(g.lastID(), "s")[:3], "an id of the stream")
		require.Equal(t, "401", verify("", "s")[:3])
		require.Equal(t, "200 ", verify(ours, "s"))
		require.Equal(t, "200 ", verify(ours, "s"), "the same session again")
		require.Equal(t, "409 used", verify(ours, "another"))
		here := w.event
		w.event = "concert-2"
		w.open(10, 10)
		require.Equal(t, "403", verify(ours, "s")[:3], "of another event")
		w.event = here
		w.control(room.Change{Verb: room.Kick, User: "u"})
		require.Equal(t, "410 ended", verify(ours, "s"))
	})
}
