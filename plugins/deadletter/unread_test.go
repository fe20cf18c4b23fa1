package deadletter_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// A stream that its owner has deleted, or that is on another server than that of plugins.redis, would be made again by a
// replay, and nobody would read it. The dead letter waits instead, and no stream is made.
func TestAReplayIntoAStreamThatNobodyReadsIsRefused(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		prefix := redistest.Prefix(t, client)
		read, unread, gone := prefix+":read", prefix+":unread", prefix+":gone"
		require.NoError(t, client.XGroupCreateMkStream(t.Context(), read, "scans", "0").Err())
		require.NoError(t, client.XGroupCreateMkStream(t.Context(), unread, "scans", "0").Err())
		require.NoError(t, client.XGroupDestroy(t.Context(), unread, "scans").Err())

		dsn := setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "letters.db"))
		_, err := store.Schema(sqldb.Databases{}, dsn, "", nil).Migrate(t.Context())
		require.NoError(t, err)
		letters, err := store.Connect(t.Context(), sqldb.Databases{}, dsn, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, letters.Close()) })
		for _, stream := range []string{read, unread, gone} {
			require.NoError(t, letters.Put(t.Context(), store.From(stream[len(prefix):], "", "dead", "u", pipeline.DeadLetter{
				Payload: []byte("scan"), Class: "rejected", Handler: "scans.take", SourceKind: poll.Kind, Source: stream, Origin: stream + "@1-0",
			})))
		}
		r := redis.New()
		d := deadletter.New(recorders{"dead": pipelinetest.NewRecorder("dead")}, r).StoreIn(sqldb.Databases{})
		var out, said bytes.Buffer
		code := app.Main(t.Context(), app.Options{
			Name: "millrace", Plugins: []pipeline.Plugin{r, d}, Args: []string{"deadletter", "replay", "--all", "--why", "x", "--json"},
			Environ: []string{"MILLRACE__PLUGINS__REDIS__ADDRS=" + s.Addr, "MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=" + dsn.Reveal()}, Stdout: &out, Stderr: &said,
		})
		require.Equal(t, app.ExitBad, code, "%s%s", &out, &said)
		var report cli.Report
		require.NoError(t, json.Unmarshal(out.Bytes(), &report))
		require.Equal(t, []int{1, 2, 0}, []int{report.Replayed, report.Refused, report.Failed}, "%s", &out)
		for _, l := range report.DeadLetters {
			require.Equal(t, "no consumer group reads "+poll.Kind+" "+prefix+l.ID+" on the server of this transport, so nobody would get the message", l.Reason)
		}
		for stream, entries := range map[string]int64{read: 1, unread: 0, gone: 0} {
			require.Equal(t, entries, client.XLen(t.Context(), stream).Val(), stream)
		}
		require.Zero(t, client.Exists(t.Context(), gone).Val())
		for id, state := range map[string]store.State{":read": store.Replayed, ":unread": store.Open, ":gone": store.Open} {
			l, _, err := letters.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, state, l.State, id)
		}
	})
}
