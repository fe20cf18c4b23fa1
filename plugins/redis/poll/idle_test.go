package poll_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Promise 7: an idle stream costs one XREADGROUP a poll interval and instance, however many slots, and nothing else.
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

// Wake is for those who know that there is something.
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
