package redis

import (
	"context"
	"fmt"
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

// manyRoutes is a plugin with routes that read streams and one that reads a domain.
type manyRoutes struct {
	p *Plugin
	n int
}

func (manyRoutes) Name() string { return "many" }

func (m manyRoutes) Register(r *pipeline.Registry) error {
	from := []pipeline.Source{m.p.Domain("many:events").Source()}
	for i := range m.n {
		from = append(from, m.p.Source(fmt.Sprint("many:", i), "g"))
	}
	for i, one := range from {
		r.Route(pipeline.Route{
			Name: fmt.Sprint("many.", i), From: one, Handle: pipeline.JSON(func(context.Context, string) error { return nil }),
			Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
		})
	}
	return nil
}

// A report of many routes opens one connection, and closes it. Where the service runs, it uses its
// client.
func TestAReportConnectsOnce(t *testing.T) {
	s := redistest.Mini(t)
	report := func(p *Plugin) {
		t.Helper()
		reg, err := pipeline.NewRegistry(pipeline.Env{}, p, manyRoutes{p, 5})
		require.NoError(t, err)
		answer, err := operate.Routes().Read(t.Context(), reg, nil)
		require.NoError(t, err)
		status, ours := answer.Value.(operate.RoutesStatus)
		require.True(t, ours)
		require.Empty(t, status.Checks)
		require.Len(t, status.Routes, 6)
		for _, r := range status.Routes {
			require.EqualValues(t, 0, *r.Waiting)
		}
	}
	stopped := New()
	stopped.cfg.Addrs = []string{s.Addr}
	stopped.cfg.Domains = []DomainConfig{{Prefix: "many:events", Shards: 3, Group: "g"}}
	report(stopped)
	require.Equal(t, 1, s.Mini.TotalConnectionCount())
	connected, closeIt, err := stopped.connect(t.Context())
	require.NoError(t, err)
	c, ours := connected.Value(sharedClient{stopped}).(goredis.UniversalClient)
	require.True(t, ours)
	again, closeNothing, err := stopped.connect(connected)
	require.NoError(t, err)
	require.Equal(t, connected, again)
	closeNothing()
	require.NoError(t, c.Ping(t.Context()).Err())
	closeIt()
	require.ErrorIs(t, c.Ping(t.Context()).Err(), goredis.ErrClosed)

	running := New()
	running.cfg = stopped.cfg
	running.client = s.Client(t)
	report(running)
	report(running)
	require.NoError(t, running.client.Ping(t.Context()).Err(), "it is not closed")
	require.Equal(t, 3, s.Mini.TotalConnectionCount())
}

// The backlog of a group is read without the service.
func TestBacklog(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		stream, ctx := redistest.Stream(t, c), t.Context()
		p := New()
		p.cfg.Addrs = []string{s.Addr}
		_, err := pipeline.NewRegistry(pipeline.Env{}, p, retrying{p, stream})
		require.NoError(t, err)
		t.Cleanup(func() { c.Del(context.Background(), dueKey(stream)) })
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
		require.Equal(t, stream+"@1000-0", b.OldestAt)

		require.NoError(t, c.XGroupCreate(ctx, stream, "g", "0").Err())
		require.NoError(t, c.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{stream, ">"}, Count: 1, Block: -1}).Err())
		add("3000-0")
		b = read()
		require.EqualValues(t, 1, *b.InFlight)
		require.Equal(t, time.UnixMilli(1000), b.Oldest, "in flight")
		require.Equal(t, stream+"@1000-0", b.OldestAt)
		require.EqualValues(t, 2, *b.Waiting)

		require.NoError(t, c.XAck(ctx, stream, "g", "1000-0").Err())
		b = read()
		require.EqualValues(t, 0, *b.InFlight)
		require.Equal(t, time.UnixMilli(2000), b.Oldest)
		require.Equal(t, stream+"@2000-0", b.OldestAt)
		require.EqualValues(t, 0, *b.NotDue)

		require.NoError(t, c.ZAdd(ctx, dueKey(stream), goredis.Z{Score: 9000, Member: "later"}, goredis.Z{Score: 5000, Member: "next"}).Err())
		b = read()
		require.EqualValues(t, 2, *b.NotDue)
		require.Equal(t, time.UnixMilli(5000), b.NextDue)

		// Times of another program, in microseconds, or which are none. They can be written as JSON.
		for score, next := range map[string]time.Time{"-inf": time.UnixMilli(0), "-7": time.UnixMilli(0), "1700000000000000": latest, "+inf": latest} {
			require.NoError(t, c.Del(ctx, dueKey(stream)).Err())
			require.NoError(t, c.Do(ctx, "ZADD", dueKey(stream), score, "odd").Err())
			require.Equal(t, next, read().NextDue, score)
			_, err = read().NextDue.UTC().MarshalJSON()
			require.NoError(t, err, score)
		}

		// An entry that was deleted in the middle makes the lag of the server unknown.
		require.NoError(t, c.XDel(ctx, stream, "2000-0").Err())
		b = read()
		require.Equal(t, time.UnixMilli(3000), b.Oldest)
		require.EqualValues(t, 1, *b.Waiting)
		for most, want := range []int64{-1, 1} { // one entry was delivered
			n, err := goredis.NewScript(waitingSource).Run(ctx, c, []string{stream}, "1000-0", most).Int64()
			require.NoError(t, err)
			require.Equal(t, want, n)
		}

		if s.Mini != nil {
			return // it has no XGROUP SETID
		}
		// An id that a producer has set in microseconds says nothing about the age of its entry.
		require.NoError(t, c.XGroupSetID(ctx, stream, "g", "3000-0").Err())
		add("1700000000000000-0")
		require.Zero(t, read().Oldest)

		// Nothing comes after the last possible id.
		require.NoError(t, c.XGroupSetID(ctx, stream, "g", largestID).Err())
		require.EqualValues(t, 0, *read().Waiting)
	})
}
