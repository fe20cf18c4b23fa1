package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/checker"
	"github.com/millrace-io/millrace/handlers/eventrouter/demo"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	jobwatch "github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/token"
)

// Watchers receive each event once and in order while a router is killed (SIGKILL). The demo has
// its own copy of all events, and its verdict is the exit code.
func TestWatchersReceiveEachEventWhileARouterIsKilled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"embedded", "redis", "valkey"} {
		t.Run(name, func(t *testing.T) {
			var r demo.Report
			runDemo(t, name, &r, "jobs", "demo", "--jobs", "10", "--events", "20", "--rate", "100")
			require.True(t, r.OK(), "%+v", r)
			require.True(t, r.Killed)
			require.Equal(t, []int{200, 20, 400}, []int{r.Published, r.Watchers, r.Received})
			require.Zero(t, r.Gaps)
		})
	}
}

// newJobs returns a process with the profile router and both roles. It is not started.
func newJobs(t *testing.T, redisAddr, name string, env ...string) *service {
	t.Helper()
	dir := t.TempDir()
	web, err := freePort()
	require.NoError(t, err)
	key := filepath.Join(dir, "key.pem")
	require.NoError(t, token.CreateKey(key))
	s := &service{t: t, program: binary(t), config: filepath.Join(dir, name+".yaml"), env: env, url: "http://" + web, probe: "/jobs/scan/none", log: &lockedBuffer{}}
	require.NoError(t, os.WriteFile(s.config, fmt.Appendf(nil, `
profile: router
instance_id: %s
command_wait: 1m
log: {format: text}
plugins:
  telemetry: {listen: ""}
  redis: {addrs: [%q]}
  eventrouter: {roles: [router, gateway], loopback_without_token: true}
  web: {listen: %q, drain_window: 1s, max_streams_per_user: 20000}
  token: {keys: [{kid: test, file: %q}]}
`, name, redisAddr, web, key), 0o600))
	t.Cleanup(s.kill)
	return s
}

// startJobs starts a process with the profile router and both roles. env has more settings.
func startJobs(t *testing.T, redisAddr, name string, env ...string) *service {
	t.Helper()
	s := newJobs(t, redisAddr, name, env...)
	s.start()
	return s
}

// A process with the event router needs Redis alone: no Kafka, no database. Its commands work.
func TestTheEventRouterNeedsRedisAlone(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	s := startJobs(t, servers.RedisAddr(), "alone")
	ok := func(out string, code int) string {
		t.Helper()
		require.Zero(t, code, "%s\n%s", out, s.log)
		return out
	}
	require.Contains(t, ok(s.command("", "jobs", "publish", "scan/42", "fetch", "--data", `{"percent":10}`)), "1 event published to scan")
	lines := `{"job_id":"42","stage":"scan"}` + "\n\n" + `{"job_id":"42","stage":"done"}` + "\n" + `{"job_id":"43","stage":"error"}` + "\n"
	require.Contains(t, ok(s.command(lines, "jobs", "publish", "scan")), "3 events published to scan")
	publish := exec.Command(s.program, "jobs", "publish", "scan", "--config", s.config)
	write, err := publish.StdinPipe()
	require.NoError(t, err)
	_, err = startBound(publish)
	require.NoError(t, err)
	_, err = fmt.Fprintln(write, `{"job_id":"slow","stage":"scan"}`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, code := s.command("", "jobs", "status", "scan/slow")
		return code == 0
	}, 2*time.Minute, 50*time.Millisecond, "it arrives although the input goes on")
	require.NoError(t, write.Close())
	out, code := s.command(`{"job_id":"slow","stage":"scan"}`+"\nno event\n", "jobs", "publish", "scan")
	require.Equal(t, 1, code)
	require.Contains(t, out, "1 event published")
	require.Contains(t, out, "line 2: decode the event")
	out = ok(s.command("", "jobs", "watch", "scan/42"))
	require.Contains(t, out, "1  fetch  {\"percent\":10}\n2  scan\n3  done\n")
	out, code = s.command("", "jobs", "watch", "scan/43", "--json")
	require.Equal(t, 1, code, out)
	require.Regexp(t, `"id":"1\.[0-9]+-[0-9]+"`, out)
	require.Contains(t, out, `"data":{"domain":"scan","job_id":"43","stage":"error","seq":1,`)
	require.Contains(t, ok(s.command("", "jobs", "status", "scan/42")), "with event 3")
	out, code = s.command("", "jobs", "status", "scan/44")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "has no state and no log")
	runsAgain(t, s)
	require.Contains(t, ok(s.command("", "jobs", "shards", "--json")), `"stream": "chat:events:7"`)
	require.Regexp(t, `^ey[\w.-]+\n$`, ok(s.command("", "jobs", "token", "scan/42")))
	for _, wrong := range [][]string{{"status", "42"}, {"status", "other/42"}, {"publish", "scan", "--seq", "1"}, {"watch", "scan/42", "--after", "-1"}, {"reset", "scan/42"}, {"reset", "scan"}} {
		out, code := s.command("", append([]string{"jobs"}, wrong...)...)
		require.Equal(t, 2, code, "%s: %s", wrong, out)
	}

	// An entry that is no event is a dead letter in Redis, and can be replayed.
	client := goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})
	defer func() { require.NoError(t, client.Close()) }()
	require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: "scan:events:0", Values: []any{"stage", "scan"}}).Err())
	require.Eventually(t, func() bool { return client.XLen(t.Context(), "scan:events:dead").Val() == 1 }, 2*time.Minute, 20*time.Millisecond)
	require.Contains(t, ok(s.command("", "deadletter", "list", "--class", "missing_job_id")), "eventrouter.scan")
	require.Contains(t, ok(s.command("", "deadletter", "replay", "--all", "--why", "test")), "1")
	require.Eventually(t, func() bool { return client.XLen(t.Context(), "scan:events:dead").Val() == 1 }, 2*time.Minute, 20*time.Millisecond, "it failed again")

	page, err := http.Get(s.url + "/jobs/scan/42/watch")
	require.NoError(t, err)
	defer func() { _ = page.Body.Close() }()
	require.Equal(t, http.StatusOK, page.StatusCode)
	require.Contains(t, page.Header.Get("Content-Security-Policy"), "default-src 'none'")
}

