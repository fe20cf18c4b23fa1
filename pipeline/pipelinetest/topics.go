package pipelinetest

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// Topics are topics in memory, for plugins that open topics by name. Each is a Feed, created when
// it is first named. The zero value is ready. Safe for concurrent use.
type Topics struct {
	mu  sync.Mutex
	all map[string]*topic
}

// topic is a feed that remembers what was published to it.
type topic struct {
	feed      *Feed
	published *Recorder
}

func (t *Topics) topic(name string) *topic {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[string]*topic{}
	}
	if t.all[name] == nil {
		t.all[name] = &topic{NewFeed(name), NewRecorder(name)}
	}
	return t.all[name]
}

// Feed returns the feed of a topic.
func (t *Topics) Feed(name string) *Feed { return t.topic(name).feed }

// Published returns the messages that sinks published to a topic.
func (t *Topics) Published(name string) *Recorder { return t.topic(name).published }

// Source implements pipeline.Topics. The group is ignored.
func (t *Topics) Source(name, _ string) pipeline.Source { return t.Feed(name) }

// Sink implements pipeline.Topics. The topic delivers at once; MetaDue has no effect.
func (t *Topics) Sink(name string) pipeline.Sink { return t.topic(name) }

// Describe implements pipeline.Sink.
func (t *topic) Describe() pipeline.Endpoint { return t.feed.Describe() }

// Delays implements pipeline.Delayer, like that of Feed.
func (t *topic) Delays() error { return nil }

// Publish implements pipeline.Sink.
func (t *topic) Publish(ctx context.Context, msgs ...*message.Message) error {
	if err := t.published.Publish(ctx, msgs...); err != nil {
		return err
	}
	return t.feed.Sink().Publish(ctx, msgs...)
}

var _ pipeline.Topics = (*Topics)(nil)
