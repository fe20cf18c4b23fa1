package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// work is a handler that counts how often each payload was run.
type work struct {
	mu   sync.Mutex
	runs map[string]int
	wait sync.WaitGroup
}

func newWork() *work { return &work{runs: map[string]int{}} }

// on handles out as the Router does until out is closed: one goroutine per message, each for took.
func (w *work) on(out <-chan *message.Message, took time.Duration) {
	w.wait.Go(func() {
		for m := range out {
			w.wait.Go(func() {
				w.mu.Lock()
				w.runs[string(m.Payload)]++
				w.mu.Unlock()
				time.Sleep(took) // the work itself
				m.Ack()
			})
		}
	})
}

func (w *work) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

func (w *work) waitFor(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return w.count() >= n }, 2*time.Minute, 10*time.Millisecond, "%d of %d", w.count(), n)
}

// twice returns the payloads that were run more than once.
func (w *work) twice() (again []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for text, n := range w.runs {
		if n > 1 {
			again = append(again, text)
		}
	}
	return again
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("payload %d", i)
	}
	return all
}

// TestRollingCloseRunsNothingTwice is a deploy: members of a group come and go under load.
func TestRollingCloseRunsNothingTwice(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		const records = 3000
		publish(t, p, topic, texts(numbered(records)...)...)
		src, w := p.Source(topic, topic), newWork()
		flow := pipeline.Flow{Window: 16}

		a, out := subscribe(t, src, flow)
		w.on(out, 20*time.Millisecond)
		w.waitFor(t, 200)
		b, out := subscribe(t, src, flow) // takes half of a's partitions
		w.on(out, 20*time.Millisecond)
		w.waitFor(t, 1000)
		require.NoError(t, a.Drain(t.Context()))
		require.NoError(t, a.Close())
		w.waitFor(t, 1600)
		_, out = subscribe(t, src, flow)
		w.on(out, 20*time.Millisecond)
		w.waitFor(t, 2200)
		require.NoError(t, b.Drain(t.Context()))
		w.waitFor(t, records)
		require.Empty(t, w.twice())
	})
}

// TestNextOwnerSkipsWhatWasDoneBeyondTheCommit has a record that holds back all others when the
// member leaves.
func TestNextOwnerSkipsWhatWasDoneBeyondTheCommit(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		var topic string
		var src pipeline.Source
		var w *work
		for delay := 4 * time.Second; ; delay *= 2 {
			topic, w = topicFor(t, p), newWork()
			src = p.Source(topic, topic)
			isRetryTopic(t, p, topic)
			held := texts("held")[0]
			due := time.Now().Add(delay)
			held.Metadata.Set(pipeline.MetaDue, due.UTC().Format(time.RFC3339Nano))
			publish(t, p, topic, texts("first")...) // moves the mark to where the held record stops it
			publish(t, p, topic, held)
			publish(t, p, topic, texts(numbered(100)...)...)

			a, out := subscribe(t, src, pipeline.Flow{})
			w.on(out, 0)
			w.waitFor(t, 101)
			require.NoError(t, a.Close())
			if time.Now().Before(due) {
				break
			}
			require.Less(t, delay, time.Minute) // a machine may stand still, or be slow, until the record is due
		}
		require.Zero(t, w.runs["held"])

		_, out := subscribe(t, src, pipeline.Flow{})
		w.on(out, 0)
		w.waitFor(t, 102)
		require.Empty(t, w.twice())
		require.EqualValues(t, 100, testutil.ToFloat64(p.metrics.bySubscription[countSkipped].WithLabelValues(topic, topic)))
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(p.metrics.bySubscription[countMarked].WithLabelValues(topic, topic)) == 102
		}, 2*time.Minute, 10*time.Millisecond)
	})
}

// TestRevokeWaitsForASlowHandler: a second member joins while a handler is busy for longer than the
// group's heartbeat, and nothing is run by both.
func TestRevokeWaitsForASlowHandler(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		publish(t, p, topic, texts(numbered(40)...)...)
		src, w := p.Source(topic, topic), newWork()
		_, out := subscribe(t, src, pipeline.Flow{})
		w.on(out, 2*time.Second)
		w.waitFor(t, 40) // all are in flight
		_, out = subscribe(t, src, pipeline.Flow{})
		next := newWork()
		next.on(out, 0)
		n := 40
		for begin := time.Now(); next.count() == 0; n++ { // until the second member has a partition
			require.Less(t, time.Since(begin), 2*time.Minute)
			publish(t, p, topic, texts(fmt.Sprint("after ", n))...)
			<-time.After(50 * time.Millisecond)
		}
		require.Eventually(t, func() bool { return w.count()+next.count() >= n }, 2*time.Minute, 10*time.Millisecond)
		require.Empty(t, w.twice())
		require.Empty(t, next.twice())
		next.mu.Lock()
		defer next.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		for payload := range next.runs {
			require.Zero(t, w.runs[payload], payload)
		}
	})
}

