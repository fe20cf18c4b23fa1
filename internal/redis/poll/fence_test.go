package poll_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// fenceRig is a reader of one worker with a fence that has read all entries of its stream, and
// another consumer.
type fenceRig struct {
	*rig
	*poll.Reader
	ids          []string
	out          chan *message.Message
	first        *message.Message // in flight
	fence, asked atomic.Int64
}

// onFence runs a test with a fenceRig of n entries on each server. The fence is open.
func onFence(t *testing.T, n int, test func(t *testing.T, r *fenceRig)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := &fenceRig{rig: newRig(t, s)}
		r.ids = r.Add(0, n)
		cfg := r.config("me-0", 1)
		cfg.MinIdle = time.Hour
		cfg.Fence = func() time.Time { r.asked.Add(1); return time.Unix(0, r.fence.Load()) }
		r.Reader, r.out = r.reader(s.Client(t), cfg, nil)
		r.first = r.next("0")
		require.Eventually(t, func() bool { return r.Stats().Read == int64(n) }, patience, tick)
		test(t, r)
	})
}

// next receives the next message, which must have this payload.
func (r *fenceRig) next(payload string, why ...any) *message.Message {
	r.T.Helper()
	m := redistest.Receive(r.T, r.out)
	require.Equal(r.T, payload, string(m.Payload), why...)
	return m
}

// claimed has the other consumer claim entries, and then puts the fence at now.
func (r *fenceRig) claimed(ids ...string) {
	r.T.Helper()
	require.NoError(r.T, r.Client.XClaim(r.T.Context(), &goredis.XClaimArgs{Stream: r.Stream, Group: group, Consumer: "other-0", Messages: ids}).Err())
	r.fence.Store(time.Now().UnixNano())
}

// held returns how many entries are pending to each consumer.
func (r *fenceRig) held() map[string]int64 {
	p, err := r.Client.XPending(r.T.Context(), r.Stream, group).Result()
	require.NoError(r.T, err)
	return p.Consumers
}

// An instance had no connection or was frozen. An entry that it had read before, and that another
// has claimed, is not started. An entry that is still its own is.
func TestNothingFromBeforeTheFenceIsStarted(t *testing.T) {
	onFence(t, 5, func(t *testing.T, r *fenceRig) {
		r.claimed(r.ids[1:4]...)
		r.first.Ack()
		r.next("4", "1 to 3 are another's").Ack()
		require.Eventually(t, func() bool { h := r.held(); return h["other-0"] == 3 && h["me-0"] == 0 }, patience, tick)
	})
}

// An acknowledgement of what was confirmed before the fence does not acknowledge what another has
// claimed meanwhile.
func TestAnOldAcknowledgementIsFenced(t *testing.T) {
	onFence(t, 1, func(t *testing.T, r *fenceRig) {
		r.claimed(r.ids...)
		r.first.Ack()
		end, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.NoError(t, r.Drain(end))
		require.Equal(t, map[string]int64{"other-0": 1}, r.held(), "it is another's to acknowledge")
	})
}

// An entry that was nacked before the fence is looked up again before its redelivery. While the
// fence is in the future, nothing is started or read.
func TestARedeliveryChecksTheFence(t *testing.T) {
	onFence(t, 2, func(t *testing.T, r *fenceRig) {
		r.claimed(r.ids[0])
		r.first.Nack()
		second := r.next("1", "the first is another's")
		r.fence.Store(time.Now().Add(time.Hour).UnixNano())
		r.Add(2, 1)
		second.Ack()
		seen := r.asked.Load()
		require.Eventually(t, func() bool { return r.asked.Load() > seen+5 }, patience, tick)
		select {
		case m := <-r.out:
			require.FailNow(t, "started behind the fence", string(m.Payload))
		default:
		}
		r.fence.Store(time.Now().UnixNano())
		r.next("2").Ack()
	})
}
