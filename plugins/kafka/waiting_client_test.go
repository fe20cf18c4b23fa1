package kafka

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
)

// A partition that can't be read is waited for while the others are read in the same session.
func TestAPartitionWithoutALeaderStopsNoOther(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		p := start(t, cluster.ListenAddrs())
		topic := "t"
		payloads := numbered(400)
		publish(t, p, topic, texts(payloads...)...)

		var lost atomic.Bool
		requests := make(chan struct{}, 1000)
		cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			r, ok := req.(*kmsg.ListOffsetsRequest)
			if !ok || !lost.Load() {
				return nil, nil, false
			}
			for _, of := range r.Topics {
				for _, part := range of.Partitions {
					if part.Partition == 0 {
						requests <- struct{}{}
						answer := kmsg.NewListOffsetsResponse()
						answer.SetVersion(r.GetVersion())
						answered := kmsg.NewListOffsetsResponseTopicPartition()
						answered.Partition, answered.ErrorCode = 0, kerr.LeaderNotAvailable.Code
						answer.Topics = []kmsg.ListOffsetsResponseTopic{{Topic: of.Topic, Partitions: []kmsg.ListOffsetsResponseTopicPartition{answered}}}
						return &answer, nil, true
					}
				}
			}
			return nil, nil, false
		})
		lost.Store(true)
		p = start(t, cluster.ListenAddrs()) // a process that starts meanwhile
		publish(t, p, topic, texts("late")...)
		payloads = append(payloads, "late")
		_, out := subscribe(t, p.Source(topic, "g"), pipeline.Flow{})
		for range 20 { // it is tried again and again
			<-requests
		}
		w := newWork()
		w.on(out, 0)
		w.waitFor(t, 1)
		require.Equal(t, 1.0, testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, "g")), "one session")
		require.Equal(t, 1, unreadable(t, p))
		lost.Store(false)
		w.waitFor(t, len(payloads))
		require.Equal(t, 1.0, testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, "g")), "still the same")
		require.Empty(t, w.twice())
		require.Zero(t, unreadable(t, p))
	})
}

// A broker answers the requests of a connection one after another, and a fetch when there is a record.
// Each record of a careful claim waits for a commit.
func TestACommitDoesNotWaitForAFetch(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	p := start(t, cluster.ListenAddrs(), func(c *Config) { c.Partitions = 1 })
	topic := topicFor(t, p)
	const records = 5
	publish(t, p, topic, texts(numbered(records)...)...)
	joinOnce(t, p, topic) // the group exists
	live, err := p.connected()
	require.NoError(t, err)
	id, err := leaderTopicID(live.client)(topic, 0)
	require.NoError(t, err)
	commitWith(t, p, topic, 0, progress{topic: id, owned: true, deaths: 1})

	var fetches atomic.Int32
	written := make(chan struct{}) // a record for the fetches after the first one
	defer close(written)
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if fetches.Add(1) > 1 {
			cluster.SleepControl(func() { <-written })
		}
		return nil, nil, false
	})
	source, err := p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, source.Close()) })
	s, ours := source.(*subscription)
	require.True(t, ours)
	s.deathLimit = deathLimit
	out, err := s.Subscribe(t.Context(), "")
	require.NoError(t, err)
	for range records {
		select {
		case m := <-out:
			m.Ack()
		case <-time.After(time.Minute):
			require.FailNow(t, "no record", "%d fetches", fetches.Load())
		}
	}
}

// A member that joins finds another coordinator when the broker of the last one is gone for good.
func TestAMemberJoinsWhenTheBrokerOfItsCoordinatorIsGone(t *testing.T) {
	t.Parallel()
	for _, balance := range []string{balanceRange, balanceCooperative} {
		t.Run(balance, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(2))
			require.NoError(t, err)
			t.Cleanup(cluster.Close)
			p := start(t, cluster.ListenAddrs(), balancedBy(balance))
			const topic = "t" // it goes with the cluster
			publish(t, p, topic, texts("before")...)
			source, err := p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, source.Close()) })
			s, ours := source.(*subscription)
			require.True(t, ours)
			require.NoError(t, s.coordination.RefreshCoordinator(topic))
			require.NoError(t, cluster.RemoveNode(cluster.CoordinatorFor(topic)))
			out, err := s.Subscribe(t.Context(), "")
			require.NoError(t, err)
			next(t, out).Ack()
		})
	}
}

// unreadable returns the gauge of the only subscription.
func unreadable(t *testing.T, p *Plugin) int {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(p.metrics))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "millrace_kafka_unreadable_partitions" {
			require.Len(t, f.GetMetric(), 1)
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	require.Fail(t, "no gauge")
	return 0
}

// leaderless is a client whose partition has a leader or not.
type leaderless struct {
	sarama.Client
	leader bool
}

func (l *leaderless) PartitionNotReadable(string, int32) bool { return !l.leader }

func (l *leaderless) LeaderAndEpoch(string, int32) (*sarama.Broker, int32, error) {
	if l.leader {
		return nil, 0, nil
	}
	return nil, 0, sarama.ErrLeaderNotAvailable
}

// sarama waits for a leader in two more places: before a claim begins, and after a leader was lost.
func TestAPartitionWithoutALeaderIsCounted(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*waitingClient){
		"before the claim": func(p *waitingClient) { p.PartitionNotReadable("t", 3) },
		"in the claim":     func(p *waitingClient) { _, _, _ = p.LeaderAndEpoch("t", 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &leaderless{}
			p := &waitingClient{Client: l}
			ask(p)
			ask(p)
			require.Equal(t, 1, p.unreadable())
			l.leader = true
			ask(p)
			require.Zero(t, p.unreadable())
			l.leader = false
			ask(p)
			p.assigned() // perhaps to another member
			require.Zero(t, p.unreadable())
		})
	}
}
