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
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// environment is the servers of a run, with which every measurement begins empty.
type environment struct {
	dir      string // of logs and settings
	millrace string // the binary
	self     string // this binary, which is also the programs
	fleet    *servers.Fleet
	versions []string
	kafka    *kadm.Client
	redis    *redis.Client
	db       *pgx.Conn
	schemas  int
	log      io.Writer
	results  string              // folder of the pages and the table of allocations
	plots    []byte              // SVG of the largest campaign
	tables   map[string][]*table // further tables of each page
}

var errNoServer = errors.New("a server can't be started")

// startServers starts Redis alone, or all servers, until the end of the trial. They belong to the
// benchmark alone, because it empties them.
func (t *trial) startServers(ctx context.Context, offset int, all bool) {
	check(os.MkdirAll(t.dir, 0o755))
	lock := must(syscall.Open(filepath.Join(t.dir, "run.lock"), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600))
	if err := syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // it ends with this process
		check(fmt.Errorf("another benchmark runs in %s: %w", t.dir, err))
	}
	t.fleet = must(servers.New(servers.Options{
		Dir: filepath.Join(t.dir, "servers"), Cache: filepath.Join(t.dir, "..", "cache"), EndWithProcess: true, Optimize: true, Progress: t.log,
		Ports: map[string]int{
			servers.Kafka: 17592 + offset, "controller": 17593 + offset,
			servers.Redis: 17594 + offset, servers.Postgres: 17595 + offset,
		},
	}))
	t.fleet.Wipe(ctx) // what a killed run has left
	t.cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		t.fleet.Wipe(ctx)
	})
	needed := []string{servers.Redis}
	if all {
		needed = append(needed, servers.Kafka, servers.Postgres)
	}
	for _, r := range t.fleet.Up(ctx, needed...) {
		if r.Err != nil {
			check(fmt.Errorf("%w: %s: %w", errNoServer, r.Name, r.Err))
		}
		t.versions = append(t.versions, r.How[strings.LastIndex(r.How, ", ")+2:])
	}
	t.redis = redis.NewClient(&redis.Options{Addr: t.fleet.Addr(servers.Redis)})
	t.cleanup(func() { _ = t.redis.Close() })
	if all {
		t.kafka = must(kadm.NewOptClient(kgo.SeedBrokers(t.brokers()...), kgo.MetadataMinAge(10*time.Millisecond)))
		t.cleanup(t.kafka.Close)
		t.db = must(pgx.Connect(ctx, t.fleet.Addr(servers.Postgres)))
		t.cleanup(func() { _ = t.db.Close(context.WithoutCancel(ctx)) })
	}
}

func (e *environment) brokers() []string { return strings.Split(e.fleet.Addr(servers.Kafka), ",") }

// empty removes all topics, groups, keys and rows, and returns the DSN of a new schema.
func (e *environment) empty(ctx context.Context) (dsn string) {
	e.emptyKafka(ctx)
	e.emptyRedis(ctx)
	old, name := fmt.Sprintf("bench%d", e.schemas), fmt.Sprintf("bench%d", e.schemas+1)
	e.schemas++
	for _, statement := range []string{"DROP SCHEMA IF EXISTS " + old + " CASCADE", "CREATE SCHEMA " + name, "SET search_path = " + name, "CHECKPOINT"} {
		must(e.db.Exec(ctx, statement))
	}
	return e.fleet.Addr(servers.Postgres) + "&search_path=" + name
}

func (e *environment) emptyKafka(ctx context.Context) {
	until(ctx, 100*time.Millisecond, func() bool {
		groups, topics := must(e.kafka.ListGroups(ctx)), must(e.kafka.ListTopics(ctx))
		if len(groups) == 0 && len(topics) == 0 {
			return true
		}
		// A group whose member is still leaving is refused. The next round deletes it.
		must(e.kafka.DeleteGroups(ctx, groups.Groups()...))
		if len(topics) > 0 {
			must(e.kafka.DeleteTopics(ctx, topics.Names()...))
		}
		return false
	})
}

