package deadletter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// scans is a plugin that reads a stream, whose handler refuses until it is mended.
type scans struct {
	stream string
	redis  *redispoll.Plugin
	dead   *deadletter.Plugin
	mended chan struct{}
	took   chan *message.Message
}

func (scans) Name() string { return "scans" }

func (s scans) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "scans.take", From: s.redis.Source(s.stream, "scans"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			select {
			case <-s.mended:
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

// TestReplayIntoAStream: an entry that died comes back parked while its handler refuses, and is handled when it
// doesn't, with the id, key and headers it had.
func TestReplayIntoAStream(t *testing.T) {
	for name, env := range map[string]string{"miniredis": "", "redis": "MILLRACE_TEST_REDIS", "valkey": "MILLRACE_TEST_VALKEY"} {
		t.Run(name, func(t *testing.T) {
			addr := os.Getenv(env)
			if env == "" {
				home, err := embedded.Start(t.Context(), embedded.Config{}, nil)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, home.Stop(context.Background())) })
				addr = home.RedisAddr()
			}
			if addr == "" {
				t.Skipf("%s is not set", env)
			}
			stream := fmt.Sprintf("deadletter-test:%d", time.Now().UnixNano())
			client := redis.NewClient(&redis.Options{Addr: addr})
			t.Cleanup(func() {
				require.NoError(t, client.Del(context.Background(), stream).Err())
				require.NoError(t, client.Close())
			})
			dsn := "sqlite:" + filepath.Join(t.TempDir(), "letters.db")
			build := func() (*redispoll.Plugin, *deadletter.Plugin) {
				r := redispoll.New()
				r.Settings().(*redispoll.Config).Addrs = []string{addr}
				r.Settings().(*redispoll.Config).PollInterval = 10 * time.Millisecond
				d := deadletter.New(recorders{"scans-dead": pipelinetest.NewRecorder("scans-dead")}, r)
				d.Settings().(*deadletter.Config).Store.DSN = pipeline.NewSecret(dsn)
				return r, d
			}
			r, d := build()
			s := scans{stream, r, d, make(chan struct{}), make(chan *message.Message, 2)}
			pipelinetest.Start(t, r, d, s)
			entry := redispoll.Entry{Key: "7", UUID: "the-uuid", Message: []byte("scan 7"), Headers: map[string]string{"own": "header"}}
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: entry.Values()}).Err())

			store, err := letters.Connect(t.Context(), pipeline.NewSecret(dsn), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			one := func(state letters.State) letters.Letter {
				var list []letters.Letter
				require.Eventually(t, func() bool {
					var err error
					list, _, err = store.List(t.Context(), letters.Filter{States: []letters.State{state}}, 10)
					return err == nil && len(list) == 1
				}, 30*time.Second, 10*time.Millisecond, "a letter is %s", state)
				return list[0]
			}
			// replay runs the command as another process would.
			replay := func(args ...string) (report deadletter.Report) {
				r, d := build()
				var out, said bytes.Buffer
				code := app.Main(t.Context(), app.Options{
					Name: "millrace", Plugins: []pipeline.Plugin{r, d}, Args: append([]string{"dead", "replay", "--why", "x", "--json"}, args...),
					Environ: []string{"MILLRACE__INSTANCE_ID=one-that-runs"}, Stdout: &out, Stderr: &said,
				})
				require.Zero(t, code, "%s%s", &out, &said)
				require.NoError(t, json.Unmarshal(out.Bytes(), &report))
				return report
			}
			l := one(letters.Open)
			require.Equal(t, []string{letters.KindStream, stream, "7", "the-uuid"}, []string{l.Source.Kind, l.Source.Name, l.Key, l.UUID})
			require.Equal(t, 1, replay("--source", stream).Replayed)
			l = one(letters.Parked)
			require.Equal(t, 2, l.Generation)

			close(s.mended)
			require.Equal(t, 1, replay(l.ID, "--parked").Replayed)
			select {
			case m := <-s.took:
				require.Equal(t, []string{"the-uuid", "scan 7", "header", "7", l.ID + "/2"},
					[]string{m.UUID, string(m.Payload), m.Metadata["own"], m.Metadata[pipeline.MetaKey], m.Metadata[letters.MetaReplay]})
			case <-time.After(20 * time.Second):
				require.FailNow(t, "the replayed entry was not handled")
			}
			require.Equal(t, letters.Replayed, one(letters.Replayed).State)
			require.Equal(t, 1, replay(l.ID).Already)
		})
	}
}
