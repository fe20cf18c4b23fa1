package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// Source reads a stream for a group. Missing streams and groups are created, also while it reads.
// The route's window is the concurrency. Any order means a concurrency of 1.
func (p *Plugin) Source(name, group string) pipeline.Source {
	return source{p, pipeline.Endpoint{Kind: poll.Kind, Name: name, Group: group}}
}

type source struct {
	p  *Plugin
	at pipeline.Endpoint
}

func (s source) Describe() pipeline.Endpoint { return s.at }

// Open starts a reader with the plugin's settings.
func (s source) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	return s.p.open(ctx, s.at, f, s.p.cfg.ReclaimInterval, stream{s.at.Name, concurrencyOf(f, s.p.cfg.Concurrency)})
}

type stream struct {
	name        string
	concurrency int
}

// open starts a reader per stream, all on one channel.
func (p *Plugin) open(ctx context.Context, at pipeline.Endpoint, f pipeline.Flow, reclaim time.Duration, streams ...stream) (*pubsub.Subscription, error) {
	c := p.Client()
	if c == nil {
		return nil, fmt.Errorf("open %s: the redis service has not been started", at)
	}
	p.mu.Lock()
	env := p.env
	p.mu.Unlock()
	instance := env.Instance
	if instance == "" {
		instance = watermill.NewULID()
	}
	options := make([]poll.Options, len(streams))
	for i, s := range streams {
		options[i] = poll.Options{
			Config: p.cfg.Config, Stream: s.name, Group: at.Group, Consumer: instance + "-0",
			LongestHandlerHold: f.LongestHold, ReclaimInterval: reclaim, Gate: f.Gate, Fence: p.Fence,
		}
		options[i].Concurrency = s.concurrency
	}
	sub, err := pubsub.Open(ctx, c, pubsub.SubscriptionOptions{CloseTimeout: p.cfg.CloseTimeout, Logger: env.Logger, Metrics: p.readers}, options...)
	if err != nil {
		return nil, err
	}
	for i, r := range sub.Readers() {
		sub.OnClosed(p.trim.add(streams[i].name, at.Group, func() int64 { return r.Stats().Acked }))
	}
	return sub, nil
}

// concurrencyOf returns the concurrency of a route. Streams have no partitions: any order means one
// message at a time in each instance.
func concurrencyOf(f pipeline.Flow, concurrency int) int {
	if f.Order != pipeline.OrderNone {
		return 1
	}
	if f.Window > 0 {
		concurrency = f.Window
	}
	if f.MaxInFlight > 0 {
		concurrency = min(concurrency, f.MaxInFlight)
	}
	return concurrency
}
