package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A group that begins at the newest offset skips nothing afterwards, also when its sessions end
// before a record is marked.
func TestNewestSkipsNothingBetweenSessions(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]int64{"no commit": -1, "commit before the log": 1, "commit beyond the log": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				p := start(t, brokers, func(c *Config) { c.Partitions, c.InitialOffset = 1, "newest" })
				topic := topicFor(t, p)
				publish(t, p, topic, texts("a", "b", "c", "d", "e")...)
				if committed >= 0 {
					joinOnce(t, p, topic) // the group exists
					commit(t, p, topic, committed)
					deleteRecords(t, p, topic, 3)
				}
				joinOnce(t, p, topic)
				publish(t, p, topic, texts("between")...)
				joinOnce(t, p, topic)
				_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
				publish(t, p, topic, texts("after")...)
				for _, want := range []string{"between", "after"} {
					m := next(t, out)
					require.Equal(t, want, string(m.Payload))
					m.Ack()
				}
			})
		})
	}
}

// A partition that is added later has nothing that was published before the group began: it is read
// from its beginning.
func TestNewestReadsAllOfAnAddedPartition(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		newest := func(c *Config) { c.Partitions, c.InitialOffset = 1, "newest" }
		p := start(t, brokers, newest)
		topic := topicFor(t, p)
		publish(t, p, topic, texts("before")...)
		joinOnce(t, p, topic)
		live, err := p.connected()
		require.NoError(t, err)
		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		require.NoError(t, admin.CreatePartitions(topic, 4, nil, false))

		again := start(t, brokers, newest) // its client has all partitions
		require.NoError(t, again.ensureTopics(t.Context(), topic))
		commitOf(t, again, topic, 3, 0) // another member was faster
		spread(t, again, topic, "after")
		_, out := subscribe(t, again.Source(topic, topic), pipeline.Flow{})
		partitions := map[int32]bool{}
		for range 100 {
			m := next(t, out)
			require.Equal(t, "after", string(m.Payload))
			partitions[partitionOf(m)] = true
			m.Ack()
		}
		require.Len(t, partitions, 4)
	})
}

// joinOnce has a session of a topic's group in which nothing is acknowledged.
func joinOnce(t *testing.T, p *Plugin, topic string) {
	t.Helper()
	before := testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, topic))
	sub, _ := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
	s, ours := sub.(*subscription)
	require.True(t, ours)
	require.Eventually(t, func() bool { return len(s.live()) == 1 }, 2*time.Minute, 10*time.Millisecond)
	require.NoError(t, sub.Close())
	require.Greater(t, testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, topic)), before)
}

// deleteRecords removes what a topic's only partition has before an offset.
func deleteRecords(t *testing.T, p *Plugin, topic string, before int64) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	require.NoError(t, err)
	require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: before}))
}

// newestOnly is a client of a partition that ends at 500, and a session and a claim that began
// there. Fetching has gone further.
type newestOnly struct {
	sarama.Client
	sarama.ConsumerGroupSession
	sarama.ConsumerGroupClaim
	ctx    context.Context //nolint:containedctx // sarama's interface returns it
	commit int64
}

func (*newestOnly) GetOffset(string, int32, int64) (int64, error) { return 500, nil }
func (n *newestOnly) Context() context.Context                    { return n.ctx }

func (n *newestOnly) MarkOffset(_ string, _ int32, offset int64, _ string) {
	n.commit = max(n.commit, offset)
}

func (n *newestOnly) ResetOffset(_ string, _ int32, offset int64, _ string) {
	n.commit = min(n.commit, offset)
}

func (*newestOnly) Topic() string              { return "topic" }
func (*newestOnly) Partition() int32           { return 3 }
func (*newestOnly) InitialOffset() int64       { return sarama.OffsetNewest }
func (*newestOnly) HighWaterMarkOffset() int64 { return 700 }
func (*newestOnly) Messages() <-chan *sarama.ConsumerMessage {
	return nil
}

// The high water mark of a claim may be past records that were fetched and not handled yet.
func TestNewestIsTheEndWhenTheClaimBegan(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]int64{"no commit": -1, "commit before the log": 5, "commit beyond the log": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := slog.New(slog.DiscardHandler)
			s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, log, newMetrics())
			n := &newestOnly{commit: committed}
			s.groupClient = &waitingClient{Client: n, owned: &s.owned, log: log}
			_, err := s.groupClient.GetOffset("topic", 3, sarama.OffsetNewest)
			require.NoError(t, err)
			s.added = func(int32) bool { return false }
			s.former = func(int32) (progress, bool, error) { return progress{base: committed}, committed >= 0, nil }
			session, end := context.WithCancel(t.Context())
			end()
			n.ctx = session
			require.NoError(t, (&handler{s: s}).ConsumeClaim(n, n))
			require.EqualValues(t, 500, n.commit)
		})
	}
}

