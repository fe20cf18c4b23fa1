package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

const newPartitions = 8 // of the topics in these tests

// fill appends n records to each partition of topic, with payloads that begin with word.
func fill(t *testing.T, p *Plugin, topic, word string, n int) {
	t.Helper()
	conf, err := producerConfig(p.config, nil)
	require.NoError(t, err)
	conf.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer(p.config.Brokers, conf)
	require.NoError(t, err)
	var records []*sarama.ProducerMessage
	for partition := range int32(newPartitions) {
		for i := range n {
			text := fmt.Sprintf("%s %d/%d", word, partition, i)
			records = append(records, &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(text)})
		}
	}
	require.NoError(t, producer.SendMessages(records))
	require.NoError(t, producer.Close())
}

// recreate deletes topic and creates it again, with n records in each partition.
func recreate(t *testing.T, p *Plugin, topic, word string, n int) {
	t.Helper()
	deleteTopics(t, p, topic)
	live, err := p.connected()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		described, err := live.describe(topic)
		return err == nil && described[topic].Err == sarama.ErrUnknownTopicOrPartition
	}, 2*time.Minute, 10*time.Millisecond)
	live.drop(topic)
	require.NoError(t, p.ensureTopics(t.Context(), topic))
	fill(t, p, topic, word, n)
}

// fetched counts the different records of a word that have arrived.
func (w *work) fetched(word string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for text := range w.runs {
		if strings.HasPrefix(text, word) {
			n++
		}
	}
	return n
}

// heldClient is a client that waits before it refreshes the metadata, while it is told to.
type heldClient struct {
	sarama.Client
	on      atomic.Bool
	reached chan struct{} // a token when somebody waits
	release chan struct{}
}

func (h *heldClient) RefreshMetadata(topics ...string) error {
	if h.on.Load() {
		select {
		case h.reached <- struct{}{}:
		default:
		}
		<-h.release
	}
	return h.Client.RefreshMetadata(topics...)
}

// A reader sees that its topic is away, and looks again when the new one is longer than its
// position.
func TestATopicCreatedAgainLosesNoRecord(t *testing.T) {
	t.Parallel()
	for name, adapt := range map[string]func(*Config){
		"oldest":      func(*Config) {},
		"newest":      func(c *Config) { c.InitialOffset = "newest" },
		"cooperative": balancedBy(balanceCooperative),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				p := start(t, brokers, func(c *Config) { c.Partitions = newPartitions }, adapt)
				topic := topicFor(t, p)
				require.NoError(t, p.ensureTopics(t.Context(), topic))
				s, client, w := readHeld(t, p, topic)
				require.Eventually(t, func() bool { return len(s.live()) == newPartitions }, 2*time.Minute, 10*time.Millisecond)
				fill(t, p, topic, "old", 15)
				w.waitFor(t, 15*newPartitions)

				client.on.Store(true)
				deleteTopics(t, p, topic)
				<-client.reached // a fetch was refused
				recreate(t, p, topic, "new", 40)
				client.on.Store(false)
				close(client.release)
				require.Eventually(t, func() bool { return w.fetched("new") == 40*newPartitions }, 2*time.Minute, 20*time.Millisecond)
				require.Equal(t, 15*newPartitions, w.fetched("old"))
				committedUnder(t, p, topic, 40)
			})
		})
	}
}

// readHeld reads topic by a client that can be held.
func readHeld(t *testing.T, p *Plugin, topic string) (*subscription, *heldClient, *work) {
	t.Helper()
	source, err := p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err)
	s, ours := source.(*subscription)
	require.True(t, ours)
	client := &heldClient{Client: s.groupClient.Client, reached: make(chan struct{}, 1), release: make(chan struct{})}
	s.groupClient.Client = client
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	out, err := s.Subscribe(t.Context(), "")
	require.NoError(t, err)
	w := newWork()
	w.on(out, 0)
	return s, client, w
}

// committedUnder waits until all partitions are committed at offset, with the topic's present id.
func committedUnder(t *testing.T, p *Plugin, topic string, offset int64) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	commits := committed{live.client, topic, topic, p.log}
	now, err := leaderTopicID(live.client)(topic, 0)
	require.NoError(t, err)
	require.NotZero(t, now)
	for partition := range int32(newPartitions) {
		require.Eventually(t, func() bool {
			commit, exists, err := commits.of(partition)
			return err == nil && exists && commit.base == offset && commit.topic == now
		}, 2*time.Minute, 20*time.Millisecond)
	}
}

// A reader that has enough records does not ask the broker meanwhile, so nothing refuses it. It has
// read and acknowledged records of the new topic, at the position in the old one, when the ids are
// compared.
func TestATopicCreatedAgainUnseenLosesNoRecord(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = newPartitions })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		fill(t, p, topic, "old", 25)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Order: pipeline.OrderPartition})
		first := make([]*message.Message, newPartitions)
		for i := range first {
			first[i] = next(t, out) // each stops its partition
		}
		recreate(t, p, topic, "new", 60)
		w := newWork()
		w.on(out, 0)
		for _, m := range first {
			m.Ack()
		}
		w.waitFor(t, 24*newPartitions+1) // a record of the new topic is there
		live, err := p.connected()
		require.NoError(t, err)
		live.watchTopics(50*time.Millisecond, p.metrics.open)
		require.Eventually(t, func() bool { return w.fetched("new") == 60*newPartitions }, 2*time.Minute, 20*time.Millisecond)
		committedUnder(t, p, topic, 60)
	})
}

