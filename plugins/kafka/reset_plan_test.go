package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A route that has no group of Kafka is refused, and so is the one of a retry topic.
func TestARouteThatCantBeReset(t *testing.T) {
	t.Parallel()
	p := New()
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	drop := pipeline.Policy{DeadLetter: pipeline.Drop}
	withRetry := pipeline.Policy{DeadLetter: pipeline.Drop, Retry: pipeline.Retry{To: p.Sink("again"), From: p.Source("again", "g")}}
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, p, router{
		{Name: "orders", From: p.Source("orders", "g"), Handle: handle, Policy: withRetry},
		{Name: "news", From: p.Broadcast("news"), Handle: handle, Policy: drop},
		{Name: "jobs", From: stream{}, Handle: handle, Policy: drop},
	})
	require.NoError(t, err)
	for name, problem := range map[string]string{
		"order":        `no route has the name "order"; the routes are orders, orders.retry, news, jobs`,
		"orders.retry": "route orders.retry reads the retry topic again, where a record may be several times: reset the route that its records come from, or replay dead letters (deadletter replay)",
		"news":         "route news reads news on every instance without a consumer group, from the start of the instance on, so there is no commit to set",
		"jobs":         "which is no topic of Kafka: what its group has acknowledged may be removed, so there is no earlier place to go back to. Replay its dead letters",
	} {
		in := operate.Input{"route": {name}, "to": {"oldest"}}
		for _, act := range []func() (operate.Answer, error){
			func() (operate.Answer, error) { return p.resetAction().Preview(t.Context(), reg, in) },
			func() (operate.Answer, error) { return p.resetAction().Do(t.Context(), reg, in, operate.Use{}) },
		} {
			_, err := act()
			wrong := &operate.InputError{}
			require.ErrorAs(t, err, &wrong, name)
			require.Equal(t, "route", wrong.Field)
			require.Contains(t, wrong.Problem, problem)
		}
	}
}

// stream is a source of another kind.
type stream struct{}

func (stream) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "redis-stream", Name: "jobs", Group: "g"}
}
func (stream) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) { return nil, nil } //nolint:nilnil // it is not opened

// A place is read the same before anything is started.
func TestTheValueOfAPlace(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for text, want := range map[string]string{
		"2h": "2026-03-04T03:06:07Z", "2026-03-04T06:06:07+01:00": "2026-03-04T05:06:07Z", "oldest": "its oldest records", "newest": "its end",
		"7": "the given offsets", "0=7,3=9": "the given offsets",
	} {
		to, err := parsePlace(text, now)
		require.NoError(t, err, text)
		require.Equal(t, want, to.String())
	}
	for text, problem := range map[string]string{
		"":                     "must be a time such as 2026-03-04T05:06:07Z, an age such as 2h, oldest, newest, or offsets such as 0=120,1=95, got \"\"",
		"yesterday":            "must be a time such as",
		"-1h":                  "must not be in the future",
		"-1":                   "must be a time such as",
		"2026-03-04T05:06:08Z": "must not be in the future; newest skips what is in the topic now",
		"1969-03-04T05:06:08Z": "must be after 1970",
		"0=1,0=2":              "must have each partition once with its offset",
		"0=":                   "must have each partition once with its offset",
		"0=1,":                 "must have each partition once with its offset",
		"0=-1":                 "must have each partition once with its offset",
		"4294967296=1":         "must have each partition once with its offset",
	} {
		_, err := parsePlace(text, now)
		require.ErrorContains(t, err, problem, text)
		require.ErrorAs(t, err, new(*operate.InputError))
	}
	require.Error(t, New().resetAction().Check(operate.Input{"route": {"orders"}, "to": {"noon"}}))
}

// Deaths of processes belong to a record, so they stay with it. A commit of a topic that was deleted, or outside the log,
// is no place that the group would go on from.
func TestWhatAResetKeepsOfACommit(t *testing.T) {
	t.Parallel()
	id, other := topicID{1}, topicID{2}
	oldest, newest := &connection{}, &connection{config: Config{InitialOffset: "newest"}}
	for name, tt := range map[string]struct {
		c              *connection
		commit         progress
		committed      bool
		offset         int64
		again, skipped int64
		counts         map[int64]int
	}{
		"deaths":            {oldest, progress{base: 50, topic: id, owned: true, deaths: 2, counts: map[int64]int{50: 3, 70: 1}}, true, 60, 0, 10, map[int64]int{70: 1}},
		"done on both ends": {oldest, progress{base: 50, topic: id, done: doneBefore{55, 65}}, true, 60, 1, 9, nil},
		"deleted topic":     {newest, progress{base: 50, topic: other, done: doneBefore{55}, counts: map[int64]int{70: 1}}, true, 60, 0, 50, nil},
		"outside, oldest":   {oldest, progress{base: 5, topic: id}, true, 60, 0, 50, nil},
		"outside, newest":   {newest, progress{base: 105, topic: id}, true, 60, 40, 0, nil},
		"of a tool":         {oldest, progress{base: 50}, true, 50, 0, 0, nil},
		"none, newest":      {newest, progress{}, false, 60, 40, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := tt.c.resetOf(&partitionScan{partition: 3, offset: 10, end: 100}, tt.commit, tt.committed, id, tt.offset)
			require.Equal(t, []int64{tt.again, tt.skipped}, []int64{one.Again, one.Skipped})
			require.Equal(t, progress{base: tt.offset, topic: id, counts: tt.counts}, one.commit)
			require.Equal(t, tt.committed, one.Committed != nil)
			require.Equal(t, name != "of a tool", one.changed)
		})
	}
}
