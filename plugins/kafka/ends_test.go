package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// soon is how long a test waits for what the brokers are asked for in intervals.
const soon = 2 * time.Minute

// statusOf adds up the claims of p.
func statusOf(p *Plugin) (sum claimStatus) {
	for _, c := range p.metrics.claims() {
		l := c.status(time.Now())
		sum.lag += l.lag
		sum.inFlight += l.inFlight
		sum.openFor = max(sum.openFor, l.openFor)
		sum.lagAge = max(sum.lagAge, l.lagAge)
	}
	return sum
}

// endsOf is the number of records before the ends that the brokers said.
func endsOf(p *Plugin) (sum int64) {
	for _, c := range p.metrics.claims() {
		c.end.mu.Lock()
		sum += c.end.newest
		c.end.mu.Unlock()
	}
	return sum
}

func hasLag(t *testing.T, p *Plugin, want int64) {
	t.Helper()
	require.Eventually(t, func() bool { return statusOf(p).lag == want }, soon, 10*time.Millisecond, "a lag of %d", want)
}

// The windows are full and the handlers don't return, so nothing is fetched. Records that are
// published meanwhile count.
func TestTheLagMovesWhileTheConsumerStandsStill(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		publish(t, p, topic, texts(numbered(200)...)...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Window: 4})
		var blocked []*message.Message
		for range 4 * 4 { // all partitions
			blocked = append(blocked, next(t, out))
		}
		hasLag(t, p, 200)
		for published := 200; published < 3000; published += 700 {
			publish(t, p, topic, texts(numbered(700)...)...)
			hasLag(t, p, int64(published+700))
		}
		for _, m := range blocked {
			m.Ack()
		}
		hasLag(t, p, 3000-16)
	})
}

// transaction begins a transaction of another program on topic, with one record in it, and returns
// a function that ends it.
func transaction(t *testing.T, brokers []string, topic, value string) (end func(commit bool)) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Producer.Idempotent, conf.Producer.RequiredAcks, conf.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	conf.Producer.Return.Successes = true
	conf.Producer.Transaction.ID = "kafka-test-" + watermill.NewShortUUID()
	conf.Producer.Transaction.Timeout = 10 * time.Minute
	producer, err := sarama.NewSyncProducer(brokers, conf)
	require.NoError(t, err)
	require.NoError(t, producer.BeginTxn())
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	require.NoError(t, err)
	var once sync.Once
	end = func(commit bool) {
		once.Do(func() {
			if commit {
				require.NoError(t, producer.CommitTxn())
			} else {
				require.NoError(t, producer.AbortTxn())
			}
			require.NoError(t, producer.Close())
		})
	}
	t.Cleanup(func() { end(false) })
	return end
}

// An open transaction hides its records and all behind them. They count in the lag, and the log
// names the partition once.
func TestAnOpenTransactionIsNamed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		log := &pipelinetest.Buffer{}
		p.log = slog.New(slog.NewTextHandler(log, nil))
		topic := topicFor(t, p)
		publish(t, p, topic, texts("0", "1", "2")...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		for range 3 {
			next(t, out).Ack()
		}
		hasLag(t, p, 0)
		require.Zero(t, statusOf(p).openFor)

		end := transaction(t, brokers, topic, "in it")
		publish(t, p, topic, texts(numbered(20)...)...)
		hasLag(t, p, 21)
		line := `msg="kafka records are hidden by an open producer transaction; kafka-transactions.sh find-hanging finds it"`
		require.Eventually(t, func() bool { return strings.Contains(log.String(), line) }, soon, 10*time.Millisecond)
		open := statusOf(p).openFor
		require.GreaterOrEqual(t, open, p.ends.openAfter)
		require.Contains(t, log.String(), fmt.Sprintf("topic=%s group=%s partition=0 last_stable_offset=3 end_offset=24 open_for=", topic, topic))
		require.Eventually(t, func() bool { return statusOf(p).openFor > open+10*p.ends.every }, soon, 10*time.Millisecond)
		require.Equal(t, 1, strings.Count(log.String(), line), "not at each look")
		require.Empty(t, out)

		end(true)
		for range 21 {
			next(t, out).Ack()
		}
		require.Eventually(t, func() bool { return statusOf(p).openFor == 0 }, soon, 10*time.Millisecond)
		hasLag(t, p, 1) // the end marker of the transaction
		require.Eventually(t, func() bool { return strings.Contains(log.String(), "kafka records are no longer hidden") }, soon, 10*time.Millisecond)
	})
}

