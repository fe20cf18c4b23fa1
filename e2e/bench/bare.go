package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// The bare loop is the path of a payout without any framework: the same clients, the same commits,
// batches everywhere. It has no retries, leases, recovery, metrics or orderly shutdown. Its cost is
// that of the servers and clients alone.
const (
	bareStream  = "bare"
	bareGroup   = "bare"
	bareAccept  = 250 // records per INSERT at most
	bareBatch   = 100 // entries per read, begin, settle and ack
	bareReaders = 4   // loops that read, begin, call, settle and ack
	bareCalls   = 16  // calls of one reader at the same time
)

type bareLoop struct {
	config  peerConfig
	db      *pgxpool.Pool
	redis   *redis.Client
	charger charger
	settled atomic.Int64
}

// payBare runs the bare loop until all targets are settled.
func payBare(ctx context.Context, c peerConfig, ready func()) {
	b := &bareLoop{
		config: c, db: peerLedger(ctx, c.Postgres), redis: redis.NewClient(&redis.Options{Addr: c.Redis}), charger: newCharger(c.API, bareReaders*bareCalls),
	}
	defer b.db.Close()
	defer func() { _ = b.redis.Close() }()
	check(b.redis.XGroupCreateMkStream(ctx, bareStream, bareGroup, "0").Err())
	group := must(sarama.NewConsumerGroup(c.Brokers, bareGroup, kafkaConfig()))
	defer func() { _ = group.Close() }()
	ready()
	while(ctx, func(ctx context.Context) {
		together(ctx, bareReaders, func(ctx context.Context, i int) { b.payLoop(ctx, fmt.Sprintf("reader-%d", i)) })
	}, func(ctx context.Context) {
		for ctx.Err() == nil {
			check(group.Consume(ctx, []string{publishTopic}, b))
		}
	})
}

// Setup implements sarama.ConsumerGroupHandler.
func (b *bareLoop) Setup(sarama.ConsumerGroupSession) error { return nil }

// Cleanup implements sarama.ConsumerGroupHandler.
func (b *bareLoop) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim accepts the records of a partition: insert, enqueue, mark.
func (b *bareLoop) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for first := range claim.Messages() {
		batch := []*sarama.ConsumerMessage{first}
	fill:
		for len(batch) < bareAccept {
			select {
			case m, ok := <-claim.Messages():
				if !ok {
					break fill
				}
				batch = append(batch, m)
			default:
				break fill
			}
		}
		if err := try(func() { b.accept(session.Context(), batch) }); err != nil {
			return err
		}
		session.MarkMessage(batch[len(batch)-1], "")
	}
	return nil
}

func (b *bareLoop) accept(ctx context.Context, batch []*sarama.ConsumerMessage) {
	targets, payloads := make([]int64, len(batch)), make([][]byte, len(batch))
	for i, m := range batch {
		var r record
		check(json.Unmarshal(m.Value, &r))
		targets[i], payloads[i] = r.TargetID, m.Value
	}
	must(b.db.Exec(ctx, `INSERT INTO payouts (target_id, state, payload)
		SELECT target, 'PENDING', payload FROM unnest($1::bigint[], $2::bytea[]) AS k (target, payload) ON CONFLICT DO NOTHING`, targets, payloads))
	pipe := b.redis.Pipeline()
	for i := range batch {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: bareStream, Values: []any{"key", targets[i], "message", payloads[i]}})
	}
	must(pipe.Exec(ctx))
}

// payLoop pays entries in batches until all targets are settled.
func (b *bareLoop) payLoop(ctx context.Context, consumer string) {
	for b.settled.Load() < int64(b.config.Targets) {
		read, err := b.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: bareGroup, Consumer: consumer, Streams: []string{bareStream, ">"}, Count: bareBatch, Block: -1,
		}).Result()
		if errors.Is(err, redis.Nil) {
			check(sleep(ctx, 2*time.Millisecond))
			continue
		}
		check(err)
		b.pay(ctx, read[0].Messages)
	}
}

// pay begins, calls, settles and acks one batch.
func (b *bareLoop) pay(ctx context.Context, entries []redis.XMessage) {
	ids, targets, keys := make([]string, len(entries)), make([]string, len(entries)), make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
		targets[i], _ = e.Values["key"].(string)
	}
	started := must(b.db.Exec(ctx, `UPDATE payouts SET state = 'SENDING', attempts = attempts + 1
		WHERE target_id = ANY ($1::bigint[]) AND state = 'PENDING'`, targets)).RowsAffected()
	expect(started == int64(len(entries)), "%d of %d payouts were started", started, len(entries))
	var next atomic.Int64
	together(ctx, bareCalls, func(ctx context.Context, _ int) {
		for i := next.Add(1) - 1; i < int64(len(entries)); i = next.Add(1) - 1 {
			payload, _ := entries[i].Values["message"].(string)
			keys[i] = b.charger.charge(ctx, []byte(payload))
		}
	})
	must(b.db.Exec(ctx, `UPDATE payouts p SET state = 'SUCCESS', transaction_key = k.key, settled_at = clock_timestamp()
		FROM unnest($1::bigint[], $2::text[]) AS k (target, key) WHERE p.target_id = k.target AND p.state = 'SENDING'`, targets, keys))
	b.settled.Add(int64(len(entries)))
	check(b.redis.XAck(ctx, bareStream, bareGroup, ids...).Err())
}
