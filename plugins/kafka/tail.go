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

var _ app.Tailer = (*Plugin)(nil)