// emptyRedis removes all keys and counts.
func (e *environment) emptyRedis(ctx context.Context) {
	check(e.redis.FlushAllAsync(ctx).Err()) // otherwise many keys take seconds
	until(ctx, 50*time.Millisecond, func() bool { return e.redisInfo(ctx, "memory", "lazyfree_pending_objects:") == 0 })
	e.emptyStats(ctx)
}

// emptyStats resets the counts of Redis.
func (e *environment) emptyStats(ctx context.Context) {
	check(e.redis.Do(ctx, "CONFIG", "RESETSTAT").Err())
}

// redisInfo returns the number that follows prefix in a section of INFO.
func (e *environment) redisInfo(ctx context.Context, section, prefix string) int64 {
	_, rest, _ := strings.Cut(must(e.redis.Info(ctx, section).Result()), prefix)
	return leading([]byte(rest))
}

func (e *environment) redisMemory(ctx context.Context) int64 {
	return e.redisInfo(ctx, "memory", "used_memory:")
}

func (e *environment) redisCPU() time.Duration { return cpuTime(e.fleet.PID(servers.Redis)) }

// kafkaConfig is for the bare loop.
func kafkaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	return c
}

const (
	payloadBytes = 200
	publishTopic = "campaign-promotion-point-publish"
)

// sender publishes one record. Errors are reported at the end.
type sender func(topic, key string, value []byte)

// announce publishes the started event of the promotion, and waits until an instance has read it:
// the number of targets sets the default slots. Instances skip events from before their start.
func (e *environment) announce(ctx context.Context, targets int) {
	e.send(ctx, func(send sender) {
		send(promotiontype.StartedTopic, strconv.Itoa(promotion), fmt.Appendf(nil, `{"promotionId":%d,"promotionType":"POINT","totalCount":%d}`, promotion, targets))
	})
	within(ctx, time.Minute, "no instance has read the started event", func(ctx context.Context) {
		until(ctx, 20*time.Millisecond, func() bool {
			return e.count(ctx, "SELECT count(*) FROM promotion_streams WHERE promotion_id = $1 AND total_count = $2", promotion, targets) > 0
		})
	})
}

// count returns the number that a query has.
func (e *environment) count(ctx context.Context, query string, args ...any) (n int) {
	check(e.db.QueryRow(ctx, query, args...).Scan(&n))
	return n
}

// load publishes the records of POINT promotions, n targets each.
func (e *environment) load(ctx context.Context, n int, promotions ...int64) {
	e.send(ctx, func(send sender) {
		for _, promotion := range promotions {
			for target := 1; target <= n; target++ {
				send(publishTopic, strconv.Itoa(target), pointRecord(promotion, target))
			}
		}
	})
}

// pointRecord returns a record of payloadBytes. Readers ignore the field that fills it up.
func pointRecord(promotion int64, target int) []byte {
	record := must(point().Encode(promotion, 1, int64(target), strconv.Itoa(target%10_000+1)))
	record = append(record[:len(record)-1], `,"note":"`...)
	return append(append(record, strings.Repeat("x", max(0, payloadBytes-len(record)-2))...), `"}`...)
}

func point() promotiontype.Type {
	point, _ := promotiontype.ByName("POINT")
	return point
}

func (e *environment) createTopics(ctx context.Context, partitions int32, topics ...string) {
	created, err := e.kafka.CreateTopics(ctx, partitions, 1, nil, topics...)
	check(err, created.Error())
}

// send runs fill with a function that publishes one record, and waits until all are durable.
func (e *environment) send(ctx context.Context, fill func(send sender)) {
	client := must(kgo.NewClient(kgo.SeedBrokers(e.brokers()...), kgo.UnknownTopicRetries(-1)))
	defer client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fill(func(topic, key string, value []byte) {
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
			}
		})
	})
	check(client.Flush(ctx), context.Cause(ctx))
}