// TestAbandonedRecordsRunAgain: a handler that does not answer is abandoned, and its record is not
// lost.
func TestAbandonedRecordsRunAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		publish(t, p, topic, texts("stuck")...)
		src := p.Source(topic, topic)
		sub, out := subscribe(t, src, pipeline.Flow{})
		m := next(t, out)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, sub.Drain(ctx), context.DeadlineExceeded)
		<-m.Context().Done()
		begin := time.Now()
		require.NoError(t, sub.Close())
		require.Less(t, time.Since(begin), 15*time.Second) // a machine may stand still, but DrainTimeout is longer
		require.True(t, m.Ack(), "too late")
		_, open := <-out
		require.False(t, open)

		_, out = subscribe(t, src, pipeline.Flow{})
		again := next(t, out)
		require.Equal(t, "stuck", string(again.Payload))
		again.Ack()
	})
}

// TestPoisonTravelsOn: what other clients write is delivered, whatever it is, and what stands
// behind it too.
func TestPoisonTravelsOn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		foreign(t, brokers,
			&sarama.ProducerMessage{Topic: topic},
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("k")},
			&sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder{0xff, 0x00, 0xfe}},
			&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(""), Key: sarama.ByteEncoder{0xff}},
			&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("v"), Headers: []sarama.RecordHeader{
				{Key: []byte{}}, {Key: []byte("a")}, {Key: []byte("a"), Value: []byte("last")}, {Key: []byte{0xff}, Value: []byte{0xfe}},
				{Key: []byte(pipeline.MetaKey), Value: []byte("a lie")}, {Key: []byte(pipeline.MetaDue), Value: []byte("soon")},
			}},
		)
		publish(t, p, topic, texts("behind")...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})

		var got []*message.Message
		for range 6 {
			m := next(t, out)
			got = append(got, m)
			d := pipeline.DeliveryFrom(m.Context())
			require.Equal(t, pipeline.Delivery{
				Origin:    pipeline.Origin{Kind: Kind, Source: topic, Position: position(topic, 0, int64(len(got)-1)), Group: topic, Key: d.Key},
				Delivered: 1, Published: d.Published, Revoked: d.Revoked,
			}, d)
			require.WithinDuration(t, time.Now(), d.Published, time.Hour, "the time of the record")
			require.Equal(t, d.Key, m.Metadata.Get(pipeline.MetaKey))
			m.Ack()
		}
		require.Equal(t, fmt.Sprintf("%s/0@0", topic), got[0].UUID, "named after its place")
		require.Empty(t, got[0].Payload)
		require.Equal(t, "k", got[1].Metadata.Get(pipeline.MetaKey))
		require.Equal(t, []byte{0xff, 0x00, 0xfe}, []byte(got[2].Payload))
		require.Equal(t, "\xff", got[3].Metadata.Get(pipeline.MetaKey))
		require.Equal(t, message.Metadata{"": "", "a": "last", "\xff": "\xfe", pipeline.MetaDue: "soon"}, got[4].Metadata)
		require.Equal(t, "behind", string(got[5].Payload))
	})
}

// foreign publishes records as they are, by a plain client.
func foreign(t *testing.T, brokers []string, records ...*sarama.ProducerMessage) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Producer.Return.Successes = true
	client, err := sarama.NewSyncProducer(brokers, conf)
	require.NoError(t, err)
	for _, r := range records {
		_, _, err := client.SendMessage(r)
		require.NoError(t, err)
	}
	require.NoError(t, client.Close())
}

func TestAbortedTransactionsAreNotRead(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		conf, err := producerConfig(p.config, nil)
		require.NoError(t, err)
		conf.Producer.Transaction.ID = topic
		producer, err := sarama.NewSyncProducer(brokers, conf)
		require.NoError(t, err)
		for text, end := range map[string]func() error{"aborted": producer.AbortTxn, "committed": producer.CommitTxn} {
			require.NoError(t, producer.BeginTxn())
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(text)})
			require.NoError(t, err)
			require.NoError(t, end())
		}
		require.NoError(t, producer.Close())
		publish(t, p, topic, texts("plain")...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		for _, want := range []string{"committed", "plain"} {
			m := next(t, out)
			require.Equal(t, want, string(m.Payload))
			m.Ack()
		}
	})
}

