package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// limitPerSecond is less than one instance calls for without a limit.
	limitPerSecond = 500
	// stretch is the time in which a limit must not be exceeded.
	stretch = 5 * time.Second
	tick    = 100 * time.Millisecond
)

// compareLimit measures how much of a limit over all instances is used after one of them was killed.
func compareLimit(ctx context.Context, t *trial) {
	for _, instances := range []int{1, 4} {
		t.part(func(t *trial) {
			rate, most := t.underLimit(ctx, instances)
			t.logf("  %d instances: %.0f calls/s, at most %.0f/s in %s", instances, rate, most, stretch)
			key := "limit-" + strconv.Itoa(instances)
			t.figure(key, rate, limitPerSecond)
			t.figure(key+"-most", most, limitPerSecond)
		})
	}
}

// underLimit runs effects with a limit, kills one instance more than it was asked for, and returns the mean rate of
// calls from t.settling after the kill until the last ones, and the highest in any stretch, in calls per second.
func (t *trial) underLimit(ctx context.Context, instances int) (rate, most float64) {
	r := t.begin(ctx, 8)
	r.serve(ctx, r.start("far-side", r.self, "far-side", "{}"))
	c := campaign{effects: true, settings: map[string]any{"plugins.effects.kinds.payout.effects.limits.per_second": limitPerSecond}}
	for range instances + 1 {
		r.startOne(ctx, c)
	}
	t.load(ctx, int(limitPerSecond*(2*t.settling+t.limited).Seconds()), promotion)
	until(ctx, tick, func() bool { return len(r.calls(ctx)) > 0 })
	check(sleep(ctx, t.settling/2))
	victim := r.processes[0]
	check(victim.cmd.Process.Kill())
	killed := len(r.calls(ctx))
	check(sleep(ctx, t.settling+t.limited))
	for _, p := range r.processes[1:] {
		p.alive()
	}
	calls := r.calls(ctx)
	calls = calls[:len(calls)-1] // the last tick is not over
	window, after := int(stretch/tick), killed+int(t.settling/tick)
	expect(after+window < len(calls), "the run ended %s after the kill", time.Duration(len(calls)-killed)*tick)
	for at := after; at+window <= len(calls); at++ {
		most = max(most, perSecond(calls[at:at+window]))
	}
	return perSecond(calls[after:]), most
}

// compareRefusals measures how much of a far side's own limit is used, which refuses the calls above it.
func compareRefusals(ctx context.Context, t *trial) {
	for _, instances := range []int{1, 4} {
		t.part(func(t *trial) {
			rate, refused := t.underRefusals(ctx, instances)
			t.logf("  %d instances: %.0f calls/s executed, %.1f %% refused", instances, rate, refused)
			key := "refusals-" + strconv.Itoa(instances)
			t.figure(key, rate, limitPerSecond)
			t.figure(key+"-share", refused, 0)
		})
	}
}

// underRefusals runs effects without a limit of their own, and returns the mean rate of executed calls from t.settling
// after the first one, in calls per second, and the refused ones in per cent of all.
func (t *trial) underRefusals(ctx context.Context, instances int) (rate, share float64) {
	r := t.begin(ctx, 8)
	r.serve(ctx, r.start("far-side", r.self, "far-side", string(must(json.Marshal(budget{PerSecond: limitPerSecond, Burst: limitPerSecond / 10})))))
	for range instances {
		r.startOne(ctx, campaign{effects: true})
	}
	t.load(ctx, int(limitPerSecond*(2*t.settling+t.limited).Seconds()), promotion)
	until(ctx, tick, func() bool { return len(r.calls(ctx)) > 0 })
	counts := func() (executed, refused int) {
		var c map[string]int
		check(json.Unmarshal(get(ctx, r.url+"/_sim/counts"), &c))
		return c["executions"], c["refused"]
	}
	check(sleep(ctx, t.settling))
	executed, refused := counts()
	began := time.Now()
	check(sleep(ctx, t.limited))
	executedNow, refusedNow := counts()
	took := time.Since(began)
	for _, p := range r.processes {
		p.alive()
	}
	executed, refused = executedNow-executed, refusedNow-refused
	return float64(executed) / took.Seconds(), 100 * float64(refused) / float64(executed+refused)
}

// budget is a bucket of tokens, one for each request. Without PerSecond there is no limit.
type budget struct {
	PerSecond float64 `json:"per_second"`
	Burst     float64 `json:"burst"`

	tokens float64
	at     time.Time
}

func (b *budget) allows(now time.Time) bool {
	if b.PerSecond == 0 {
		return true
	}
	b.tokens = min(b.Burst, b.tokens+now.Sub(b.at).Seconds()*b.PerSecond)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// perSecond returns the mean rate of calls per tick.
func perSecond(calls []int) float64 {
	total := 0
	for _, n := range calls {
		total += n
	}
	return float64(total) / (time.Duration(len(calls)) * tick).Seconds()
}

// calls returns the calls of the far side in each tick since the first one.
func (r *run) calls(ctx context.Context) (calls []int) {
	check(json.Unmarshal(get(ctx, r.url+callsPath), &calls))
	return calls
}

// callsPath answers a GET with the calls in each tick.
const callsPath = "/_sim/calls"

// ticks counts calls by the tick of their arrival. It is safe for concurrent use.
type ticks struct {
	mu    sync.Mutex
	first time.Time
	count map[int]int
}

func (c *ticks) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.first, c.count = time.Now(), map[int]int{}
	}
	c.count[int(time.Since(c.first)/tick)]++
}

// all returns the counts of all ticks until now.
func (c *ticks) all() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		return []int{}
	}
	all := make([]int, 1+max(int(time.Since(c.first)/tick), slices.Max(slices.Collect(maps.Keys(c.count)))))
	for at, n := range c.count {
		all[at] = n
	}
	return all
}
