package poll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Promise 7: an idle stream costs one XREADGROUP per poll interval and instance, with any number of
// workers, and nothing else.
func TestIdleStreamCostsOneReadAPollInterval(t *testing.T) {
	for _, concurrency := range []int{1, 32} {
		synctest.Test(t, func(t *testing.T) {
			s := &redistest.EmptyServer{}
			c := s.Client()
			const interval = 5 * time.Second
			rd := poll.NewReader(c, poll.Options{
				Config: poll.Config{Concurrency: concurrency, PollInterval: interval, InitialPollInterval: 5 * time.Millisecond},
				Stream: "s", Group: group, Consumer: "c",
			}, make(chan *message.Message), nil, nil)
			rd.Start()
			time.Sleep(2 * interval) // the back-off reaches the poll interval
			synctest.Wait()
			require.EqualValues(t, 1, s.Own.Load())
			backOff := s.Reads.Load()
			require.LessOrEqual(t, backOff, int64(15), "5ms doubled to 5s")

			for range 100 { // in every window, not only on average
				before := s.Reads.Load()
				time.Sleep(36 * time.Second)
				synctest.Wait()
				require.LessOrEqual(t, s.Reads.Load()-before, int64(8), "36s hold at most eight starts of 5s")
			}
			reads := s.Reads.Load() - backOff
			require.LessOrEqual(t, reads, int64(720), "more than one read a poll interval")
			require.Greater(t, reads, int64(640), "jitter only lengthens, by a tenth at most")
			require.Zero(t, s.Other.Load(), "commands other than reads")

			require.NoError(t, rd.Drain(t.Context()))
			require.NoError(t, c.Close())
			s.Wait()
		})
	}
}

// unavailable is a hook for which no server answers. It counts the commands of a poller.
type unavailable struct{ reads atomic.Int64 }

func (*unavailable) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (u *unavailable) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if name := cmd.Name(); (name == "xreadgroup" || name == "xpending") && u.reads.Add(1) > 1000 {
			<-ctx.Done() // without a back-off the time would never pass
		}
		cmd.SetErr(syscall.ECONNREFUSED)
		return syscall.ECONNREFUSED
	}
}

func (u *unavailable) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// An unavailable server gets one read per back-off: the search that follows a failed read does not
// end the wait before it.
func TestReadsOfAnUnavailableServerBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := &redistest.EmptyServer{}, &unavailable{}
		c := s.Client()
		c.AddHook(u)
		rd := poll.NewReader(c, poll.Options{
			Config: poll.Config{PollInterval: time.Hour, InitialPollInterval: 5 * time.Millisecond}, Stream: "s", Group: group, Consumer: "c",
		}, make(chan *message.Message), nil, nil)
		rd.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, u.reads.Load(), int64(8), "it continues to try")
		require.LessOrEqual(t, u.reads.Load(), int64(40), "100 ms doubled to 5 s, with jitter")
		require.NoError(t, rd.Drain(t.Context()))
		require.NoError(t, c.Close())
		s.Wait()
	})
}

// The caller of Wake expects an entry.
func TestWakePollsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &redistest.EmptyServer{}
		c := s.Client()
		rd := poll.NewReader(c, poll.Options{
			Config: poll.Config{PollInterval: time.Hour, InitialPollInterval: time.Hour}, Stream: "s", Group: group, Consumer: "c",
		},
			make(chan *message.Message), nil, nil)
		rd.Start()
		synctest.Wait()
		before := s.Reads.Load()
		rd.Wake()
		synctest.Wait()
		require.Equal(t, before+1, s.Reads.Load())
		require.NoError(t, rd.Drain(t.Context()))
		require.NoError(t, c.Close())
		s.Wait()
	})
}

// The slots are the bound of what is in flight, and no more than a batch is read ahead of them.
func TestReaderReadsOnlyForFreeWorkers(t *testing.T) {
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
		// One read may have been under way. Without the pause there are ten.
		require.Never(t, func() bool { return log.Count("xreadgroup") > reads+1 }, 200*time.Millisecond, tick, "a paused reader must not read")
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

// A consumer that comes back takes up at once what it had.
func TestOwnPendingEntriesAreTakenUpAtStart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 25)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Count: 23, Block: -1}).Result()
		require.NoError(t, err)
		rd, out := r.reader(s.Client(t), r.config("c", 4), nil)
		var wrong atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool {
			old := len(m.Payload) == 1 || string(m.Payload) < "23"
			if d := pipeline.DeliveryFrom(m.Context()).Delivered; old != (d == 2) {
				wrong.Add(1)
			}
			return true
		})
		h.WaitFor(t, 25)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, h.Repeated())
		require.Zero(t, wrong.Load(), "delivery counts")
		require.Empty(t, r.Pending())
	})
}

