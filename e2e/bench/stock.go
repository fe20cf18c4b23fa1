package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

const stockStream = "stock"

// payStock is the path of a payout made of Watermill's own parts, with their defaults. One handler
// inserts a row and publishes to a stream. The next one updates, calls and updates.
func payStock(ctx context.Context, c peerConfig, ready func()) error {
	db, err := peerLedger(ctx, c.Postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	records, err := stockKafka(c.Brokers, "stock")
	if err != nil {
		return err
	}
	entries, err := stockSubscriber(c.Redis)
	if err != nil {
		return err
	}
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: redis.NewClient(&redis.Options{Addr: c.Redis})}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddHandler("accept", publishTopic, records, stockStream, publisher, func(m *message.Message) ([]*message.Message, error) {
		var r record
		if err := json.Unmarshal(m.Payload, &r); err != nil {
			return nil, err
		}
		_, err := db.Exec(m.Context(), "INSERT INTO payouts (target_id, state, payload) VALUES ($1, 'PENDING', $2)", r.TargetID, m.Payload)
		return []*message.Message{message.NewMessage(watermill.NewUUID(), m.Payload)}, err
	})
	charger := newCharger(c.API, 1)
	var settled atomic.Int64
	done := make(chan struct{})
	router.AddConsumerHandler("pay", stockStream, entries, func(m *message.Message) error {
		var r record
		if err := json.Unmarshal(m.Payload, &r); err != nil {
			return err
		}
		_, err := db.Exec(m.Context(), "UPDATE payouts SET state = 'SENDING', attempts = attempts + 1 WHERE target_id = $1", r.TargetID)
		if err != nil {
			return err
		}
		key, err := charger.charge(m.Context(), m.Payload)
		if err != nil {
			return err
		}
		_, err = db.Exec(m.Context(), "UPDATE payouts SET state = 'SUCCESS', transaction_key = $2, settled_at = clock_timestamp() WHERE target_id = $1",
			r.TargetID, key)
		if err == nil && settled.Add(1) == int64(c.Targets) {
			close(done)
		}
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	ready()
	select {
	case <-done:
		return nil // the process ends soon, with the router
	case err := <-ended:
		return fmt.Errorf("the router ended: %w", err)
	}
}

func stockKafka(brokers []string, group string) (*kafka.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version, config.Consumer.Offsets.Initial = kafkaConfig().Version, kafkaConfig().Consumer.Offsets.Initial
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, OverwriteSaramaConfig: config, Unmarshaler: kafka.DefaultMarshaler{},
	}, watermill.NopLogger{})
}

// stockSubscriber returns a subscriber that closes its client.
func stockSubscriber(addr string) (*redisstream.Subscriber, error) {
	return redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: redis.NewClient(&redis.Options{Addr: addr}), ConsumerGroup: stockStream, DisableIndefiniteInitialBlock: true,
	}, watermill.NopLogger{})
}
