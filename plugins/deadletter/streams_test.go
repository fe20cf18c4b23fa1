package deadletter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
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
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// scans is a plugin that reads a stream, whose handler refuses until it is fixed.
type scans struct {
	stream string
	redis  *redis.Plugin
	dead   *deadletter.Plugin
	fixed  chan struct{}
	took   chan *message.Message
}

func (scans) Name() string { return "scans" }

func (s scans) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "scans.take", From: s.redis.Source(s.stream, "scans"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			select {
			case <-s.fixed:
				s.took <- m
				return nil, nil
			default:
				return nil, pipeline.Permanent(errors.New("no such gate"))
			}
		},
		Policy: pipeline.Policy{DeadLetter: s.dead.Sink("scans-dead")},
	})
	return nil
}

// A replayed entry is parked while its handler refuses it. Later the handler gets it with its id,
// key and headers.
func TestReplayIntoAStream(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		stream := redistest.Prefix(t, client)
		dsn := "sqlite:" + filepath.Join(t.TempDir(), "letters.db")
		build := func() (*redis.Plugin, *deadletter.Plugin) {
			r := redis.New()
			r.Settings().(*redis.Config).Addrs = []string{s.Addr}
			r.Settings().(*redis.Config).PollInterval = 10 * time.Millisecond
			d := deadletter.New(recorders{"scans-dead": pipelinetest.NewRecorder("scans-dead")}, r).StoreIn(sqldb.Databases{})
			d.Settings().(*deadletter.Config).Store.DSN = setting.NewSecret(dsn)
			return r, d
		}
		r, d := build()
		scan := scans{stream, r, d, make(chan struct{}), make(chan *message.Message, 2)}
		pipelinetest.Start(t, r, d, scan)
		e := entry.Entry{Key: "7", UUID: "the-uuid", Message: []byte("scan 7"), Headers: map[string]string{"own": "header"}}
		require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: e.Values()}).Err())

		copies, err := store.Connect(t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, copies.Close()) })
		one := func(state store.State) store.DeadLetter {
			var list []store.DeadLetter
			require.Eventually(t, func() bool {
				var err error
				list, _, err = copies.List(t.Context(), store.Filter{States: []store.State{state}}, 10)
				return err == nil && len(list) == 1
			}, 2*time.Minute, 10*time.Millisecond, "a dead letter is %s", state)
			return list[0]
		}
		// replay runs the command as another process would.
		replay := func(args ...string) (report cli.Report) {
			r, d := build()
			var out, said bytes.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: []pipeline.Plugin{r, d}, Args: append([]string{"deadletter", "replay", "--why", "x", "--json"}, args...),
				Environ: []string{"MILLRACE__INSTANCE_ID=one-that-runs"}, Stdout: &out, Stderr: &said,
			})
			require.Zero(t, code, "%s%s", &out, &said)
			require.NoError(t, json.Unmarshal(out.Bytes(), &report))
			return report
		}
		l := one(store.Open)
		require.Equal(t, []string{poll.Kind, stream, "7", "the-uuid"}, []string{l.Source.Kind, l.Source.Name, l.Key, l.UUID})
		require.Equal(t, 1, replay("--source", stream).Replayed)
		l = one(store.Parked)
		require.Equal(t, 2, l.Generation)

		close(scan.fixed)
		require.Equal(t, 1, replay(l.ID, "--parked").Replayed)
		select {
		case m := <-scan.took:
			require.Equal(t, []string{"the-uuid", "scan 7", "header", "7", l.ID + "/2"},
				[]string{m.UUID, string(m.Payload), m.Metadata["own"], m.Metadata[pipeline.MetaKey], m.Metadata[pipeline.MetaReplay]})
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "the replayed entry was not handled")
		}
		require.Equal(t, store.Replayed, one(store.Replayed).State)
		require.Equal(t, 1, replay(l.ID).Already)
	})
}
