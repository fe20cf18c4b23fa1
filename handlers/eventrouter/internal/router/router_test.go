package router_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/router"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// rig is a router and one domain that no other test uses.
type rig struct {
	*router.Router
	t      testing.TB
	client goredis.UniversalClient
	domain string
	owned  bool
	added  int
}

func newRig(t testing.TB, s redistest.Server) *rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{s.Addr}
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	c := s.Client(t)
	r := &rig{t: t, client: c, domain: redistest.Prefix(t, c), owned: true}
	r.Router = &router.Router{
		Log: joblog.New(server, joblog.DefaultConfig(), event.DefaultStages()), Stages: event.DefaultStages(),
		Owned: func(context.Context) bool { return r.owned }, Metrics: router.NewMetrics(),
	}
	r.Metrics.Domain(r.domain, 2)
	return r
}

// entry returns the message of an entry of shard 1: job, stage and number.
func (r *rig) entry(job, stage string, seq int) *message.Message {
	payload := fmt.Sprintf(`{"job_id":%q,"stage":%q,"seq":"%d"}`, job, stage, seq)
	if seq == 0 {
		payload = fmt.Sprintf(`{"job_id":%q,"stage":%q}`, job, stage)
	}
	return r.message(payload)
}

func (r *rig) message(payload string) *message.Message {
	r.added++
	msg := message.NewMessage(watermill.NewULID(), []byte(payload))
	stream := r.domain + ":events:1"
	msg.SetContext(pipeline.WithDelivery(context.Background(), pipeline.Delivery{
		Origin:    pipeline.Origin{Kind: "redis-stream", Source: stream, Position: fmt.Sprintf("%s@%d-%d", stream, time.Now().UnixMilli(), r.added)},
		Delivered: 1,
	}))
	return msg
}

// handle returns the class of the error of each message, or "".
func (r *rig) handle(msgs ...*message.Message) (classes []string) {
	for _, result := range r.Handle(context.Background(), msgs) {
		classes = append(classes, pipeline.Class(result.Err))
	}
	return classes
}

// feed returns the events of the feed of shard 1: stage and number.
func (r *rig) feed() (list []string) {
	entries, err := r.client.XRange(context.Background(), joblog.FeedKey(r.domain, 1), "-", "+").Result()
	require.NoError(r.t, err)
	for _, entry := range entries {
		e, err := event.Decode([]byte(entry.Values[joblog.FeedField].(string)))
		require.NoError(r.t, err)
		require.Equal(r.t, r.domain, e.Domain)
		require.NotEmpty(r.t, e.StreamID)
		list = append(list, fmt.Sprint(e.Stage, e.Seq))
	}
	return list
}

func (r *rig) logged(job string) (list []string) {
	s := r.Log.Read(context.Background(), []joblog.Query{{Domain: r.domain, JobID: job, Limit: 100}})[0]
	require.NoError(r.t, s.Err)
	for _, e := range s.Events {
		list = append(list, fmt.Sprint(e.Stage, e.Seq))
	}
	return list
}

// count returns the value of a series of the domain: name without prefix, and labels after domain.
func (r *rig) count(name string, labels ...string) float64 {
	r.t.Helper()
	for _, c := range r.Metrics.Collectors() {
		vec := c.(*prometheus.CounterVec)
		one, err := vec.GetMetricWithLabelValues(append([]string{r.domain}, labels...)...)
		if err == nil && strings.Contains(one.Desc().String(), `"millrace_router_`+name+`"`) {
			return testutil.ToFloat64(one)
		}
	}
	require.Fail(r.t, "no such series", name)
	return 0
}

