package redis

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// retrying is a plugin whose route reads a stream and retries through it.
type retrying struct {
	p      *Plugin
	stream string
}

func (retrying) Name() string { return "retrying" }

func (x retrying) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "retrying", From: x.p.Source(x.stream+":in", "g"), Handle: pipeline.JSON(func(context.Context, string) error { return nil }),
		Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead"), Retry: pipeline.Retry{To: x.p.Sink(x.stream), From: x.p.Source(x.stream, "g"), Max: 1}},
	})
	return nil
}

// The backlog of a group is read without the service. The lag of miniredis counts entries that were
// delivered.
func TestBacklog(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		stream, ctx := redistest.Stream(t, c), t.Context()
		p := New()
		p.cfg.Addrs = []string{s.Addr}
		_, err := pipeline.NewRegistry(pipeline.Env{}, p, retrying{p, stream})
		require.NoError(t, err)
		t.Cleanup(func() { c.Del(context.Background(), DueKey(stream)) })
		read := func() operate.Backlog {
			b, err := p.Source(stream, "g").(operate.Measured).Backlog(ctx)
			require.NoError(t, err)
			return b
		}
		require.EqualValues(t, 0, *read().Waiting, "no stream")
		add := func(id string) {
			require.NoError(t, c.XAdd(ctx, &goredis.XAddArgs{Stream: stream, ID: id, Values: []string{"a", "b"}}).Err())
		}
		add("1000-0")
		add("2000-0")
		b := read()
		require.EqualValues(t, 2, *b.Waiting, "no group")
		require.Equal(t, time.UnixMilli(1000), b.Oldest)

		require.NoError(t, c.XGroupCreate(ctx, stream, "g", "0").Err())
		require.NoError(t, c.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{stream, ">"}, Count: 1, Block: -1}).Err())
		add("3000-0")
		b = read()
		require.EqualValues(t, 1, *b.InFlight)
		require.Equal(t, time.UnixMilli(1000), b.Oldest, "in flight")
		require.EqualValues(t, 2, *b.Waiting)

		require.NoError(t, c.XAck(ctx, stream, "g", "1000-0").Err())
		b = read()
		require.EqualValues(t, 0, *b.InFlight)
		require.Equal(t, time.UnixMilli(2000), b.Oldest)
		require.EqualValues(t, 0, *b.NotDue)

		require.NoError(t, c.ZAdd(ctx, DueKey(stream), goredis.Z{Score: 9000, Member: "later"}, goredis.Z{Score: 5000, Member: "next"}).Err())
		b = read()
		require.EqualValues(t, 2, *b.NotDue)
		require.Equal(t, time.UnixMilli(5000), b.NextDue)

		// Times of another program, in microseconds, or which are none. They can be written as JSON.
		for score, next := range map[string]time.Time{"-inf": time.UnixMilli(0), "-7": time.UnixMilli(0), "1700000000000000": latest, "+inf": latest} {
			require.NoError(t, c.Del(ctx, DueKey(stream)).Err())
			require.NoError(t, c.Do(ctx, "ZADD", DueKey(stream), score, "odd").Err())
			require.Equal(t, next, read().NextDue, score)
			_, err = read().NextDue.UTC().MarshalJSON()
			require.NoError(t, err, score)
		}

		// An entry that was deleted in the middle makes the lag unknown.
		require.NoError(t, c.XDel(ctx, stream, "2000-0").Err())
		b = read()
		require.Equal(t, time.UnixMilli(3000), b.Oldest)
		if b.Waiting != nil {
			require.NotZero(t, *b.Waiting)
		}

		// An id that a producer has set in microseconds says nothing about the age of its entry.
		require.NoError(t, c.XGroupSetID(ctx, stream, "g", "3000-0").Err())
		add("1700000000000000-0")
		require.Zero(t, read().Oldest)
	})
}
