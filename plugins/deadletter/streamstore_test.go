package deadletter_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// jobs is a plugin that reads a stream. Its dead letters go to another stream, or to a topic.
type jobs struct {
	stream string
	topic  string // not empty: of dead letters
	redis  *redis.Plugin
	dead   *deadletter.Plugin
	took   chan string
	fixed  bool
}

func (jobs) Name() string { return "jobs" }

func (j jobs) Register(r *pipeline.Registry) error {
	dead := j.dead.StreamSink
	to := j.stream + "-dead"
	if j.topic != "" {
		dead, to = j.dead.Sink, j.topic
	}
	r.Route(pipeline.Route{
		Name: "jobs", From: j.redis.Source(j.stream, "jobs"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if !j.fixed {
				return nil, pipeline.WithClass(pipeline.Permanent(errors.New("no such gate")), "rejected")
			}
			j.took <- string(m.Payload)
			return nil, nil
		},
		Policy: pipeline.Policy{DeadLetter: dead(to)},
	})
	return nil
}

// Without Kafka and without a store, dead letters are in a Redis stream. The commands work on it.
func TestDeadLettersInAStream(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		stream := redistest.Prefix(t, client)
		took := make(chan string, 10)
		// main runs a command of the binary until ctx ends or the command does.
		main := func(ctx context.Context, topic string, fixed bool, args ...string) (code int, out, said string) {
			k, r := kafka.New(), redis.New()
			d := deadletter.New(k, r).StoreIn(sqldb.Databases{})
			var stdout, stderr bytes.Buffer
			code = app.Main(ctx, app.Options{
				Name: "millrace", Plugins: []pipeline.Plugin{r, k, d, jobs{stream, topic, r, d, took, fixed}}, Args: args,
				Environ: []string{"MILLRACE__PLUGINS__KAFKA__ENABLED=false", "MILLRACE__PLUGINS__REDIS__ADDRS=" + s.Addr, "MILLRACE__PLUGINS__REDIS__POLL_INTERVAL=10ms", "MILLRACE__INSTANCE_ID=" + stream},
				Stdout:  &stdout, Stderr: &stderr,
			})
			return code, stdout.String(), stderr.String()
		}
		// during runs the service while do does its work.
		during := func(fixed bool, do func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				main(ctx, "", fixed, "run")
			}()
			do()
			cancel()
			<-ended
		}
		command := func(args ...string) (r cli.Report) {
			code, out, said := main(t.Context(), "", false, append(args, "--json")...)
			require.Zero(t, code, "%s%s", out, said)
			require.NoError(t, json.Unmarshal([]byte(out), &r))
			return r
		}
		count := func(stream string, n int64) func() bool {
			return func() bool { return client.XLen(t.Context(), stream).Val() == n }
		}

		code, _, said := main(t.Context(), "jobs-dead", false, "run")
		require.Equal(t, app.ExitUsage, code, said)
		require.Contains(t, said, "the dead-letter topic jobs-dead needs plugin kafka")

		during(false, func() {
			for i := range 4 {
				require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", fmt.Sprintf("job %d", i)}}).Err())
			}
			require.Eventually(t, count(stream+"-dead", 4), 2*time.Minute, 10*time.Millisecond)
			// The commands work while the service runs, under the same name.
			require.Len(t, command("deadletter", "list", "--class", "rejected").DeadLetters, 4)
		})
		var paged, whole []cli.Line
		for next := []string{}; ; {
			page := command(append([]string{"deadletter", "list", "--limit", "3"}, next...)...)
			paged = append(paged, page.DeadLetters...)
			if len(page.DeadLetters) < 3 {
				break
			}
			next = []string{"--before", page.DeadLetters[2].ID}
		}
		whole = command("deadletter", "list").DeadLetters
		require.Equal(t, whole, paged, "each command makes a copy, in which the cursor is the same")
		require.Equal(t, 4, command("deadletter", "replay", "--all", "--dry-run").Replayed)
		require.True(t, count(stream+"-dead", 4)())
		first := command("deadletter", "list", "--limit", "1").DeadLetters[0].ID
		require.Equal(t, 1, command("deadletter", "discard", first, "--why", "x").Discarded)
		require.True(t, count(stream+"-dead", 3)())
		require.Equal(t, 3, command("deadletter", "replay", "--class", "rejected", "--why", "x").Replayed)
		require.True(t, count(stream+"-dead", 0)())
		require.Empty(t, command("deadletter", "list").DeadLetters)
		during(true, func() {
			got := map[string]bool{}
			for range 3 {
				select {
				case payload := <-took:
					got[payload] = true
				case <-time.After(2 * time.Minute):
					require.FailNow(t, "a replayed entry was not handled")
				}
			}
			require.Len(t, got, 3)
		})

		// Of a giant the stream keeps the beginning, which is no message that can be replayed.
		giant := strings.Repeat("x", 6<<20)
		during(false, func() {
			require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", giant}}).Err())
			require.Eventually(t, count(stream+"-dead", 1), 2*time.Minute, 10*time.Millisecond)
		})
		kept, err := client.XRange(t.Context(), stream+"-dead", "-", "+").Result()
		require.NoError(t, err)
		require.Equal(t, giant[:8<<10], kept[0].Values["message"])
		require.Contains(t, kept[0].Values["headers"], fmt.Sprintf(`"millrace-dead-payload-sha256":"%x"`, sha256.Sum256([]byte(giant))))
		code, out, said := main(t.Context(), "", false, "deadletter", "replay", "--all", "--why", "x", "--json")
		require.Equal(t, 1, code, "%s%s", out, said)
		require.Contains(t, out, "only the first 8192 of 6291456 bytes of its payload were kept")
		require.True(t, count(stream+"-dead", 1)())
	})
}
