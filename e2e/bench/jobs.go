package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
)

const (
	jobShards = 8 // of the profiles
	// filler is a job with large events. Only the client that stops reading watches it.
	filler      = "filler"
	fillerBytes = 20 << 10
	fillerEvery = 250 * time.Millisecond
	dataBytes   = 200
	// stampPrefix is before the phase and the time of an event in its data.
	stampPrefix = `"bench":"`
)

func jobName(i int) string { return "job-" + strconv.Itoa(i) }

// streamRequest opens the stream of a job, with further ones by the query.
func streamRequest(addr, job string) string {
	return "GET /jobs/scan/" + job + "/events HTTP/1.1\r\nHost: " + addr + "\r\nAccept: text/event-stream\r\n\r\n"
}

// fillerStream returns the request of the client that stops reading. It watches the filler and some
// of the jobs of the others.
func fillerStream(addr string, jobs int) string {
	const most = 31 // in addition to the filler
	query := "from=now"
	for i := range min(jobs, most) {
		query += "&job=scan/" + jobName(i)
	}
	return strings.Replace(streamRequest(addr, filler), "/events ", "/events?"+query+" ", 1)
}

// jobsRun is a router, a gateway and watchers on an empty Redis. This process is the load
// generator.
type jobsRun struct {
	*trial
	config           watchConfig
	gateway          streamServer
	router, watchers *process
	numbers          []int64 // the last one of each job
	filled           int64   // the last number of the filler
	phases           int     // so far
}

// beginJobs starts the processes, and connects the watchers.
func (t *trial) beginJobs(ctx context.Context, c watchConfig) *jobsRun {
	check(t.redis.FlushAll(ctx).Err())
	r := &jobsRun{trial: t, config: c, numbers: make([]int64, c.Jobs)}
	r.router = t.startRole(ctx, routerPart, map[string]any{"plugins.telemetry.listen": ""})
	r.gateway = t.startStreams(ctx, gatewayPart, map[string]any{
		"plugins.web.max_streams_per_user": 20_000, "plugins.eventrouter.loopback_without_token": true,
	})
	r.config.Addr = r.gateway.addr
	r.watchers = t.watch(ctx, r.config)
	return r
}

// compareManyJobs measures jobs with one watcher each. Each job gets as many events as the others.
func compareManyJobs(ctx context.Context, t *trial) {
	const perTick = 100 // ticks per second
	burst := t.events / perTick
	events := int(t.half.Seconds()) * burst * perTick
	r := t.beginJobs(ctx, watchConfig{Jobs: t.watchers, Clients: 1, Deliveries: []int{max(t.watchers, events/4), events, events}})
	rate := r.pair(ctx, "jobs-many", fmt.Sprintf("%d jobs", t.watchers), load{every: time.Second / perTick, burst: burst})
	t.figure("jobs-many-rate", rate, float64(t.events))
}

// compareOneJob measures a job with many watchers.
func compareOneJob(ctx context.Context, t *trial) {
	events := int(t.half.Seconds()) * t.watchers
	r := t.beginJobs(ctx, watchConfig{Jobs: 1, Clients: t.watchers, Deliveries: []int{3 * t.watchers, events, events}})
	r.pair(ctx, "jobs-one", fmt.Sprintf("one job, %d watchers", t.watchers), load{every: time.Second, burst: 1})
}

// compareIdleJobs measures single events. The pauses between them are long enough for the slowest
// polls.
func compareIdleJobs(ctx context.Context, t *trial) {
	r := t.beginJobs(ctx, watchConfig{Jobs: 1, Clients: 1, Deliveries: []int{2, t.single}})
	single := load{every: 400 * time.Millisecond, burst: 1}
	r.phase(ctx, single)
	d, _ := r.phase(ctx, single)
	t.figure("jobs-idle-p50", d.P50)
	t.figure("jobs-idle-p99", d.P99)
}

// load is the events of a phase: a burst at each interval.
type load struct {
	every time.Duration
	burst int
}

