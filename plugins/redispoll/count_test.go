package redispoll_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Redeliveries here are written down when an entry is left pending: of what is still ours, of what is still there, and without
// a sign of life.
func TestWhatIsLeftPendingHasItsTrueCount(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 3)
		cfg := r.config("c", 3)
		cfg.MaxRedeliveries, cfg.AckInterval = 2, time.Hour // written at the drain
		rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, nil)
		h := handle(t, out, func(*message.Message) bool { return false })
		h.waitFor(t, 3)
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		require.Equal(t, map[string]int{"0": 3, "1": 3, "2": 3}, h.repeated())
		for _, p := range r.pending() {
			require.EqualValues(t, 1, p.RetryCount, "the server knows of one")
		}
		require.NoError(t, r.admin.XClaim(t.Context(), &redis.XClaimArgs{Stream: r.stream, Group: group, Consumer: "other", Messages: ids[1:2]}).Err())
		require.NoError(t, r.admin.XDel(t.Context(), r.stream, ids[2]).Err())
		before := r.pending()[0].Idle
		<-time.After(50 * time.Millisecond)
		require.NoError(t, rd.Drain(t.Context()))
		got := map[string]redis.XPendingExt{}
		for _, p := range r.pending() {
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
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		c := s.client(t)
		log := watch(c)
		var failed atomic.Int64
		log.failSending(func(cmd redis.Cmder) bool {
			return strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any(int64(2))) && failed.Add(1) <= 3
		})
		cfg := r.config("c", 1)
		cfg.MaxRedeliveries = 1
		_, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		receive(t, out).Nack()
		receive(t, out).Nack()
		require.Eventually(t, func() bool { p := r.pending(); return len(p) == 1 && p[0].RetryCount == 2 }, patience, tick)
		require.Greater(t, failed.Load(), int64(3))
	})
}

// Handlers go on failing and succeeding while counts are on their way: under the race detector, and with no count lost.
func TestCountsAreWrittenAmongAcks(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 300)
		cfg := r.config("c", 16)
		cfg.MaxRedeliveries, cfg.AckInterval = 1, time.Millisecond
		rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, nil)
		var n atomic.Int64
		h := handle(t, out, func(m *message.Message) bool { return n.Add(1)%2 == 0 })
		h.waitFor(t, 300)
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		require.NoError(t, rd.Drain(t.Context()))
		left := r.pending()
		require.NotEmpty(t, left)
		for _, p := range left {
			require.EqualValues(t, 2, p.RetryCount)
		}
	})
}

// Counts that can't be written at the end are told as such: no acknowledgement was lost.
func TestCountsThatAreLostAtTheEndAreToldApart(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		c := s.client(t)
		watch(c).failSending(func(cmd redis.Cmder) bool {
			return strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any(int64(2)))
		})
		cfg := r.config("c", 1)
		cfg.MaxRedeliveries = 1
		var lines syncBuffer
		out := make(chan *message.Message)
		rd := redispoll.NewReader(c, cfg, out, redispoll.Hooks{}, slog.New(slog.NewTextHandler(&lines, nil)), nil)
		rd.Start()
		receive(t, out).Nack()
		receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		_ = rd.Drain(t.Context())
		<-rd.Done()
		require.Contains(t, lines.String(), "delivery counts lost at the end")
		require.NotContains(t, lines.String(), "acknowledgements lost")
	})
}
