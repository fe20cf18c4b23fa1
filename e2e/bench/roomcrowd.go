package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	crowdEvent  = "concert"
	brokers     = 10  // virtual ones
	enterers    = 64  // users that enter at the same time
	perCall     = 250 // signs of life, or ranks
	roomBatch   = 200 // promotions of a tick, the default
	sampleEvery = 100 // enters, whose time is measured
	quickPause  = 20 * time.Millisecond
	quickMost   = 30 * time.Second // of the ticks that follow each other at once
)

func roomUser(i int) string { return fmt.Sprintf("user-%07d", i) }

func brokerName(n int) string { return fmt.Sprintf("broker-%d", n) }

// share returns the users of a broker.
func (c *crowd) share(broker int) (first, last int) {
	return broker * c.users / brokers, (broker + 1) * c.users / brokers
}

// crowd is an event with many users on an empty Redis. This process is its brokers and its
// dispatcher.
type crowd struct {
	*trial
	rooms   *room.Store // with the default intervals
	quick   *room.Store // whose ticks follow each other at once
	times   *scriptTimes
	indexes []int64 // by user
	signs   atomic.Int64
	peak    int64 // memory of Redis
}

// openRooms returns rooms on the server of the benchmark.
func (t *trial) openRooms(ctx context.Context) (*redis.Server, *room.Store) {
	config := redis.DefaultClientConfig()
	config.Addrs = []string{t.fleet.Addr(servers.Redis)}
	server := redis.New().Server(&config)
	check(server.Start(ctx))
	t.cleanup(func() { _ = server.Stop(context.Background()) })
	return server, newRooms(server, time.Second)
}

// newRooms returns rooms with the default limits. No user is absent during the benchmark.
func newRooms(server *redis.Server, interval time.Duration) *room.Store {
	return room.New(server, room.Options{
		PromoteInterval: interval, PromoteBatch: roomBatch, TokenTTL: time.Hour, ReadyTTL: time.Hour, Grace: time.Hour,
		SeenInterval: 30 * time.Second, ClearAfter: 24 * time.Hour, MaxEvents: 1000,
	})
}

// beginCrowd creates the event.
func (t *trial) beginCrowd(ctx context.Context) *crowd {
	t.emptyRedis(ctx)
	server, rooms := t.openRooms(ctx)
	c := &crowd{trial: t, rooms: rooms, quick: newRooms(server, quickPause), times: newScriptTimes(), indexes: make([]int64, t.users)}
	server.Client().AddHook(c.times)
	check(rooms.Create(ctx, crowdEvent))
	return c
}

// compareMillionWaiting measures an event with many waiting users.
func compareMillionWaiting(ctx context.Context, t *trial) {
	c := t.beginCrowd(ctx)
	empty := t.redisMemory(ctx)
	while(ctx, func(ctx context.Context) {
		began := time.Now()
		entered := c.enter(ctx)
		t.figure("room-enter", float64(entered)/time.Since(began).Seconds())
		c.restore(ctx, entered)
	}, c.tick)
	full := t.redisMemory(ctx)
	var positions float64
	loops := []func(context.Context){c.watchMemory}
	for n := range brokers {
		loops = append(loops, func(ctx context.Context) { c.broker(ctx, n) })
	}
	while(ctx, func(ctx context.Context) {
		c.tickFor(ctx, time.Second) // all brokers have started
		positions = c.redisTime(ctx)
		t.logf("  %d ticks without promotions, and %d with 200 each", t.samples, t.samples)
		c.quickTicks(ctx)
		c.promotions(ctx)
	}, loops...)
	t.figure("room-positions", positions, c.rankAll(ctx))
	c.report()
	t.figure("room-memory", float64(full-empty)/float64(t.users))
	t.figure("room-memory-peak", float64(max(full, c.peak)-empty)/float64(t.users))
	for key, script := range map[string]string{"tick": scriptTick, "promotion": scriptPromote, "signs": scriptSigns, "claims": scriptClaim} {
		t.figure("room-"+key+"-p99", quantile(c.times.of(script).server, 0.99))
	}
}

