package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/singleflight"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// ensure creates the missing ones of topics and returns when all can be used. It remembers the
// topics that exist. The work is done once for all callers, in a goroutine, because sarama takes no
// context. A caller returns when its ctx ends, and no caller waits for the topic of another.
func (c *connection) ensure(ctx context.Context, topics ...string) error {
	waiting := map[string]<-chan singleflight.Result{}
	for _, t := range topics {
		if _, known := c.known.Load(t); !known {
			waiting[t] = c.creating.DoChan(t, func() (any, error) { return nil, c.makeReady(t) })
		}
	}
	var errs []error
	for t, made := range waiting {
		select {
		case r := <-made:
			if r.Err != nil {
				errs = append(errs, fmt.Errorf("kafka: topic %s: %w", t, r.Err))
			}
		case <-ctx.Done():
			return fmt.Errorf("kafka: topic %s is not ready: %w", t, ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// partlyUsableAfter is how long a topic must have unusable partitions before the others are used.
// The partitions of a new topic can be used earlier.
const partlyUsableAfter = 2 * time.Second

// makeReady creates topic if it is missing and waits until it can be used.
func (c *connection) makeReady(topic string) error {
	if !c.begin() {
		return errNotStarted
	}
	defer c.work.Done()
	ctx, cancel := context.WithTimeout(c.ctx, c.config.PublishTimeout)
	defer cancel()
	began := time.Now()
	for attempt := 1; ; attempt++ {
		usable, all, err := c.tryTopic(topic)
		if err != nil && !unreachable(err) {
			return err
		}
		if usable > 0 && (usable == all || time.Since(began) > partlyUsableAfter) {
			c.known.Store(topic, true)
			return nil
		}
		// A broker is unavailable, or it learns of a new topic later than the one that created it.
		if !loop.Sleep(ctx, min(time.Duration(attempt)*10*time.Millisecond, 250*time.Millisecond)) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// begin counts a piece of work that close waits for; false: it is too late.
func (c *connection) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.work.Add(1)
	return true
}

// tryTopic returns how many of the partitions of topic can be used. It creates a missing topic.
func (c *connection) tryTopic(topic string) (usable, all int, err error) {
	described, err := c.describe(topic)
	if err != nil {
		return 0, 0, err
	}
	switch t := described[topic]; {
	case t == nil, t.Err == sarama.ErrLeaderNotAvailable:
		return 0, 0, nil
	case t.Err == sarama.ErrUnknownTopicOrPartition:
		return 0, 0, c.create(topic, false)
	case t.Err != sarama.ErrNoError:
		return 0, 0, t.Err
	default:
		return c.usable(t), len(t.Partitions), nil
	}
}

// usable counts the partitions whose leader answers with their end. A broker names itself the
// leader of a new partition shortly before it serves it (seen on Kafka 4.3). A reader that begins
// in between is refused.
func (c *connection) usable(t *sarama.TopicMetadata) (n int) {
	if c.client.RefreshMetadata(t.Name) != nil {
		return 0
	}
	silent := map[int32]bool{} // brokers
	for _, p := range t.Partitions {
		if p.Err == sarama.ErrLeaderNotAvailable || p.Leader < 0 || silent[p.Leader] {
			continue
		}
		if _, err := c.client.GetOffset(t.Name, p.ID, sarama.OffsetNewest); err == nil {
			n++
		} else if unreachable(err) {
			silent[p.Leader] = true
		}
	}
	return n
}

// create creates topic. With check, the cluster only checks the request.
func (c *connection) create(topic string, check bool) error {
	admin, err := sarama.NewClusterAdminFromClient(c.client) // shares the client
	if err != nil {
		return err
	}
	if err := admin.CreateTopic(topic, c.detail(topic), check); err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		if errors.Is(err, sarama.ErrInvalidReplicationFactor) {
			return fmt.Errorf("create: %w (plugins.kafka.replication_factor is %d)", err, c.config.ReplicationFactor)
		}
		return fmt.Errorf("create: %w", err)
	}
	return nil
}

// detail is what topic is created with.
func (c *connection) detail(topic string) *sarama.TopicDetail {
	limit := strconv.Itoa(c.limit(topic))
	detail := &sarama.TopicDetail{
		NumPartitions:     c.config.Partitions,
		ReplicationFactor: c.config.ReplicationFactor,
		ConfigEntries:     map[string]*string{configMaxMessageBytes: &limit},
	}
	if least := leastInSync(int(c.config.ReplicationFactor)); least > 1 {
		text := strconv.Itoa(least)
		detail.ConfigEntries[configMinInSync] = &text
	}
	return detail
}

// leastInSync is the min.insync.replicas with which a topic of that many replicas neither loses an
// acknowledged record nor refuses records when one broker fails. Two replicas can't have both: 1
// leaves the choice to the broker's default.
func leastInSync(replicas int) int {
	if replicas >= 3 {
		return 2
	}
	return 1
}

// limit is the largest record of a topic, in bytes.
func (c *connection) limit(topic string) int {
	if c.carriesMore(topic) {
		return c.config.MaxMessageBytes + headerAllowance
	}
	return c.config.MaxMessageBytes
}

// drop removes topic from the known ones: its next use checks whether it exists.
func (c *connection) drop(topic string) { c.known.Delete(topic) }