func TestGroupsBeginAtTheOldestAndGoOn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		publish(t, p, topic, texts("before")...)
		sub, out := subscribe(t, p.Source(topic, topic+"-a"), pipeline.Flow{})
		next(t, out).Ack()
		require.NoError(t, sub.Close())
		publish(t, p, topic, texts("while away")...)
		_, out = subscribe(t, p.Source(topic, topic+"-a"), pipeline.Flow{})
		m := next(t, out)
		require.Equal(t, "while away", string(m.Payload))
		m.Ack()
		_, out = subscribe(t, p.Source(topic, topic+"-b"), pipeline.Flow{})
		for range 2 {
			next(t, out).Ack()
		}
	})
}

func TestMetricsOfALivePartition(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions, c.PartitionMetrics = 1, true })
		topic := topicFor(t, p)
		publish(t, p, topic, texts(numbered(5)...)...)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Window: 4})
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(p.metrics))
		var got []*message.Message
		for range 4 {
			got = append(got, next(t, out))
		}
		for _, m := range got[1:3] {
			m.Ack()
		}
		want := map[string]float64{
			"in_flight": 2, "not_due": 0, "lag": 5, "head_of_line_records": 2, "head_of_line_offset": 0,
			"marked_total": 0, "sessions_total": 1, "published_total": 5,
		}
		require.Eventually(t, func() bool { return holds(t, registry, topic, want) }, 2*time.Minute, 20*time.Millisecond)
		got[0].Ack()
		want["in_flight"], want["lag"], want["marked_total"], want["head_of_line_records"] = 2, 2, 3, 0
		delete(want, "head_of_line_offset")
		next(t, out) // the fifth
		require.Eventually(t, func() bool { return holds(t, registry, topic, want) }, 2*time.Minute, 20*time.Millisecond)
	})
}

// Without partition_metrics a topic has as many series as one partition: sums, and the longest of times.
func TestMetricsOfATopic(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = newPartitions })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		fill(t, p, topic, "x", 2)
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(p.metrics))
		var first []*message.Message
		for range 2 * newPartitions {
			m := next(t, out)
			if offsetOf(m) == 0 {
				first = append(first, m)
				continue
			}
			m.Ack() // the record before it holds it back
		}
		want := map[string]float64{"in_flight": newPartitions, "lag": 2 * newPartitions, "head_of_line_records": newPartitions}
		require.Eventually(t, func() bool { return holds(t, registry, topic, want) }, 2*time.Minute, 20*time.Millisecond)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			require.Len(t, f.GetMetric(), 1, f.GetName())
			require.NotEqual(t, "millrace_kafka_head_of_line_offset", f.GetName(), "an offset is of one partition")
			if f.GetName() == "millrace_kafka_head_of_line_seconds" {
				require.Positive(t, f.GetMetric()[0].GetGauge().GetValue())
			}
		}
		for _, m := range first {
			m.Ack()
		}
		want = map[string]float64{"in_flight": 0, "lag": 0, "head_of_line_records": 0, "head_of_line_seconds": 0}
		require.Eventually(t, func() bool { return holds(t, registry, topic, want) }, 2*time.Minute, 20*time.Millisecond)
	})
}

func TestWhatLastsIsThatOfTheLongestPartition(t *testing.T) {
	t.Parallel()
	var total claimStatus
	for _, l := range []claimStatus{
		{inFlight: 1, notDue: 2, heldBack: 3, lag: 4, headOffset: 5, lagAge: 6, openFor: 70, headFor: 8},
		{inFlight: 10, lag: 40, lagAge: 60, openFor: 7, headFor: 80}, // its first record holds back none
		{notDue: 20, heldBack: 1, headFor: 5},
	} {
		total.add(l)
	}
	require.Equal(t, claimStatus{inFlight: 11, notDue: 22, heldBack: 4, lag: 44, lagAge: 60, openFor: 70, headFor: 8}, total)
}

// holds says whether the metrics of topic have the wanted values now.
func holds(t *testing.T, from prometheus.Gatherer, topic string, want map[string]float64) bool {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "topic" && l.GetValue() == topic {
					found[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	for name, v := range want {
		if got, ok := found["millrace_kafka_"+name]; !ok || got != v {
			return false
		}
	}
	return true
}