func TestEventsGoIntoLogAndFeed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.Equal(t, []string{"", "", "", "", ""}, r.handle(
			r.entry("a", "ocr", 1), r.entry("b", "ocr", 1), r.entry("a", "token", 0), r.entry("a", "ocr", 2), r.entry("b", "done", 2)))
		require.Equal(t, []string{"ocr1", "ocr1", "token0", "ocr2", "done2"}, r.feed(), "in the order of the stream")
		require.Equal(t, []string{"ocr1", "ocr2"}, r.logged("a"))
		require.Equal(t, []string{"ocr1", "done2"}, r.logged("b"))
		require.EqualValues(t, 5, r.count("processed_total", "1"))
		require.EqualValues(t, 5, r.count("published_total", "1"))
		require.Zero(t, r.count("processed_total", "0"))
		require.EqualValues(t, 2, r.count("state_updates_total"))
	})
}

// R5: the process ended between log and feed, and the entry is delivered again.
func TestADuplicateIsPublishedAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		first, second := r.entry("a", "ocr", 1), r.message(`{"job_id":"a","stage":"other","seq":1}`)
		require.Equal(t, []string{"", ""}, r.handle(first, first))
		require.Equal(t, []string{""}, r.handle(second))
		require.Equal(t, []string{"ocr1", "ocr1", "ocr1"}, r.feed(), "each time with the first content")
		require.EqualValues(t, 1, r.count("skipped_total", "1", "duplicate"))
		require.EqualValues(t, 1, r.count("skipped_total", "1", "conflict"))
		require.EqualValues(t, 1, r.count("state_updates_total"))
	})
}

func TestEventsAfterTheEndAreCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.Equal(t, []string{"", "", ""}, r.handle(r.entry("a", "done", 2), r.entry("a", "ocr", 3), r.entry("a", "ocr", 1)))
		require.Equal(t, []string{"done2", "ocr1"}, r.feed())
		require.EqualValues(t, 1, r.count("skipped_total", "1", "after_end"))
		require.EqualValues(t, 3, r.count("processed_total", "1"))
	})
}

// R21: a token that another owner may have shown is not shown again.
func TestTransientEventsOfAFormerOwner(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.owned = false
		require.Equal(t, []string{"", ""}, r.handle(r.entry("a", "token", 0), r.entry("a", "ocr", 1)))
		require.Equal(t, []string{"ocr1"}, r.feed())
		require.EqualValues(t, 1, r.count("skipped_total", "1", "stale_transient"))
	})
}

func TestABadEventStopsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.Equal(t, []string{event.ClassBadSeq, "", event.ClassMissingJobID}, r.handle(
			r.entry("a", "ocr", 0), r.entry("a", "ocr", 1), r.entry("", "ocr", 1)))
		require.Equal(t, []string{"ocr1"}, r.feed())
		require.EqualValues(t, 1, r.count("processed_total", "1"))
	})
}

func TestAJobThatFailsNacksItsOwnEvents(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.NoError(t, r.client.Set(t.Context(), joblog.LogKey(r.domain, "a"), "text", 0).Err())
		results := r.Handle(t.Context(), []*message.Message{r.entry("a", "ocr", 1), r.entry("b", "ocr", 1), r.entry("a", "ocr", 2)})
		require.ErrorContains(t, results[0].Err, "append to the log of job a")
		require.False(t, pipeline.IsPermanent(results[0].Err), "it is delivered again")
		require.NoError(t, results[1].Err)
		require.Error(t, results[2].Err)
		require.Equal(t, []string{"ocr1"}, r.feed())
		require.EqualValues(t, 1, r.count("processed_total", "1"))
	})
}

