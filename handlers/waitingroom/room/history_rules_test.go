package room

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// TestHistoriesThatFailed plays the shortest histories in which a set of rules without the named
// one fails. The checks are those of the random histories.
func TestHistoriesThatFailed(t *testing.T) {
	histories := []struct {
		name    string
		release bool
		play    func(t *testing.T, h *history, a, b, c *broker)
	}{
		{"a user that was absent returns to the index", false, func(t *testing.T, h *history, a, b, _ *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.pass(18000)
			require.Empty(t, h.m.waiting)
			h.enter("u2", b, 0)
			h.heal(a)
			h.pass(1000)
			require.Less(t, h.m.waiting["u1"].index, h.m.waiting["u2"].index)
		}},
		{"entering restores an absent user", false, func(t *testing.T, h *history, a, b, _ *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.pass(18000)
			h.enter("u2", b, 0)
			h.enter("u1", b, 0)
			require.Less(t, h.m.waiting["u1"].index, h.m.waiting["u2"].index)
		}},
		{"a stale sign restores no buyer", false, func(t *testing.T, h *history, a, b, _ *broker) {
			h.enter("u1", a, 0)
			h.enter("u1", b, 0)
			h.cutOff(b)
			h.pass(1000)
			h.finish(0, "shop", true)
			h.heal(b)
			h.pass(1000)
			require.Empty(t, h.m.waiting)
		}},
		{"the sign of another broker restores no leaver", false, func(t *testing.T, h *history, a, b, _ *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.enter("u1", b, 0)
			h.leave("u1", "left")
			h.signs(b, false, "u1")
			require.Empty(t, h.m.waiting)
			require.Empty(t, b.tabs)
		}},
		{"a return keeps what the user left before", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.leave("u1", "left")
			h.enter("u2", c, 0)
			h.enter("u1", b, 0)
			h.crash(b)
			h.pass(18000)
			h.enter("u1", b, 0)
			h.heal(a)
			h.pass(1000)
			require.Greater(t, h.m.waiting["u1"].index, h.m.waiting["u2"].index)
		}},
		{"an absence keeps what the user left before", false, func(t *testing.T, h *history, a, b, _ *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.leave("u1", "left")
			h.enter("u1", b, 0)
			h.crash(b)
			h.pass(18000)
			h.heal(a)
			h.pass(1000)
			require.NotEqual(t, h.begin, h.m.waiting["u1"].index)
		}},
		{"leaving counts after a failover that lost the place", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.enter("u1", b, 0)
			h.failover()
			h.leave("u1", "left")
			h.pass(2000)
			require.Empty(t, h.m.waiting)
			require.Empty(t, h.m.leases)
			require.Empty(t, a.tabs)
		}},
		{"a very late sign restores no leaver", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Set}) // else the room is cleared after an hour
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.leave("u1", "left")
			for range 65 * 60 / 4 {
				h.advance(4 * sec)
				h.tick()
			}
			require.Empty(t, h.m.gone)
			h.heal(a)
			h.pass(1000)
			require.Empty(t, h.m.waiting)
			require.Empty(t, h.m.leases)
		}},
		{"a lease that was not claimed leaves the index behind", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.cutOff(a)
			h.pass(22000)
			require.Empty(t, h.m.leases)
			h.heal(a)
			h.pass(2000)
			require.Equal(t, h.begin, h.m.leases["u1"].index)
		}},
		{"a sign lowers the index of a user who entered again", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Hold})
			h.replicate()
			h.enter("u1", a, 0)
			h.failover()
			h.enter("u2", c, 0)
			h.enter("u1", b, 0)
			h.pass(2000)
			require.Equal(t, h.begin, h.m.waiting["u1"].index)
		}},
		{"a returning tab lowers the index of a user who entered again", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.crash(a)
			h.failover()
			h.enter("u2", c, 0)
			h.enter("u1", b, 0)
			h.enter("u1", a, h.begin)
			require.Equal(t, h.begin, h.m.waiting["u1"].index)
		}},
		{"the index of a restored lease is not given again", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.pass(1000)
			h.failover()
			h.pass(2000)
			require.Contains(t, h.m.leases, "u1")
			require.Equal(t, h.begin, h.m.last)
		}},
		{"an end counts for all indexes of the user", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.failover()
			h.enter("u1", b, 0)
			h.cutOff(b)
			h.pass(18000)
			h.finish(0, "shop", true)
			h.heal(b)
			h.pass(1000)
			require.Empty(t, h.m.waiting)
		}},
		{"no promotion after a failover before the signs", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.pass(1000)
			h.replicate()
			h.enter("u1", a, 0)
			h.failover()
			h.enter("u2", b, 0)
			h.tick()
			require.Empty(t, h.m.leases)
			h.noServer(13)
			h.tick()
			require.Empty(t, h.m.leases)
			h.pass(18000)
			require.Contains(t, h.m.leases, "u1")
			require.NotContains(t, h.m.leases, "u2")
		}},
		{"an outage is no absence", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.pass(1000)
			h.noServer(180)
			h.tick()
			require.Contains(t, h.m.waiting, "u1")
			h.pass(25000)
			require.Contains(t, h.m.waiting, "u1")
		}},
		{"an outage ends no lease", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.pass(1000)
			h.noServer(180)
			h.verify(0, "shop")
			h.tick()
			h.verify(0, "shop")
			h.finish(0, "shop", true)
			require.Equal(t, int64(1), h.m.sold)
		}},
		{"an outage drops nothing that is remembered", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Hold})
			h.enter("u1", a, 0)
			h.crash(a)
			h.pass(18000)
			h.noServer(900)
			h.enter("u2", b, 0)
			h.tick()
			h.pass(18000)
			h.enter("u1", b, 0)
			require.Equal(t, h.begin, h.m.waiting["u1"].index)
		}},
		{"a late sale needs a free slot", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.enter("u2", b, 0)
			h.pass(1000)
			h.pass(32000)
			require.Contains(t, h.m.leases, "u2")
			h.finish(1, "shop", true)
			require.Zero(t, h.m.sold)
		}},
		{"a tab on another broker keeps the lease", true, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.enter("u1", b, 0)
			h.pass(1000)
			h.closeTab("u1", a)
			h.pass(13000)
			require.Contains(t, h.m.leases, "u1")
			h.closeTab("u1", b)
			h.pass(13000)
			require.Empty(t, h.m.leases)
		}},
		{"a user who is promoted without a connection is released", true, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.enter("u2", b, 0)
			h.crash(a)
			h.pass(1000)
			require.Contains(t, h.m.leases, "u1")
			h.pass(13000)
			require.NotContains(t, h.m.leases, "u1")
			require.Contains(t, h.m.leases, "u2")
		}},
		{"a verified lease is ended by the shop alone", true, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.pass(1000)
			h.closeTab("u1", a)
			h.verify(0, "shop")
			h.pass(13000)
			h.leave("u1", "left")
			require.Contains(t, h.m.leases, "u1")
			h.finish(0, "shop", true)
			require.Equal(t, int64(1), h.m.sold)
		}},
		{"a lease is finished by its session alone, also after its end", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.pass(1000)
			h.verify(0, "shop")
			h.finish(0, "another", true)
			h.finish(0, "", false)
			require.Contains(t, h.m.leases, "u1")
			h.pass(30000)
			h.pass(2000)
			require.Empty(t, h.m.leases)
			h.finish(0, "another", true)
			require.Zero(t, h.m.sold)
			h.finish(0, "shop", true)
			require.Equal(t, int64(1), h.m.sold)
			h.finish(0, "another", true)
		}},
		{"a late sale that is the last purchase ends the place since then", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Set, Capacity: new(int64(9))})
			h.enter("u1", a, 0)
			h.pass(1000)
			h.crash(a)
			h.pass(32000)
			h.control(Change{Verb: Hold})
			h.enter("u1", b, 0)
			require.Contains(t, h.m.waiting, "u1")
			h.finish(0, "shop", true)
			require.Equal(t, 1, h.m.bought["u1"])
			require.Empty(t, h.m.waiting)
			h.signs(b, false, "u1")
			h.enter("u1", c, 0)
			require.Empty(t, h.m.waiting)
		}},
		{"a late sale that is the last purchase ends the turn since then", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Set, Capacity: new(int64(9))})
			h.enter("u1", a, 0)
			h.pass(1000)
			h.crash(a)
			h.pass(32000)
			h.enter("u1", b, 0)
			h.pass(1000)
			require.Contains(t, h.m.leases, "u1")
			h.finish(1, "shop", true)
			require.Empty(t, h.m.leases)
			h.finish(0, "shop", true)
			require.EqualValues(t, 1, h.m.sold)
		}},
		{"a late sale is refused while the shop makes the last purchase", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.control(Change{Verb: Set, Capacity: new(int64(9))})
			h.enter("u1", a, 0)
			h.pass(1000)
			h.crash(a)
			h.pass(32000)
			h.enter("u1", b, 0)
			h.pass(1000)
			h.verify(0, "shop")
			h.finish(1, "shop", true)
			require.Zero(t, h.m.sold)
			h.finish(0, "shop", true)
			require.EqualValues(t, 1, h.m.sold)
		}},
		{"a sale of an abandoned lease needs a free slot", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.enter("u2", b, 0)
			h.pass(1000)
			h.leave("u1", "left")
			h.pass(1000)
			h.finish(1, "shop", true)
			require.Zero(t, h.m.sold)
			h.leave("u2", "left")
			h.finish(1, "shop", true)
			require.Equal(t, int64(1), h.m.sold)
		}},
		{"two outages in a row end no lease", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.pass(1000)
			h.cutOff(a)
			h.noServer(60)
			h.tick()
			h.failover()
			h.noServer(60)
			h.tick()
			h.heal(a)
			h.pass(1000)
			h.verify(0, "shop")
			require.Contains(t, h.m.leases, "u1")
		}},
		{"a turn before a pre-queue is claimed", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.advance(sec)
			h.tick()
			h.preQueue(8)
			h.advance(sec)
			h.tick()
			h.signs(a, false, "u1")
			h.look()
			require.Equal(t, Admitted, h.m.leases["u1"].state)
		}},
		{"a failover that lost an extended lease keeps its end", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.advance(sec)
			h.tick()
			h.look()
			h.verify(0, "shop")
			h.extend(0, "shop", 30)
			h.signs(a, false, "u1")
			end := h.m.leases["u1"].until
			require.Greater(t, end-h.m.ms(), h.o.TokenTTL.Milliseconds())
			h.failover()
			require.Empty(t, h.m.leases)
			h.signs(a, false, "u1")
			require.Equal(t, end, h.m.leases["u1"].until)
		}},
		{"a failover that lost the claim keeps the lease", false, func(t *testing.T, h *history, a, b, c *broker) {
			h.enter("u1", a, 0)
			h.advance(sec)
			h.tick()
			h.replicate()
			h.look()
			h.failover()
			h.verify(0, "shop")
			h.pass(18000)
			require.Equal(t, Admitted, h.m.leases["u1"].state)
		}},
	}
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		e := newHistoryEnv(t, s)
		for _, one := range histories {
			t.Run(one.name, func(t *testing.T) {
				h := e.newHistory(t, func(o *Options) {
					o.Release, o.PurchasesPerUser = one.release, 0
					if strings.Contains(one.name, "last purchase") {
						o.PurchasesPerUser = 1
					}
				})
				defer h.clear()
				h.seats(1)
				h.replicate()
				one.play(t, h, h.brokers[0], h.brokers[1], h.brokers[2])
				h.compare()
				h.check()
			})
		}
	})
}

