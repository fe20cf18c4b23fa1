package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/wire"
)

// slow is a plugin with a handler that takes much longer than min_idle. After min_idle another
// instance may claim an entry unless its reader keeps it.
type slow struct {
	redis   *redis.Plugin
	stream  string
	takes   time.Duration
	handled chan string
}

func (slow) Name() string { return "slow" }

func (s slow) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "slow", From: s.redis.Source(s.stream, "slow"),
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			s.handled <- string(m.Payload)
			select {
			case <-time.After(s.takes):
				return nil, nil
			case <-m.Context().Done():
				return nil, m.Context().Err()
			}
		},
	})
	return nil
}

// Two instances read one stream. The handler of the one that got the entry takes ten times
// min_idle, and the other instance never gets the entry.
func TestASlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	const minIdle = 500 * time.Millisecond
	client := goredis.NewClient(&goredis.Options{Addr: borrow(t).server(t, servers.Redis)})
	t.Cleanup(func() { _ = client.Close() })
	s := slow{stream: fmt.Sprintf("slow:%d", time.Now().UnixNano()), takes: 10 * minIdle, handled: make(chan string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 2)
	logs := []*processLog{{}, {}}
	for i, log := range logs {
		plugins := wire.New().Plugins()
		for _, p := range plugins {
			if r, ok := p.(*redis.Plugin); ok {
				s.redis = r
			}
		}
		file := filepath.Join(t.TempDir(), "slow.yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
instance_id: slow-%d
plugins:
  telemetry: {listen: ""}
  kafka: {enabled: false}
  deadletter: {enabled: false}
  promotion: {enabled: false}
  redis: {addrs: [%q], min_idle: %s, reclaim_interval: 50ms, poll_interval: 20ms}
`, i, client.Options().Addr, minIdle), 0o600))
		plugins = append(plugins, s)
		go func() {
			ended <- app.Main(ctx, app.Options{
				Name: "millrace", Plugins: plugins, Environments: wire.Environments(), Args: []string{"run", "--config", file},
				Environ: []string{}, Stdout: log, Stderr: log,
			})
		}()
		require.Eventually(t, func() bool { return log.has(`"msg":"running"`) || len(ended) > 0 }, 2*time.Minute, 10*time.Millisecond,
			"instance %d runs: %s", i, log)
		require.Empty(t, ended, "instance %d has ended: %s", i, log)
	}
	for attempt := 1; ; attempt++ {
		work := fmt.Sprint("work ", attempt)
		stood := redistest.StoodStill(t, minIdle/2)
		entry := entry.Entry{Key: work, UUID: work, Message: []byte(work)}
		require.NoError(t, client.XAdd(ctx, &goredis.XAddArgs{Stream: s.stream, Values: entry.Values()}).Err())
		for got := ""; got != work; { // another one is of an attempt that a stall has spoiled
			got = <-s.handled
		}
		require.Eventually(t, func() bool {
			pending, err := client.XPending(ctx, s.stream, "slow").Result()
			return err == nil && pending.Count == 0
		}, 2*time.Minute, 10*time.Millisecond, "the entry is acknowledged")
		// A process that stands still renews nothing: the other instance may claim the entry first.
		if still := stood(); still > 0 && len(s.handled) > 0 && attempt < 5 {
			t.Logf("repeated, because the machine stood still for %s", still)
			continue
		}
		require.Empty(t, s.handled, "another instance got the entry, too")
		break
	}
	cancel()
	for range logs {
		require.Zero(t, <-ended, "%s\n%s", logs[0], logs[1])
	}
}
