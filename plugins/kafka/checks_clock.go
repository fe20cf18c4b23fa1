package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	configTimestampType = "message.timestamp.type"
	logAppendTime       = "LogAppendTime"
	// clockPartitions is how many partitions of a topic are asked for their last record.
	clockPartitions = 16
)

// stampedRecord is the newest record that a broker has given its own time.
type stampedRecord struct {
	topic string
	at    time.Time
}

// readClock compares the clocks of brokers with that of this process. No request asks for the time of a
// broker, but the records of a topic with LogAppendTime have it.
func (p *Plugin) readClock(ctx context.Context, live *connection) ([]operate.Check, error) {
	topics, err := live.stampedTopics(namesOf(neededTopics(p.routes)))
	if err != nil {
		return nil, err
	}
	var newest stampedRecord
	for _, topic := range topics {
		at, err := live.lastTime(ctx, topic, p)
		if err != nil {
			return nil, fmt.Errorf("topic %s: %w", topic, err)
		}
		if at.After(newest.at) {
			newest = stampedRecord{topic, at}
		}
	}
	return []operate.Check{clockCheck(len(topics), newest, time.Now())}, nil
}

// stampedTopics returns the topics whose records have the time of the broker. Topics that do not exist,
// and those whose settings may not be read, are left out.
func (c *connection) stampedTopics(names []string) (stamped []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return nil, err
	}
	resources := make([]*sarama.ConfigResource, len(names))
	for i, name := range names {
		resources[i] = &sarama.ConfigResource{Type: sarama.TopicResource, Name: name, ConfigNames: []string{configTimestampType}}
	}
	results, err := admin.DescribeConfigs(resources, sarama.DescribeConfigsOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		for _, entry := range r.Configs {
			if entry.Name == configTimestampType && entry.Value == logAppendTime {
				stamped = append(stamped, r.Name)
			}
		}
	}
	return stamped, nil
}

// lastTime returns the time of the newest last record of the partitions, and zero without any.
func (c *connection) lastTime(ctx context.Context, topic string, p *Plugin) (newest time.Time, err error) {
	readers, _, err := c.scanners(topic, p.log)
	if err != nil {
		return newest, err
	}
	for i := range readers[:min(len(readers), clockPartitions)] {
		r := &readers[i]
		if r.offset >= r.end {
			continue
		}
		r.offset, r.size = r.end-1, scanBytes
		r.each = func(record Scanned) error {
			if record.Time.After(newest) {
				newest = record.Time
			}
			return ctx.Err()
		}
		// A marker of a transaction or a record that is hidden has no time. It is as good as none.
		var own callerError
		if err := r.fetch(); errors.As(err, &own) {
			return newest, own.error
		} else if err != nil {
			return newest, err
		}
	}
	return newest, nil
}

// clockCheck can tell that a broker is ahead. One that is behind looks like one without new records.
func clockCheck(topics int, newest stampedRecord, now time.Time) operate.Check {
	ahead := newest.at.Sub(now)
	switch {
	case topics == 0:
		return operate.Check{Level: operate.OK, Text: "not known, because no topic of a route has " + configTimestampType + " " + logAppendTime + ", and no request asks for the time of a broker"}
	case newest.at.IsZero():
		return operate.Check{Level: operate.OK, Text: fmt.Sprintf("not known, because the %d topics with %s %s have no record", topics, configTimestampType, logAppendTime)}
	case ahead < operate.ClockWarn:
		return operate.Check{Level: operate.OK, Text: fmt.Sprintf("no broker is ahead by the newest record that one has stamped, in %s %s ago; one that is behind can't be seen", newest.topic, max(-ahead, 0).Round(time.Millisecond))}
	}
	c := operate.Check{
		Level: operate.Warn, Text: fmt.Sprintf("a broker is at least %s ahead, because it has stamped a record of %s with %s", ahead.Round(time.Millisecond), newest.topic, newest.at.UTC().Format(time.RFC3339)),
		Remedy: operate.ClockRemedy,
	}
	if ahead >= operate.ClockFail {
		c.Level = operate.Fail
	}
	return c
}
