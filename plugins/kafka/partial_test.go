package kafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// copier is a route with HandleBatch whose outputs have the payload and the key of their message.
type copier struct{ route pipeline.Route }

func (copier) Name() string { return "copier" }

func (p copier) Register(r *pipeline.Registry) error {
	route := p.route
	route.Name = "copy"
	route.Flow = pipeline.Flow{Window: 16}
	route.Batch = pipeline.Batch{MaxRecords: 16, Linger: 100 * time.Millisecond}
	route.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
		results := make([]pipeline.BatchResult, len(msgs))
		for i, m := range msgs {
			results[i].Out = []*message.Message{m.Copy()}
		}
		return results
	}
	r.Route(route)
	return nil
}

// keyed returns messages whose payload is also their key.
func keyed(n int) []*message.Message {
	msgs := texts(numbered(n)...)
	for _, m := range msgs {
		m.Metadata.Set(pipeline.MetaKey, string(m.Payload))
	}
	return msgs
}

// One broker takes no records. The messages for the other one are published once and acked, also
// when they are in a batch with those that fail.
func TestABadPartitionFailsItsOwnRecordsOnly(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(cluster *kfake.Cluster, end <-chan struct{}) error{
		"it refuses": func(*kfake.Cluster, <-chan struct{}) error { return errors.New("down") },
		"it is slow": func(cluster *kfake.Cluster, end <-chan struct{}) error {
			cluster.SleepControl(func() { <-end })
			return errors.New("late")
		},
	} {
		t.Run(name+"/kfake", func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(2))
			require.NoError(t, err)
			t.Cleanup(cluster.Close)
			p := start(t, cluster.ListenAddrs())
			live, err := p.open(t.Context(), "out")
			require.NoError(t, err)
			live.publisher.config.PublishTimeout = 8 * time.Second // a machine may stand still while the good broker answers
			for partition := range int32(4) {                      // each broker leads two
				require.NoError(t, cluster.MoveTopicPartition("out", partition, partition%2))
			}
			require.NoError(t, live.client.RefreshMetadata("out"))
			bad, err := live.client.Leader("out", 0)
			require.NoError(t, err)
			ended := make(chan struct{})
			t.Cleanup(func() { close(ended) })
			cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				if cluster.CurrentNode() != bad.ID() {
					return nil, nil, false
				}
				return nil, answer(cluster, ended), true
			})
			durable := func() (n int) {
				for partition := range int32(4) {
					end, err := live.client.GetOffset("out", partition, sarama.OffsetNewest)
					require.NoError(t, err)
					n += int(end)
				}
				return n
			}
			msgs := keyed(16)
			partial, ok := errors.AsType[*pipeline.PartialError](p.Sink("out").Publish(t.Context(), msgs...))
			require.True(t, ok)
			healthy := durable()
			require.Positive(t, healthy)
			require.Len(t, partial.Failed, 16-healthy)

			feed := pipelinetest.NewFeed("in")
			feed.RedeliveryDelay = 50 * time.Millisecond
			pipelinetest.Start(t, copier{pipeline.Route{From: feed, To: p.Sink("out"), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")}}})
			feed.Send(msgs...)
			acked := 0
			for range 16 + len(partial.Failed) { // the failed ones again
				if s := <-feed.Settled(); s.Acked {
					acked++
				}
			}
			require.Equal(t, healthy, acked)
			require.Equal(t, 2*healthy, durable())
		})
	}
}

// A broker refuses a record whose time is too far from its own clock. The record is not lost, and the
// error says where to look.
func TestARefusedTimeNamesTheClock(t *testing.T) {
	t.Parallel()
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		p := start(t, realServer().brokers(t))
		topic := topicFor(t, p)
		live, err := p.connected()
		require.NoError(t, err)
		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		oldest := "1" // in milliseconds: as if this clock were slow
		require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{
			NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"message.timestamp.before.max.ms": &oldest},
		}, false))
		require.Eventually(t, func() bool { // a record may also arrive in time
			err = p.Sink(topic).Publish(t.Context(), texts("x")...)
			return err != nil
		}, 2*time.Minute, time.Millisecond)
		require.ErrorIs(t, err, sarama.ErrInvalidTimestamp)
		require.ErrorContains(t, err, "check the clock of this instance")
		require.Equal(t, classInvalidTimestamp, pipeline.Class(err))
		require.False(t, pipeline.IsPermanent(err), "it can be published once the clock is right")
	})
}

// A record without a key is invalid on a compacted topic. It becomes a dead letter, and each other
// record of its batch is published once.
func TestAnInvalidRecordFailsAlone(t *testing.T) {
	t.Parallel()
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		p := start(t, realServer().brokers(t))
		topic := topicFor(t, p)
		live, err := p.connected()
		require.NoError(t, err)
		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		compact := "compact"
		require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{
			NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"cleanup.policy": &compact},
		}, false))
		feed, dead := pipelinetest.NewFeed("in"), pipelinetest.NewRecorder("dead")
		pipelinetest.Start(t, copier{pipeline.Route{From: feed, To: p.Sink(topic), Policy: pipeline.Policy{DeadLetter: dead}}})
		msgs := keyed(16)
		delete(msgs[3].Metadata, pipeline.MetaKey)
		feed.Send(msgs...)
		for range msgs {
			require.True(t, (<-feed.Settled()).Acked)
		}
		require.Len(t, dead.Messages(), 1)
		require.Equal(t, string(msgs[3].Payload), string(dead.Messages()[0].Payload))
		require.Equal(t, classInvalidRecord, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
		end, err := live.client.GetOffset(topic, 0, sarama.OffsetNewest)
		require.NoError(t, err)
		require.EqualValues(t, 15, end)

		msgs[5].Payload = make([]byte, 2<<20)
		partial, ok := errors.AsType[*pipeline.PartialError](p.Sink(topic).Publish(t.Context(), msgs...))
		require.True(t, ok)
		require.Equal(t, "invalid_record too_large", fmt.Sprint(pipeline.Class(partial.Failed[3]), " ", pipeline.Class(partial.Failed[5])))
		require.Len(t, partial.Failed, 2)
	})
}