// R4 and the fourth point of the checklist: nothing is acknowledged that is not in the feed.
func TestAFeedThatFailsNacksWhatItDoesNotHave(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.handle(r.entry("a", "done", 1))
		require.NoError(t, r.client.Del(t.Context(), joblog.FeedKey(r.domain, 1)).Err())
		require.NoError(t, r.client.Set(t.Context(), joblog.FeedKey(r.domain, 1), "text", 0).Err())
		batch := []*message.Message{r.entry("b", "ocr", 1), r.entry("a", "ocr", 2), r.entry("b", "token", 0)}
		results := r.Handle(t.Context(), batch)
		require.ErrorContains(t, results[0].Err, "publish 2 events to the feed")
		require.False(t, pipeline.IsPermanent(results[0].Err))
		require.NoError(t, results[1].Err, "the feed does not get it")
		require.Error(t, results[2].Err)
		require.EqualValues(t, 1, r.count("publish_failures_total"))
		require.Equal(t, []string{"ocr1"}, r.logged("b"), "the log is written first")

		require.NoError(t, r.client.Del(t.Context(), joblog.FeedKey(r.domain, 1)).Err())
		r.owned = false // the second delivery
		require.Equal(t, []string{"", "", ""}, r.handle(batch...))
		require.Equal(t, []string{"ocr1"}, r.feed())
	})
}

// R9: while the server of the logs is unavailable, the routes read nothing and repeat nothing.
func TestAnUnavailableServerClosesTheGate(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		proxy := redistest.NewProxy(t, s.Addr)
		r := newRig(t, redistest.Server{Name: s.Name, Addr: proxy.Addr()})
		r.client = s.Client(t)
		require.NoError(t, r.client.Set(t.Context(), joblog.LogKey(r.domain, "b"), "text", 0).Err())
		require.Equal(t, []string{"error"}, r.handle(r.entry("b", "ocr", 1)))
		require.NoError(t, r.client.Set(t.Context(), joblog.FeedKey(r.domain, 1), "text", 0).Err())
		require.Equal(t, []string{"error"}, r.handle(r.entry("a", "token", 0)))
		require.True(t, r.Gate(), "the reason is one key")
		require.NoError(t, r.client.Del(t.Context(), joblog.FeedKey(r.domain, 1)).Err())
		proxy.SetDown(true)
		for _, stage := range []string{"ocr", "token"} {
			entry := r.entry("a", stage, 1)
			require.NotEqual(t, []string{""}, r.handle(entry))
			require.False(t, r.Gate())
			redistest.Eventually(t, "it opens for another try", r.Gate)
		}
		proxy.SetDown(false)
		require.Equal(t, []string{""}, r.handle(r.entry("a", "ocr", 2)))
		require.True(t, r.Gate())
		require.Equal(t, []string{"ocr2"}, r.feed())
	})
}

// An error that is not about one job closes the gate.
func TestRepliesThatCloseTheGate(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"LOADING Redis is loading the dataset in memory", "NOREPLICAS Not enough good replicas to write.",
		"MISCONF Redis is configured to save RDB snapshots. script: f, on @user_script:3.", "TRYAGAIN Multiple keys request during rehashing of slot",
		"BUSY Redis is busy running a script.", "OOM command not allowed when used memory > 'maxmemory'.", "NOPERM User can't run this command",
	} {
		mini := redistest.Mini(t)
		r := newRig(t, mini)
		mini.Mini.SetError(reply)
		require.NotEqual(t, []string{""}, r.handle(r.entry("a", "ocr", 1)), reply)
		require.False(t, r.Gate(), reply)
		mini.Mini.SetError("")
	}
}

func TestAScriptThatFailsIsAboutOneJob(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.NoError(t, r.client.HSet(t.Context(), joblog.StateKey(r.domain, "a"), "no", "text").Err())
		results := r.Handle(t.Context(), []*message.Message{r.entry("a", "ocr", 1)})
		require.ErrorContains(t, results[0].Err, "user_script")
		require.True(t, r.Gate())
	})
}