// W39: with a replica, a failover loses nothing that was answered.
func TestAFailoverLosesNoAnswer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		h := newHistoryEnv(t, s).newHistory(t, func(o *Options) { o.Replicas = 1 })
		defer h.clear()
		h.seats(3)
		h.replicate()
		a := h.brokers[0]
		for _, u := range h.users[:3] {
			h.enter(u, a, 0)
		}
		h.advance(sec)
		h.tick()
		h.tick()
		h.look()
		failover := func() {
			t.Helper()
			h.failover()
			h.tick()
			h.compare()
			h.check()
		}
		failover()
		require.Len(t, h.tokens, 3)
		for n := range h.tokens {
			require.Equal(t, Admitted, h.m.leases[h.tokens[n].user].state, "its token was shown")
		}
		h.verify(0, "session")
		failover()
		h.verify(0, "another session")
		h.finish(0, "another session", true)
		require.Zero(t, h.m.sold)
		h.finish(0, "session", true)
		failover()
		require.EqualValues(t, 1, h.m.sold)
		h.finish(0, "another session", true)
		h.finish(1, "shop", false)
		failover()
		h.leave("u1", "left")
		failover()
		h.pass(20_000)
		require.Empty(t, h.m.leases)
		h.compare()
		h.check()
	})
}

// The answer to a late sale may be lost. Its repetition is then the first answer, and says that the lease was sold.
func TestALateSaleThatWasNotAnsweredIsRepeated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		h := newHistoryEnv(t, s).newHistory(t, func(o *Options) { o.Replicas = 1 })
		defer h.clear()
		h.seats(1)
		h.replicate()
		h.enter("u1", h.brokers[0], 0)
		h.pass(1000)
		h.finish(0, "shop", false)
		h.stopReplica(0)
		h.finish(0, "shop", true)
		require.Equal(t, Abandoned, h.truth.result[h.tokens[0].jti], "nothing else was promised")
		h.returnReplica()
		h.finish(0, "shop", true)
		h.compare()
		h.check()
		require.Equal(t, Sold, h.truth.result[h.tokens[0].jti])
		require.EqualValues(t, 1, h.m.sold)
	})
}
