package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// ensure creates the missing ones of topics and waits until all have leaders. What it has seen it
// does not ask again.
func (c *connection) ensure(ctx context.Context, topics ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var unknown []string
	for _, t := range topics {
		if !c.known[t] {
			unknown = append(unknown, t)
		}
	}
	for attempt, created := 1, false; len(unknown) > 0; attempt++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kafka: topics %v are not ready: %w", unknown, err)
		}
		admin, err := sarama.NewClusterAdminFromClient(c.client) // a view of the client; nothing to close
		if err != nil {
			return fmt.Errorf("kafka: topics: %w", err)
		}
		missing, ready, err := describe(admin, unknown)
		if err != nil {
			return fmt.Errorf("kafka: topics: %w", err)
		}
		if len(missing) == 0 && len(ready) == len(unknown) && c.readable(unknown) {
			for _, t := range unknown {
				c.known[t] = true
			}
			return nil
		}
		if !created {
			created = true
			for _, t := range missing {
				if err := c.create(admin, t); err != nil {
					return err
				}
			}
			continue
		}
		// Brokers learn of a new topic one after another; metadata lags behind the creation a little.
		sleep(ctx, min(time.Duration(attempt)*10*time.Millisecond, 250*time.Millisecond))
	}
	return nil
}

// readable asks every partition for its end. A broker names itself the leader of a new partition a
// moment before it serves it (seen on Kafka 4.3), and a reader that begins in between is refused.
func (c *connection) readable(topics []string) bool {
	if c.client.RefreshMetadata(topics...) != nil {
		return false
	}
	for _, t := range topics {
		partitions, err := c.client.Partitions(t)
		if err != nil {
			return false
		}
		for _, p := range partitions {
			if _, err := c.client.GetOffset(t, p, sarama.OffsetNewest); err != nil {
				return false
			}
		}
	}
	return true
}

// describe tells which of topics don't exist and which can be used.
func describe(admin sarama.ClusterAdmin, topics []string) (missing, ready []string, err error) {
	described, err := admin.DescribeTopics(topics)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range described {
		switch {
		case errors.Is(t.Err, sarama.ErrUnknownTopicOrPartition):
			missing = append(missing, t.Name)
		case t.Err == sarama.ErrLeaderNotAvailable:
		case t.Err != sarama.ErrNoError:
			return nil, nil, fmt.Errorf("%s: %w", t.Name, t.Err)
		case led(t.Partitions):
			ready = append(ready, t.Name)
		}
	}
	return missing, ready, nil
}

func led(partitions []*sarama.PartitionMetadata) bool {
	for _, p := range partitions {
		if p.Err == sarama.ErrLeaderNotAvailable || p.Leader < 0 {
			return false
		}
	}
	return len(partitions) > 0
}

func (c *connection) create(admin sarama.ClusterAdmin, topic string) error {
	limit := strconv.Itoa(c.config.MaxMessageBytes)
	err := admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions:     c.config.Partitions,
		ReplicationFactor: c.config.ReplicationFactor,
		ConfigEntries:     map[string]*string{"max.message.bytes": &limit},
	}, false)
	if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("kafka: create topic %s: %w", topic, err)
	}
	return nil
}