// compareDraw measures the draw of a pre-queue, while a dispatcher ticks.
func compareDraw(ctx context.Context, t *trial) {
	c := t.beginCrowd(ctx)
	// open opens the room, or ends its pre-queue.
	open := func(change room.Change) {
		change.Verb, change.By, change.Why = room.Open, "bench", "bench"
		must(c.rooms.Control(ctx, crowdEvent, change))
	}
	mode := room.Shuffle
	open(room.Change{Mode: &mode})
	while(ctx, func(ctx context.Context) { c.restore(ctx, 0) }, c.tick)
	open(room.Change{})
	t.emptyStats(ctx)
	until(ctx, 100*time.Millisecond, func() bool { return must(c.rooms.Tick(ctx, crowdEvent)).Ran })
	frozen, restored := t.scriptLatency(ctx), c.times.of(scriptRestore).server
	t.other("script of "+scriptRestore+", median and slowest", "%.2f ms, %.2f ms", quantile(restored, 0.5), quantile(restored, 1))
	t.other("draw: script of the tick that freezes the pre-queue", "%.2f ms", frozen.max)
	while(ctx, func(ctx context.Context) {
		began := time.Now()
		drawn := must(c.rooms.Draw(ctx, crowdEvent))
		t.figure("room-draw-time", time.Since(began).Seconds())
		expect(drawn.Users == t.users, "%d of %d users were drawn", drawn.Users, t.users)
	}, c.tick)
	scripts := t.scriptLatency(ctx)
	t.other("draw: all scripts, median and slowest", "%.2f ms, %.2f ms", scripts.p50, scripts.max)
	t.figure("room-draw-script", scripts.p99)
	t.figure("room-restore-p99", quantile(restored, 0.99))
}

// enter queues users for at most a minute. It returns how many.
func (c *crowd) enter(ctx context.Context) (entered int) {
	const most = time.Minute
	began := time.Now()
	var next atomic.Int64
	while(ctx, func(ctx context.Context) {
		together(ctx, enterers, func(ctx context.Context, _ int) {
			for time.Since(began) < most {
				i := int(next.Add(1)) - 1
				if i >= c.users {
					return
				}
				one := ctx
				if i%sampleEvery == sampleEvery-1 {
					one = named(ctx, scriptEnter)
				}
				c.indexes[i] = must(c.rooms.Enter(one, crowdEvent, roomUser(i), brokerName(i%brokers), 0)).Index
			}
		})
	}, func(ctx context.Context) {
		for sleep(ctx, 5*time.Second) == nil {
			n := min(int(next.Load()), c.users)
			c.logf("  %d of %d users have entered, %.0f/s", n, c.users, float64(n)/time.Since(began).Seconds())
		}
	})
	return min(int(next.Load()), c.users)
}

// restore queues the other users by signs of life, which is faster than that each user enters.
func (c *crowd) restore(ctx context.Context, entered int) {
	c.logf("  %d users are queued by signs of life", c.users-entered)
	first := max(time.Now().UnixMicro(), slices.Max(c.indexes)) + 1
	for i := entered; i < c.users; i++ {
		c.indexes[i] = first + int64(i)
	}
	for from := entered; from < c.users; from += perCall {
		places := must(c.rooms.Seen(named(ctx, scriptRestore), crowdEvent, brokerName(0), c.signsOf(from, c.users)))
		last := places[len(places)-1]
		expect(last.State == room.Waiting, "the place of a user was not restored: %+v", last)
	}
}

// signsOf returns the signs of life of the next users, at most perCall.
func (c *crowd) signsOf(from, to int) []room.Sign {
	signs := make([]room.Sign, min(perCall, to-from))
	for i := range signs {
		signs[i] = room.Sign{User: roomUser(from + i), Index: c.indexes[from+i]}
	}
	return signs
}

