package poll_test

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

const (
	group    = redistest.Group
	patience = 2 * time.Minute
	tick     = 5 * time.Millisecond
)

// rig is a stream with a group, and readers of it.
type rig struct{ *redistest.Rig }

func newRig(t *testing.T, s redistest.Server) *rig { return &rig{redistest.NewRig(t, s)} }

// config is a quick configuration.
func (r *rig) config(consumer string, concurrency int) poll.Options {
	return poll.Options{
		Stream: r.Stream, Group: group, Consumer: consumer,
		Config: poll.Config{
			Concurrency:  concurrency,
			PollInterval: 20 * time.Millisecond, InitialPollInterval: time.Millisecond, MinIdle: time.Minute,
			AckFlushInterval: 2 * time.Millisecond, MaxRedeliveries: 3,
			Redelivery: pipeline.Backoff{First: 5 * time.Millisecond, Max: 10 * time.Millisecond},
		},
	}
}

// reader starts a reader that is drained at the end of the test.
func (r *rig) reader(c goredis.UniversalClient, o poll.Options, m *poll.Metrics) (*poll.Reader, chan *message.Message) {
	r.T.Helper()
	out := make(chan *message.Message)
	rd := poll.NewReader(c, o, out, redistest.Logger(r.T), m)
	rd.Start()
	r.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = rd.Drain(ctx) // a test may have left messages in flight
		<-rd.Done()
	})
	return rd, out
}

func TestReaderHandsOverAndAcks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 3)
		c := s.Client(t)
		rd, out := r.reader(c, r.config("c", 1), nil)
		for i := range 3 {
			m := redistest.Receive(t, out)
			require.Equal(t, fmt.Sprint(i), string(m.Payload))
			require.Equal(t, fmt.Sprintf("uuid-%d", i), m.UUID)
			require.Equal(t, pipeline.Delivery{
				Origin:    pipeline.Origin{Kind: "redis-stream", Source: r.Stream, Group: group, Key: fmt.Sprint(i), Position: entry.Position(r.Stream, ids[i])},
				Delivered: 1,
			}, pipeline.DeliveryFrom(m.Context()))
			label, _ := pprof.Label(m.Context(), "stream")
			require.Equal(t, r.Stream, label)
			label, _ = pprof.Label(m.Context(), "worker")
			require.Equal(t, "0", label)
			require.NoError(t, m.Context().Err())
			m.Ack()
			<-m.Context().Done()
		}
		r.NothingPending()
		require.Eventually(t, func() bool { return rd.Stats().Acked == 3 }, patience, tick)
		st := rd.Stats()
		require.EqualValues(t, 3, st.Read)
		require.Zero(t, st.InFlight)
		require.WithinDuration(t, time.Now(), st.LastMessage, patience)
		require.WithinDuration(t, time.Now(), st.StartedAt, patience)
	})
}

func TestReadersShareAChannel(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		out := make(chan *message.Message)
		h := redistest.Handle(t, out, nil)
		var readers []*poll.Reader
		for i := range 3 {
			r := newRig(t, s)
			r.Add(i*10, 10)
			rd := poll.NewReader(c, r.config("c", 2), out, redistest.Logger(t), nil)
			rd.Start()
			readers = append(readers, rd)
		}
		h.WaitFor(t, 30)
		for _, rd := range readers {
			require.NoError(t, rd.Drain(t.Context()))
		}
		require.Empty(t, h.Repeated())
	})
}

func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(poll.NewMetrics().Collectors()...)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// subscriber is a Subscriber that also reclaims, quickly.
func (r *rig) subscriber(c goredis.UniversalClient, minIdle, longestHold time.Duration, m *poll.Metrics) (*pubsub.Subscriber, <-chan *message.Message) {
	r.T.Helper()
	cfg := r.config("", 2)
	cfg.MinIdle, cfg.LongestHold = minIdle, longestHold
	sub, err := pubsub.NewSubscriber(c, pubsub.SubscriberConfig{
		Group: group, Config: cfg.Config, ReclaimInterval: 20 * time.Millisecond, CloseTimeout: time.Second, Logger: redistest.Logger(r.T), Metrics: m,
	})
	require.NoError(r.T, err)
	r.T.Cleanup(func() { require.NoError(r.T, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), r.Stream)
	require.NoError(r.T, err)
	return sub, out
}

// counts records the COUNT of each XREADGROUP.
type counts struct {
	mu   sync.Mutex
	most int
}

func (*counts) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *counts) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "xreadgroup" {
			h.mu.Lock()
			if n, ok := cmd.Args()[5].(int); ok {
				h.most = max(h.most, n)
			}
			h.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (*counts) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// COUNT follows the demand of the handlers.
func TestABusyStreamIsReadWithALargerCount(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 3000)
		c, h := s.Client(t), &counts{}
		c.AddHook(h)
		cfg := r.config("c", 16)
		cfg.BatchSize = 10
		_, out := r.reader(c, cfg, nil)
		redistest.Handle(t, out, func(*message.Message) bool { return true }).WaitFor(t, 3000)
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Greater(t, h.most, cfg.BatchSize)
	})
}
