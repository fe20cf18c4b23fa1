package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// The scripts of a room, and a tick that promotes users.
const (
	scriptEnter   = "enter"
	scriptTick    = "tick without promotions"
	scriptPromote = "tick with 200 promotions"
	scriptSigns   = "signs of life, at most 250"
	scriptRestore = "250 signs of life that restore users"
	scriptClaim   = "200 claims"
	scriptVerify  = "verify"
	scriptFinish  = "finish"
	scriptLeave   = "leave"
)

type scriptName struct{}

// named makes the calls of a script count in scriptTimes.
func named(ctx context.Context, script string) context.Context {
	return context.WithValue(ctx, scriptName{}, script)
}

// scriptTimes measures the calls of named scripts. It is a hook of the client. It reads the
// server's times before and after each call. A call is left out if the server has run another
// script in between.
type scriptTimes struct {
	mu    sync.Mutex
	calls map[string]callTimes
}

// callTimes are in ms.
type callTimes struct{ server, client []float64 }

func newScriptTimes() *scriptTimes { return &scriptTimes{calls: map[string]callTimes{}} }

// DialHook implements goredis.Hook.
func (*scriptTimes) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements goredis.Hook. The product sends pipelines only.
func (*scriptTimes) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

// ProcessPipelineHook implements goredis.Hook.
func (t *scriptTimes) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		script, _ := ctx.Value(scriptName{}).(string)
		if script == "" {
			return next(ctx, cmds)
		}
		before, after := goredis.NewStringCmd(ctx, "info", "commandstats"), goredis.NewStringCmd(ctx, "info", "commandstats")
		began := time.Now()
		err := next(ctx, slices.Concat([]goredis.Cmder{before}, cmds, []goredis.Cmder{after}))
		took := time.Since(began)
		if err == nil {
			t.add(script, commandTimes(after.Val())["evalsha"].since(commandTimes(before.Val())["evalsha"]), took)
		}
		return err
	}
}

func (t *scriptTimes) add(script string, ran commandTime, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[script]
	c.client = append(c.client, took.Seconds()*1000)
	if ran.calls == 1 {
		c.server = append(c.server, ran.usec/1000)
	}
	t.calls[script] = c
}

// of returns the times of a script so far, in their order.
func (t *scriptTimes) of(script string) callTimes {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[script]
}

// report prints the times of all scripts, and adds them to the page.
func (c *crowd) report() {
	t := table{
		title: "Scripts", text: fmt.Sprintf("With %d waiting users and 10 brokers. All times are in ms.\nThose of the client include the network and the queue.", c.size.users),
		head: []string{"script", "calls", "p50", "p99", "max", "client p50", "client p99"},
	}
	for _, script := range []string{scriptEnter, scriptTick, scriptPromote, scriptSigns, scriptClaim, scriptVerify, scriptFinish, scriptLeave} {
		of := c.times.of(script)
		cells := []string{script, strconv.Itoa(len(of.server))}
		for _, share := range []float64{0.5, 0.99, 1} {
			cells = append(cells, number(quantile(of.server, share)))
		}
		cells = append(cells, number(quantile(of.client, 0.5)), number(quantile(of.client, 0.99)))
		c.env.note(roomPage, t, cells...)
		fmt.Fprintf(c.env.log, "  %s: %s calls, ms p50 %s, p99 %s, max %s; at the client p50 %s, p99 %s\n",
			cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6])
	}
}

// figure prints a figure without a goal, and adds it to the page of the waiting room.
func (e *environment) figure(what, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(e.log, "  %s: %s\n", what, text)
	e.note(roomPage, table{title: "Other figures", head: []string{"what", "figure"}}, what, text)
}

// quantile returns the value below which that share of the values is, 0 without values.
func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(share*float64(len(sorted)-1))]
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

// commandTime is how often a server has run a command, and how long that took.
type commandTime struct{ calls, usec float64 }

func (t commandTime) since(before commandTime) commandTime {
	return commandTime{t.calls - before.calls, t.usec - before.usec}
}

// commandTimes returns the times of the commands in the section commandstats of INFO.
func commandTimes(info string) map[string]commandTime {
	times := map[string]commandTime{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		var t commandTime
		if ok {
			if _, err := fmt.Sscanf(rest, "calls=%f,usec=%f,", &t.calls, &t.usec); err == nil {
				times[name] = t
			}
		}
	}
	return times
}

func (e *environment) commandTimes(ctx context.Context) (map[string]commandTime, error) {
	info, err := e.redis.Info(ctx, "commandstats").Result()
	return commandTimes(info), err
}

func (e *environment) redisCPU() time.Duration { return cpuTime(e.fleet.PID(servers.Redis)) }

// emptyRedis removes all keys and counts.
func (e *environment) emptyRedis(ctx context.Context) error {
	if err := e.redis.FlushAllAsync(ctx).Err(); err != nil { // otherwise many keys take seconds
		return err
	}
	err := until(ctx, 50*time.Millisecond, func() (bool, error) {
		left, err := e.redisInfo(ctx, "memory", "lazyfree_pending_objects:")
		return left == 0, err
	})
	if err != nil {
		return err
	}
	return e.emptyStats(ctx)
}

// emptyStats resets the server's counts.
func (e *environment) emptyStats(ctx context.Context) error {
	return e.redis.Do(ctx, "CONFIG", "RESETSTAT").Err()
}

// latency has the times of all scripts in ms.
type latency struct{ p50, p99, max float64 }

// scriptLatency returns the times since emptyStats.
func (e *environment) scriptLatency(ctx context.Context) (l latency, err error) {
	if err := e.redis.ConfigSet(ctx, "latency-tracking-info-percentiles", "50 99 100").Err(); err != nil {
		return l, err
	}
	info, err := e.redis.Info(ctx, "latencystats").Result()
	if err != nil {
		return l, err
	}
	_, rest, _ := strings.Cut(info, "latency_percentiles_usec_evalsha:")
	if _, err := fmt.Sscanf(rest, "p50=%f,p99=%f,p100=%f", &l.p50, &l.p99, &l.max); err != nil {
		return l, fmt.Errorf("INFO latencystats: %w", err)
	}
	return latency{l.p50 / 1000, l.p99 / 1000, l.max / 1000}, nil
}
