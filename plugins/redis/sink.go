package redis

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Sink publishes to a stream, which is created when it is missing. All sinks of the plugin share
// pipelines. When the stream is the retry topic of a route, a message with pipeline.MetaDue first
// waits in a sorted set. Once it is due, a Source of the stream moves it into the stream.
func (p *Plugin) Sink(stream string) pipeline.Sink {
	return sink{p, pipeline.Endpoint{Kind: poll.Kind, Name: stream}}
}

type sink struct {
	p  *Plugin
	at pipeline.Endpoint
}

func (s sink) Describe() pipeline.Endpoint { return s.at }

// Publish returns when all messages are in the stream, or wait until they are due, with the trace
// context of ctx in their headers. Like that of pubsub.Publisher, it is at least once.
func (s sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	traced := trace.SpanContextFromContext(ctx).IsValid()
	entries := make([]entry.Entry, len(msgs))
	for i, m := range msgs {
		if traced {
			m = m.Copy() // the caller's message is not ours to change
			pipeline.InjectTrace(ctx, m.Metadata)
		}
		entries[i] = entry.New(m)
	}
	isDelayed := func(m *message.Message) bool { return m.Metadata.Get(pipeline.MetaDue) != "" }
	if slices.ContainsFunc(msgs, isDelayed) && s.p.delays.retries(s.at.Name) {
		return s.publishDue(ctx, msgs, entries)
	}
	return s.p.publish.PublishEntries(ctx, s.at.Name, entries)
}
