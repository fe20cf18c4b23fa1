package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	lock     *os.File
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

// open starts the needed servers. They belong to the benchmark alone, because it empties them.
func open(ctx context.Context, dir string, offset int, log io.Writer, needed []string) (e *environment, err error) {
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
		Dir: filepath.Join(dir, "servers"), Cache: filepath.Join(dir, "..", "cache"), EndWithProcess: true, Optimize: true, Progress: log,
		Ports: map[string]int{
			servers.Kafka: 17592 + offset, "controller": 17593 + offset,
			servers.Redis: 17594 + offset, servers.Postgres: 17595 + offset,
		},
	})
	if err != nil {
		return nil, err
	}
	e.fleet.Wipe(ctx) // what a killed run has left
	for _, r := range e.fleet.Up(ctx, needed...) {
		if r.Err != nil {
			return e, fmt.Errorf("%w: %s: %w", errNoServer, r.Name, r.Err)
		}
		e.versions = append(e.versions, r.How[strings.LastIndex(r.How, ", ")+2:])
	}
	e.redis = redis.NewClient(&redis.Options{Addr: e.fleet.Addr(servers.Redis)})
	if !slices.Contains(needed, servers.Kafka) {
		return e, nil
	}
	if e.kafka, err = kadm.NewOptClient(kgo.SeedBrokers(e.brokers()...), kgo.MetadataMinAge(10*time.Millisecond)); err != nil {
		return e, err
	}
	e.db, err = pgx.Connect(ctx, e.fleet.Addr(servers.Postgres))
	return e, err
}

// close ends the servers and removes their data.
func (e *environment) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if e.kafka != nil {
		e.kafka.Close()
	}
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
	if err := e.emptyRedis(ctx); err != nil {
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
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		groups, err := e.kafka.ListGroups(ctx)
		if err != nil {
			return false, err
		}
		topics, err := e.kafka.ListTopics(ctx)
		if err != nil {
			return false, err
		}
		if len(groups) == 0 && len(topics) == 0 {
			return true, nil
		}
		// A group whose member is still leaving is refused. The next round deletes it.
		_, err = e.kafka.DeleteGroups(ctx, groups.Groups()...)
		if err == nil && len(topics) > 0 {
			_, err = e.kafka.DeleteTopics(ctx, topics.Names()...)
		}
		return false, err
	})
}

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

// createCampaign creates the topics of a campaign.
func (e *environment) createCampaign(ctx context.Context, partitions int32) error {
	return errors.Join(e.createTopics(ctx, partitions, publishTopic), e.createTopics(ctx, 1, promotiontype.StartedTopic))
}

// announce publishes the started event of the promotion, and waits until an instance has read it:
// the number of targets sets the default slots. Instances skip events from before their start.
func (e *environment) announce(ctx context.Context, targets int) error {
	err := e.send(ctx, func(send sender) error {
		send(promotiontype.StartedTopic, strconv.Itoa(promotion), fmt.Appendf(nil, `{"promotionId":%d,"promotionType":"POINT","totalCount":%d}`, promotion, targets))
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("refused: no instance has read the started event"))
	defer cancel()
	return until(ctx, 20*time.Millisecond, func() (read bool, err error) {
		err = e.db.QueryRow(ctx, "SELECT count(*) > 0 FROM promotion_streams WHERE promotion_id = $1 AND total_count = $2", promotion, targets).Scan(&read)
		return read, err
	})
}

// load publishes the records of POINT promotions, n targets each.
func (e *environment) load(ctx context.Context, n int, promotions ...int64) error {
	return e.send(ctx, func(send sender) error {
		for _, promotion := range promotions {
			for target := 1; target <= n; target++ {
				value, err := pointRecord(promotion, target)
				if err != nil {
					return err
				}
				send(publishTopic, strconv.Itoa(target), value)
			}
		}
		return nil
	})
}

// pointRecord returns a record of payloadBytes. Readers ignore the field that fills it up.
func pointRecord(promotion int64, target int) ([]byte, error) {
	point, _ := promotiontype.ByName("POINT")
	record, err := point.Encode(promotion, 1, int64(target), strconv.Itoa(target%10_000+1))
	if err != nil {
		return nil, err
	}
	record = append(record[:len(record)-1], `,"note":"`...)
	return append(append(record, strings.Repeat("x", max(0, payloadBytes-len(record)-2))...), `"}`...), nil
}

func (e *environment) createTopics(ctx context.Context, partitions int32, topics ...string) error {
	created, err := e.kafka.CreateTopics(ctx, partitions, 1, nil, topics...)
	return errors.Join(err, created.Error())
}

// send runs fill with a function that publishes one record, and waits until all are durable.
func (e *environment) send(ctx context.Context, fill func(send sender) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(e.brokers()...), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err = fill(func(topic, key string, value []byte) {
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
			}
		})
	})
	return errors.Join(err, client.Flush(ctx), context.Cause(ctx))
}