// The entry of a job that can't be stored becomes a dead letter at its last delivery. That of a
// server that can't be reached stays, however often it was delivered.
func TestTheDeliveriesOfAJobThatCanNotBeStoredAreLimited(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		proxy := redistest.NewProxy(t, s.Addr)
		r := newRig(t, redistest.Server{Name: s.Name, Addr: proxy.Addr()})
		r.MaxDeliveries = 5
		require.NoError(t, r.client.Set(t.Context(), joblog.LogKey(r.domain, "a"), "text", 0).Err())
		deliver := func(n, excused int64) error {
			msg := r.entry("a", "ocr", 1)
			d := pipeline.DeliveryFrom(msg.Context())
			d.Delivered, d.Excused = n, excused
			msg.SetContext(pipeline.WithDelivery(t.Context(), d))
			return r.Handle(t.Context(), []*message.Message{msg})[0].Err
		}
		for _, excused := range []int64{0, 10} {
			require.False(t, pipeline.IsPermanent(deliver(4+excused, excused)))
			err := deliver(5+excused, excused)
			require.True(t, pipeline.IsPermanent(err))
			require.Equal(t, pipeline.ClassDeliveryLimit, pipeline.Class(err))
			require.ErrorContains(t, err, "WRONGTYPE")
		}
		proxy.SetDown(true)
		err := deliver(100, 0)
		require.Error(t, err)
		require.False(t, pipeline.IsPermanent(err))
		require.False(t, r.Gate())
	})
}

// A server that does not answer delays the batch for less than the lease of the shard.
func TestAServerThatHangs(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		proxy := redistest.NewProxy(t, s.Addr)
		r := newRig(t, redistest.Server{Name: s.Name, Addr: proxy.Addr()})
		r.client = s.Client(t)
		require.Equal(t, []string{""}, r.handle(r.entry("a", "ocr", 1)))
		proxy.Mute()
		proxy.Cut()
		batch := []*message.Message{r.entry("a", "ocr", 2), r.entry("a", "token", 0)}
		still := redistest.StoodStill(t, 500*time.Millisecond) // a machine that stands still delays the batch, too
		begin := time.Now()
		results := r.Handle(t.Context(), batch)
		took, stall := time.Since(begin), still()
		require.Error(t, results[0].Err)
		require.Error(t, results[1].Err)
		require.Less(t, took-stall, 10*time.Second, "without a limit it takes 16 s; it stood still for %s", stall)
		require.False(t, r.Gate())
	})
}

// An event that nobody sees leaves a trace with which its producer finds it.
func TestDroppedEventsLeaveATrace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		var log pipelinetest.Buffer
		r.Logger = slog.New(slog.NewTextHandler(&log, nil))
		classes := r.handle(r.entry("a", "ocr", 1), r.entry("a", "ocr", 2), r.entry("a", "ocr", 2), r.entry("a", "vision", 2))
		require.Equal(t, []string{"", "", "", ""}, classes)
		require.Contains(t, log.String(), "the log has another event of its job with this number")
		require.Regexp(t, `domain=\S+ job=a seq=2 stage=vision .*stream_entry_id=[0-9]+-4 times=1`, log.String())
		require.Equal(t, 1, strings.Count(log.String(), "\n"), "a repetition is none: %s", &log)

		end := r.Handle(t.Context(), []*message.Message{r.entry("a", "done", 2)})[0].Err
		require.True(t, pipeline.IsPermanent(end))
		require.Equal(t, event.ClassSeqConflict, pipeline.Class(end))
		require.ErrorContains(t, end, "job a has another event with number 2")
		require.EqualValues(t, 2, r.count("skipped_total", "1", "conflict"))

		r.handle(r.entry("a", "done", 3), r.entry("a", "ocr", 4))
		require.Equal(t, []string{""}, r.handle(r.entry("a", "error", 3)), "the job has an end")
		require.EqualValues(t, 3, r.count("skipped_total", "1", "conflict"))
		require.Regexp(t, `its job has ended" domain=\S+ job=a seq=4 stage=ocr`, log.String())
		require.NoError(t, r.client.Del(t.Context(), joblog.LogKey(r.domain, "a")).Err())
		r.handle(r.entry("a", "ocr", 1))
		require.Regexp(t, `the log of its job has expired" domain=\S+ job=a seq=1 stage=ocr`, log.String())
	})
}