// A commit of a topic that was deleted, with its done records, is not used for the new one.
func TestACommitOfADeletedTopicIsNotUsed(t *testing.T) {
	t.Parallel()
	for _, initial := range []string{"oldest", "newest"} {
		t.Run(initial, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				p := start(t, brokers, func(c *Config) { c.Partitions, c.InitialOffset = newPartitions, initial })
				topic := topicFor(t, p)
				require.NoError(t, p.ensureTopics(t.Context(), topic))
				live, err := p.connected()
				require.NoError(t, err)
				former, err := leaderTopicID(live.client)(topic, 0)
				require.NoError(t, err)
				sub, _ := subscribe(t, p.Source(topic, topic), pipeline.Flow{}) // the group exists
				joined := func() bool {
					return testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, topic)) > 0
				}
				require.Eventually(t, joined, 2*time.Minute, 10*time.Millisecond)
				require.NoError(t, sub.Close())
				recreate(t, p, topic, "new", 20)
				for partition := range int32(newPartitions) {
					commitWith(t, p, topic, partition, progress{base: 10, topic: former, done: doneBefore{12, 15}})
				}
				sub, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
				w := newWork()
				w.on(out, 0)
				w.waitFor(t, 20*newPartitions)
				require.Empty(t, w.twice())
				require.NoError(t, sub.Close())
				committedUnder(t, p, topic, 20)
			})
		})
	}
}

// commitWith commits p for the group that has the name of its topic.
func commitWith(t *testing.T, p *Plugin, topic string, number int32, commit progress) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	offsets, err := sarama.NewOffsetManagerFromClient(topic, live.client)
	require.NoError(t, err)
	partition, err := offsets.ManagePartition(topic, number)
	require.NoError(t, err)
	partition.MarkOffset(commit.base, encodeProgress(commit))
	require.NoError(t, partition.Close())
	offsets.Commit()
	require.NoError(t, offsets.Close())
}

// An answer to a record of the former topic says nothing about the record with its offset in the
// new one.
func TestAnswersAreOfOneTopic(t *testing.T) {
	t.Parallel()
	left := unanswered{topicID{1}, map[int64]delivery{7: {uuid: "topic/3@7"}}}
	for name, tt := range map[string]struct {
		topic topicID
		taken map[int64]delivery
	}{
		"the same":   {topicID{1}, left.byOffset},
		"another":    {topicID{2}, nil},
		"of unknown": {topicID{}, left.byOffset},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
				b.sub.leaveUnanswered(3, left)
				require.Equal(t, tt.taken, b.sub.takeUnanswered(3, tt.topic))
			})
		})
	}
}

// Brokers whose protocol is older than topic ids give none. The commits name none then.
func TestWithoutTopicIDsCommitsNameNone(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("")
		b.out()[0].Ack()
		synctest.Wait()
		require.EqualValues(t, 1, b.marked())
		require.Empty(t, b.meta)
	})
}

// Kafka drops the commit that sarama began at when the topic is deleted. The position is then that
// of the former topic, whatever the leader says now.
func TestAPositionWhoseCommitIsGoneIsNotUsed(t *testing.T) {
	t.Parallel()
	s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, slog.New(slog.DiscardHandler), newMetrics())
	n := &newestOnly{commit: 40}
	s.groupClient = &waitingClient{Client: n, owned: &s.owned, log: s.log, topicID: func(string, int32) (topicID, error) { return topicID{2}, nil }}
	_, err := s.groupClient.GetOffset("topic", 3, sarama.OffsetNewest)
	require.NoError(t, err)
	s.former = func(int32) (progress, bool, error) { return progress{}, false, nil }
	session, end := context.WithCancel(t.Context())
	end()
	n.ctx = session
	require.ErrorContains(t, (&handler{s: s}).ConsumeClaim(n, at{n, 40}), "the commit of topic/3 has changed from 40 to 0")
	require.EqualValues(t, 40, n.commit)
}

// The commit that is not used is named in one warning, with the one that replaces it.
func TestACommitOfADeletedTopicIsLogged(t *testing.T) {
	t.Parallel()
	log := &pipelinetest.Buffer{}
	s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, slog.New(slog.NewTextHandler(log, nil)), newMetrics())
	n := &newestOnly{commit: 900, ctx: t.Context()}
	s.groupClient = &waitingClient{Client: n, owned: &s.owned, log: s.log, topicID: func(string, int32) (topicID, error) { return topicID{2}, nil }}
	_, err := s.groupClient.GetOffset("topic", 3, sarama.OffsetNewest)
	require.NoError(t, err)
	s.former = func(int32) (progress, bool, error) {
		return progress{base: 900, topic: topicID{1}, done: doneBefore{902}}, true, nil
	}
	require.NoError(t, (&handler{s: s}).ConsumeClaim(n, at{n, 900}))
	require.EqualValues(t, 500, n.commit, "the first offset of the new log")
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "partition=3 former_topic_id=AQAAAAAAAAAAAAAAAAAAAA committed_offset=900 topic_id=AgAAAAAAAAAAAAAAAAAAAA offset=500")
}

func (*newestOnly) Claims() map[string][]int32 { return map[string][]int32{"topic": {3}} }

// at is a claim that began at an offset.
type at struct {
	sarama.ConsumerGroupClaim
	offset int64
}

func (a at) InitialOffset() int64 { return a.offset }