// A server that refuses for a while (it loads its data, it is a replica) is queried again for the
// entries of an earlier process.
func TestOwnPendingEntriesAreTakenUpWhenTheServerAnswers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 3)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.Client(t)
		log := redistest.Watch(c)
		var refused atomic.Int64
		log.Refuse(func(cmd goredis.Cmder) bool {
			return cmd.Name() == "xpending" && refused.Add(1) <= 2
		})
		_, out := r.reader(c, r.config("c", 4), nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, 3)
		r.NothingPending()
		require.Empty(t, h.Repeated())
	})
}

// The server assigned entries to this consumer, and the reply was lost: no other consumer handles
// them.
func TestLostReplyIsReadAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 40)
		c := s.Client(t)
		log := redistest.Watch(c)
		var reads atomic.Int64
		log.LoseReplies(func(cmd goredis.Cmder) bool {
			return cmd.Name() == "xreadgroup" && reads.Add(1)%3 == 0
		})
		cfg := r.config("c", 4)
		cfg.BatchSize = 5
		_, out := r.reader(c, cfg, nil)
		h := redistest.Handle(t, out, func(*message.Message) bool {
			<-time.After(5 * time.Millisecond) // so that entries are in flight
			return true
		})
		h.WaitFor(t, 40)
		log.LoseReplies(nil)
		r.NothingPending()
		require.Empty(t, h.Repeated(), "run twice")
	})
}

// A search after a lost reply is no delivery: neither of the lost entries nor of those in flight or
// left pending.
func TestLookingAgainIsNoDelivery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		c := s.Client(t)
		log := redistest.Watch(c)
		cfg := r.config("c", 3)
		cfg.MaxRedeliveries = 0
		rd, out := r.reader(c, cfg, nil)
		r.Add(0, 1)
		inFlight := redistest.Receive(t, out)
		r.Add(1, 1)
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 1 }, patience, tick)
		var lose atomic.Bool
		log.LoseReplies(func(cmd goredis.Cmder) bool { return cmd.Name() == "xreadgroup" && lose.CompareAndSwap(true, false) })
		var m *message.Message
		for i := range 3 {
			if m != nil {
				m.Ack()
			}
			lose.Store(true)
			r.Add(2+i, 1)
			m = redistest.Receive(t, out)
			require.Equal(t, fmt.Sprint(2+i), string(m.Payload))
			require.False(t, lose.Load())
			require.EqualValues(t, 1, pipeline.DeliveryFrom(m.Context()).Delivered)
		}
		require.Eventually(t, func() bool { return len(r.Pending()) == 3 }, patience, tick)
		for _, p := range r.Pending() {
			require.EqualValues(t, 1, p.RetryCount)
		}
		inFlight.Ack()
		m.Ack()
	})
}

// A search does not take in an entry that was left pending after its nacks: that would be a loop.
func TestReReadLeavesAloneWhatWasLeftPending(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		c := s.Client(t)
		log := redistest.Watch(c)
		cfg := r.config("c", 2)
		cfg.MaxRedeliveries = 0
		var armed, lost atomic.Bool // checked per reply
		log.LoseReplies(func(cmd goredis.Cmder) bool {
			return armed.Load() && cmd.Name() == "xreadgroup" && lost.CompareAndSwap(false, true)
		})
		rd, out := r.reader(c, cfg, nil)
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		armed.Store(true)
		r.Add(1, 1)
		m := redistest.Receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		require.True(t, lost.Load())
		m.Ack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		require.EqualValues(t, 2, rd.Stats().Read, "the entry that was left came in again")
		require.Len(t, r.Pending(), 1)
	})
}