// A partition whose commit can't be read waits inside its claim, because a return of the claim would
// end the session of the other partitions.
func TestACommitThatCantBeReadEndsNoSession(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		errs  []error
		reads int
		ends  bool // the claim returns an error
		lives int
	}{
		"a while":       {[]error{errCoordinator, errCoordinator, errCoordinator}, 4, false, 1},
		"for ever":      {slices.Repeat([]error{errCoordinator}, 10_000), -1, false, 0},
		"no permission": {[]error{sarama.ErrGroupAuthorizationFailed}, 1, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, log, newMetrics())
				n := &newestOnly{}
				s.groupClient = &waitingClient{Client: n, owned: &s.owned, log: log}
				s.groupClient.topics.Store(int32(3), topicID{1})
				s.added = func(int32) bool { return false }
				reads := 0
				s.former = func(int32) (progress, bool, error) {
					if reads++; reads <= len(tt.errs) {
						return progress{}, false, tt.errs[reads-1]
					}
					return progress{base: 500, topic: topicID{1}}, true, nil
				}
				session, end := context.WithCancel(t.Context())
				defer end()
				n.ctx = session
				returned := make(chan error, 1)
				go func() { returned <- (&handler{s: s}).ConsumeClaim(n, n) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Len(t, s.live(), tt.lives)
				if tt.ends {
					require.ErrorIs(t, <-returned, tt.errs[0])
				} else {
					require.Empty(t, returned, "the session goes on")
					end()
					require.NoError(t, <-returned)
				}
				if tt.reads > 0 {
					require.Equal(t, tt.reads, reads)
				}
			})
		})
	}
}

// While a commit can't be read, the log repeats how long its partition has waited, and the metric counts
// the partition.
func TestAPartitionThatWaitsForItsCommitIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, m := &pipelinetest.Buffer{}, newMetrics()
		s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, slog.New(slog.NewTextHandler(log, nil)), m)
		s.groupClient = &waitingClient{owned: &s.owned, log: s.log}
		m.add(s)
		readable := make(chan struct{})
		s.former = func(int32) (progress, bool, error) {
			select {
			case <-readable:
				return progress{base: 7}, true, nil
			default:
				return progress{}, false, errCoordinator
			}
		}
		counts := func(n int) {
			t.Helper()
			require.NoError(t, testutil.CollectAndCompare(m, strings.NewReader(fmt.Sprintf(`
# HELP millrace_kafka_waiting_partitions Partitions of this member that wait because the group's commit can't be read.
# TYPE millrace_kafka_waiting_partitions gauge
millrace_kafka_waiting_partitions{group="group",topic="topic"} %d
`, n)), "millrace_kafka_waiting_partitions"))
		}
		counts(0)
		var waits sync.WaitGroup
		var commit progress
		var exists bool
		var read, ended error
		waits.Go(func() { commit, exists, read = s.waitForFormer(t.Context(), 3) })
		ctx, end := context.WithCancel(t.Context())
		waits.Go(func() { _, _, ended = s.waitForFormer(ctx, 4) })
		synctest.Wait()
		counts(2)
		require.Equal(t, 2, strings.Count(log.String(), "kafka commit can't be read, so its partition waits"), "at once")
		end()
		time.Sleep(10*time.Minute + 30*time.Second)
		counts(1)
		still := strings.Count(log.String(), "kafka commit still can't be read")
		require.GreaterOrEqual(t, still, 8, "about once a minute")
		require.LessOrEqual(t, still, 10)
		require.Regexp(t, `partition=3 waited=1m\d+s error=`, log.String())
		close(readable)
		waits.Wait()
		require.NoError(t, read)
		require.True(t, exists)
		require.EqualValues(t, 7, commit.base)
		require.ErrorIs(t, ended, errCoordinator)
		counts(0)
		require.Regexp(t, `kafka commit can be read again" topic=topic group=group partition=3 waited=10m\d+s`, log.String())
	})
}

var errCoordinator = fmt.Errorf("read the commit: %w", sarama.ErrConsumerCoordinatorNotAvailable)

// A claim finds the progress of the former owner also after the group's coordinator has moved.
func TestProgressIsReadFromTheCoordinatorOfTheMoment(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	p := start(t, cluster.ListenAddrs(), func(c *Config) { c.Partitions = 1 })
	topic := topicFor(t, p)
	publish(t, p, topic, texts("a", "b")...)
	joinOnce(t, p, topic) // the group exists
	commit(t, p, topic, 1)

	live, err := p.connected()
	require.NoError(t, err)
	commits := committed{live.client, topic, topic, p.log}
	require.NoError(t, live.client.RefreshCoordinator(topic))
	first, err := live.client.Coordinator(topic)
	require.NoError(t, err)
	for moved := false; !moved; {
		cluster.RehashCoordinators()
		commit, exists, err := commits.of(0)
		require.NoError(t, err)
		require.True(t, exists)
		require.EqualValues(t, 1, commit.base)
		now, err := live.client.Coordinator(topic)
		require.NoError(t, err)
		moved = now.ID() != first.ID()
	}
}