// A scan that an open transaction stops says so soon. It goes on when the transaction ends, and
// otherwise ends with the reason.
func TestAScanNamesTheOpenTransactionItWaitsFor(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		for _, ends := range []bool{true, false} {
			p := start(t, brokers, func(c *Config) {
				c.Partitions, c.ReconnectBackoff = 1, pipeline.Backoff{First: time.Millisecond, Max: 10 * time.Millisecond}
			})
			log := &pipelinetest.Buffer{}
			p.log = slog.New(slog.NewTextHandler(log, nil))
			topic := topicFor(t, p)
			publish(t, p, topic, texts("before")...)
			end := transaction(t, brokers, topic, "in it")
			publish(t, p, topic, texts("behind")...)
			scanned := make(chan error, 1)
			seen := map[string]bool{}
			go func() {
				_, err := p.Scan(t.Context(), topic, func(r Scanned) error {
					seen[string(r.Value)] = true
					return nil
				})
				scanned <- err
			}()
			line := `msg="kafka scan waits for an open producer transaction to end; kafka-transactions.sh find-hanging finds it" topic=` + topic + " partition=0 last_stable_offset=1 end_offset=3"
			require.Eventually(t, func() bool { return strings.Contains(log.String(), line) }, soon, 10*time.Millisecond)
			if ends {
				end(false)
				require.NoError(t, <-scanned)
				require.Equal(t, map[string]bool{"before": true, "behind": true}, seen)
				continue
			}
			require.ErrorContains(t, <-scanned, "partition 0: offsets 1 to 2 are hidden by an open producer transaction: find it with kafka-transactions.sh find-hanging")
			require.Equal(t, 1, strings.Count(log.String(), line))
		}
	})
}

// Each broker is asked twice per round for all partitions of all subscriptions. One that does not
// answer delays no other, and is not asked again meanwhile; its lag is the last one, and is old.
func TestASilentBrokerDelaysNoOtherEnd(t *testing.T) {
	t.Parallel()
	const brokers = 3
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	p := start(t, cluster.ListenAddrs(), func(c *Config) { c.Partitions, c.RequestTimeout = 2*brokers, 2*soon })
	topics := []string{topicFor(t, p), topicFor(t, p)}
	for _, topic := range topics {
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		for partition := range int32(2 * brokers) {
			require.NoError(t, cluster.MoveTopicPartition(topic, partition, partition%brokers))
		}
		publish(t, p, topic, texts(numbered(100)...)...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Window: 1})
		for range 2 * brokers {
			next(t, out)
		}
	}
	hasLag(t, p, 200)
	require.Eventually(t, func() bool { return endsOf(p) == 200 }, soon, 10*time.Millisecond, "each leader has answered")

	var mu sync.Mutex
	asked, sizes := map[int32]int{}, map[int]bool{}
	silent, release := context.WithCancel(context.Background())
	t.Cleanup(release)
	cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		node := cluster.CurrentNode()
		partitions := 0
		for _, topic := range req.(*kmsg.ListOffsetsRequest).Topics {
			partitions += len(topic.Partitions)
		}
		mu.Lock()
		asked[node]++
		sizes[partitions] = true
		mu.Unlock()
		if node == 0 {
			cluster.SleepControl(func() { <-silent.Done() })
		}
		return nil, nil, false
	})
	rounds := func() map[int32]int {
		mu.Lock()
		defer mu.Unlock()
		return map[int32]int{0: asked[0], 1: asked[1], 2: asked[2]}
	}
	require.Eventually(t, func() bool { r := rounds(); return r[1] > 10 && r[2] > 10 }, soon, 10*time.Millisecond)
	require.Equal(t, 1, rounds()[0])
	mu.Lock()
	require.Equal(t, map[int]bool{4: true}, sizes, "all partitions of a broker in one request")
	mu.Unlock()
	require.Greater(t, statusOf(p).lagAge, 3*p.ends.every)
	require.EqualValues(t, 200, statusOf(p).lag)

	// Other leaders are learned from any broker. Who asks the silent one delays no other either.
	cluster.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if cluster.CurrentNode() == 0 {
			cluster.SleepControl(func() { <-silent.Done() })
		}
		return nil, nil, false
	})
	for i := range 4 {
		before := rounds()
		for _, partition := range []int32{1, 2} {
			require.NoError(t, cluster.MoveTopicPartition(topics[0], partition, (partition+int32(i))%2+1))
		}
		require.Eventually(t, func() bool { r := rounds(); return r[1] > before[1]+10 && r[2] > before[2]+10 }, soon, 10*time.Millisecond)
		require.Equal(t, 1, rounds()[0], "before that request has failed")
	}

	release()
	require.Eventually(t, func() bool { return rounds()[0] > 10 && statusOf(p).lagAge < p.ends.every*3 }, soon, 10*time.Millisecond)
}
