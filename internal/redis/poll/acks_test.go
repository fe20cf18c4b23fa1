package poll_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The true count of an entry that is left pending is written, if it is still ours and not deleted.
// Its idle time does not change.
func TestWhatIsLeftPendingHasItsTrueCount(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 3)
		cfg := r.config("c", 3)
		cfg.MaxRedeliveries, cfg.AckFlushInterval = 2, time.Hour // written at the drain
		rd, out := r.reader(s.Client(t), cfg, nil)
		h := redistest.Handle(t, out, func(*message.Message) bool { return false })
		h.WaitFor(t, 3)
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		require.Equal(t, map[string]int{"0": 3, "1": 3, "2": 3}, h.Repeated())
		for _, p := range r.Pending() {
			require.EqualValues(t, 1, p.RetryCount, "the server knows of one")
		}
		require.NoError(t, r.Client.XClaim(t.Context(), &goredis.XClaimArgs{Stream: r.Stream, Group: group, Consumer: "other", Messages: ids[1:2]}).Err())
		require.NoError(t, r.Client.XDel(t.Context(), r.Stream, ids[2]).Err())
		before := r.Pending()[0].Idle
		<-time.After(50 * time.Millisecond)
		require.NoError(t, rd.Drain(t.Context()))
		got := map[string]goredis.XPendingExt{}
		for _, p := range r.Pending() {
			got[p.ID] = p
		}
		require.Len(t, got, 3)
		require.EqualValues(t, 3, got[ids[0]].RetryCount)
		require.GreaterOrEqual(t, got[ids[0]].Idle, before+50*time.Millisecond, "that was no sign of life")
		require.Equal(t, "other", got[ids[1]].Consumer)
		require.EqualValues(t, 2, got[ids[1]].RetryCount)
		require.EqualValues(t, 1, got[ids[2]].RetryCount, "the evidence that it was deleted stays")
	})
}

// A count that can't be written yet is written later.
func TestCountsAreWrittenWhenTheServerIsBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		c := s.Client(t)
		log := redistest.Watch(c)
		var failed atomic.Int64
		log.FailSending(func(cmd goredis.Cmder) bool {
			return strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any(int64(2))) && failed.Add(1) <= 3
		})
		cfg := r.config("c", 1)
		cfg.MaxRedeliveries = 1
		_, out := r.reader(c, cfg, nil)
		redistest.Receive(t, out).Nack()
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { p := r.Pending(); return len(p) == 1 && p[0].RetryCount == 2 }, patience, tick)
		require.Greater(t, failed.Load(), int64(3))
	})
}

// Handlers go on failing and succeeding while counts are on their way: under the race detector, and
// with no count lost.
func TestCountsAreWrittenAmongAcks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 300)
		cfg := r.config("c", 16)
		cfg.MaxRedeliveries, cfg.AckFlushInterval = 1, time.Millisecond
		rd, out := r.reader(s.Client(t), cfg, nil)
		var n atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool { return n.Add(1)%2 == 0 })
		h.WaitFor(t, 300)
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		require.NoError(t, rd.Drain(t.Context()))
		left := r.Pending()
		require.NotEmpty(t, left)
		for _, p := range left {
			require.EqualValues(t, 2, p.RetryCount)
		}
	})
}

// Counts that can't be written at the end have a warning of their own: no acknowledgement was lost.
func TestCountsThatAreLostAtTheEndAreReportedApart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		c := s.Client(t)
		redistest.Watch(c).FailSending(func(cmd goredis.Cmder) bool {
			return strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any(int64(2)))
		})
		cfg := r.config("c", 1)
		cfg.MaxRedeliveries = 1
		var lines redistest.Lines
		out := make(chan *message.Message)
		rd := poll.NewReader(c, cfg, out, slog.New(slog.NewTextHandler(&lines, nil)), nil)
		rd.Start()
		redistest.Receive(t, out).Nack()
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		_ = rd.Drain(t.Context())
		<-rd.Done()
		require.Contains(t, lines.String(), "delivery counts lost at the end")
		require.NotContains(t, lines.String(), "acknowledgements lost")
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

func TestLostAckReplyIsNoDelivery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 20)
		c := s.Client(t)
		log := redistest.Watch(c)
		var acks atomic.Int64
		log.LoseReplies(func(cmd goredis.Cmder) bool { return cmd.Name() == "xack" && acks.Add(1) <= 3 })
		rd, out := r.reader(c, r.config("c", 4), nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, 20)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated())
		require.Greater(t, acks.Load(), int64(3))
	})
}

// The acknowledgement that comes last is sent until it is through, although everything else has
// ended.
func TestDrainFlushesTheLastAck(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		c := s.Client(t)
		log := redistest.Watch(c)
		for i := range 10 {
			r.Add(i, 1)
			rd, out := r.reader(c, r.config("c", 1), nil)
			m := redistest.Receive(t, out)
			var failed atomic.Bool
			log.FailSending(func(cmd goredis.Cmder) bool { return cmd.Name() == "xack" && failed.CompareAndSwap(false, true) })
			drained := make(chan error, 1)
			go func() { drained <- rd.Drain(context.Background()) }()
			m.Ack()
			require.NoError(t, <-drained)
			require.True(t, failed.Load())
			require.Empty(t, r.Pending())
		}
	})
}
