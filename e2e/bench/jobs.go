package main

import (
	"context"
	"fmt"
	"time"
)

// jobComparisons are those of the event router.
func jobComparisons() []comparison {
	const without = "without that client"
	return []comparison{
		{"jobs-many", 5, []row{
			{key: "jobs-many-rate", what: "10,000 jobs with one watcher each: events published per second", against: "5,000/s", unit: "×", goal: 0.98},
			{key: "jobs-many-p50", what: "the same: XADD to the client's socket, median", against: none, unit: " ms", goal: 50, atMost: true},
			{key: "jobs-many-p99", what: "the same, p99", against: none, unit: " ms", goal: 150, atMost: true},
			{key: "jobs-many-slow", what: "the same, p99 of the others with a client that stops reading (ms)", against: without, unit: "×", goal: 1.5, atMost: true},
			{key: "jobs-many-cpu", what: "the same: CPU of router and gateway per event", against: none, unit: " µs", goal: 200, atMost: true},
			{key: "jobs-many-memory", what: "the same: memory of the gateway per connection", against: none, unit: " KB", goal: 64, atMost: true},
		}, compareManyJobs},
		{"jobs-one", 5, []row{
			{key: "jobs-one-p50", what: "one job with 10,000 watchers, 1 event/s: XADD to the client's socket, median", against: none, unit: " ms", goal: 150, atMost: true},
			{key: "jobs-one-p99", what: "the same, p99", against: none, unit: " ms", goal: 300, atMost: true},
			{key: "jobs-one-slow", what: "the same, p99 of the others with a client that stops reading (ms)", against: without, unit: "×", goal: 1.5, atMost: true},
			{key: "jobs-one-cpu", what: "the same: CPU of router and gateway per delivered event", against: none, unit: " µs", goal: 25, atMost: true,
				why: "idle shards cost 10 µs"},
			{key: "jobs-one-memory", what: "the same: memory of the gateway per connection", against: none, unit: " KB", goal: 64, atMost: true},
		}, compareOneJob},
		{"jobs-idle", 1, []row{
			{key: "jobs-idle-p50", what: "one event on an idle system: XADD to the client's socket, median", against: none, unit: " ms", goal: 100, atMost: true},
			{key: "jobs-idle-p99", what: "the same, p99", against: none, unit: " ms", goal: 150, atMost: true},
		}, compareIdleJobs},
	}
}

// compareManyJobs measures jobs with one watcher each. Each job gets as many events as the others.
func compareManyJobs(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	const perTick = 100 // ticks per second
	burst := s.events / perTick
	events := int(s.half.Seconds()) * burst * perTick
	r, err := e.beginJobs(ctx, watchConfig{Jobs: s.watchers, Clients: 1, Deliveries: []int{max(s.watchers, events/4), events, events}})
	defer r.stop()
	if err != nil {
		return nil, err
	}
	half := load{every: time.Second / perTick, burst: burst}
	m, err := r.pair(ctx, fmt.Sprintf("%d jobs", s.watchers), half, fillerStream(s.watchers))
	return map[string]pair{
		"jobs-many-rate":   {m.rate, float64(s.events)},
		"jobs-many-p50":    {ours: m.alone.P50},
		"jobs-many-p99":    {ours: m.alone.P99},
		"jobs-many-slow":   {m.slow.P99, m.alone.P99},
		"jobs-many-cpu":    {ours: m.cpu},
		"jobs-many-memory": {ours: m.memory},
	}, err
}

// compareOneJob measures a job with many watchers.
func compareOneJob(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	events := int(s.half.Seconds())
	r, err := e.beginJobs(ctx, watchConfig{Jobs: 1, Clients: s.watchers, Deliveries: []int{3 * s.watchers, events * s.watchers, events * s.watchers}})
	defer r.stop()
	if err != nil {
		return nil, err
	}
	m, err := r.pair(ctx, fmt.Sprintf("one job, %d watchers", s.watchers), load{every: time.Second, burst: 1}, fillerStream(1))
	return map[string]pair{
		"jobs-one-p50":    {ours: m.alone.P50},
		"jobs-one-p99":    {ours: m.alone.P99},
		"jobs-one-slow":   {m.slow.P99, m.alone.P99},
		"jobs-one-cpu":    {ours: m.cpu},
		"jobs-one-memory": {ours: m.memory},
	}, err
}

// compareIdleJobs measures single events. The pauses between them are long enough for the slowest
// polls.
func compareIdleJobs(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.beginJobs(ctx, watchConfig{Jobs: 1, Clients: 1, Deliveries: []int{2, s.single}})
	defer r.stop()
	if err != nil {
		return nil, err
	}
	single := load{every: 400 * time.Millisecond, burst: 1}
	if _, _, err := r.phase(ctx, single); err != nil {
		return nil, err
	}
	d, _, err := r.phase(ctx, single)
	return map[string]pair{"jobs-idle-p50": {ours: d.P50}, "jobs-idle-p99": {ours: d.P99}}, err
}
