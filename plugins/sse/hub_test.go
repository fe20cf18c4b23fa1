package sse_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

func TestTheResponseBeginsBeforeItsFirstEvent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		blocked := make(chan struct{})
		r.begin = func(context.Context, *sse.Client) error { <-blocked; return nil }
		s := r.open("")
		require.Equal(t, "text/event-stream", s.Header.Get("Content-Type"))
		require.Equal(t, "no-store, no-transform", s.Header.Get("Cache-Control"))
		require.Equal(t, "no", s.Header.Get("X-Accel-Buffering"))
		require.Empty(t, s.got())
		close(blocked)
		(<-r.joined).Close("done")
		require.NotZero(t, s.end())
		require.GreaterOrEqual(t, s.reader.Retry, time.Second)
		require.LessOrEqual(t, s.reader.Retry, 5*time.Second)
	})
}

func TestTheBacklogComesBeforeTheQueueAndClosedIsLast(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.begin = func(_ context.Context, c *sse.Client) error {
			require.True(t, c.Send(sse.Event{ID: "3", Name: "event", Data: []byte("three")}))
			return c.Write(sse.Event{ID: "1", Name: "event", Data: []byte("one")}, sse.Event{ID: "2", Name: "event", Data: []byte("two")})
		}
		c, s := r.connect()
		require.True(t, c.Send(sse.Event{ID: "4", Data: []byte("four")}))
		c.Close("done")
		c.Close("error")
		require.False(t, c.Send(sse.Event{ID: "5"}))
		require.Equal(t, []ssetest.Event{
			{ID: "1", Name: "event", Data: "one"}, {ID: "2", Name: "event", Data: "two"},
			{ID: "3", Name: "event", Data: "three"}, {ID: "4", Name: "message", Data: "four"},
			{ID: "4", Name: "closed", Data: `{"reason":"done"}`},
		}, s.got())
		require.NotZero(t, s.end())
	})
}

func TestALatestValueReplacesTheOneBefore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		blocked := make(chan struct{})
		var c *sse.Client
		r.begin = func(_ context.Context, client *sse.Client) error { c = client; <-blocked; return nil }
		s := r.open("")
		s.got()
		for _, data := range []string{"1", "2", "3"} {
			c.Latest("state", sse.Event{Name: "state", Data: []byte(data)})
		}
		c.Latest("position", sse.Event{Name: "position", Data: []byte("9")})
		require.True(t, c.Send(sse.Event{ID: "7", Name: "event", Data: []byte("e")}))
		close(blocked)
		require.Equal(t, []ssetest.Event{
			{ID: "7", Name: "event", Data: "e"}, {ID: "7", Name: "state", Data: "3"}, {ID: "7", Name: "position", Data: "9"},
		}, s.got())
	})
}

func TestALatestValueThatIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.begin = func(_ context.Context, c *sse.Client) error {
			c.Latest("position", sse.Event{Name: "position"})
			c.Latest("state", sse.Event{Name: "state"})
			c.Remove("position")
			c.Remove("position")
			require.True(t, c.Send(sse.Event{Name: "event"}))
			return nil
		}
		s := r.open("")
		require.Equal(t, []ssetest.Event{{Name: "event"}, {Name: "state"}}, s.got())
		(<-r.joined).Close("done")
		require.NotZero(t, s.end())
	})
}

func TestHeartbeatsAreSentEvery15Seconds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c, s := r.connect()
		time.Sleep(15 * time.Second)
		late, lateStream := r.connect()
		time.Sleep(150 * time.Second)
		c.Close("done")
		late.Close("done")
		require.NotZero(t, s.end())
		require.Equal(t, 11, s.reader.Heartbeats)
		require.NotZero(t, lateStream.end())
		require.Equal(t, 10, lateStream.reader.Heartbeats)
	})
}

// A client that does not read has a full queue before its write deadline.
func TestAFullClientIsDisconnectedAndNotWaitedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		data string
		most int
	}{"64 events": {"x", 64}, "256 KiB": {strings.Repeat("x", 64<<10), 4}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				stuck := r.hang()
				c, s := r.connect()
				begin, accepted := time.Now(), 0
				for stuck.Send(sse.Event{Data: []byte(tt.data)}) {
					accepted++
					require.True(t, c.Send(sse.Event{Data: []byte(tt.data)}))
					s.got()
				}
				require.LessOrEqual(t, accepted, tt.most)
				require.GreaterOrEqual(t, accepted, tt.most-1)
				require.Len(t, s.got(), accepted)
				require.Zero(t, time.Since(begin))
				time.Sleep(6 * time.Second)
				require.InDelta(t, 1, r.metric("closed_total", "slow"), 0)
				require.InDelta(t, 1, r.metric("connections", ""), 0)
			})
		})
	}
}

func TestACallerNeedNotWaitForAClientThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.hang()
		time.Sleep(time.Second) // nothing is being written
		for range 64 {
			require.True(t, c.HasCapacity(1, 1, 100*time.Millisecond))
			require.True(t, c.Send(sse.Event{Data: []byte("x")}))
			synctest.Wait()
		}
		require.False(t, c.HasCapacity(1, 1, 100*time.Millisecond))
		time.Sleep(99 * time.Millisecond)
		require.False(t, c.HasCapacity(1, 1, 100*time.Millisecond), "it may have been slow only")
		time.Sleep(time.Millisecond)
		require.False(t, c.HasCapacity(1, 1, 101*time.Millisecond), "its caller waits longer")
		require.True(t, c.HasCapacity(1, 1, 100*time.Millisecond))
		require.False(t, c.Send(sse.Event{Data: []byte("x")}))
	})
}

func TestAClientThatLeavesIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c, s := r.connect()
		s.cancel()
		require.NotZero(t, s.end())
		require.False(t, c.Send(sse.Event{}))
		require.InDelta(t, 1, r.metric("closed_total", "gone"), 0)
		require.Zero(t, r.metric("connections", ""))
	})
}
