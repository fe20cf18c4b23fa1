package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// outgoing is a dead letter on its way to the store and to its topic.
type outgoing struct {
	dead store.DeadLetter
	msg  *message.Message
}

// maxFailuresInARow is the number of consecutive failures that end a batch. The cause is then not
// the messages but the broker. A permanent error is the fault of its message.
const maxFailuresInARow = 3

// publish makes a batch durable: in the store, then in the topics, one after another in the order
// of the batch. The error is a *pipeline.PartialError when the store, if one is configured, has all
// and some are not in their topics.
func (p *Plugin) publish(ctx context.Context, batch []outgoing, sinkOf func(topic string) pipeline.Sink) error {
	if err := p.put(ctx, batch); err != nil {
		return err
	}
	byTopic := map[string][]int{}
	var topics []string
	for i, o := range batch {
		if byTopic[o.dead.Topic] == nil {
			topics = append(topics, o.dead.Topic)
		}
		byTopic[o.dead.Topic] = append(byTopic[o.dead.Topic], i)
	}
	failed := map[int]error{}
	for _, topic := range topics {
		p.publishTopic(ctx, sinkOf(topic), batch, byTopic[topic], failed)
	}
	if len(failed) == 0 {
		return nil
	}
	return &pipeline.PartialError{Failed: failed, Size: len(batch)}
}

// put puts a batch into the store, if one is configured.
func (p *Plugin) put(ctx context.Context, batch []outgoing) error {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	s := p.store.Load()
	if s == nil {
		return errors.New("the store of dead letters is not open")
	}
	rows := make([]store.DeadLetter, len(batch))
	for i, o := range batch {
		rows[i] = o.dead
	}
	return s.Put(ctx, rows...)
}

// publishTopic publishes the dead letters of one topic to its sink in one call. It publishes those
// that failed one by one, so that one that the broker refuses does not block the others. It adds
// the failures to failed.
func (p *Plugin) publishTopic(ctx context.Context, to pipeline.Sink, batch []outgoing, indexes []int, failed map[int]error) {
	topic := batch[indexes[0]].dead.Topic
	var err error
	switch {
	case topic == "":
		err = errors.New("it has no topic")
	case len(indexes) > 1:
		msgs := make([]*message.Message, len(indexes))
		for n, i := range indexes {
			msgs[n] = batch[i].msg
		}
		err = to.Publish(ctx, msgs...)
		partial, inPart := errors.AsType[*pipeline.PartialError](err)
		var unpublished []int
		for n, i := range indexes {
			if err != nil && (!inPart || partial.Failed[n] != nil) {
				unpublished = append(unpublished, i)
			}
		}
		p.metrics.published.WithLabelValues(topic).Add(float64(len(indexes) - len(unpublished)))
		indexes = unpublished
	}
	inARow := 0
	for _, i := range indexes {
		if topic != "" && inARow < maxFailuresInARow && (err == nil || ctx.Err() == nil) {
			if err = p.publishOne(ctx, to, batch[i]); err == nil {
				inARow = 0
				continue
			}
			if !pipeline.IsPermanent(err) {
				inARow++
			}
		}
		failed[i] = fmt.Errorf("publish to %s: %w", topic, err)
	}
}

// publishOne publishes a dead letter, cut until its topic accepts it. When the topic refuses the
// smallest form too, it counts as done if the store has it.
func (p *Plugin) publishOne(ctx context.Context, to pipeline.Sink, o outgoing) error {
	topic := o.dead.Topic
	err := pipeline.PublishDeadLetter(ctx, to, o.msg)
	switch {
	case err == nil:
		p.metrics.published.WithLabelValues(topic).Inc()
	case !pipeline.IsPermanent(err) || p.config.Store.DSN.IsZero():
		return err
	default:
		p.metrics.unpublished.WithLabelValues(topic).Inc()
		p.log.ErrorContext(ctx, "the topic refuses a dead letter, only the store has it", slog.String(logs.Topic, topic),
			slog.String("id", o.dead.ID), slog.String(logs.Origin, o.dead.Source.String()), logs.Err(err))
	}
	return nil
}
