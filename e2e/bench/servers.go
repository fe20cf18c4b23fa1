package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// environment is the servers of a run, with which every measurement begins empty.
type environment struct {
	dir      string // of logs and settings
	millrace string // the binary
	self     string // this binary, which is also the bare loop and the stock flow
	fleet    *servers.Fleet
	versions []string
	lock     *os.File
	redis    *redis.Client
	db       *pgx.Conn
	schemas  int
	log      io.Writer
}

// open starts servers that belong to the benchmark alone, because it empties them.
func open(ctx context.Context, dir string, offset int, log io.Writer) (e *environment, err error) {
	e = &environment{dir: dir, log: log}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if e.lock, err = os.OpenFile(filepath.Join(dir, "run.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(e.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another benchmark runs in %s: %w", dir, err)
	}
	e.fleet, err = servers.New(servers.Options{
		Dir: filepath.Join(dir, "servers"), Cache: filepath.Join(dir, "..", "cache"), EndWithProcess: true, Progress: log,
		Ports: map[string]int{
			servers.Kafka: 39092 + offset, "controller": 39093 + offset,
			servers.Redis: 36379 + offset, servers.Valkey: 36380 + offset, servers.Postgres: 35432 + offset,
		},
	})
	if err != nil {
		return nil, err
	}
	e.fleet.Wipe(ctx) // what a killed run has left
	for _, r := range e.fleet.Up(ctx, servers.Kafka, servers.Redis, servers.Valkey, servers.Postgres) {
		if r.Err != nil {
			return e, r.Err
		}
		e.versions = append(e.versions, r.How[strings.LastIndex(r.How, ", ")+2:])
	}
	e.redis = redis.NewClient(&redis.Options{Addr: e.fleet.Addr(servers.Redis)})
	e.db, err = pgx.Connect(ctx, e.fleet.Addr(servers.Postgres))
	return e, err
}

// close ends the servers and removes their data.
func (e *environment) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if e.db != nil {
		_ = e.db.Close(ctx)
	}
	if e.redis != nil {
		_ = e.redis.Close()
	}
	if e.fleet != nil {
		e.fleet.Wipe(ctx)
	}
}

func (e *environment) brokers() []string { return strings.Split(e.fleet.Addr(servers.Kafka), ",") }

// empty removes all topics, groups, keys and rows, and returns the DSN of a new schema.
func (e *environment) empty(ctx context.Context) (dsn string, err error) {
	if err := e.emptyKafka(ctx); err != nil {
		return "", err
	}
	if err := e.redis.FlushAll(ctx).Err(); err != nil {
		return "", err
	}
	if err := e.redis.Do(ctx, "CONFIG", "RESETSTAT").Err(); err != nil {
		return "", err
	}
	old, name := fmt.Sprintf("bench%d", e.schemas), fmt.Sprintf("bench%d", e.schemas+1)
	e.schemas++
	for _, statement := range []string{"DROP SCHEMA IF EXISTS " + old + " CASCADE", "CREATE SCHEMA " + name, "SET search_path = " + name, "CHECKPOINT"} {
		if _, err := e.db.Exec(ctx, statement); err != nil {
			return "", fmt.Errorf("%s: %w", statement, err)
		}
	}
	return e.fleet.Addr(servers.Postgres) + "&search_path=" + name, nil
}

func (e *environment) emptyKafka(ctx context.Context) error {
	admin, err := sarama.NewClusterAdmin(e.brokers(), kafkaConfig())
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		groups, err := admin.ListConsumerGroups()
		if err != nil {
			return false, err
		}
		for g := range groups {
			_ = admin.DeleteConsumerGroup(g) // the next round tries again
		}
		topics, err := admin.ListTopics()
		if err != nil {
			return false, err
		}
		left := len(groups)
		for topic := range topics {
			if !strings.HasPrefix(topic, "__") {
				left++
				_ = admin.DeleteTopic(topic) // the same
			}
		}
		return left == 0, nil
	})
}

func kafkaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Producer.Return.Successes = false
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Retry.Max = 200 // a broker refuses the records of a new topic for a moment
	return c
}

const payloadBytes = 200

// load creates the publish topic and fills it with the records of POINT promotions, n targets each.
// It announces the number, as `campaign publish` does.
func (e *environment) load(ctx context.Context, partitions int32, n int, promotions ...int64) error {
	point, _ := promotiontype.ByName("POINT")
	payload := func(promotion int64, target int) ([]byte, error) {
		record, err := point.Encode(promotion, 1, int64(target), strconv.Itoa(target%10_000+1))
		if err != nil {
			return nil, err
		}
		record = append(record[:len(record)-1], `,"note":"`...) // a field that readers ignore
		return append(append(record, strings.Repeat("x", max(0, payloadBytes-len(record)-2))...), `"}`...), nil
	}
	return e.publish(ctx, partitions, point.PublishTopic(), func(send func(topic, key string, value []byte)) error {
		for _, promotion := range promotions {
			send(promotiontype.StartedTopic, "", fmt.Appendf(nil, `{"promotionId":%d,"promotionType":"POINT","totalCount":%d}`, promotion, n))
			for target := 1; target <= n; target++ {
				record, err := payload(promotion, target)
				if err != nil {
					return err
				}
				send(point.PublishTopic(), strconv.Itoa(target), record)
			}
		}
		return nil
	})
}

// publish creates a topic and runs fill with a function that publishes one record.
func (e *environment) publish(ctx context.Context, partitions int32, topic string, fill func(send func(topic, key string, value []byte)) error) (err error) {
	admin, err := sarama.NewClusterAdmin(e.brokers(), kafkaConfig())
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	for name, parts := range map[string]int32{topic: partitions, promotiontype.StartedTopic: 1} {
		if err := admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: parts, ReplicationFactor: 1}, false); err != nil {
			return err
		}
	}
	producer, err := sarama.NewAsyncProducer(e.brokers(), kafkaConfig())
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for e := range producer.Errors() {
			failed = e
		}
	})
	err = fill(func(topic, key string, value []byte) {
		select {
		case producer.Input() <- &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.ByteEncoder(value)}:
		case <-ctx.Done():
		}
	})
	producer.AsyncClose()
	wg.Wait()
	return errors.Join(err, failed, ctx.Err())
}
