package deadletter

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
)

// Sink returns the dead-letter sink of a topic, for Policy.DeadLetter of a route without a ledger.
// It puts a dead letter into the store, if one is configured, before it publishes it. It is safe
// for concurrent use.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	return p.sink(topic, p.topics.Sink(topic), false)
}

// What a stream of dead letters keeps, about. The sender of the messages chooses their size, so a
// number alone would let them fill Redis.
const (
	maxStream      = 100_000
	maxStreamBytes = 64 << 20
)

// StreamSink is Sink for a stream without a group. It keeps about the newest 100,000 dead letters or
// 64 MiB of them, whichever is less, and at most 8 KiB of each payload, with the length and the hash
// of the complete one, because the stream shares the memory of Redis with the messages. It needs no
// topics.
func (p *Plugin) StreamSink(stream string) pipeline.Sink {
	if p.streams == nil {
		panic("deadletter: StreamSink without a transport of streams in New")
	}
	return p.sink(stream, cutting{p.streams.CappedSink(stream, maxStream, maxStreamBytes)}, true)
}

func (p *Plugin) sink(name string, to pipeline.Sink, stream bool) pipeline.Sink {
	p.sinks[name] = stream
	// Exported as 0 from the first scrape, so that the first dead letter is an increase.
	p.metrics.published.WithLabelValues(name)
	p.metrics.unpublished.WithLabelValues(name)
	return &sink{Sink: to, plugin: p, topic: name}
}

// cutting is a sink that keeps the beginning of payloads.
type cutting struct{ pipeline.Sink }

func (c cutting) Publish(ctx context.Context, msgs ...*message.Message) error {
	short := make([]*message.Message, len(msgs))
	for i, m := range msgs {
		if short[i] = pipeline.CutDeadLetter(m); short[i] == nil {
			short[i] = m
		}
	}
	return c.Sink.Publish(ctx, short...)
}

type sink struct {
	pipeline.Sink
	plugin *Plugin
	topic  string
}

// Publish returns nil when each dead letter is in its topic or, where the topic refuses its
// smallest form, in the store. The error is permanent when the topic refuses a dead letter and no
// store is configured.
func (s *sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	batch := make([]outgoing, len(msgs))
	for i, m := range msgs {
		batch[i] = outgoing{fromMessage(s.topic, m), m}
	}
	err := s.plugin.publish(ctx, batch, func(string) pipeline.Sink { return s.Sink })
	if failed, ok := errors.AsType[*pipeline.PartialError](err); ok {
		return failed.Unwrap()
	}
	return err
}

// fromMessage reads a dead letter from the headers that pipeline.DeadLetter.Message wrote.
func fromMessage(topic string, m *message.Message) store.DeadLetter {
	meta := m.Metadata
	d := pipeline.DeadLetter{
		Payload: m.Payload, Metadata: maps.Clone(map[string]string(meta)), Key: meta.Get(pipeline.MetaKey), Class: meta.Get(pipeline.MetaDeadClass),
		Error: meta.Get(pipeline.MetaDeadError), Handler: meta.Get(pipeline.MetaDeadHandler), Origin: meta.Get(pipeline.MetaDeadOrigin),
		SourceKind: meta.Get(pipeline.MetaDeadSourceKind), Source: meta.Get(pipeline.MetaDeadSource),
	}
	d.Attempts, _ = strconv.Atoi(meta.Get(pipeline.MetaDeadAttempts))
	d.FailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFailedAt))
	d.FirstFailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFirstFailedAt))
	cut := []string{pipeline.MetaDeadPayloadBytes, pipeline.MetaDeadPayloadSHA256} // a replay refuses it
	maps.DeleteFunc(d.Metadata, func(name, _ string) bool {
		return name == pipeline.MetaKey || strings.HasPrefix(name, pipeline.MetaDeadPrefix) && !slices.Contains(cut, name)
	})
	return store.From("", store.PluginOf(d.Handler), topic, meta.Get(pipeline.MetaDeadUUID), d)
}
