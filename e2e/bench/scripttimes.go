package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
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
	c.client = append(c.client, millis(took))
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

func (e *environment) commandTimes(ctx context.Context) map[string]commandTime {
	return commandTimes(must(e.redis.Info(ctx, "commandstats").Result()))
}

// latency has the times of all scripts in ms.
type latency struct{ p50, p99, max float64 }

// scriptLatency returns the times since emptyStats.
func (e *environment) scriptLatency(ctx context.Context) (l latency) {
	check(e.redis.ConfigSet(ctx, "latency-tracking-info-percentiles", "50 99 100").Err())
	_, rest, _ := strings.Cut(must(e.redis.Info(ctx, "latencystats").Result()), "latency_percentiles_usec_evalsha:")
	must(fmt.Sscanf(rest, "p50=%f,p99=%f,p100=%f", &l.p50, &l.p99, &l.max))
	return latency{l.p50 / 1000, l.p99 / 1000, l.max / 1000}
}