// tickFor ticks once per second, for a time.
func (c *crowd) tickFor(ctx context.Context, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		began := time.Now()
		must(c.rooms.Tick(named(ctx, scriptTick), crowdEvent))
		check(sleep(ctx, time.Second-time.Since(began)))
	}
}

// tick ticks once per second until ctx ends.
func (c *crowd) tick(ctx context.Context) { c.tickFor(ctx, time.Hour) }

// broker is one broker with its share of the users. Once per second it reads the rank table, and
// sends the signs of life that are due.
func (c *crowd) broker(ctx context.Context, n int) {
	first, last := c.share(n)
	rounds := int(c.signed.Seconds())
	check(sleep(ctx, time.Duration(n)*time.Second/brokers))
	next := time.Now()
	for round := 0; ; round = (round + 1) % rounds {
		must(c.rooms.Tables(ctx, []string{crowdEvent}))
		from, to := first+round*(last-first)/rounds, first+(round+1)*(last-first)/rounds
		for ; from < to; from += perCall {
			signs := c.signsOf(from, to)
			for i, p := range must(c.rooms.Seen(named(ctx, scriptSigns), crowdEvent, brokerName(n), signs)) {
				expect(p.State != "" || p.Reason == "left" || p.Reason == "abandoned", "user %s has lost the place: %s", signs[i].User, p.Reason)
			}
			c.signs.Add(int64(len(signs)))
		}
		next = next.Add(time.Second)
		if late := time.Since(next); late > 0 {
			next = next.Add(late) // a round that is late delays the next ones
		}
		check(sleep(ctx, time.Until(next)))
	}
}

func (c *crowd) watchMemory(ctx context.Context) {
	for {
		c.peak = max(c.peak, c.redisMemory(ctx))
		check(sleep(ctx, 500*time.Millisecond))
	}
}

// redisTime ticks once per second while each user sends a sign of life. It reports the Redis time of
// the signs, and returns that of the positions, in ms per second.
func (c *crowd) redisTime(ctx context.Context) (positions float64) {
	c.logf("  ticks, tables and signs of life for %s", c.signed)
	before := c.commandTimes(ctx)
	began, sent, cpu, ticks := time.Now(), c.signs.Load(), c.redisCPU(), len(c.times.of(scriptTick).server)
	c.tickFor(ctx, c.signed)
	took := time.Since(began).Seconds()
	after := c.commandTimes(ctx)
	cpu, sent = c.redisCPU()-cpu, c.signs.Load()-sent
	perTick := mean(c.times.of(scriptTick).server[ticks:])
	tables := after["get"].since(before["get"]).usec / took / 1000
	signs := after["evalsha"].since(before["evalsha"]).usec/took/1000 - perTick // one tick per second
	c.other("Redis time of one tick, mean", "%.2f ms", perTick)
	c.other("Redis time per second for the rank tables of 10 brokers", "%.2f ms", tables)
	c.other("signs of life per second / due", "%.0f / %.0f", float64(sent)/took, float64(c.users)/c.signed.Seconds())
	c.other("Redis time per sign of life", "%.2f µs", 1000*signs*took/float64(max(1, sent)))
	c.other("CPU of Redis for all of this, with network", "%.0f %% of a core", 100*cpu.Seconds()/took)
	c.figure("room-signs", signs)
	return perTick + tables
}

// quickTicks measures ticks without promotions.
func (c *crowd) quickTicks(ctx context.Context) {
	for began, done := time.Now(), 0; done < c.samples && time.Since(began) < quickMost; done++ {
		must(c.quick.Tick(named(ctx, scriptTick), crowdEvent))
		check(sleep(ctx, quickPause))
	}
}

