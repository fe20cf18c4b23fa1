package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func scanAll(t *testing.T, p *Plugin, topic string) (values map[string]int, scan Scan) {
	t.Helper()
	values = map[string]int{}
	next := map[int32]int64{}
	scan, err := p.Scan(t.Context(), topic, func(r Scanned) error {
		require.GreaterOrEqual(t, r.Offset, next[r.Partition], "in order")
		require.WithinDuration(t, time.Now(), r.Time, time.Hour)
		next[r.Partition] = r.Offset + 1
		values[string(r.Value)]++
		return nil
	})
	require.NoError(t, err)
	return values, scan
}

func TestScanReadsEveryRecordOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		for _, compression := range []string{"none", "zstd"} {
			p := start(t, brokers, func(c *Config) { c.Compression = compression })
			topic := topicFor(t, p)
			require.NoError(t, p.ensureTopics(t.Context(), topic))
			values, scan := scanAll(t, p, topic)
			require.Empty(t, values)
			require.Equal(t, Scan{Partitions: 4, Beginning: true}, scan)

			const n = 5000 // more than one answer holds
			for from := 0; from < n; from += 500 {
				msgs := make([]*message.Message, 500)
				for i := range msgs {
					msgs[i] = message.NewMessage("", fmt.Appendf(nil, "%d %s", from+i, strings.Repeat("x", 1000)))
					msgs[i].Metadata.Set(pipeline.MetaKey, fmt.Sprint(from+i))
				}
				publish(t, p, topic, msgs...)
			}
			values, scan = scanAll(t, p, topic)
			require.Equal(t, Scan{Partitions: 4, Records: n, Beginning: true}, scan)
			require.Len(t, values, n)
			for v, times := range values {
				if times != 1 {
					require.Equal(t, 1, times, v)
				}
			}
		}
	})
}

// TestScanEndsAtTheEndOfItsBeginning: a scan of a topic that is being written ends.
func TestScanEndsAtTheEndOfItsBeginning(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 2 })
		topic := topicFor(t, p)
		batch := func(text string) (msgs []*message.Message) { // for both partitions
			for i := range 20 {
				m := message.NewMessage("", []byte(text))
				m.Metadata.Set(pipeline.MetaKey, fmt.Sprint(i))
				msgs = append(msgs, m)
			}
			return msgs
		}
		publish(t, p, topic, batch("before")...)
		seen, partitions := map[string]int{}, map[int32]bool{}
		scan, err := p.Scan(t.Context(), topic, func(r Scanned) error {
			if len(seen) == 0 {
				publish(t, p, topic, batch("later")...)
			}
			seen[string(r.Value)]++
			partitions[r.Partition] = true
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, map[string]int{"before": 20}, seen)
		require.Len(t, partitions, 2)
		require.EqualValues(t, 20, scan.Records)
	})
}

func TestScanFailsWithAReason(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		_, err := p.Scan(t.Context(), topic, func(Scanned) error { return nil })
		require.ErrorIs(t, err, ErrTopicMissing, "and the topic is not made")

		publish(t, p, topic, message.NewMessage("", []byte("a")))
		own := errors.New("enough")
		_, err = p.Scan(t.Context(), topic, func(Scanned) error { return own })
		require.Equal(t, own, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = p.Scan(ended, topic, func(Scanned) error { return nil })
		require.ErrorIs(t, err, context.Canceled)
	})
	_, err := New().Scan(t.Context(), "any", nil)
	require.ErrorIs(t, err, errNotStarted)
}

// TestScanSaysWhatRetentionRemoved: what is gone can't be read, and the caller learns it.
func TestScanSaysWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		publish(t, p, topic, message.NewMessage("", []byte("a")), message.NewMessage("", []byte("b")), message.NewMessage("", []byte("c")))
		live, err := p.connected()
		require.NoError(t, err)
		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: 2}))
		values, scan := scanAll(t, p, topic)
		require.Equal(t, map[string]int{"c": 1}, values)
		require.Equal(t, Scan{Partitions: 1, Records: 1, Beginning: false}, scan)
	})
}

// TestScanNeverGoesBack: a partition that is shorter than what was read of it is another one. Its
// records must not be counted with those of the first. Records that retention removes meanwhile are
// only missing.
func TestScanNeverGoesBack(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		publish(t, p, topic, message.NewMessage("", []byte("a")), message.NewMessage("", []byte("b")), message.NewMessage("", []byte("c")))
		live, err := p.connected()
		require.NoError(t, err)
		var seen []string
		from := func(offset, end int64) (Scan, error) {
			scan := Scan{Beginning: true}
			s := partitionScan{live: live, topic: topic, offset: offset, end: end, scan: &scan, each: func(r Scanned) error {
				seen = append(seen, string(r.Value))
				return nil
			}}
			err := s.run(t.Context())
			return scan, err
		}
		_, err = from(10, 20)
		require.ErrorIs(t, err, sarama.ErrOffsetOutOfRange)
		require.Empty(t, seen)

		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: 2}))
		scan, err := from(1, 3)
		require.NoError(t, err)
		require.Equal(t, []string{"c"}, seen)
		require.False(t, scan.Beginning)
	})
}

// TestScanEndsWithTheService: the service's stop waits for scans, so they must not go on trying.
func TestScanEndsWithTheService(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) {
			c.Partitions = 1
			c.ReconnectBackoff = pipeline.Backoff{First: time.Minute, Max: time.Minute}
		})
		topic := topicFor(t, start(t, brokers)) // this one is stopped
		msgs := make([]*message.Message, 50)    // more than one answer holds
		for i := range msgs {
			msgs[i] = message.NewMessage("", []byte(strings.Repeat("x", 100_000)))
		}
		publish(t, p, topic, msgs...)
		live, err := p.connected()
		require.NoError(t, err)
		stopped := make(chan error, 1)
		_, err = p.Scan(t.Context(), topic, func(Scanned) error {
			if live.ctx.Err() == nil {
				go func() { stopped <- service{p}.Stop(context.Background()) }()
				<-live.ctx.Done()
			}
			return nil
		})
		require.ErrorIs(t, err, errNotStarted)
		require.NoError(t, <-stopped)
	})
}

// TestScanLeavesAbortedTransactionsOut, and ends although the last thing in the topic is no record.
func TestScanLeavesAbortedTransactionsOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		conf := sarama.NewConfig()
		conf.Version = sarama.V2_8_0_0
		conf.Producer.Idempotent, conf.Producer.RequiredAcks, conf.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
		conf.Producer.Return.Successes = true
		conf.Producer.Transaction.ID = "kafka-test-" + watermill.NewShortUUID()
		producer, err := sarama.NewSyncProducer(brokers, conf)
		require.NoError(t, err)
		defer func() { _ = producer.Close() }()
		for i, end := range []func() error{producer.CommitTxn, producer.AbortTxn, producer.CommitTxn, producer.AbortTxn} {
			require.NoError(t, producer.BeginTxn())
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(i))})
			require.NoError(t, err)
			require.NoError(t, end())
		}
		values, scan := scanAll(t, p, topic)
		require.Equal(t, map[string]int{"0": 1, "2": 1}, values)
		require.EqualValues(t, 2, scan.Records)
	})
}
