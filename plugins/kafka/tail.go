package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Tail implements app.Tailer. It reads topic without a group, without commits and without the
// service. It does not create the topic.
func (p *Plugin) Tail(topic string, oldest bool) pipeline.Source {
	if !topicName.MatchString(topic) {
		return nil
	}
	return tail{broadcastSource{p, topic}, oldest}
}

// topicName matches the names that Kafka allows.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

type tail struct {
	broadcastSource
	oldest bool
}

func (t tail) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	initial := sarama.OffsetNewest
	if t.oldest {
		initial = sarama.OffsetOldest
	}
	s, err := openBroadcast(ctx, t.plugin.snapshot(), t.topic, initial, f, t.plugin.log)
	switch {
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return nil, &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("kafka has no topic %s", t.topic)}
	case err != nil:
		return nil, answered(err)
	}
	return s, nil
}

// ToEnd implements app.Ender. The source reads one partition after the other, as Scan does.
func (t tail) ToEnd() pipeline.Source { return tailToEnd{t} }

type tailToEnd struct{ tail }

func (t tailToEnd) Open(ctx context.Context, _ pipeline.Flow) (pipeline.Subscription, error) {
	live, err := t.plugin.standalone(ctx)
	if err != nil {
		return nil, err
	}
	readers, _, err := live.scanners(t.topic, t.plugin.log)
	if err != nil {
		if err = answered(err); errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			err = &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("kafka has no topic %s", t.topic)}
		}
		return nil, errors.Join(err, live.close(ctx))
	}
	var life *pipeline.Life
	life = pipeline.NewLife(live.config.CloseTimeout, func(ctx context.Context) error {
		deliver := func(r Scanned) error {
			m := copyOf(unmarshal(&sarama.ConsumerMessage{
				Topic: t.topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Time, Key: r.Key, Value: r.Value, Headers: r.headers,
			}))
			m.SetContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{
				Kind: Kind, Source: t.topic, Position: position(t.topic, r.Partition, r.Offset), Key: m.Metadata[pipeline.MetaKey],
			}}))
			select {
			case life.Out <- m:
				return nil
			case <-life.Reading.Done():
				return life.Reading.Err()
			}
		}
		err := scanPartitions(life.Reading, readers, deliver)
		if life.Reading.Err() != nil {
			err = nil // it was asked to end
		}
		return errors.Join(err, live.close(ctx))
	})
	return life, nil
}

// standalone connects for one read, without the service. The caller closes the connection.
func (p *Plugin) standalone(ctx context.Context) (*connection, error) {
	config := p.snapshot()
	conf, err := adminConfig(config, p.log)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	client, err := service{p}.wait(ctx, config, conf)
	if err != nil {
		return nil, err
	}
	return newConnection(config, client, nil, p.carriesMore), nil
}

var (
	_ app.Tailer = (*Plugin)(nil)
	_ app.Ender  = tail{}
)
