package redisstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	lib "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redisstream"
)

func TestMain(m *testing.M) {
	logging.Disable()
	goleak.VerifyTestMain(m,
		// The library's Close doesn't wait for its reading goroutine, which sleeps half a second
		// after an error.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream.(*Subscriber).read"),
	)
}

const (
	group    = "g"
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
)

// rig is the plugin with a started client on one server.
type rig struct {
	redis  *redis.Plugin
	bridge *redisstream.Plugin
	cfg    *redisstream.Config
	c      goredis.UniversalClient
	stream string
}

func onServers(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		tier.Embedded(t)
		test(t, newRig(t, miniredis.RunT(t).Addr()))
	})
	for _, real := range []string{"redis", "valkey"} {
		t.Run(real, func(t *testing.T) { test(t, newRig(t, tier.Real(t, real))) })
	}
}

func newRig(t *testing.T, addr string) *rig {
	t.Helper()
	p := redis.New()
	p.Settings().(*redis.Config).Addrs = []string{addr}
	b := redisstream.New(p)
	cfg := b.Settings().(*redisstream.Config)
	cfg.BlockTime, cfg.NackSleep, cfg.ClaimInterval = 10*time.Millisecond, 5*time.Millisecond, 50*time.Millisecond
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: slog.New(slog.DiscardHandler)}, p, b)
	require.NoError(t, err)
	service := reg.Services()[0].Service
	require.NoError(t, service.Start(t.Context()))
	r := &rig{redis: p, bridge: b, cfg: cfg, c: p.Client(), stream: "redisstream-test:" + watermill.NewULID()}
	t.Cleanup(func() {
		require.NoError(t, r.c.Del(context.Background(), r.stream).Err())
		require.NoError(t, service.Stop(context.Background()))
	})
	return r
}

func (r *rig) open(t *testing.T, f pipeline.Flow) (pipeline.Subscription, <-chan *message.Message) {
	t.Helper()
	sub, err := r.bridge.Source(r.stream, group).Open(t.Context(), f)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	return sub, out
}

func (r *rig) publish(t *testing.T, first, n int) {
	t.Helper()
	for i := range n {
		m := message.NewMessage(fmt.Sprintf("uuid-%d", first+i), fmt.Append(nil, first+i))
		m.Metadata.Set(pipeline.MetaKey, fmt.Sprint(first+i))
		require.NoError(t, r.bridge.Sink(r.stream).Publish(t.Context(), m))
	}
}

func (r *rig) pending(t *testing.T) []goredis.XPendingExt {
	t.Helper()
	p, err := r.c.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: r.stream, Group: group, Start: "-", End: "+", Count: 100}).Result()
	require.NoError(t, err)
	return p
}

func receive(t *testing.T, out <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-out:
		require.True(t, ok, "the channel is closed")
		return m
	case <-time.After(patience):
		require.FailNow(t, "no message")
		return nil
	}
}

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		p := redis.New()
		return []pipeline.Plugin{p, redisstream.New(p)}
	})
}

// The library delivers every entry at once, so a retry would not keep its delay.
func TestTheBridgeIsNoRetryTopic(t *testing.T) {
	p := redis.New()
	b := redisstream.New(p)
	for name, retry := range map[string]pipeline.Retry{
		"both ends":  pipeline.RetryVia(b, "orders-retry", "g", 3, pipeline.Backoff{}),
		"the sink":   {To: b.Sink("orders-retry"), ReadElsewhere: true},
		"the source": {To: kindOf{p.Sink("orders-retry")}, From: b.Source("orders-retry", "g")},
	} {
		_, err := pipeline.NewRegistry(pipeline.Env{}, p, b, route{pipeline.Route{
			Name: "orders", From: p.Source("orders", "g"), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: retry},
		}})
		require.ErrorContains(t, err, "route orders: its retry topic watermill-redisstream orders-retry keeps no delay", name)
	}
}

// kindOf is a sink that delays and describes itself as one of the bridge.
type kindOf struct{ pipeline.Sink }

func (kindOf) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: redisstream.Kind, Name: "orders-retry"}
}
func (kindOf) Delays() error { return nil }

// route is a plugin of one route.
type route struct{ r pipeline.Route }

func (route) Name() string { return "route" }

func (p route) Register(r *pipeline.Registry) error { r.Route(p.r); return nil }

