package redispoll_test

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

const (
	group    = "g"
	patience = 10 * time.Second
	tick     = 5 * time.Millisecond
)

// rig is one stream with a group, and what is needed to watch a reader on it.
type rig struct {
	t      *testing.T
	s      server
	admin  redis.UniversalClient // not watched
	stream string
}

func newRig(t *testing.T, s server) *rig {
	t.Helper()
	admin := s.client(t)
	r := &rig{t: t, s: s, admin: admin, stream: s.stream(t, admin)}
	r.createGroup()
	return r
}

func (r *rig) createGroup() {
	r.t.Helper()
	require.NoError(r.t, r.admin.XGroupCreateMkStream(context.Background(), r.stream, group, "0").Err())
}

// add appends n entries with the payloads 0…n-1 (from first on) and returns their ids.
func (r *rig) add(first, n int) []string {
	r.t.Helper()
	ids := make([]string, n)
	for i := range n {
		payload := fmt.Sprint(first + i)
		e := redispoll.Entry{Key: payload, UUID: "uuid-" + payload, Message: []byte(payload)}
		id, err := r.admin.XAdd(context.Background(), &redis.XAddArgs{Stream: r.stream, Values: e.Values()}).Result()
		require.NoError(r.t, err)
		ids[i] = id
	}
	return ids
}

// config is a quick configuration.
func (r *rig) config(consumer string, slots int) redispoll.ReaderConfig {
	return redispoll.ReaderConfig{
		Stream: r.stream, Group: group, Consumer: consumer, Slots: slots,
		PollInterval: 20 * time.Millisecond, FirstPoll: time.Millisecond, MinIdle: time.Minute,
		AckInterval: 2 * time.Millisecond, MaxRedeliveries: 3,
		Redelivery: pipeline.Backoff{First: 5 * time.Millisecond, Max: 10 * time.Millisecond},
	}
}

// reader starts a reader that is drained at the end of the test.
func (r *rig) reader(c redis.UniversalClient, cfg redispoll.ReaderConfig, h redispoll.Hooks, m *redispoll.Metrics) (*redispoll.Reader, chan *message.Message) {
	r.t.Helper()
	out := make(chan *message.Message)
	rd := redispoll.NewReader(c, cfg, out, h, logger(r.t), m)
	rd.Start()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = rd.Drain(ctx) // a test may have left messages in hand
		<-rd.Done()
	})
	return rd, out
}

func (r *rig) pending() []redis.XPendingExt {
	r.t.Helper()
	p, err := r.admin.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: r.stream, Group: group, Start: "-", End: "+", Count: 1000}).Result()
	require.NoError(r.t, err)
	return p
}

func (r *rig) consumers() (names []string) {
	r.t.Helper()
	cs, err := r.admin.XInfoConsumers(context.Background(), r.stream, group).Result()
	require.NoError(r.t, err)
	for _, c := range cs {
		names = append(names, c.Name)
	}
	return names
}

func (r *rig) nothingPending() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return len(r.pending()) == 0 }, patience, tick, "entries stay pending")
}

// receive returns the next message, or fails.
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

// handler runs every message on a goroutine of its own, as Watermill's Router does, and counts runs.
type handler struct {
	mu   sync.Mutex
	runs map[string]int
	wg   sync.WaitGroup
	quit chan struct{}
}

// handle starts handling what comes out; f nil acks. It ends with the test.
func handle(t *testing.T, out <-chan *message.Message, f func(*message.Message) bool) *handler {
	t.Helper()
	h := &handler{runs: map[string]int{}, quit: make(chan struct{})}
	h.wg.Go(func() {
		for {
			select {
			case m, ok := <-out:
				if !ok {
					return
				}
				h.wg.Go(func() { h.one(m, f) })
			case <-h.quit:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(h.quit)
		h.wg.Wait()
	})
	return h
}

func (h *handler) one(m *message.Message, f func(*message.Message) bool) {
	h.mu.Lock()
	h.runs[string(m.Payload)]++
	h.mu.Unlock()
	if f == nil || f(m) {
		m.Ack()
	} else {
		m.Nack()
	}
}

func (h *handler) handled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs)
}

// repeated returns the payloads that ran more than once.
func (h *handler) repeated() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	for p, n := range h.runs {
		if n > 1 {
			out[p] = n
		}
	}
	return out
}

func (h *handler) waitFor(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return h.handled() >= n }, 3*patience, tick, "not all messages were handled")
}

