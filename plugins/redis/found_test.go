package redis

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The streams of a family are found by their name, where nothing of it runs, also on a server of its own.
func TestTheBacklogOfAFamily(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) { // miniredis counts what was read as waiting
		c := s.Client(t)
		prefix := redistest.Prefix(t, c)
		add := func(stream string, n int) {
			for range n {
				require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []string{"a", "b"}}).Err())
			}
		}
		a, b, other := prefix+":{a*}:in", prefix+":{b}:in", prefix+":{a*}:out"
		add(a, 3)
		add(b, 2)
		add(other, 5)
		require.NoError(t, c.Set(t.Context(), prefix+":{c}:in", "no stream", time.Minute).Err())
		require.NoError(t, c.XGroupCreate(t.Context(), a, "g", "0").Err())
		require.NoError(t, c.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{a, ">"}, Count: 1}).Err())

		own := DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		for name, server := range map[string]func(*Plugin) *Server{
			"shared": func(p *Plugin) *Server { return p.Server(nil) }, "its own": func(p *Plugin) *Server { return p.Server(&own) },
		} {
			p := New()
			p.cfg.Addrs = []string{s.Addr}
			require.NoError(t, func() error {
				_, err := pipeline.NewRegistry(pipeline.Env{Instance: "test", Logger: redistest.Logger(t)}, p)
				return err
			}())
			f := p.Family(FamilyOptions{Name: prefix + ":{<id>}:in", Group: "g", Server: server(p)})
			got, err := f.Source().(operate.Measured).Backlog(t.Context())
			require.NoError(t, err, name)
			require.Equal(t, []int64{4, 1}, []int64{*got.Waiting, *got.InFlight}, name)
			require.WithinDuration(t, time.Now(), got.Oldest, 10*time.Minute)
			require.Equal(t, 2, got.Streams.Total, name)
			require.Equal(t, []string{a, b}, []string{got.Streams.Worst[0].Stream, got.Streams.Worst[1].Stream})
			require.Equal(t, []int64{2, 1}, []int64{*got.Streams.Worst[0].Waiting, *got.Streams.Worst[0].InFlight})
		}
	})
}
