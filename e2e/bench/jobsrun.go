package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

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
func fillerStream(jobs int) func(addr string) string {
	const most = 31 // in addition to the filler
	return func(addr string) string {
		query := "from=now"
		for i := range min(jobs, most) {
			query += "&job=scan/" + jobName(i)
		}
		return strings.Replace(streamRequest(addr, filler), "/events ", "/events?"+query+" ", 1)
	}
}

func phaseReport(phase int) string { return fmt.Sprintf("phase %d: ", phase) }

// watchConfig is what the process of the watchers gets on its command line.
type watchConfig struct {
	Addr    string // of the gateway or broker
	Jobs    int    // that are watched
	Clients int    // of each job
	Room    string // not empty: the event that each client waits for, instead of jobs
	// Deliveries is how many events all clients receive together in each phase.
	Deliveries []int
}

// delays are the times from publishing an event to its clients in one phase.
type delays struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// jobsRun is a router, a gateway and watchers on an empty Redis. This process is the load
// generator.
type jobsRun struct {
	env                       *environment
	config                    watchConfig
	gatewayAt                 streamServer
	router, gateway, watchers *process
	numbers                   []int64 // the last one of each job
	filled                    int64   // the last number of the filler
	phases                    int     // so far
	before                    int64   // memory of the gateway without connections
}

// beginJobs starts the processes, and connects the watchers. The caller stops the run, also after
// an error.
func (e *environment) beginJobs(ctx context.Context, c watchConfig) (r *jobsRun, err error) {
	r = &jobsRun{env: e, config: c, numbers: make([]int64, c.Jobs)}
	if err := e.redis.FlushAll(ctx).Err(); err != nil {
		return r, err
	}
	if r.gatewayAt, err = unusedStreamServer(ctx); err != nil {
		return r, err
	}
	r.config.Addr = r.gatewayAt.addr
	keys, err := e.tokenKeys()
	if err != nil {
		return r, err
	}
	if r.router, err = e.startRole(ctx, routerPart, map[string]any{"plugins.telemetry.listen": ""}); err != nil {
		return r, err
	}
	if r.gateway, err = e.startRole(ctx, gatewayPart, map[string]any{
		"plugins.telemetry.listen": r.gatewayAt.operations, "plugins.web.listen": r.gatewayAt.addr, "plugins.web.max_streams_per_user": 20_000,
		"plugins.web.drain_window": "1s", "plugins.eventrouter.loopback_without_token": true,
		"plugins.token.keys": keys,
	}); err != nil {
		return r, err
	}
	if r.before, err = memory(r.gateway.cmd.Process.Pid, "VmRSS"); err != nil {
		return r, err
	}
	config, err := json.Marshal(r.config)
	if err != nil {
		return r, err
	}
	if r.watchers, err = start("watchers", e.self, "watch", string(config)); err != nil {
		return r, err
	}
	return r, r.watchers.await(ctx, "connected\n")
}

// startRole starts the binary with the profile of its role.
func (e *environment) startRole(ctx context.Context, role string, settings map[string]any) (*process, error) {
	settings["profile"], settings["instance_id"], settings["log.format"] = role, role, "json"
	settings["plugins.redis.addrs"] = []string{e.fleet.Addr(servers.Redis)}
	file, err := e.writeSettings(role, settings)
	if err != nil {
		return nil, err
	}
	p, err := start(role, e.millrace, "run", "--config", file)
	if err != nil {
		return p, err
	}
	return p, p.await(ctx, `"msg":"running"`)
}

func (r *jobsRun) stop() {
	for _, p := range []*process{r.watchers, r.gateway, r.router} {
		if p != nil {
			p.stop()
		}
	}
}

// load is the events of a phase: a burst at each interval.
type load struct {
	every time.Duration
	burst int
}

// measured is a pair of phases. The figures other than slow are those of the phase alone.
type measured struct {
	alone, slow delays  // without and with a client that stops reading
	rate        float64 // events published per second
	cpu         float64 // µs of router and gateway per delivered event
	memory      float64 // KB of the gateway per connection
}