func TestReaderHandsOverAndAcks(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 3)
		c := s.client(t)
		rd, out := r.reader(c, r.config("c", 1), redispoll.Hooks{}, nil)
		for i := range 3 {
			m := receive(t, out)
			require.Equal(t, fmt.Sprint(i), string(m.Payload))
			require.Equal(t, fmt.Sprintf("uuid-%d", i), m.UUID)
			require.Equal(t, pipeline.Origin{Kind: "redis-stream", Name: r.stream, Group: group, Key: fmt.Sprint(i), EntryID: ids[i], Delivered: 1}, pipeline.OriginFrom(m.Context()))
			label, _ := pprof.Label(m.Context(), "stream")
			require.Equal(t, r.stream, label)
			label, _ = pprof.Label(m.Context(), "slot")
			require.Equal(t, "0", label)
			require.NoError(t, m.Context().Err())
			m.Ack()
			<-m.Context().Done()
		}
		r.nothingPending()
		require.Eventually(t, func() bool { return rd.Stats().Acked == 3 }, patience, tick)
		st := rd.Stats()
		require.EqualValues(t, 3, st.Read)
		require.Zero(t, st.InHand)
		require.WithinDuration(t, time.Now(), st.LastMessage, patience)
		require.WithinDuration(t, time.Now(), st.StartedAt, patience)
	})
}

// The slots are the bound of what is in hand, and no more than a batch is read ahead of them.
func TestReaderReadsOnlyForFreeSlots(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 100)
		cfg := r.config("c", 4)
		cfg.Batch = 10
		rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, nil)
		var inHand, most atomic.Int64
		release := make(chan struct{})
		h := handle(t, out, func(*message.Message) bool {
			n := inHand.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-release
			inHand.Add(-1)
			return true
		})
		done := sync.OnceFunc(func() { close(release) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return inHand.Load() == 4 }, patience, tick)
		require.Equal(t, 6, rd.Stats().Buffered)
		require.Len(t, r.pending(), 10)
		require.Equal(t, 4, rd.Free(), "the places of one batch, less what is buffered")
		done()
		h.waitFor(t, 100)
		require.LessOrEqual(t, most.Load(), int64(4))
		require.Empty(t, h.repeated())
		r.nothingPending()
	})
}

func TestReaderCoalescesAcks(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		const n = 1000
		r.add(0, n)
		c := s.client(t)
		log := watch(c)
		cfg := r.config("c", 32)
		cfg.Batch, cfg.AckCount, cfg.AckInterval = 100, 100, 50*time.Millisecond
		rd, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		h := handle(t, out, nil)
		h.waitFor(t, n)
		require.NoError(t, rd.Drain(t.Context()), "the last acks are flushed by Drain")
		require.Empty(t, r.pending())
		require.EqualValues(t, n, rd.Stats().Acked)
		require.Less(t, log.count("xack"), n/10)
	})
}

func TestPausedReaderSendsNothing(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 5)
		c := s.client(t)
		log := watch(c)
		rd, out := r.reader(c, r.config("c", 1), redispoll.Hooks{}, nil)
		first := receive(t, out)
		rd.SetPaused(true)
		reads := log.count("xreadgroup")
		first.Ack()
		for range 4 { // what was read goes on to the slots
			receive(t, out).Ack()
		}
		r.add(5, 1)
		require.Never(t, func() bool { return log.count("xreadgroup") > reads }, 200*time.Millisecond, tick, "a paused reader must not read")
		require.True(t, rd.Stats().Paused)
		rd.SetPaused(false)
		m := receive(t, out)
		require.Equal(t, "5", string(m.Payload))
		m.Ack()
	})
}

func TestClosedGateReadsNothing(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		c := s.client(t)
		log := watch(c)
		var open atomic.Bool
		cfg := r.config("c", 1)
		cfg.Gate = open.Load
		_, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		require.Never(t, func() bool { return log.total() > 0 }, 100*time.Millisecond, tick)
		open.Store(true)
		receive(t, out).Ack()
	})
}

func TestResize(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 20)
		rd, out := r.reader(s.client(t), r.config("c", 2), redispoll.Hooks{}, nil)
		var inHand atomic.Int64
		step := make(chan struct{})
		h := handle(t, out, func(*message.Message) bool {
			inHand.Add(1)
			<-step
			inHand.Add(-1)
			return true
		})
		done := sync.OnceFunc(func() { close(step) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return inHand.Load() == 2 }, patience, tick)
		rd.Resize(6)
		require.Eventually(t, func() bool { return inHand.Load() == 6 }, patience, tick)
		rd.Resize(1)
		for range 6 {
			step <- struct{}{}
		}
		require.Eventually(t, func() bool { return inHand.Load() == 1 }, patience, tick)
		require.Never(t, func() bool { return inHand.Load() > 1 }, 100*time.Millisecond, tick, "five slots should have ended")
		rd.Resize(3)
		done()
		h.waitFor(t, 20)
		require.Empty(t, h.repeated())
		require.Equal(t, 3, rd.Stats().Slots)
	})
}

