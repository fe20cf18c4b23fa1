package joblog_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// rig is one domain that no other test uses.
type rig struct {
	t      testing.TB
	client goredis.UniversalClient
	server *redis.Server
	log    *joblog.Log
	domain string
}

func newRig(t testing.TB, s redistest.Server, change ...func(*joblog.Config)) *rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{s.Addr}
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	config := joblog.DefaultConfig()
	for _, f := range change {
		f(&config)
	}
	c := s.Client(t)
	return &rig{t: t, client: c, server: server, log: joblog.New(server, config, event.DefaultStages()), domain: redistest.Prefix(t, c)}
}

// entryID returns the id of a stream entry of that age.
func entryID(age time.Duration) string {
	return strconv.FormatInt(time.Now().Add(-age).UnixMilli(), 10) + "-0"
}

func (r *rig) event(job string, seq int64, stage string) event.Event {
	return event.Event{Domain: r.domain, JobID: job, Stage: stage, Seq: seq, StreamID: entryID(0)}
}

// append adds events of one job, and returns the outcomes.
func (r *rig) append(events ...event.Event) []joblog.Outcome {
	r.t.Helper()
	results := r.log.Append(context.Background(), r.domain, [][]event.Event{events})
	require.Len(r.t, results, 1)
	require.NoError(r.t, results[0].Err)
	outcomes := make([]joblog.Outcome, len(events))
	for i, a := range results[0].Answers {
		outcomes[i] = a.Outcome
	}
	return outcomes
}

// steps appends events of the stage step, each by itself.
func (r *rig) steps(job string, numbers ...int64) (outcomes []joblog.Outcome) {
	r.t.Helper()
	for _, n := range numbers {
		outcomes = append(outcomes, r.append(r.event(job, n, "step"))...)
	}
	return outcomes
}

func (r *rig) read(job string, after int64, limit int) joblog.Snapshot {
	r.t.Helper()
	s := r.log.Read(context.Background(), []joblog.Query{{Domain: r.domain, JobID: job, After: after, Limit: limit}})[0]
	require.NoError(r.t, s.Err)
	return s
}

func numbers(events []event.Event) (list []int64) {
	for _, e := range events {
		list = append(list, e.Seq)
	}
	return list
}

func newJob() string { return watermill.NewULID() }