// Any service that uses watermill-redisstream can subscribe to what a Sink writes.
func TestTheLibraryReadsWhatTheSinkWrites(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 2)
		require.NoError(t, r.c.Ping(t.Context()).Err(), "publishing must not close the shared client")
		settings := r.redis.Settings().(*redis.Config)
		own, err := redis.NewClient(settings.ClientConfig)
		require.NoError(t, err)
		sub, err := lib.NewSubscriber(lib.SubscriberConfig{Client: own, ConsumerGroup: group, BlockTime: 10 * time.Millisecond, DisableIndefiniteInitialBlock: true}, watermill.NopLogger{})
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), r.stream)
		require.NoError(t, err)
		for i := range 2 {
			m := receive(t, out)
			require.Equal(t, fmt.Sprintf("uuid-%d", i), m.UUID)
			require.Equal(t, fmt.Sprint(i), string(m.Payload))
			require.Equal(t, fmt.Sprint(i), m.Metadata.Get(pipeline.MetaKey))
			m.Ack()
		}
		require.NoError(t, sub.Close())
	})
}

func TestSinkHonoursItsContext(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m := message.NewMessage("u", nil)
		require.ErrorIs(t, r.bridge.Sink(r.stream).Publish(ctx, m), context.Canceled)
		m.SetContext(ctx) // handled already
		require.NoError(t, r.bridge.Sink(r.stream).Publish(t.Context(), m))
	})
}

func TestSourceHandsOverInOrder(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 3)
		_, out := r.open(t, pipeline.Flow{})
		for i := range 3 {
			m := receive(t, out)
			require.Equal(t, fmt.Sprint(i), string(m.Payload))
			o := pipeline.OriginFrom(m.Context())
			require.Regexp(t, `@\d+-\d+$`, o.Position)
			o.Position = ""
			require.Equal(t, pipeline.Origin{Kind: "redis-stream", Source: r.stream, Group: group, Key: fmt.Sprint(i), Delivered: 1}, o)
			require.Equal(t, message.Metadata{pipeline.MetaKey: fmt.Sprint(i)}, m.Metadata, "nothing of the bridge may be seen")
			require.NoError(t, m.Context().Err())
			m.Ack()
			<-m.Context().Done()
		}
		require.Eventually(t, func() bool { return len(r.pending(t)) == 0 }, patience, tick)
	})
}

// One entry that the library can't decode would end its subscription.
func TestForeignEntryDoesNotEndTheSubscription(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.c.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.stream, Values: []any{"foo", "bar"}}).Err())
		require.NoError(t, r.c.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.stream, Values: entry.Entry{Message: []byte("plain")}.Values()}).Err())
		r.publish(t, 0, 1)
		_, out := r.open(t, pipeline.Flow{})
		poison := receive(t, out)
		require.Equal(t, "missing_message", pipeline.Class(entry.Malformed(poison)))
		require.Equal(t, entry.Malformed(poison), pipeline.OriginFrom(poison.Context()).Malformed)
		poison.Ack()
		plain := receive(t, out)
		require.Equal(t, "plain", string(plain.Payload), "entries of redis are read too")
		plain.Ack()
		receive(t, out).Ack()
	})
}

func TestNackedMessageComesAgain(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 2)
		_, out := r.open(t, pipeline.Flow{})
		for i := range 3 {
			m := receive(t, out)
			require.Equal(t, "0", string(m.Payload))
			require.EqualValues(t, i+1, pipeline.OriginFrom(m.Context()).Delivered)
			if i < 2 {
				m.Nack()
			} else {
				m.Ack()
			}
		}
		m := receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		m.Ack()
	})
}

// Drain does not end on an error, and keeps the acknowledgement that the library would drop.
func TestDrainIsQuiet(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 10)
		sub, out := r.open(t, pipeline.Flow{})
		inFlight := receive(t, out)
		drained := make(chan error, 1)
		go func() { drained <- sub.Drain(context.Background()) }()
		require.Never(t, func() bool { return len(drained) > 0 || inFlight.Context().Err() != nil }, 100*time.Millisecond, tick)
		inFlight.Ack()
		require.NoError(t, <-drained)
		_, open := <-out
		require.False(t, open)
		require.NoError(t, sub.Close())
		for _, p := range r.pending(t) {
			require.GreaterOrEqual(t, p.Idle, r.cfg.MaxIdle, "read ahead and not released")
			require.EqualValues(t, 1, p.RetryCount)
		}

		_, next := r.open(t, pipeline.Flow{})
		seen := map[string]bool{}
		for len(seen) < 9 {
			m := receive(t, next)
			require.NotEqual(t, "0", string(m.Payload), "the message that was in flight ran again")
			require.False(t, seen[string(m.Payload)])
			seen[string(m.Payload)] = true
			m.Ack()
		}
	})
}