func TestReadersShareAChannel(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		c := s.client(t)
		out := make(chan *message.Message)
		h := handle(t, out, nil)
		var readers []*redispoll.Reader
		for i := range 3 {
			r := newRig(t, s)
			r.add(i*10, 10)
			rd := redispoll.NewReader(c, r.config("c", 2), out, redispoll.Hooks{}, logger(t), nil)
			rd.Start()
			readers = append(readers, rd)
		}
		h.waitFor(t, 30)
		for _, rd := range readers {
			require.NoError(t, rd.Drain(t.Context()))
		}
		require.Empty(t, h.repeated())
	})
}

func TestReaderNeverBlocks(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		c := s.client(t)
		log := watch(c)
		stream := s.stream(t, c)
		pub, err := redispoll.NewPublisher(c, redispoll.PublisherConfig{})
		require.NoError(t, err)
		sub, err := redispoll.NewSubscriber(c, redispoll.SubscriberConfig{
			Group: group, ReclaimInterval: 10 * time.Millisecond,
			ReaderConfig: redispoll.ReaderConfig{Slots: 4, MinIdle: 100 * time.Millisecond, PollInterval: 10 * time.Millisecond, MaxRedeliveries: 1},
		})
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), stream)
		require.NoError(t, err)
		var n atomic.Int64
		h := handle(t, out, func(m *message.Message) bool {
			if n.Add(1)%3 == 0 {
				<-time.After(150 * time.Millisecond) // long enough to be kept alive
			}
			return n.Load()%2 == 0
		})
		for i := range 50 {
			require.NoError(t, pub.Publish(stream, message.NewMessage("", []byte(fmt.Sprint(i)))))
		}
		h.waitFor(t, 50)
		require.NoError(t, sub.Close())
		require.Empty(t, log.blocking())
		require.Positive(t, log.count("xreadgroup"), "the log must have seen the reads")
		require.Positive(t, log.count("xadd"))
	})
}

func TestNackedEntryIsDeliveredAgainThenLeftPending(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		for _, slots := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
				r := newRig(t, s)
				ids := r.add(0, 3)
				cfg := r.config("c", slots)
				cfg.MaxRedeliveries = 2
				_, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, nil)
				var mu sync.Mutex
				var delivered []int64
				h := handle(t, out, func(m *message.Message) bool {
					if string(m.Payload) != "0" {
						return true
					}
					mu.Lock()
					defer mu.Unlock()
					delivered = append(delivered, pipeline.OriginFrom(m.Context()).Delivered)
					return false
				})
				h.waitFor(t, 3)
				require.Eventually(t, func() bool { p := r.pending(); return len(p) == 1 && p[0].ID == ids[0] }, patience, tick)
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
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 4)
		_, out := r.reader(s.client(t), r.config("c", 1), redispoll.Hooks{}, nil)
		var order []string
		for range 6 {
			m := receive(t, out)
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
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		require.NoError(t, r.admin.XAdd(t.Context(), &redis.XAddArgs{Stream: r.stream, Values: []any{"foo", "bar"}}).Err())
		r.add(1, 1)
		_, out := r.reader(s.client(t), r.config("c", 1), redispoll.Hooks{}, nil)
		first, poison, last := receiveAck(t, out), receiveAck(t, out), receiveAck(t, out)
		require.NoError(t, redispoll.Malformed(first))
		require.Equal(t, "1", string(last.Payload))
		err := redispoll.Malformed(poison)
		require.Equal(t, err, pipeline.OriginFrom(poison.Context()).Malformed)
		require.True(t, pipeline.IsPermanent(err))
		require.Equal(t, "missing_message", pipeline.Class(err))
		require.Empty(t, poison.Payload)
		require.JSONEq(t, `{"foo":"bar"}`, poison.Metadata.Get(redispoll.MetaRawFields))
		r.nothingPending()
	})
}

func receiveAck(t *testing.T, out <-chan *message.Message) *message.Message {
	t.Helper()
	m := receive(t, out)
	m.Ack()
	return m
}
