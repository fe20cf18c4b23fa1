package redis

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// Source reads a stream for a group. Missing streams and groups are created, also while it reads.
// The route's window is the concurrency. Any order means a concurrency of 1. Messages of a retry
// topic are delivered at the latest one poll interval after their due time, if a worker is free.
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
	o := poll.Options{Config: s.p.cfg.Config, Stream: s.at.Name, ReclaimInterval: s.p.cfg.ReclaimInterval}
	o.Concurrency = concurrencyOf(f, o.Concurrency)
	sub, err := s.p.open(ctx, s.at, f, o)
	if err != nil {
		return nil, err
	}
	if s.Delays() == nil {
		s.p.mu.Lock()
		log := s.p.env.Logger
		s.p.mu.Unlock()
		sub.OnClosed(s.p.startMover(s.at.Name, sub.Readers()[0].Wake, log))
	}
	return sub, nil
}

// open completes the options of the readers and starts them, all on one channel.
func (p *Plugin) open(ctx context.Context, at pipeline.Endpoint, f pipeline.Flow, readers ...poll.Options) (*pubsub.Subscription, error) {
	c, log, err := p.complete(at, f, readers)
	if err != nil {
		return nil, err
	}
	sub, err := pubsub.Open(ctx, c, pubsub.SubscriptionOptions{CloseTimeout: p.cfg.CloseTimeout, Logger: log, Metrics: p.readers}, readers...)
	if err != nil {
		return nil, err
	}
	for i, r := range sub.Readers() {
		sub.OnClosed(p.trim.add(readers[i].Stream, at.Group, func() int64 { return r.Stats().Acked }))
	}
	return sub, nil
}

// complete completes the options of readers. It returns the client and the logger.
func (p *Plugin) complete(at pipeline.Endpoint, f pipeline.Flow, readers []poll.Options) (goredis.UniversalClient, *slog.Logger, error) {
	c := p.Client()
	if c == nil {
		return nil, nil, fmt.Errorf("open %s: the redis service has not been started", at)
	}
	p.mu.Lock()
	env := p.env
	p.mu.Unlock()
	instance := env.Instance
	if instance == "" {
		instance = watermill.NewULID()
	}
	for i := range readers {
		o := &readers[i]
		o.Group, o.Consumer, o.LongestHandlerHold = at.Group, instance+"-0", f.LongestHold
		o.Gate, o.Fence = f.Gate, p.Fence
	}
	return c, env.Logger, nil
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
