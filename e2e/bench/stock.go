package main

import (
	"context"
	"encoding/json"
	"errors"
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
func payStock(ctx context.Context, c peerConfig, ready func()) {
	db := peerLedger(ctx, c.Postgres)
	defer db.Close()
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	accept := func(m *message.Message) ([]*message.Message, error) {
		var r record
		if err := json.Unmarshal(m.Payload, &r); err != nil {
			return nil, err
		}
		_, err := db.Exec(m.Context(), "INSERT INTO payouts (target_id, state, payload) VALUES ($1, 'PENDING', $2)", r.TargetID, m.Payload)
		return []*message.Message{message.NewMessage(watermill.NewUUID(), m.Payload)}, err
	}
	router.AddHandler("accept", publishTopic, stockKafka(c.Brokers, "stock"), stockStream, stockPublisher(c.Redis), accept)
	charger := newCharger(c.API, 1)
	var settled atomic.Int64
	done := make(chan struct{})
	pay := func(m *message.Message) {
		var r record
		check(json.Unmarshal(m.Payload, &r))
		must(db.Exec(m.Context(), "UPDATE payouts SET state = 'SENDING', attempts = attempts + 1 WHERE target_id = $1", r.TargetID))
		key := charger.charge(m.Context(), m.Payload)
		must(db.Exec(m.Context(), "UPDATE payouts SET state = 'SUCCESS', transaction_key = $2, settled_at = clock_timestamp() WHERE target_id = $1",
			r.TargetID, key))
		if settled.Add(1) == int64(c.Targets) {
			close(done)
		}
	}
	router.AddConsumerHandler("pay", stockStream, stockSubscriber(c.Redis), func(m *message.Message) error { return try(func() { pay(m) }) })
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	ready()
	select {
	case <-done: // the process ends soon, with the router
	case err := <-ended:
		check(errors.New("the router ended"), err)
	}
}

func stockKafka(brokers []string, group string) *kafka.Subscriber {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version, config.Consumer.Offsets.Initial = kafkaConfig().Version, kafkaConfig().Consumer.Offsets.Initial
	return must(kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, OverwriteSaramaConfig: config, Unmarshaler: kafka.DefaultMarshaler{},
	}, watermill.NopLogger{}))
}

// stockSubscriber returns a subscriber that closes its client.
func stockSubscriber(addr string) *redisstream.Subscriber {
	return must(redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: redis.NewClient(&redis.Options{Addr: addr}), ConsumerGroup: stockStream, DisableIndefiniteInitialBlock: true,
	}, watermill.NopLogger{}))
}

func stockPublisher(addr string) *redisstream.Publisher {
	return must(redisstream.NewPublisher(redisstream.PublisherConfig{Client: redis.NewClient(&redis.Options{Addr: addr})}, watermill.NopLogger{}))
}
