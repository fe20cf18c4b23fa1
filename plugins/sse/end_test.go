package sse_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

func TestABeginThatFailsEndsTheStreamAsBusy(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.begin = func(_ context.Context, c *sse.Client) error {
			require.True(t, c.Send(sse.Event{ID: "9"}))
			return errors.New("redis unavailable")
		}
		s := r.open("")
		require.Equal(t, []ssetest.Event{{Name: "busy", Data: `{"reason":"unavailable"}`}}, s.got())
		require.NotZero(t, s.end())
		require.GreaterOrEqual(t, s.reader.Retry, 5*time.Second)
		require.InDelta(t, 1, r.metric("closed_total", "unavailable"), 0)
		require.Zero(t, r.metric("queue_events", ""))
	})
}

// The queue would have a hole before it.
func TestAnUnfinishedBacklogIsNotFollowedByTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.begin = func(ctx context.Context, c *sse.Client) error {
			require.NoError(t, c.Write(sse.Event{ID: "1"}))
			require.True(t, c.Send(sse.Event{ID: "3"}))
			c.Close("expired")
			<-ctx.Done()
			return c.Write(sse.Event{ID: "2"})
		}
		s := r.open("")
		require.Equal(t, []ssetest.Event{{ID: "1", Name: "message"}, {ID: "1", Name: "closed", Data: `{"reason":"expired"}`}}, s.got())
		require.InDelta(t, 1, r.metric("closed_total", "expired"), 0)
		require.Zero(t, r.metric("queue_events", ""))
	})
}

func TestAClientMayBeFullDuringItsBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		failed := make(chan error, 1)
		r.begin = func(_ context.Context, c *sse.Client) error {
			for c.Send(sse.Event{}) {
			}
			failed <- c.Write(sse.Event{ID: "1"})
			return nil
		}
		s := r.open("")
		require.Empty(t, s.got())
		require.NotZero(t, s.end())
		require.Error(t, <-failed)
		require.InDelta(t, 1, r.metric("closed_total", "slow"), 0)
	})
}

func TestAResponseThatCanNotBeStreamedIsRefused(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	sse.New().Hub("jobs").Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), func(context.Context, *sse.Client) error {
		t.Error("the stream began")
		return nil
	})
	require.Equal(t, http.StatusInternalServerError, w.Code)
}

// http2 makes the client of a rig use HTTP/2.
func (r *rig) http2() {
	transport, _ := r.client.Transport.(*http.Transport)
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetUnencryptedHTTP2(true)
}

// A write deadline that stays set ends an idle stream of HTTP/2.
func TestAnIdleStreamLivesOverHTTP2(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.http2()
		c, s := r.connect()
		require.Equal(t, 2, s.ProtoMajor)
		for range 3 {
			time.Sleep(14 * time.Second)
			require.True(t, c.Send(sse.Event{Data: []byte("x")}))
			s.got()
		}
		require.Len(t, s.got(), 3)
		require.Zero(t, s.end())
		c.Close("done")
		require.NotZero(t, s.end())
	})
}

func TestAClientThatStopsReadingOverHTTP2IsDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.http2()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://hub/", nil)
		require.NoError(t, err)
		resp, err := r.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		stuck := <-r.joined
		begin := time.Now()
		for sent := 0; stuck.Send(sse.Event{Data: make([]byte, 100<<10)}); sent++ {
			require.Less(t, sent, 1000)
			synctest.Wait()
		}
		require.Zero(t, time.Since(begin), "the queue was full before the deadline of the write")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.InDelta(t, 1, r.metric("closed_total", "slow"), 0)
		require.Zero(t, r.metric("connections", ""))
	})
}

// Streams end evenly over the window. A connection that hangs delays only itself.
func TestADrainEndsAllStreamsWithinItsWindow(t *testing.T) {
	for name, hang := range map[string]int{"all read": 0, "ten hang": 10} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				const window = 10 * time.Second
				streams := 10_000
				if testing.Short() {
					streams = 500
				}
				open := make([]*reading, streams)
				for i := range open {
					_, open[i] = r.connect()
				}
				for range hang {
					r.hang()
				}
				begin := time.Now()
				stopped := make(chan error, 1)
				go func() { stopped <- r.runtime.Stop(context.Background()) }()
				time.Sleep(window / 2)
				newcomer := r.open("")
				require.Equal(t, []ssetest.Event{{Name: "busy", Data: `{"reason":"draining"}`}}, newcomer.got())
				require.InDelta(t, 1, r.metric("refused_total", "draining"), 0)
				require.InDelta(t, streams/2, r.metric("closed_total", "draining"), float64(streams)/10)
				require.NoError(t, <-stopped)
				if took := time.Since(begin); hang == 0 {
					require.Less(t, took, window, "the drain waits for open streams only")
				} else {
					require.Equal(t, window, took)
				}
				for _, s := range open {
					require.Equal(t, []ssetest.Event{{Name: "closed", Data: `{"reason":"draining"}`}}, s.got())
					require.NotZero(t, s.end())
					require.LessOrEqual(t, s.end().Sub(begin), window*92/100)
				}
			})
		})
	}
}