// pair measures a phase without and one with a client that stops reading, in a random order, after
// a first phase that is not measured. It logs the CPU of all parts.
func (r *jobsRun) pair(ctx context.Context, label string, l load, request func(addr string) string) (m measured, err error) {
	if _, _, err := r.phase(ctx, l); err != nil {
		return m, err
	}
	alone := func() error {
		before := r.cpu()
		var took time.Duration
		if m.alone, took, err = r.phase(ctx, l); err != nil {
			return err
		}
		deliveries := float64(r.config.Deliveries[r.phases-1])
		m.rate = deliveries / float64(r.config.Clients) / took.Seconds()
		cells := []string{label, number(m.rate)}
		for i, used := range r.cpu() {
			each := micros(used-before[i]) / deliveries
			if jobParts[i] == routerPart || jobParts[i] == gatewayPart {
				m.cpu += each
			}
			cells = append(cells, number(each))
		}
		fmt.Fprintf(r.env.log, "  %s: µs of %s: %s\n", label, strings.Join(jobParts, ", "), strings.Join(cells[2:], ", "))
		r.env.note(jobsPage, table{
			title: "CPU of all parts", text: "µs per delivered event, in each run without the client that stops reading.",
			head: append([]string{"run", "events/s"}, jobParts...),
		}, cells...)
		resident, err := memory(r.gateway.cmd.Process.Pid, "VmRSS")
		m.memory = float64(resident-r.before) / 1024 / float64(r.config.Jobs*r.config.Clients)
		return err
	}
	slow := func() error {
		m.slow, err = r.phaseWithStuck(ctx, l, request)
		return err
	}
	order := []func() error{alone, slow}
	if rand.IntN(2) == 0 { //nolint:gosec // no secret
		order[0], order[1] = slow, alone
	}
	for _, half := range order {
		if err := half(); err != nil {
			return m, err
		}
	}
	return m, nil
}

const routerPart, gatewayPart = "router", "gateway"

// jobParts are the parts whose CPU is measured, in the order of jobsRun.cpu.
var jobParts = []string{routerPart, gatewayPart, "Redis", "load generator", "watchers"} //nolint:gochecknoglobals // a constant

// cpu returns the CPU time of the parts so far.
func (r *jobsRun) cpu() []time.Duration {
	of := func(p *process) time.Duration { return cpuTime(p.cmd.Process.Pid) }
	return []time.Duration{of(r.router), of(r.gateway), cpuTime(r.env.fleet.PID(servers.Redis)), ownTime(), of(r.watchers)}
}

// ownTime returns the CPU time of this process without its children.
func ownTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it has no other error than a wrong argument
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// phase publishes the events of the next phase, and waits until the watchers have received all of
// them. It returns how long the publishing took.
func (r *jobsRun) phase(ctx context.Context, l load) (d delays, took time.Duration, err error) {
	phase := r.phases
	r.phases++
	began := time.Now()
	err = r.publish(ctx, l, phase, r.config.Deliveries[phase]/r.config.Clients)
	took = time.Since(began)
	if err == nil {
		waiting, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("refused: the watchers did not receive all events"))
		err = r.watchers.await(waiting, phaseReport(phase))
		cancel()
	}
	if err != nil {
		return d, took, err
	}
	_, text, _ := strings.Cut(r.watchers.out.String(), phaseReport(phase))
	return d, took, json.NewDecoder(strings.NewReader(text)).Decode(&d)
}

// publish adds n events to the jobs in turn. The bursts begin at random within their intervals.
func (r *jobsRun) publish(ctx context.Context, l load, phase, n int) error {
	began := time.Now()
	for sent := 0; sent < n; sent += l.burst {
		due := began.Add(time.Duration(sent/l.burst)*l.every + rand.N(l.every/4)) //nolint:gosec // no secret
		if err := sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		pipe := r.env.redis.Pipeline()
		for i := sent; i < min(n, sent+l.burst); i++ {
			job := i % len(r.numbers)
			r.numbers[job]++
			data := fmt.Appendf(nil, `{%s%d,%d,`, stampPrefix, phase, time.Now().UnixNano())
			data = append(append(data, bytes.Repeat([]byte("x"), dataBytes-len(data)-2)...), `"}`...)
			pipe.XAdd(ctx, jobEntry(jobName(job), r.numbers[job], data))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
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
func (r *jobsRun) phaseWithStuck(ctx context.Context, l load, request func(addr string) string) (d delays, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops, ctx := errgroup.WithContext(ctx)
	loops.Go(func() error { return r.fill(ctx) })
	loops.Go(func() error {
		return keepStuck(ctx, func() (net.Conn, error) { return r.gatewayAt.stuck(request(r.gatewayAt.addr)) })
	})
	blocked, stop := context.WithTimeoutCause(ctx, time.Minute, errors.New("refused: the gateway can send everything to the client that stops reading"))
	err = until(blocked, 100*time.Millisecond, func() (bool, error) {
		left, err := r.gatewayAt.metric(ctx, `millrace_sse_queue_events{hub="jobs"}`, `millrace_sse_closed_total{hub="jobs",reason="slow"}`)
		return left > 0, err
	})
	stop()
	if err == nil {
		d, _, err = r.phase(ctx, l)
	}
	cancel()
	return d, errors.Join(loops.Wait(), err)
}

// fill publishes the events of the filler until ctx ends.
func (r *jobsRun) fill(ctx context.Context) error {
	data := fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), fillerBytes))
	for sleep(ctx, fillerEvery) == nil {
		r.filled++
		if err := r.env.redis.XAdd(context.WithoutCancel(ctx), jobEntry(filler, r.filled, data)).Err(); err != nil {
			return err
		}
	}
	return nil
}
