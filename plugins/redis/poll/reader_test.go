package poll_test

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

const (
	group    = redistest.Group
	patience = 10 * time.Second
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
			require.Equal(t, pipeline.Origin{Kind: "redis-stream", Source: r.Stream, Group: group, Key: fmt.Sprint(i), Position: entry.Position(r.Stream, ids[i]), Delivered: 1}, pipeline.OriginFrom(m.Context()))
			label, _ := pprof.Label(m.Context(), "stream")
			require.Equal(t, r.Stream, label)
			label, _ = pprof.Label(m.Context(), "slot")
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

// The slots are the bound of what is in flight, and no more than a batch is read ahead of them.
func TestReaderReadsOnlyForFreeSlots(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 100)
		cfg := r.config("c", 4)
		cfg.BatchSize = 10
		rd, out := r.reader(s.Client(t), cfg, nil)
		var inFlight, most atomic.Int64
		release := make(chan struct{})
		h := redistest.Handle(t, out, func(*message.Message) bool {
			n := inFlight.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-release
			inFlight.Add(-1)
			return true
		})
		done := sync.OnceFunc(func() { close(release) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return inFlight.Load() == 4 }, patience, tick)
		require.Equal(t, 6, rd.Stats().Buffered)
		require.Len(t, r.Pending(), 10)
		require.Equal(t, 4, rd.Free(), "the places of one batch, less what is buffered")
		done()
		h.WaitFor(t, 100)
		require.LessOrEqual(t, most.Load(), int64(4))
		require.Empty(t, h.Repeated())
		r.NothingPending()
	})
}

func TestReaderCoalescesAcks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		const n = 1000
		r.Add(0, n)
		c := s.Client(t)
		log := redistest.Watch(c)
		cfg := r.config("c", 32)
		cfg.BatchSize, cfg.AckBatchSize, cfg.AckFlushInterval = 100, 100, 50*time.Millisecond
		rd, out := r.reader(c, cfg, nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, n)
		require.NoError(t, rd.Drain(t.Context()), "the last acks are flushed by Drain")
		require.Empty(t, r.Pending())
		require.EqualValues(t, n, rd.Stats().Acked)
		require.Less(t, log.Count("xack"), n/10)
	})
}

func TestPausedReaderSendsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 5)
		c := s.Client(t)
		log := redistest.Watch(c)
		rd, out := r.reader(c, r.config("c", 1), nil)
		first := redistest.Receive(t, out)
		rd.SetPaused(true)
		reads := log.Count("xreadgroup")
		first.Ack()
		for range 4 { // what was read goes on to the slots
			redistest.Receive(t, out).Ack()
		}
		r.Add(5, 1)
		require.Never(t, func() bool { return log.Count("xreadgroup") > reads }, 200*time.Millisecond, tick, "a paused reader must not read")
		require.True(t, rd.Stats().Paused)
		rd.SetPaused(false)
		m := redistest.Receive(t, out)
		require.Equal(t, "5", string(m.Payload))
		m.Ack()
	})
}

func TestClosedGateReadsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		c := s.Client(t)
		log := redistest.Watch(c)
		var open atomic.Bool
		cfg := r.config("c", 1)
		cfg.Gate = open.Load
		_, out := r.reader(c, cfg, nil)
		require.Never(t, func() bool { return log.Total() > 0 }, 100*time.Millisecond, tick)
		open.Store(true)
		redistest.Receive(t, out).Ack()
	})
}

func TestResize(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 20)
		rd, out := r.reader(s.Client(t), r.config("c", 2), nil)
		var inFlight atomic.Int64
		step := make(chan struct{})
		h := redistest.Handle(t, out, func(*message.Message) bool {
			inFlight.Add(1)
			<-step
			inFlight.Add(-1)
			return true
		})
		done := sync.OnceFunc(func() { close(step) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return inFlight.Load() == 2 }, patience, tick)
		rd.Resize(6)
		require.Eventually(t, func() bool { return inFlight.Load() == 6 }, patience, tick)
		rd.Resize(1)
		for range 6 {
			step <- struct{}{}
		}
		require.Eventually(t, func() bool { return inFlight.Load() == 1 }, patience, tick)
		require.Never(t, func() bool { return inFlight.Load() > 1 }, 100*time.Millisecond, tick, "five slots should have ended")
		rd.Resize(3)
		done()
		h.WaitFor(t, 20)
		require.Empty(t, h.Repeated())
		require.Equal(t, 3, rd.Stats().Slots)
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