// A process that is busy may come to its next step after the window. Each stream is told all the same, because an open
// one would delay the stop of the server.
func TestADrainThatIsLateEndsAllStreams(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.plugin.DrainOver(time.Millisecond) // less than a step
		for range 3 {
			r.connect()
		}
		require.NoError(t, r.runtime.Stop(context.Background()))
		synctest.Wait()
		require.InDelta(t, 3, r.metric("closed_total", "draining"), 0)
	})
}

func TestAWriteThatTakes5SecondsEndsTheStream(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.hang()
		require.True(t, c.Send(sse.Event{Data: []byte("x")}))
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		require.Zero(t, r.metric("closed_total", "slow"))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.InDelta(t, 1, r.metric("closed_total", "slow"), 0)
	})
}

// A random sender sees what a client may rely on: accepted events arrive once and in order, and the
// last of the latest values arrives.
func TestAcceptedEventsArriveOnceAndInOrder(t *testing.T) {
	for seed := range uint64(50) {
		bubble(t, func(t *testing.T, r *rig) {
			random := rand.New(rand.NewPCG(seed, 0))
			var want []string
			next := func() sse.Event {
				return sse.Event{ID: strconv.Itoa(len(want) + 1), Name: "event", Data: make([]byte, random.IntN(3000))}
			}
			r.begin = func(_ context.Context, c *sse.Client) error {
				for range random.IntN(100) {
					e := next()
					require.NoError(t, c.Write(e))
					want = append(want, e.ID)
				}
				return nil
			}
			c, s := r.connect()
			value, replaced := 0, 0
			for range random.IntN(40) {
				switch random.IntN(3) {
				case 0:
					for range random.IntN(40) {
						e := next()
						require.True(t, c.Send(e))
						want = append(want, e.ID)
					}
				case 1:
					for range random.IntN(4) {
						value++
						c.Latest("value", sse.Event{Name: "value", Data: []byte(strconv.Itoa(value))})
					}
				default:
					time.Sleep(time.Duration(random.IntN(20)) * time.Second)
				}
				s.got()
			}
			c.Close("done")
			var got []string
			last := 0
			for _, e := range s.got() {
				switch e.Name {
				case "event":
					got = append(got, e.ID)
				case "value":
					n, err := strconv.Atoi(e.Data)
					require.NoError(t, err)
					require.Greater(t, n, last)
					replaced += n - last - 1
					last = n
				}
			}
			require.Equal(t, value, last)
			require.True(t, slices.Equal(want, got), "seed %d: sent %v, got %v", seed, want, got)
			require.NotZero(t, s.end())
			require.Zero(t, r.metric("queue_events", ""))
			require.InDelta(t, replaced, r.metric("conflated_total", ""), 0)
			require.InDelta(t, len(want), r.metric("events_total", "queue")+r.metric("events_total", "backlog"), 0)
		})
	}
}

// Warnings of one hub hide none of another, because their causes differ.
func TestEachHubHasItsOwnWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log pipelinetest.Buffer
		r := newHubWithLog(t, slog.New(slog.NewTextHandler(&log, nil)))
		r.start()
		defer r.stop()
		for _, name := range []string{"jobs", "jobs", "room"} {
			r.hub = r.plugin.Hub(name)
			r.begin = func(context.Context, *sse.Client) error { return errors.New("no server of " + name) }
			require.NotZero(t, r.open("").end())
		}
		for _, name := range []string{"jobs", "room"} {
			require.Equal(t, 1, strings.Count(log.String(), fmt.Sprintf("msg=\"stream did not begin\" plugin=sse hub=%s error=\"no server of %[1]s\"", name)), log.String())
		}
	})
}