func TestDrainOutOfTime(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 1)
		sub, out := r.open(t, pipeline.Flow{})
		stuck := receive(t, out)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, sub.Drain(ctx), context.DeadlineExceeded)
		require.NoError(t, stuck.Context().Err(), "its context lives on")
		p := r.pending(t)
		require.Len(t, p, 1)
		require.Less(t, p[0].Idle, time.Minute, "what is still being handled must not be given away")
	})
}

// The library alone gives the message of a slow handler to others after MaxIdleTime.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		t.Parallel()                    // it is all waiting
		r.cfg.MaxIdle = 2 * time.Second // a process may stand still for two thirds of it
		r.publish(t, 0, 1)
		_, out := r.open(t, pipeline.Flow{})
		slow := receive(t, out)
		_, other := r.open(t, pipeline.Flow{})
		select {
		case <-other:
			require.FailNow(t, "it was given to another reader")
		case <-time.After(3 * r.cfg.MaxIdle):
		}
		p := r.pending(t)
		require.Len(t, p, 1)
		if !strings.HasSuffix(t.Name(), "miniredis") { // whose XCLAIM JUSTID counts a delivery
			require.EqualValues(t, 1, p[0].RetryCount, "it was claimed, if only by its own reader")
		}
		slow.Ack()
		require.Eventually(t, func() bool { return len(r.pending(t)) == 0 }, patience, tick)
	})
}

func TestClosedGate(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		r.publish(t, 0, 1)
		var mu sync.Mutex
		open := false
		_, out := r.open(t, pipeline.Flow{Gate: func() bool { mu.Lock(); defer mu.Unlock(); return open }})
		select {
		case <-out:
			require.FailNow(t, "handed over through a closed gate")
		case <-time.After(100 * time.Millisecond):
		}
		mu.Lock()
		open = true
		mu.Unlock()
		receive(t, out).Ack()
	})
}

func TestBeforeTheServiceIsStarted(t *testing.T) {
	t.Parallel()
	b := redisstream.New(redis.New())
	require.ErrorContains(t, b.Sink("s").Publish(t.Context(), message.NewMessage("u", nil)), "not been started")
	require.Equal(t, pipeline.Endpoint{Kind: "watermill-redisstream", Name: "s", Group: group}, b.Source("s", group).Describe())
	_, err := pipeline.NewRegistry(pipeline.Env{}, redisstream.New(nil))
	require.ErrorContains(t, err, "needs the plugin redis")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	cfg := redisstream.DefaultConfig()
	require.NoError(t, cfg.Validate())
	cfg.BlockTime, cfg.MaxIdle = -1, 0 // -1 would make the library spin
	err := cfg.Validate()
	require.ErrorContains(t, err, "block_time: must be >= 1ms")
	require.ErrorContains(t, err, "max_idle: must be >= 1ms")
}

// Entries that the library's subscriber has acknowledged are trimmed.
func TestAStreamThatTheBridgeReadsIsTrimmed(t *testing.T) {
	t.Parallel()
	r := newRig(t, miniredis.RunT(t).Addr())
	_, out := r.open(t, pipeline.Flow{})
	r.publish(t, 0, 3)
	for range 3 {
		receive(t, out).Ack()
	}
	require.Eventually(t, func() bool { return r.c.XLen(t.Context(), r.stream).Val() == 0 }, 3*patience, tick)
}

// The consumer of a process that was killed is found by its mark. One that ends in order leaves
// none.
func TestTheBridgesConsumerIsMarked(t *testing.T) {
	onServers(t, func(t *testing.T, r *rig) {
		marks := func() (n int) {
			for field := range r.c.HGetAll(t.Context(), "millrace:subscriptions").Val() {
				if strings.HasPrefix(field, "shared\t"+r.stream+"\t"+group+"\t") && strings.HasSuffix(field, "-bridge-0") {
					n++
				}
			}
			return n
		}
		sub, _ := r.open(t, pipeline.Flow{})
		require.Eventually(t, func() bool { return marks() == 1 }, patience, tick)
		require.NoError(t, sub.Drain(t.Context()))
		require.Zero(t, marks())
	})
}