// A first start creates the streams of a domain, which is no news. A stream that was there and is gone is.
func TestTheLogOfAnAbsentStream(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
		o := r.config("c", 1)
		o.Absent = func(ctx context.Context) (bool, error) {
			return true, r.Client.XGroupCreateMkStream(ctx, r.Stream, group, "0").Err()
		}
		var log pipelinetest.Buffer
		out := make(chan *message.Message)
		rd := poll.NewReader(s.Client(t), o, out, slog.New(slog.NewTextHandler(&log, nil)), nil)
		rd.Start()
		h := redistest.Handle(t, out, nil)
		exists := func() bool { return r.Client.Exists(t.Context(), r.Stream).Val() == 1 }
		require.Eventually(t, exists, patience, tick)
		r.Add(0, 1)
		h.WaitFor(t, 1)
		require.NotContains(t, log.String(), "did not exist")
		require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
		require.Eventually(t, func() bool { return strings.Contains(log.String(), "stream did not exist and was created again") }, patience, tick)
		require.NoError(t, rd.Drain(t.Context()))
		<-rd.Done()
	})
}

func TestAbsentStream(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Run("is made again and read from its beginning", func(t *testing.T) {
			r := newRig(t, s)
			var asked atomic.Int64
			o := r.config("c", 2)
			o.Absent = func(ctx context.Context) (bool, error) {
				if asked.Add(1) == 1 {
					return false, errors.New("the owner has no answer yet")
				}
				return true, r.Client.XGroupCreateMkStream(ctx, r.Stream, group, "0").Err()
			}
			_, out := r.reader(s.Client(t), o, nil)
			h := redistest.Handle(t, out, nil)
			r.Add(0, 1)
			h.WaitFor(t, 1)
			require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
			// Without its group, as a producer would make it again.
			require.NoError(t, r.Client.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.Stream, Values: entry.Entry{Message: []byte("after")}.Values()}).Err())
			h.WaitFor(t, 2)
			require.EqualValues(t, 2, asked.Load())
			r.NothingPending()
		})
		t.Run("stops quietly when it is not wanted", func(t *testing.T) {
			r := newRig(t, s)
			r.Add(0, 3)
			cfg := r.config("c", 1)
			cfg.Absent = func(context.Context) (bool, error) { return false, nil }
			rd, out := r.reader(s.Client(t), cfg, nil)
			inFlight := redistest.Receive(t, out)
			require.Eventually(t, func() bool { return rd.Stats().Buffered == 2 }, patience, tick)
			require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
			inFlight.Ack() // frees its worker
			for range 2 {
				select {
				case m := <-out:
					m.Ack()
				case <-rd.Done():
				}
			}
			select {
			case <-rd.Done():
			case <-time.After(patience):
				require.FailNow(t, "it does not stop")
			}
			require.Zero(t, rd.Stats().InFlight)
			n, err := r.Client.Exists(t.Context(), r.Stream).Result()
			require.NoError(t, err)
			require.Zero(t, n, "the stream must not come back")
			require.NoError(t, rd.Drain(t.Context()))
		})
	})
}

// A group that was made again at 0 gives out again what is in flight: it must not run twice.
func TestRecreatedGroupDoesNotRunTwiceWhatIsInFlight(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		o := r.config("c", 2)
		o.Absent = func(ctx context.Context) (bool, error) {
			return true, r.Client.XGroupCreateMkStream(ctx, r.Stream, group, "0").Err()
		}
		_, out := r.reader(s.Client(t), o, nil)
		inFlight := redistest.Receive(t, out)
		require.NoError(t, r.Client.XGroupDestroy(t.Context(), r.Stream, group).Err())
		require.Eventually(t, func() bool {
			p, err := r.Client.XPending(t.Context(), r.Stream, group).Result()
			return err == nil && p.Count == 1
		}, patience, tick, "the new group must have given it out")
		r.Add(1, 1)
		m := redistest.Receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		m.Ack()
		inFlight.Ack()
		r.NothingPending()
	})
}

func TestDeletedPendingEntriesAreCountedAndCleared(t *testing.T) {
	// miniredis hides deleted entries from the lists of what is pending.
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 3)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		require.NoError(t, r.Client.XDel(t.Context(), r.Stream, ids[1]).Err())
		m := poll.NewMetrics()
		_, out := r.reader(s.Client(t), r.config("c", 1), m)
		require.Equal(t, "0", string(redistest.ReceiveAck(t, out).Payload))
		require.Equal(t, "2", string(redistest.ReceiveAck(t, out).Payload))
		r.NothingPending()
		require.EqualValues(t, 1, redistest.Metric(t, m, "deleted_pending_total"))
	})
}