func TestReaderNeverBlocks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		log := redistest.Watch(c)
		stream := redistest.Stream(t, c)
		pub, err := pubsub.NewPublisher(c, pubsub.PublisherConfig{})
		require.NoError(t, err)
		sub, err := pubsub.NewSubscriber(c, pubsub.SubscriberConfig{
			Group: group, ReclaimInterval: 10 * time.Millisecond,
			Config: poll.Config{Concurrency: 4, MinIdle: 100 * time.Millisecond, PollInterval: 10 * time.Millisecond, MaxRedeliveries: 1},
		})
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), stream)
		require.NoError(t, err)
		var n atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool {
			if n.Add(1)%3 == 0 {
				<-time.After(150 * time.Millisecond) // long enough to be kept alive
			}
			return n.Load()%2 == 0
		})
		for i := range 50 {
			require.NoError(t, pub.Publish(stream, message.NewMessage("", []byte(fmt.Sprint(i)))))
		}
		h.WaitFor(t, 50)
		require.NoError(t, sub.Close())
		require.Empty(t, log.Blocking())
		require.Positive(t, log.Count("xreadgroup"), "the log must have seen the reads")
		require.Positive(t, log.Count("xadd"))
	})
}

func TestNackedEntryIsDeliveredAgainThenLeftPending(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, slots := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
				r := newRig(t, s)
				ids := r.Add(0, 3)
				cfg := r.config("c", slots)
				cfg.MaxRedeliveries = 2
				_, out := r.reader(s.Client(t), cfg, nil)
				var mu sync.Mutex
				var delivered []int64
				h := redistest.Handle(t, out, func(m *message.Message) bool {
					if string(m.Payload) != "0" {
						return true
					}
					mu.Lock()
					defer mu.Unlock()
					delivered = append(delivered, pipeline.OriginFrom(m.Context()).Delivered)
					return false
				})
				h.WaitFor(t, 3)
				require.Eventually(t, func() bool { p := r.Pending(); return len(p) == 1 && p[0].ID == ids[0] }, patience, tick)
				require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(delivered) == 3 }, patience, tick)
				require.Never(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(delivered) > 3 }, 100*time.Millisecond, tick)
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, []int64{1, 2, 3}, delivered)
			})
		}
	})
}

// With one slot nothing overtakes a message that is tried again.
func TestOneSlotKeepsOrderOverNacks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 4)
		_, out := r.reader(s.Client(t), r.config("c", 1), nil)
		var order []string
		for range 6 {
			m := redistest.Receive(t, out)
			order = append(order, string(m.Payload))
			if string(m.Payload) == "1" && len(order) < 4 {
				m.Nack()
			} else {
				m.Ack()
			}
		}
		require.Equal(t, []string{"0", "1", "1", "1", "2", "3"}, order)
	})
}

func TestPoisonIsIsolated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		require.NoError(t, r.Client.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.Stream, Values: []any{"foo", "bar"}}).Err())
		r.Add(1, 1)
		_, out := r.reader(s.Client(t), r.config("c", 1), nil)
		first, poison, last := redistest.ReceiveAck(t, out), redistest.ReceiveAck(t, out), redistest.ReceiveAck(t, out)
		require.NoError(t, entry.Malformed(first))
		require.Equal(t, "1", string(last.Payload))
		err := entry.Malformed(poison)
		require.Equal(t, err, pipeline.OriginFrom(poison.Context()).Malformed)
		require.True(t, pipeline.IsPermanent(err))
		require.Equal(t, "missing_message", pipeline.Class(err))
		require.Empty(t, poison.Payload)
		require.JSONEq(t, `{"foo":"bar"}`, poison.Metadata.Get(entry.MetaRawFields))
		r.NothingPending()
	})
}
