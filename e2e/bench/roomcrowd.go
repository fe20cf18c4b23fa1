package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

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

// crowd is an event with many users on an empty Redis. This process is its brokers and its
// dispatcher.
type crowd struct {
	env     *environment
	size    sizes
	server  *redis.Server
	rooms   *room.Rooms // with the default intervals
	quick   *room.Rooms // whose ticks follow each other at once
	times   *scriptTimes
	indexes []int64 // by user
	signs   atomic.Int64
	peak    int64 // memory of Redis
}

// openRooms returns rooms on the server of the benchmark. The caller stops the server.
func (e *environment) openRooms(ctx context.Context, interval time.Duration) (*redis.Server, *room.Rooms, error) {
	config := redis.DefaultClientConfig()
	config.Addrs = []string{e.fleet.Addr(servers.Redis)}
	server := redis.New().Server(&config)
	return server, newRooms(server, interval), server.Start(ctx)
}

// newRooms returns rooms with the default limits. No user is absent during the benchmark.
func newRooms(server *redis.Server, interval time.Duration) *room.Rooms {
	return room.New(server, room.Options{
		PromoteInterval: interval, PromoteBatch: roomBatch, TokenTTL: time.Hour, ReadyTTL: time.Hour, Grace: time.Hour,
		SeenInterval: 30 * time.Second, ClearAfter: 24 * time.Hour, MaxEvents: 1000,
	})
}

// beginCrowd creates the event. The caller stops the crowd, also after an error.
func (e *environment) beginCrowd(ctx context.Context, s sizes) (c *crowd, err error) {
	c = &crowd{env: e, size: s, times: newScriptTimes(), indexes: make([]int64, s.users)}
	if err := e.emptyRedis(ctx); err != nil {
		return c, err
	}
	if c.server, c.rooms, err = e.openRooms(ctx, time.Second); err != nil {
		return c, err
	}
	c.quick = newRooms(c.server, quickPause)
	c.server.Client().AddHook(c.times)
	return c, c.rooms.Create(ctx, crowdEvent)
}

func (c *crowd) stop() {
	if c.server != nil {
		_ = c.server.Stop(context.Background())
	}
}

// enter queues users for at most a minute. It returns how many.
func (c *crowd) enter(ctx context.Context) (entered int, err error) {
	const most = time.Minute
	end := time.Now().Add(most)
	var next atomic.Int64
	work, inner := errgroup.WithContext(ctx)
	for range enterers {
		work.Go(func() error {
			for {
				if time.Now().After(end) {
					return nil
				}
				i := int(next.Add(1)) - 1
				if i >= c.size.users {
					return nil
				}
				one := inner
				if i%sampleEvery == sampleEvery-1 {
					one = named(inner, scriptEnter)
				}
				p, err := c.rooms.Enter(one, crowdEvent, roomUser(i), brokerName(i%brokers), 0)
				if err != nil {
					return err
				}
				c.indexes[i] = p.Index
			}
		})
	}
	done, began := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for sleep(inner, 5*time.Second) == nil {
			n := min(int(next.Load()), c.size.users)
			fmt.Fprintf(c.env.log, "  %d of %d users have entered, %.0f/s\n", n, c.size.users, float64(n)/time.Since(began).Seconds())
		}
	}()
	err = work.Wait()
	<-done
	return min(int(next.Load()), c.size.users), err
}

// whileTicking runs f while a dispatcher ticks.
func (c *crowd) whileTicking(ctx context.Context, f func() error) error {
	ticking, stop := context.WithCancel(ctx)
	ticks := errgroup.Group{}
	ticks.Go(func() error { return c.tickFor(ticking, time.Hour) })
	err := f()
	stop()
	return errors.Join(err, ticks.Wait())
}

// open opens the room, or ends its pre-queue.
func (c *crowd) open(ctx context.Context, change room.Change) error {
	change.Verb, change.By, change.Why = room.Open, "bench", "bench"
	_, err := c.rooms.Control(ctx, crowdEvent, change)
	return err
}

// restore queues the other users by signs of life, which is faster than that each user enters.
func (c *crowd) restore(ctx context.Context, entered int) error {
	fmt.Fprintf(c.env.log, "  %d users are queued by signs of life\n", c.size.users-entered)
	first := max(time.Now().UnixMicro(), slices.Max(c.indexes)) + 1
	for from := entered; from < c.size.users; from += perCall {
		signs := make([]room.Sign, min(perCall, c.size.users-from))
		for i := range signs {
			c.indexes[from+i] = first + int64(from+i)
			signs[i] = room.Sign{User: roomUser(from + i), Index: c.indexes[from+i]}
		}
		places, err := c.rooms.Seen(named(ctx, scriptRestore), crowdEvent, brokerName(0), signs)
		if err != nil {
			return err
		}
		if last := places[len(places)-1]; last.State != room.Waiting {
			return fmt.Errorf("refused: the place of a user was not restored: %+v", last)
		}
	}
	return nil
}

