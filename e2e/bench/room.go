package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// scriptGoal is the longest time of a script, in ms.
const scriptGoal = 10

// roomComparisons are those of the waiting room.
func roomComparisons() []comparison {
	return []comparison{
		{"room-million", 1, []row{
			{key: "room-enter", what: "1,000,000 users enter one event: users per second, by script", against: none, unit: "/s", goal: 5000},
			{key: "room-memory", what: "1,000,000 users wait: memory of Redis per user", against: none, unit: " B", goal: 600, atMost: true},
			{key: "room-memory-peak", what: "the same, at most, with signs of life of all users", against: none, unit: " B", goal: 600, atMost: true},
			{key: "room-positions", what: "the same: Redis time per second for ticks, and rank tables of 10 brokers (ms)", against: "one ZRANK per user", unit: "×", goal: 0.01, atMost: true},
			{key: "room-signs", what: "the same: Redis time per second for signs of life every 30 s", against: none, unit: " ms", goal: 500, atMost: true},
			{key: "room-tick-p99", what: "the same: script of a tick, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
			{key: "room-promotion-p99", what: "the same: a tick that promotes 200 users, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true,
				why: "it also ranks 1,000,000 users; 6.88 ms with `promote_batch: 100`"},
			{key: "room-signs-p99", what: "the same: script of at most 250 signs of life, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
			{key: "room-claims-p99", what: "the same: script of 200 claims, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
		}, compareMillionWaiting},
		{"room-draw", 1, []row{
			{key: "room-draw-time", what: "draw of 1,000,000 users of a shuffled pre-queue: duration", against: none, unit: " s", goal: 60, atMost: true},
			{key: "room-draw-script", what: "the same: all scripts, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
			{key: "room-restore-p99", what: "signs of life queue these users: script of 250 signs, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
		}, compareDraw},
		{"room-live", 3, []row{
			{key: "room-live-enter", what: "10,000 users open their streams: streams per second", against: none, unit: "/s", goal: 1000},
			{key: "room-live-p50", what: "10,000 live streams, 300 promotions per second: script to the client's socket, median", against: none, unit: " ms", goal: 150, atMost: true},
			{key: "room-live-p99", what: "the same, p99", against: none, unit: " ms", goal: 500, atMost: true},
			{key: "room-live-slow", what: "the same, p99 with clients that stop reading (ms)", against: "without them", unit: "×", goal: 1.5, atMost: true},
			{key: "room-live-script", what: "the same: all scripts, p99", against: none, unit: " ms", goal: scriptGoal, atMost: true},
			{key: "room-live-memory", what: "the same: memory of the broker per connection", against: none, unit: " KB", goal: 64, atMost: true},
		}, compareLiveRoom},
		{"room-poll", 3, []row{
			{key: "room-poll-enter", what: "users that enter without a stream, over HTTP: users per second", against: none, unit: "/s", goal: 2000},
		}, comparePolling},
		{"room-idle", 1, []row{
			{key: "room-idle-cpu", what: "100 events without users: CPU of process and Redis, of one core", against: none, unit: " %", goal: 2, atMost: true},
		}, compareIdleRooms},
	}
}

// compareMillionWaiting measures an event with many waiting users.
func compareMillionWaiting(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	c, err := e.beginCrowd(ctx, s)
	defer c.stop()
	if err != nil {
		return nil, err
	}
	empty, err := e.redisInfo(ctx, "memory", "used_memory:")
	if err != nil {
		return nil, err
	}
	var rate float64
	err = c.whileTicking(ctx, func() error {
		began := time.Now()
		entered, err := c.enter(ctx)
		if err != nil {
			return err
		}
		rate = float64(entered) / time.Since(began).Seconds()
		return c.restore(ctx, entered)
	})
	if err != nil {
		return nil, err
	}
	full, err := e.redisInfo(ctx, "memory", "used_memory:")
	if err != nil {
		return nil, err
	}
	positions, signs, err := c.steady(ctx)
	if err != nil {
		return nil, err
	}
	ranks, err := c.rankAll(ctx)
	c.report()
	perUser := func(bytes int64) float64 { return float64(bytes-empty) / float64(s.users) }
	p99 := func(name string) pair { return pair{ours: quantile(c.times.of(name).server, 0.99)} }
	return map[string]pair{
		"room-enter": {ours: rate}, "room-memory": {ours: perUser(full)}, "room-memory-peak": {ours: perUser(max(full, c.peak))},
		"room-positions": {positions, ranks}, "room-signs": {ours: signs},
		"room-tick-p99": p99(scriptTick), "room-promotion-p99": p99(scriptPromote), "room-signs-p99": p99(scriptSigns), "room-claims-p99": p99(scriptClaim),
	}, err
}

// compareDraw measures the draw of a pre-queue, while a dispatcher ticks.
func compareDraw(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	c, err := e.beginCrowd(ctx, s)
	defer c.stop()
	mode := room.Shuffle
	for _, step := range []func() error{
		func() error { return err },
		func() error { return c.open(ctx, room.Change{Mode: &mode}) },
		func() error { return c.whileTicking(ctx, func() error { return c.restore(ctx, 0) }) },
		func() error { return c.open(ctx, room.Change{}) },
		func() error { return e.emptyStats(ctx) },
		func() error { return c.tickOnce(ctx) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	frozen, err := e.scriptLatency(ctx)
	if err != nil {
		return nil, err
	}
	restored := c.times.of(scriptRestore).server
	e.figure("script of "+scriptRestore+", median and slowest", "%.2f ms, %.2f ms", quantile(restored, 0.5), quantile(restored, 1))
	e.figure("draw: script of the tick that freezes the pre-queue", "%.2f ms", frozen.max)
	var drawn room.Drawn
	var took time.Duration
	err = c.whileTicking(ctx, func() (err error) {
		began := time.Now()
		drawn, err = c.rooms.Draw(ctx, crowdEvent)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return nil, err
	}
	if drawn.Users != s.users {
		return nil, fmt.Errorf("refused: %d of %d users were drawn", drawn.Users, s.users)
	}
	scripts, err := e.scriptLatency(ctx)
	e.figure("draw: all scripts, median and slowest", "%.2f ms, %.2f ms", scripts.p50, scripts.max)
	return map[string]pair{
		"room-draw-time": {ours: took.Seconds()}, "room-draw-script": {ours: scripts.p99}, "room-restore-p99": {ours: quantile(restored, 0.99)},
	}, err
}

// steady runs brokers and a dispatcher. It returns the Redis time in ms per second of the
// positions, and that of the signs of life. Afterwards it calls the ticks in quick succession,
// first without and then with promotions.
func (c *crowd) steady(ctx context.Context) (positions, signs float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	loops, ctx := errgroup.WithContext(ctx)
	for n := range brokers {
		loops.Go(func() error { return c.broker(ctx, n) })
	}
	loops.Go(func() error { return c.watchMemory(ctx) })
	err = func() error {
		if err := c.tickFor(ctx, time.Second); err != nil { // all brokers have started
			return err
		}
		if positions, signs, err = c.redisTime(ctx); err != nil {
			return err
		}
		fmt.Fprintf(c.env.log, "  %d ticks without promotions, and %d with 200 each\n", c.size.samples, c.size.samples)
		if err := c.quickTicks(ctx); err != nil {
			return err
		}
		return c.promotions(ctx)
	}()
	stop()
	if failed := loops.Wait(); failed != nil { // it has ended the others
		err = failed
	}
	return positions, signs, err
}