// pair measures a phase without and one with a client that stops reading, in a random order, after
// a first phase that is not measured. It reports the figures of the rows whose keys begin with key,
// and returns how many events were published per second.
func (r *jobsRun) pair(ctx context.Context, key, label string, l load) (rate float64) {
	r.phase(ctx, l)
	var alone, slow delays
	inRandomOrder(func() {
		before := r.cpu()
		var took time.Duration
		alone, took = r.phase(ctx, l)
		deliveries := float64(r.config.Deliveries[r.phases-1])
		rate = deliveries / float64(r.config.Clients) / took.Seconds()
		cells, product := []string{label, number(rate)}, 0.0
		for i, used := range r.cpu() {
			each := micros(used-before[i]) / deliveries
			if i < 2 { // router and gateway
				product += each
			}
			cells = append(cells, number(each))
		}
		parts := []string{routerPart, gatewayPart, "Redis", "load generator", "watchers"}
		r.logf("  %s: µs of %s: %s", label, strings.Join(parts, ", "), strings.Join(cells[2:], ", "))
		r.note(r.page, table{
			title: "CPU of all parts", text: "µs per delivered event, in each run without the client that stops reading.",
			head: append([]string{"run", "events/s"}, parts...),
		}, cells...)
		r.figure(key+"-cpu", product)
		r.figure(key+"-memory", r.gateway.perConnection(r.config.Jobs*r.config.Clients))
	}, func() { slow = r.phaseWithStuck(ctx, l) })
	r.figure(key+"-p50", alone.P50)
	r.figure(key+"-p99", alone.P99)
	r.figure(key+"-slow", slow.P99, alone.P99)
	return rate
}

// cpu returns the CPU time of the router, the gateway, Redis, the load generator and the watchers so
// far.
func (r *jobsRun) cpu() []time.Duration {
	var u syscall.Rusage // of this process without its children
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return []time.Duration{
		r.router.cpu(), r.gateway.cpu(), cpuTime(r.fleet.PID(servers.Redis)), time.Duration(u.Utime.Nano() + u.Stime.Nano()), r.watchers.cpu(),
	}
}

// phase publishes the events of the next phase, and waits until the watchers have received all of
// them. It returns how long the publishing took.
func (r *jobsRun) phase(ctx context.Context, l load) (d delays, took time.Duration) {
	phase, began := r.phases, time.Now()
	r.phases++
	r.publish(ctx, l, phase, r.config.Deliveries[phase]/r.config.Clients)
	took = time.Since(began)
	r.watchers.awaitReport(ctx, phaseReport(phase), &d)
	return d, took
}

// publish adds n events to the jobs in turn. The bursts begin at random within their intervals.
func (r *jobsRun) publish(ctx context.Context, l load, phase, n int) {
	began := time.Now()
	for sent := 0; sent < n; sent += l.burst {
		due := began.Add(time.Duration(sent/l.burst)*l.every + rand.N(l.every/4)) //nolint:gosec // no secret
		check(sleep(ctx, time.Until(due)))
		pipe := r.redis.Pipeline()
		for i := sent; i < min(n, sent+l.burst); i++ {
			job := i % len(r.numbers)
			r.numbers[job]++
			data := fmt.Appendf(nil, `{%s%d,%d,`, stampPrefix, phase, time.Now().UnixNano())
			data = append(append(data, bytes.Repeat([]byte("x"), dataBytes-len(data)-2)...), `"}`...)
			pipe.XAdd(ctx, jobEntry(jobName(job), r.numbers[job], data))
		}
		must(pipe.Exec(ctx))
	}
}

func jobEntry(job string, number int64, data []byte) *goredis.XAddArgs {
	return &goredis.XAddArgs{
		Stream: "scan:events:" + strconv.Itoa(event.Shard(job, jobShards)),
		Values: []any{"job_id", job, "stage", "scan", "status", "running", "seq", number, "data", data},
	}
}

// phaseWithStuck is phase with a client that reads nothing after its request. The phase begins when
// the gateway can send nothing more to it. When the gateway has disconnected it, another one
// follows.
func (r *jobsRun) phaseWithStuck(ctx context.Context, l load) (d delays) {
	while(ctx, func(ctx context.Context) {
		r.gateway.awaitMetric(ctx, "the gateway can send everything to the client that stops reading",
			`millrace_sse_queue_events{hub="jobs"}`, `millrace_sse_closed_total{hub="jobs",reason="slow"}`)
		d, _ = r.phase(ctx, l)
	}, r.fill, func(ctx context.Context) {
		keepStuck(ctx, func() net.Conn { return r.gateway.stuck(fillerStream(r.gateway.addr, r.config.Jobs)) })
	})
	return d
}

// fill publishes the events of the filler until ctx ends.
func (r *jobsRun) fill(ctx context.Context) {
	data := fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), fillerBytes))
	for sleep(ctx, fillerEvery) == nil {
		r.filled++
		check(r.redis.XAdd(context.WithoutCancel(ctx), jobEntry(filler, r.filled, data)).Err())
	}
}
