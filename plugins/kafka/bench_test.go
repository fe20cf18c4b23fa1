package kafka

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// BenchmarkSubscribe compares our windowed subscriber with watermill-kafka's own, in the same run.
// It reads b.N records with a handler that takes a millisecond, one goroutine per message.
//
//	go test -bench Subscribe -benchtime 5000x ./plugins/kafka
func BenchmarkSubscribe(b *testing.B) {
	for _, s := range []server{kfakeServer(), realServer()} {
		for _, c := range []struct {
			name       string
			partitions int32
			open       func(b *testing.B, p *Plugin, topic string) <-chan *message.Message
		}{
			{"watermill/1_partition", 1, watermills},
			{"window_256/1_partition", 1, windowed},
			{"watermill/8_partitions", 8, watermills},
			{"window_256/8_partitions", 8, windowed},
		} {
			b.Run(s.kind+"/"+c.name, func(b *testing.B) {
				p := start(b, s.brokers(b), func(conf *Config) { conf.Partitions = c.partitions })
				topic := topicFor(b, p)
				for left := b.N; left > 0; left -= 1000 {
					publish(b, p, topic, texts(numbered(min(left, 1000))...)...)
				}
				out := c.open(b, p, topic)
				var hands sync.WaitGroup
				work := func(m *message.Message) {
					hands.Go(func() {
						time.Sleep(time.Millisecond) // the work itself
						m.Ack()
					})
				}
				m := next(b, out) // joining is not measured
				b.ResetTimer()
				work(m)
				for range b.N - 1 {
					work(next(b, out))
				}
				hands.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

func windowed(b *testing.B, p *Plugin, topic string) <-chan *message.Message {
	_, out := subscribe(b, p.Source(topic, topic), pipeline.Flow{})
	return out
}

func watermills(b *testing.B, p *Plugin, topic string) <-chan *message.Message {
	conf := wkafka.DefaultSaramaSubscriberConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: p.config.Brokers, ConsumerGroup: topic, OverwriteSaramaConfig: conf, Unmarshaler: marshaler{},
	}, watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), topic)
	require.NoError(b, err)
	return out
}

// BenchmarkPublish publishes batches of 250 with our Sink and with watermill-kafka's publisher.
func BenchmarkPublish(b *testing.B) {
	const batch = 250
	for _, s := range []server{kfakeServer(), realServer()} {
		for _, c := range []struct {
			name string
			open func(b *testing.B, p *Plugin, topic string) func([]*message.Message) error
		}{
			{"watermill", func(b *testing.B, p *Plugin, topic string) func([]*message.Message) error {
				conf, err := producerConfig(p.config, nil)
				require.NoError(b, err)
				pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
					Brokers: p.config.Brokers, OverwriteSaramaConfig: conf, Marshaler: marshaler{},
				}, watermill.NopLogger{})
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, pub.Close()) })
				return func(msgs []*message.Message) error { return pub.Publish(topic, msgs...) }
			}},
			{"sink", func(b *testing.B, p *Plugin, topic string) func([]*message.Message) error {
				return func(msgs []*message.Message) error { return p.Sink(topic).Publish(b.Context(), msgs...) }
			}},
		} {
			b.Run(s.kind+"/"+c.name, func(b *testing.B) {
				p := start(b, s.brokers(b))
				topic := topicFor(b, p)
				require.NoError(b, p.ensureTopics(b.Context(), topic))
				send := c.open(b, p, topic)
				records := 0
				for b.Loop() {
					require.NoError(b, send(texts(numbered(batch)...)))
					records += batch
				}
				b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

// BenchmarkClaim delivers records without a broker to a handler that acks at once.
func BenchmarkClaim(b *testing.B) {
	for name, headers := range map[string][]*sarama.RecordHeader{
		"plain":   nil,
		"counted": nil, // on a route with dead letters
		"headers": {{Key: []byte(wkafka.UUIDHeaderKey), Value: []byte(watermill.NewUUID())}, {Key: []byte("traceparent"), Value: []byte("00-01")}},
	} {
		b.Run(name, func(b *testing.B) {
			s := newSubscription(defaultConfig(), "topic", "group", pipeline.Flow{}, slog.New(slog.DiscardHandler), newMetrics())
			s.values = b.Context()
			records := make(chan *sarama.ConsumerMessage, 256)
			c := newClaim(s.Reading, s, 3, 0, progress{}, func(int64, string) {}, func() int64 { return 0 })
			if name == "counted" {
				c.countCrashes(progress{}, func() {})
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.run(records)
			}()
			raw := make([]sarama.ConsumerMessage, b.N)
			for i := range raw {
				raw[i] = sarama.ConsumerMessage{Topic: "topic", Partition: 3, Offset: int64(i), Key: []byte("12345"), Value: make([]byte, 200), Headers: headers}
			}
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for i := range raw {
					records <- &raw[i]
				}
				close(records)
			}()
			for range b.N {
				(<-s.Out).Ack()
			}
			<-ended
		})
	}
}
