package kafka

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// creates is a process whose route needs two topics, and the recorder that it has.
type creates struct {
	p        *Plugin
	topic    string
	recorder *recorder
	reg      *pipeline.Registry
}

func creating(t *testing.T, brokers []string, adapt ...func(*Config)) *creates {
	t.Helper()
	c := &creates{topic: "kafka-test-" + watermill.NewShortUUID(), recorder: &recorder{}, p: start(t, brokers, adapt...)}
	route := pipeline.Route{Name: "orders", From: c.p.Source(c.topic, "g"), To: c.p.Sink(c.topic + "-bills")}
	route.Handle = func(*message.Message) ([]*message.Message, error) { return nil, nil }
	route.Policy = pipeline.Policy{DeadLetter: pipeline.Drop}
	var err error
	c.reg, err = pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, c.recorder, router{route})
	require.NoError(t, err)
	t.Cleanup(func() { deleteTopics(t, c.p, c.topic, c.topic+"-bills") })
	return c
}

func (c *creates) action() operate.Action { return c.p.Operations().Actions[0] }

func (c *creates) do(t *testing.T) (operate.Answer, topicsReport, error) {
	t.Helper()
	a, err := c.action().Do(t.Context(), c.reg, operate.Input{}, operate.Use{Who: "ann", Why: "ticket 7"})
	r, _ := a.Value.(topicsReport)
	return a, r, err
}

// existing returns which of the topics the cluster has.
func (c *creates) existing(t *testing.T) (names []string) {
	t.Helper()
	a, err := c.p.topics(c.reg, topicsReport{}, nil)
	require.NoError(t, err)
	for _, topic := range a.Value.(topicsReport).Topics {
		if topic.Exists {
			names = append(names, topic.Name)
		}
	}
	return names
}

// Each topic has its row with who and why before it exists. What changes nothing has none.
func TestATopicIsRecordedBeforeItIsCreated(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		c := creating(t, brokers)
		require.True(t, c.action().Audited)
		_, err := c.action().Preview(t.Context(), c.reg, operate.Input{})
		require.NoError(t, err)
		require.Empty(t, c.recorder.changes)

		c.recorder.on = func(change operate.Change) error {
			if change.Outcome == operate.OutcomeBegun {
				require.NotContains(t, c.existing(t), change.Subject, "the row comes before the effect")
			}
			return nil
		}
		a, r, err := c.do(t)
		require.NoError(t, err)
		require.Len(t, r.Created, 2)
		require.Empty(t, a.Notes)
		row := func(topic, outcome, detail string) operate.Change {
			return operate.Change{Who: "ann", Why: "ticket 7", Action: "create topic", Subject: topic, Outcome: outcome, Detail: detail}
		}
		const detail = "4 partitions, replication factor 1, max.message.bytes 2097152"
		require.Equal(t, []operate.Change{
			row(c.topic, "begun", detail), row(c.topic, "done", ""), row(c.topic+"-bills", "begun", detail), row(c.topic+"-bills", "done", ""),
		}, c.recorder.changes)
		require.Equal(t, []string{c.topic, c.topic + "-bills"}, c.existing(t))
		connections := func() []int { return []int{c.recorder.opened, c.recorder.closed, c.recorder.alone} }
		require.Equal(t, []int{1, 1, 0}, connections(), "all rows share a connection")

		_, r, err = c.do(t)
		require.NoError(t, err)
		require.Empty(t, r.Created)
		require.Len(t, c.recorder.changes, 4)
		require.Equal(t, []int{1, 1, 0}, connections(), "none is opened for no row")
	})
}

// The first topic that no audit takes ends the action, and is not created. Those before it were.
func TestATopicThatIsNotRecordedIsNotCreated(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		c := creating(t, brokers)
		c.recorder.on = func(change operate.Change) error {
			if change.Subject == c.topic {
				return nil
			}
			return fmt.Errorf("no answer: %w", pipeline.ErrUnavailable)
		}
		a, r, err := c.do(t)
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
		require.ErrorContains(t, err, "record the creation of topic "+c.topic+"-bills, so it was not created: no answer")
		require.True(t, a.Failed())
		require.Equal(t, []string{c.topic}, c.existing(t))
		require.Equal(t, c.topic, r.Created[0].Name)
		require.Equal(t, c.topic+"-bills", r.Failed[0].Name)
	})
}

// A topic that the cluster refuses has a second row, which says so.
func TestATopicThatIsRefusedIsRecordedAsFailed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		c := creating(t, brokers, func(c *Config) { c.ReplicationFactor = 9 })
		c.recorder.on = func(change operate.Change) error {
			if change.Outcome == "failed" && change.Subject == c.topic {
				return errors.New("disk full")
			}
			return nil
		}
		_, r, err := c.do(t)
		require.EqualError(t, err, "disk full", "a row is missing")
		require.Len(t, r.Failed, 2, "the other topic was tried as well")
		require.Contains(t, r.Failed[0].Error, "disk full")
		require.Len(t, c.recorder.changes, 4)
		require.Equal(t, []string{"begun", "failed", "begun", "failed"}, []string{
			c.recorder.changes[0].Outcome, c.recorder.changes[1].Outcome, c.recorder.changes[2].Outcome, c.recorder.changes[3].Outcome,
		})
		require.Contains(t, c.recorder.changes[3].Detail, "create: ")
	})
}