// promotions measures ticks with promotions, and what follows them: claims, a visit of the shop,
// and departures.
func (c *crowd) promotions(ctx context.Context) {
	order := make([]int, c.users)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(c.indexes[a], c.indexes[b]) })
	check(c.rooms.SetCapacity(ctx, crowdEvent, room.MaxSeats))
	const ofTick = 3 // users that buy, and users that leave
	began, done := time.Now(), 0
	for done < c.samples && (done == 0 || time.Since(began) < quickMost) {
		t := must(c.quick.Tick(named(ctx, scriptPromote), crowdEvent))
		if t.Promoted > 0 { // none for a while after a long pause of this machine
			done++
		}
		signs := make([]room.Sign, t.Promoted)
		for i := range signs {
			signs[i].User = roomUser(order[i])
		}
		order = order[t.Promoted:]
		for i, p := range must(c.rooms.Claim(named(ctx, scriptClaim), crowdEvent, brokerName(0), signs)) {
			expect(p.State == room.Admitted, "user %s is not next: %+v", signs[i].User, p)
			if i < ofTick {
				must(c.rooms.Verify(named(ctx, scriptVerify), crowdEvent, signs[i].User, p.JTI, "session"))
				must(c.rooms.Finish(named(ctx, scriptFinish), crowdEvent, signs[i].User, p.JTI, "session", false))
				must(c.rooms.Leave(named(ctx, scriptLeave), crowdEvent, signs[i+ofTick].User, "left"))
			}
		}
		check(sleep(ctx, quickPause))
	}
}

// rankAll reads the rank of one user after another from all brokers, in pipelines. It returns the
// Redis time in ms of all users once per second.
func (c *crowd) rankAll(ctx context.Context) float64 {
	const lasts = 5 * time.Second
	c.logf("  one ZRANK per user for %s", lasts)
	before := c.commandTimes(ctx)
	began, cpu := time.Now(), c.redisCPU()
	together(ctx, brokers, func(ctx context.Context, n int) {
		first, last := c.share(n)
		for at := first; time.Since(began) < lasts; at += perCall {
			if at >= last {
				at = first
			}
			pipe := c.redis.Pipeline()
			for i := at; i < min(last, at+perCall); i++ {
				pipe.ZRank(ctx, "WAITING:{"+crowdEvent+"}", `{"userId":"`+roomUser(i)+`"}`)
			}
			// A promoted user has no rank.
			if _, err := pipe.Exec(ctx); !errors.Is(err, goredis.Nil) {
				check(err)
			}
		}
	})
	took, users := time.Since(began).Seconds(), float64(c.users)
	ranks := c.commandTimes(ctx)["zrank"].since(before["zrank"])
	c.other("one ZRANK per user: users that Redis reached per second", "%.0f (%.0f %%)", ranks.calls/took, 100*ranks.calls/took/users)
	c.other("the same: CPU of Redis per user, with network", "%.2f µs", micros(c.redisCPU()-cpu)/ranks.calls)
	return ranks.usec / ranks.calls * users / 1000
}

// report prints the times of all scripts, and adds them to the page.
func (c *crowd) report() {
	t := table{
		title: "Scripts", text: fmt.Sprintf("With %d waiting users and 10 brokers. All times are in ms.\nThose of the client include the network and the queue.", c.users),
		head: []string{"script", "calls", "p50", "p99", "max", "client p50", "client p99"},
	}
	for _, script := range []string{scriptEnter, scriptTick, scriptPromote, scriptSigns, scriptClaim, scriptVerify, scriptFinish, scriptLeave} {
		of := c.times.of(script)
		cells := []string{script, strconv.Itoa(len(of.server))}
		for _, share := range []float64{0.5, 0.99, 1} {
			cells = append(cells, number(quantile(of.server, share)))
		}
		cells = append(cells, number(quantile(of.client, 0.5)), number(quantile(of.client, 0.99)))
		c.note(c.page, t, cells...)
		c.logf("  %s: %s calls, ms p50 %s, p99 %s, max %s; at the client p50 %s, p99 %s", cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6])
	}
}