// tickOnce waits until a tick has run.
func (c *crowd) tickOnce(ctx context.Context) error {
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		t, err := c.rooms.Tick(ctx, crowdEvent)
		return t.Ran, err
	})
}

func brokerName(n int) string { return fmt.Sprintf("broker-%d", n) }

// tickFor ticks once per second, for a time or until ctx ends.
func (c *crowd) tickFor(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		began := time.Now()
		if _, err := c.rooms.Tick(named(ctx, scriptTick), crowdEvent); err != nil {
			return unlessOver(ctx, err)
		}
		if err := sleep(ctx, time.Second-time.Since(began)); err != nil {
			return unlessOver(ctx, err)
		}
	}
	return nil
}

// unlessOver returns the error of a loop, or nil if the loop was ended.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// broker is one broker with its share of the users. Once per second it reads the rank table, and
// sends the signs of life that are due.
func (c *crowd) broker(ctx context.Context, n int) error {
	first, last := n*c.size.users/brokers, (n+1)*c.size.users/brokers
	rounds := int(c.size.signed.Seconds())
	if err := sleep(ctx, time.Duration(n)*time.Second/brokers); err != nil {
		return unlessOver(ctx, err)
	}
	next := time.Now()
	for round := 0; ; round = (round + 1) % rounds {
		if _, err := c.rooms.Tables(ctx, []string{crowdEvent}); err != nil {
			return unlessOver(ctx, err)
		}
		from, to := first+round*(last-first)/rounds, first+(round+1)*(last-first)/rounds
		for ; from < to; from += perCall {
			signs := make([]room.Sign, min(perCall, to-from))
			for i := range signs {
				signs[i] = room.Sign{User: roomUser(from + i), Index: c.indexes[from+i]}
			}
			places, err := c.rooms.Seen(named(ctx, scriptSigns), crowdEvent, brokerName(n), signs)
			if err != nil {
				return unlessOver(ctx, err)
			}
			for i, p := range places {
				if p.State == "" && p.Reason != "left" && p.Reason != "abandoned" {
					return fmt.Errorf("refused: user %s has lost the place: %s", signs[i].User, p.Reason)
				}
			}
			c.signs.Add(int64(len(signs)))
		}
		next = next.Add(time.Second)
		if late := time.Since(next); late > 0 {
			next = next.Add(late) // a round that is late delays the next ones
		}
		if err := sleep(ctx, time.Until(next)); err != nil {
			return unlessOver(ctx, err)
		}
	}
}

func (c *crowd) watchMemory(ctx context.Context) error {
	for {
		used, err := c.env.redisInfo(ctx, "memory", "used_memory:")
		if err != nil {
			return unlessOver(ctx, err)
		}
		c.peak = max(c.peak, used)
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return unlessOver(ctx, err)
		}
	}
}

// redisTime ticks once per second while each user sends a sign of life.
func (c *crowd) redisTime(ctx context.Context) (positions, signs float64, err error) {
	fmt.Fprintf(c.env.log, "  ticks, tables and signs of life for %s\n", c.size.signed)
	before, err := c.env.commandTimes(ctx)
	if err != nil {
		return 0, 0, err
	}
	began, sent, cpu, ticks := time.Now(), c.signs.Load(), c.env.redisCPU(), len(c.times.of(scriptTick).server)
	if err := c.tickFor(ctx, c.size.signed); err != nil {
		return 0, 0, err
	}
	took := time.Since(began).Seconds()
	after, err := c.env.commandTimes(ctx)
	if err != nil {
		return 0, 0, err
	}
	cpu, sent = c.env.redisCPU()-cpu, c.signs.Load()-sent
	perTick := mean(c.times.of(scriptTick).server[ticks:])
	scripts, tables := after["evalsha"].since(before["evalsha"]), after["get"].since(before["get"])
	positions = perTick + tables.usec/took/1000 // one tick per second
	signs = scripts.usec/took/1000 - perTick
	c.env.figure("Redis time of one tick, mean", "%.2f ms", perTick)
	c.env.figure("Redis time per second for the rank tables of 10 brokers", "%.2f ms", tables.usec/took/1000)
	c.env.figure("signs of life per second / due", "%.0f / %.0f", float64(sent)/took, float64(c.size.users)/c.size.signed.Seconds())
	c.env.figure("Redis time per sign of life", "%.2f µs", 1000*signs*took/float64(max(1, sent)))
	c.env.figure("CPU of Redis for all of this, with network", "%.0f %% of a core", 100*cpu.Seconds()/took)
	return positions, signs, nil
}

