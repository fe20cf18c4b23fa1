package redisstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	lib "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/redisstream"
)

func TestMain(m *testing.M) {
	logging.Disable()
	redistest.VerifyTestMain(m,
		// The library's Close doesn't wait for its reading goroutine, which sleeps half a second
		// after an error.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream.(*Subscriber).read"),
	)
}

const group, patience = "g", 2 * time.Minute

// rig is a sink with a started client.
type rig struct {
	redis  *redis.Plugin
	c      goredis.UniversalClient
	stream string
	sink   pipeline.Sink
}

func newRig(t *testing.T, addr string) rig {
	t.Helper()
	p := redis.New()
	p.Settings().(*redis.Config).Addrs = []string{addr}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: slog.New(slog.DiscardHandler)}, p)
	require.NoError(t, err)
	service := reg.Services()[0].Service
	require.NoError(t, service.Start(t.Context()))
	r := rig{redis: p, c: p.Client(), stream: "redisstream-test:" + watermill.NewULID()}
	r.sink = redisstream.NewSink(p, r.stream)
	t.Cleanup(func() {
		require.NoError(t, r.c.Del(context.Background(), r.stream).Err())
		require.NoError(t, service.Stop(context.Background()))
	})
	return r
}

// Any service that uses watermill-redisstream can subscribe to what a Sink writes.
func TestTheLibraryReadsWhatTheSinkWrites(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s.Addr)
		for i := range 2 {
			m := message.NewMessage(fmt.Sprintf("uuid-%d", i), fmt.Append(nil, i))
			m.Metadata.Set(pipeline.MetaKey, fmt.Sprint(i))
			require.NoError(t, r.sink.Publish(t.Context(), m))
		}
		require.NoError(t, r.c.Ping(t.Context()).Err(), "publishing must not close the shared client")
		own, err := redis.NewClient(r.redis.Settings().(*redis.Config).ClientConfig, nil)
		require.NoError(t, err)
		sub, err := lib.NewSubscriber(lib.SubscriberConfig{Client: own, ConsumerGroup: group, BlockTime: 10 * time.Millisecond, DisableIndefiniteInitialBlock: true}, watermill.NopLogger{})
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), r.stream)
		require.NoError(t, err)
		for i := range 2 {
			select {
			case m := <-out:
				require.NotNil(t, m, "the channel is closed")
				require.Equal(t, fmt.Sprintf("uuid-%d", i), m.UUID)
				require.Equal(t, fmt.Sprint(i), string(m.Payload))
				require.Equal(t, fmt.Sprint(i), m.Metadata.Get(pipeline.MetaKey))
				m.Ack()
			case <-time.After(patience):
				require.FailNow(t, "no message")
			}
		}
		require.NoError(t, sub.Close())
	})
}

// topics are streams that a route writes with this package and reads with the plugin redis.
type topics struct{ *redis.Plugin }

func (t topics) Sink(stream string) pipeline.Sink { return redisstream.NewSink(t.Plugin, stream) }

func TestTransport(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		c := s.Client(t)
		pipelinetest.Transport(t, pipelinetest.TransportTest{
			New: func() (pipeline.Topics, []pipeline.Plugin) {
				p := redis.New()
				cfg := p.Settings().(*redis.Config)
				cfg.Addrs = []string{s.Addr}
				cfg.PollInterval, cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
				cfg.MinIdle, cfg.ReclaimInterval = 3*time.Second, 100*time.Millisecond
				return topics{p}, []pipeline.Plugin{p}
			},
			Topic: func(t testing.TB) string { return redistest.Prefix(t, c) },
		})
	})
}

func TestTheSinkHonoursItsContext(t *testing.T) {
	r := newRig(t, redistest.Mini(t).Addr)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := message.NewMessage("u", nil)
	require.ErrorIs(t, r.sink.Publish(ctx, m), context.Canceled)
	m.SetContext(ctx) // handled already
	require.NoError(t, r.sink.Publish(t.Context(), m))
}

func TestBeforeTheServiceIsStarted(t *testing.T) {
	t.Parallel()
	s := redisstream.NewSink(redis.New(), "s")
	require.ErrorContains(t, s.Publish(t.Context(), message.NewMessage("u", nil)), "not been started")
	require.Equal(t, pipeline.Endpoint{Kind: "watermill-redisstream", Name: "s"}, s.Describe())
}

// The library delivers every entry at once, so a retry would not keep its delay.
func TestTheSinkIsNoRetryTopic(t *testing.T) {
	p := redis.New()
	for name, retry := range map[string]pipeline.Retry{
		"read elsewhere":                    {To: redisstream.NewSink(p, "orders-retry"), ReadElsewhere: true},
		"read by a source of the same kind": {To: redisstream.NewSink(p, "orders-retry"), From: kindOf{p.Source("orders-retry", "g")}},
	} {
		_, err := pipeline.NewRegistry(pipeline.Env{}, p, route{pipeline.Route{
			Name: "orders", From: p.Source("orders", "g"), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: retry},
		}})
		require.ErrorContains(t, err, "route orders: its retry topic watermill-redisstream orders-retry keeps no delay", name)
	}
}

// kindOf is a source that describes itself as one of this package's streams.
type kindOf struct{ pipeline.Source }

func (kindOf) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: redisstream.Kind, Name: "orders-retry", Group: "g"}
}

// route is a plugin of one route.
type route struct{ r pipeline.Route }

func (route) Name() string { return "route" }

func (p route) Register(r *pipeline.Registry) error { r.Route(p.r); return nil }
