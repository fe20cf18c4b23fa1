package deadletter_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// A command that is killed leaves the dead letter in the stream that it has replayed, and the message may have failed
// again since. Both entries are then one dead letter, so what a person does to it is done to both.
func TestAMessageThatFailedAgainAfterACrashIsOneDeadLetter(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		stream := redistest.Prefix(t, client)
		require.NoError(t, client.XGroupCreateMkStream(t.Context(), stream, "jobs", "0").Err())
		own := redis.New()
		own.Settings().(*redis.Config).Addrs = []string{s.Addr}
		pipelinetest.Start(t, own)
		dead := own.CappedSink(stream+"-dead", 100, 1<<20)
		failed := pipeline.DeadLetter{
			Payload: []byte("job"), UUID: "u", Class: "rejected", Error: "no such gate", Handler: "jobs", SourceKind: poll.Kind, Source: stream, Origin: stream + "@1-0",
			FailedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		}
		again := failed
		again.Origin, again.FailedAt = stream+"@2-0", failed.FailedAt.Add(time.Hour)
		again.Metadata = map[string]string{pipeline.MetaReplay: store.From("", "jobs", "", "u", failed).ReplayHeader()}
		other := failed
		other.Payload, other.Origin = []byte("another"), stream+"@3-0"
		changed := again // it is a dead letter of its own
		changed.Payload, changed.Origin = []byte("changed"), stream+"@4-0"
		for _, d := range []pipeline.DeadLetter{failed, again, other, changed} {
			require.NoError(t, dead.Publish(t.Context(), d.Message()))
		}

		command := func(args ...string) (r cli.Report) {
			k, r2 := kafka.New(), redis.New()
			d := deadletter.New(k, r2).StoreIn(sqldb.Databases{})
			var out, said bytes.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: []pipeline.Plugin{r2, k, d, jobs{stream: stream, redis: r2, dead: d}}, Args: append(append([]string{"deadletter"}, args...), "--json"),
				Environ: []string{"MILLRACE__PLUGINS__KAFKA__ENABLED=false", "MILLRACE__PLUGINS__REDIS__ADDRS=" + s.Addr}, Stdout: &out, Stderr: &said,
			})
			require.Zero(t, code, "%s%s", &out, &said)
			require.NoError(t, json.Unmarshal(out.Bytes(), &r))
			return r
		}
		list := command("list").DeadLetters
		require.Len(t, list, 3)
		id := list[2].ID // the oldest
		require.Equal(t, 1, command("replay", id, "--why", "x").Replayed)
		require.Equal(t, int64(1), client.XLen(t.Context(), stream).Val())
		left := command("list").DeadLetters
		require.Len(t, left, 2, "the message is not replayed once more")
		require.Equal(t, int64(2), client.XLen(t.Context(), stream+"-dead").Val())
		require.Equal(t, 2, command("discard", "--all", "--why", "x").Discarded)
		require.Zero(t, client.XLen(t.Context(), stream+"-dead").Val())
	})
}