// runsAgain resets a job that has ended, and runs it again.
func runsAgain(t *testing.T, s *service) {
	t.Helper()
	command := func(code int, args ...string) string {
		t.Helper()
		out, got := s.command("", append([]string{"jobs"}, args...)...)
		require.Equal(t, code, got, "%s\n%s", out, s.log)
		return out
	}
	require.Contains(t, command(1, "publish", "scan/42", "fetch"), "job scan/42 has ended with event 3, so nobody would see this one: `jobs reset scan/42")
	require.Contains(t, command(0, "reset", "scan/42", "--dry-run"), "ended with event 3, would be reset")
	require.Contains(t, command(0, "status", "scan/42"), "with event 3")
	require.Contains(t, command(0, "reset", "scan/42", "--why", "a retry", "--who", "eve", "--json"), `"counter": 3`)
	require.Regexp(t, "it was reset at .* by eve: a retry", command(1, "status", "scan/42"))
	require.Contains(t, command(0, "reset", "scan/42", "--why", "a retry", "--who", "eve"), "of which an earlier reset has left nothing, was reset")
	require.Contains(t, command(1, "reset", "scan/nobody", "--why", "a retry"), "it can run already")
	require.Contains(t, command(0, "publish", "scan/42", "again", "--json"), `"seq": 1`)
	require.Contains(t, command(0, "publish", "scan/42", "done", "--json"), `"seq": 2`)
	out, _ := s.command("", "jobs", "watch", "scan/42")
	require.Contains(t, out, "1  again\n2  done\n")
	require.Regexp(t, `reset +\S+ by eve: a retry`, command(0, "status", "scan/42"))
}

// SIGTERM ends a gateway in time while streams are open. The watchers go on at another one.
func TestAGatewayThatEndsLosesNoEvent(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	first, second := startJobs(t, servers.RedisAddr(), "first"), startJobs(t, servers.RedisAddr(), "second")
	const watchers, events = 50, 20
	check := checker.New(event.DefaultStages())
	client := goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})
	defer func() { require.NoError(t, client.Close()) }()
	publish := func(seq int, stage string) {
		e := event.Event{Domain: "scan", JobID: "job", Stage: stage, Seq: int64(seq)}
		check.Published(e)
		stream := fmt.Sprintf("scan:events:%d", event.Shard(e.JobID, 8))
		require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"job_id", e.JobID, "stage", e.Stage, "seq", seq}}).Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var group sync.WaitGroup
	received := make(chan struct{}, watchers*events)
	for i := range watchers {
		w := check.Watch(fmt.Sprint("watcher ", i), "scan", "job")
		// The address of both gateways, as that of a load balancer.
		base := &balancer{to: []string{first.url, second.url}}
		group.Go(func() {
			reason, _ := jobwatch.Follow(ctx, jobwatch.Options{ // the checker reports it
				URL: "http://balancer/jobs/scan/job/events", Client: &http.Client{Transport: base}, Connected: w.Connected,
				Message: func(m jobwatch.Message) {
					w.Message(m)
					if m.Name == jobwatch.NameEvent {
						received <- struct{}{}
					}
				},
			})
			w.Ended(reason)
		})
	}
	publish(1, "scan")
	for range watchers {
		select {
		case <-received:
		case <-ctx.Done():
			require.FailNow(t, "the watchers received nothing", "%s", first.log)
		}
	}
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	for seq := 2; seq < events; seq++ {
		publish(seq, "scan")
	}
	first.ends()
	publish(events, "done")
	group.Wait()
	r := check.Report()
	require.True(t, r.OK(), "%+v", r)
	require.Equal(t, watchers*events, r.Received)
	require.GreaterOrEqual(t, r.Reconnects, watchers)
}

// balancer sends each request to the first address that answers.
type balancer struct {
	to    []string
	first atomic.Int64 // index of the address that gets a request first
	turns bool         // each request begins with the next one
}

// direct has small buffers, for thousands of streams.
var direct = &http.Transport{DisableKeepAlives: true, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10}

func (b *balancer) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	first := int(b.first.Load())
	if b.turns {
		first = int(b.first.Add(1))
	}
	for i := range b.to {
		one := r.Clone(r.Context())
		one.Host, one.URL.Host = "", strings.TrimPrefix(b.to[(first+i)%len(b.to)], "http://")
		if resp, err = direct.RoundTrip(one); err == nil {
			return resp, nil
		}
	}
	return nil, err
}
