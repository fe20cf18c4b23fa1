package poll_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestConnectionsCutUnderLoad(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		const n = 3000
		r.Add(0, n)
		p := redistest.NewProxy(t, s.Addr)
		cfg := r.config("c", 8)
		rd, out := r.reader(redistest.Server{Addr: p.Addr()}.Client(t), cfg, nil)
		var handled atomic.Int64
		h := redistest.Handle(t, out, func(*message.Message) bool {
			if handled.Add(1)%300 == 0 {
				p.Cut()
			}
			return true
		})
		h.WaitFor(t, n)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated(), "a reader that lives runs nothing twice")
	})
}

func TestServerUnavailableForAWhile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		p := redistest.NewProxy(t, s.Addr)
		m := poll.NewMetrics()
		rd, out := r.reader(redistest.Server{Addr: p.Addr()}.Client(t), r.config("c", 2), m)
		h := redistest.Handle(t, out, nil)
		r.Add(0, 5)
		h.WaitFor(t, 5)
		p.SetDown(true)
		r.Add(5, 5)
		require.Eventually(t, func() bool { return redistest.Metric(t, m, "read_errors_total") > 0 }, patience, tick)
		require.Equal(t, 5, h.Handled())
		p.SetDown(false)
		h.WaitFor(t, 10)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated())
	})
}

func TestAdopt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 4)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.Client(t)
		log := redistest.Watch(c)
		rd, out := r.reader(c, r.config("c", 2), nil)
		// The look at own pending entries at the start would take up what is claimed before it.
		require.Eventually(t, func() bool { return log.Count("xreadgroup") > 1 }, patience, tick)
		claim := func(ids ...string) []goredis.XMessage {
			ms, err := r.Client.XClaim(t.Context(), &goredis.XClaimArgs{Stream: r.Stream, Group: group, Consumer: "c", Messages: ids}).Result()
			require.NoError(t, err)
			return ms
		}
		var acked atomic.Int64
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[:3]...), map[string]int64{ids[0]: 7}, func() { acked.Add(1) }))
		first := redistest.Receive(t, out)
		second := redistest.Receive(t, out)
		if string(first.Payload) != "0" {
			first, second = second, first
		}
		require.EqualValues(t, 7, pipeline.DeliveryFrom(first.Context()).Delivered)
		require.EqualValues(t, 1, pipeline.DeliveryFrom(second.Context()).Delivered)
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[0]), nil, func() { acked.Add(1) }), "what is in flight is not run twice")
		first.Ack()
		second.Ack()
		require.Equal(t, "2", string(redistest.ReceiveAck(t, out).Payload))
		require.NoError(t, rd.Drain(t.Context()))
		require.EqualValues(t, 3, acked.Load(), "once each")

		require.ErrorIs(t, rd.Adopt(t.Context(), claim(ids[3]), nil, nil), poll.ErrStopped)
		p, err := r.Client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: r.Stream, Group: group, Idle: time.Minute, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		require.Len(t, p, 1, "a stopped reader releases what it is offered")
	})
}

func TestSubscriberReclaimsFromTheDead(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 35)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		// They are old on the server, so that what is claimed stays this reader's while the machine stands still.
		args := []any{"XCLAIM", r.Stream, group, "dead", 0}
		for _, id := range ids {
			args = append(args, id)
		}
		require.NoError(t, r.Client.Do(t.Context(), append(args, "IDLE", (2*time.Minute).Milliseconds(), "RETRYCOUNT", 1, "JUSTID")...).Err())
		m := poll.NewMetrics()
		_, out := r.subscriber(s.Client(t), time.Minute, 0, m)
		var wrong atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool {
			if pipeline.DeliveryFrom(m.Context()).Delivered != 2 {
				wrong.Add(1)
			}
			return true
		})
		h.WaitFor(t, 35)
		require.Empty(t, h.Repeated())
		require.Zero(t, wrong.Load())
		require.EqualValues(t, 35, redistest.Metric(t, m, "reclaimed_total"))
		require.Eventually(t, func() bool { return len(r.Consumers()) == 1 }, patience, tick, "the dead consumer stays: %s", fmt.Sprint(r.Consumers()))
	})
}