// quickTicks measures ticks without promotions.
func (c *crowd) quickTicks(ctx context.Context) error {
	for began, done := time.Now(), 0; done < c.size.samples && time.Since(began) < quickMost; done++ {
		if _, err := c.quick.Tick(named(ctx, scriptTick), crowdEvent); err != nil {
			return err
		}
		if err := sleep(ctx, quickPause); err != nil {
			return err
		}
	}
	return nil
}

// promotions measures ticks with promotions, and what follows them: claims, a visit of the shop,
// and departures.
func (c *crowd) promotions(ctx context.Context) error {
	order := make([]int, c.size.users)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(c.indexes[a], c.indexes[b]) })
	if err := c.rooms.SetCapacity(ctx, crowdEvent, room.MaxSeats); err != nil {
		return err
	}
	const ofTick = 3 // users that buy, and users that leave
	began, done := time.Now(), 0
	for done < c.size.samples && (done == 0 || time.Since(began) < quickMost) {
		t, err := c.quick.Tick(named(ctx, scriptPromote), crowdEvent)
		if err != nil {
			return err
		}
		if t.Promoted > 0 { // none for a while after a long pause of this machine
			done++
		}
		signs := make([]room.Sign, t.Promoted)
		for i := range signs {
			signs[i].User = roomUser(order[i])
		}
		order = order[t.Promoted:]
		places, err := c.rooms.Claim(named(ctx, scriptClaim), crowdEvent, brokerName(0), signs)
		if err != nil {
			return err
		}
		for i, p := range places {
			if p.State != room.Admitted {
				return fmt.Errorf("refused: user %s is not next: %+v", signs[i].User, p)
			}
			if i >= ofTick {
				continue
			}
			if _, err := c.rooms.Verify(named(ctx, scriptVerify), crowdEvent, signs[i].User, p.JTI, "session"); err != nil {
				return err
			}
			if _, err := c.rooms.Finish(named(ctx, scriptFinish), crowdEvent, signs[i].User, p.JTI, false); err != nil {
				return err
			}
			if _, err := c.rooms.Leave(named(ctx, scriptLeave), crowdEvent, signs[i+ofTick].User, "left"); err != nil {
				return err
			}
		}
		if err := sleep(ctx, quickPause); err != nil {
			return err
		}
	}
	return nil
}

// rankAll reads the rank of one user after another from all brokers, in pipelines. It returns the
// Redis time in ms of all users once per second.
func (c *crowd) rankAll(ctx context.Context) (float64, error) {
	const lasts = 5 * time.Second
	fmt.Fprintf(c.env.log, "  one ZRANK per user for %s\n", lasts)
	before, err := c.env.commandTimes(ctx)
	if err != nil {
		return 0, err
	}
	began, cpu := time.Now(), c.env.redisCPU()
	loops := errgroup.Group{}
	for n := range brokers {
		loops.Go(func() error {
			first, last := n*c.size.users/brokers, (n+1)*c.size.users/brokers
			for at := first; time.Since(began) < lasts; at += perCall {
				if at >= last {
					at = first
				}
				pipe := c.env.redis.Pipeline()
				for i := at; i < min(last, at+perCall); i++ {
					pipe.ZRank(ctx, "WAITING:{"+crowdEvent+"}", `{"userId":"`+roomUser(i)+`"}`)
				}
				// A promoted user has no rank.
				if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, goredis.Nil) {
					return err
				}
			}
			return nil
		})
	}
	if err := loops.Wait(); err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	after, err := c.env.commandTimes(ctx)
	if err != nil {
		return 0, err
	}
	ranks := after["zrank"].since(before["zrank"])
	users := float64(c.size.users)
	c.env.figure("one ZRANK per user: users that Redis reached per second", "%.0f (%.0f %%)", ranks.calls/took, 100*ranks.calls/took/users)
	c.env.figure("the same: CPU of Redis per user, with network", "%.2f µs", micros(c.env.redisCPU()-cpu)/ranks.calls)
	return ranks.usec / ranks.calls * users / 1000, nil
}
