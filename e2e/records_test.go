package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// send publishes raw records of one key in their order, as a producer without Millrace would.
func (w *deployment) send(topic string, payloads ...string) {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Producer.Return.Successes = true
	cfg.Producer.MaxMessageBytes = 4 << 20
	cfg.Net.MaxOpenRequests = 1 // keeps the order when a request is repeated
	p, err := sarama.NewSyncProducer([]string{w.fleet.server(w.t, servers.Kafka)}, cfg)
	require.NoError(w.t, err)
	defer func() { _ = p.Close() }()
	messages := make([]*sarama.ProducerMessage, 0, len(payloads))
	for _, payload := range payloads {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("1"), Value: sarama.StringEncoder(payload)})
	}
	require.NoError(w.t, p.SendMessages(messages))
}

// makeAgain deletes a topic and makes it with the same number of partitions.
func (w *deployment) makeAgain(topic string) {
	w.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.fleet.server(w.t, servers.Kafka)))
	require.NoError(w.t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	look := func() kadm.TopicDetail {
		all, err := admin.ListTopics(w.t.Context(), topic)
		require.NoError(w.t, err)
		return all[topic]
	}
	before := look()
	require.NoError(w.t, before.Err)
	_, err = admin.DeleteTopic(w.t.Context(), topic)
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		_, _ = admin.CreateTopic(w.t.Context(), int32(len(before.Partitions)), 1, nil, topic) // refused until the old one is gone
		now := look()
		return now.Err == nil && now.ID != before.ID && len(now.Partitions) == len(before.Partitions)
	}, 2*time.Minute, 200*time.Millisecond, "the topic is made again")
}

// deadLetters reads n dead letters from a topic and returns their number per class.
func (w *deployment) deadLetters(topic string, n int) map[string]int {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Consumer.Fetch.Default = 4 << 20
	c, err := sarama.NewConsumer([]string{w.fleet.server(w.t, servers.Kafka)}, cfg)
	require.NoError(w.t, err)
	defer func() { _ = c.Close() }()
	partitions, err := c.Partitions(topic)
	require.NoError(w.t, err)
	got := make(chan *sarama.ConsumerMessage)
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	var open []sarama.PartitionConsumer
	defer func() {
		for _, pc := range open {
			_ = pc.Close()
		}
	}()
	for _, p := range partitions {
		var pc sarama.PartitionConsumer
		require.Eventually(w.t, func() bool { // a topic that is that new has no leader yet
			pc, err = c.ConsumePartition(topic, p, sarama.OffsetOldest)
			return err == nil
		}, 2*time.Minute, 100*time.Millisecond, "consume %s/%d: %v", topic, p, err)
		open = append(open, pc)
		go func() {
			for m := range pc.Messages() {
				select {
				case got <- m:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	classes := map[string]int{}
	for range n {
		select {
		case m := <-got:
			headers := map[string]string{}
			for _, h := range m.Headers {
				headers[string(h.Key)] = string(h.Value)
			}
			for _, name := range []string{"millrace-dead-error", "millrace-dead-handler", "millrace-dead-origin", "millrace-dead-attempts", "millrace-dead-first-failed-at", "millrace-dead-failed-at"} {
				require.NotEmpty(w.t, headers[name], "%s of a dead letter", name)
			}
			classes[headers["millrace-dead-class"]]++
		case <-ctx.Done():
			require.FailNow(w.t, "not enough dead letters", "got %v, want %d", classes, n)
		}
	}
	return classes
}

func point(promotion int64, target int, amount string) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%s}`, promotion, target, amount)
}
