package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
)

// roundTrip is that of a server in another data center zone.
const roundTrip = 1300 * time.Microsecond

// meter counts messages. It is the handler of both sides.
type meter struct {
	goal        int64
	work        time.Duration // of one message
	handled     atomic.Int64
	first, last time.Time
	before      runtime.MemStats
	after       runtime.MemStats
	done        chan struct{} // closed when goal messages were handled
}

func newMeter(goal int, work time.Duration) *meter {
	return &meter{goal: int64(goal), work: work, done: make(chan struct{})}
}

// handle is a Watermill handler.
func (m *meter) handle(msg *message.Message) error {
	n := m.handled.Add(1)
	if n == 1 {
		runtime.ReadMemStats(&m.before)
		m.first = time.Now()
	}
	if m.work > 0 {
		if err := sleep(msg.Context(), m.work); err != nil {
			return err
		}
	}
	if n == m.goal {
		m.last = time.Now()
		runtime.ReadMemStats(&m.after)
		close(m.done)
	}
	return nil
}

// result returns messages per second and allocations per message. It refuses a run that handled
// another number of messages.
func (m *meter) result() (rate, allocations float64, err error) {
	if got := m.handled.Load(); got != m.goal {
		return 0, 0, fmt.Errorf("refused: %d messages were handled, %d were expected", got, m.goal)
	}
	n := float64(m.goal - 1)
	return n / m.last.Sub(m.first).Seconds(), float64(m.after.Mallocs-m.before.Mallocs) / n, nil
}

// route is a plugin with one route whose handler is a meter.
type route struct {
	from  func() pipeline.Source
	meter *meter
}

func (route) Name() string { return "bench" }

func (r route) Register(reg *pipeline.Registry) error {
	handle := func(m *message.Message) ([]*message.Message, error) { return nil, r.meter.handle(m) }
	reg.Route(pipeline.Route{Name: "bench", From: r.from(), Handle: handle, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}})
	return nil
}

// ours runs a route of the framework in this process, with its default settings, and drains it.
func (e *environment) ours(ctx context.Context, m *meter, transport pipeline.Plugin, from func() pipeline.Source, settings map[string]any) error {
	file, err := e.writeSettings("route", settings)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out pipelinetest.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- app.Main(ctx, app.Options{
			Name: "bench", Plugins: []pipeline.Plugin{transport, route{from, m}}, Args: []string{"run", "--config", file},
			Environ: []string{}, Stdout: &out, Stderr: &out,
		})
	}()
	select {
	case <-m.done:
	case code := <-ended:
		return fmt.Errorf("the service ended with %d:\n%s", code, out.String())
	}
	cancel()
	if code := <-ended; code != 0 {
		return fmt.Errorf("the service ended with %d:\n%s", code, out.String())
	}
	return nil
}

// stock runs a Watermill Router with the same handler.
func stock(ctx context.Context, m *meter, sub message.Subscriber, topic string) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", topic, sub, m.handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-m.done:
	case err := <-ended:
		return errors.Join(errors.New("the router ended"), err)
	}
	return router.Close()
}

// nearAndFar runs measure on Redis itself, and behind a proxy with a round trip of 1.3 ms.
func (e *environment) nearAndFar(measure func(place, addr string) error) error {
	addr := e.fleet.Addr(servers.Redis)
	proxy, err := faults.NewProxy(addr)
	if err != nil {
		return err
	}
	defer func() { _ = proxy.Close() }()
	proxy.SetDelay(roundTrip)
	return errors.Join(measure("local", addr), measure("far", proxy.Addr()))
}

// compareConsume reads and acks a stream through the Router, with default settings.
func compareConsume(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	pairs := map[string]pair{}
	err := e.nearAndFar(func(place, addr string) error {
		n, peers := s.messages, s.messages/10
		if place == "far" {
			n, peers = s.messages/3, s.messages/100
		}
		m, peer := newMeter(n, 0), newMeter(peers, 0)
		if err := e.fill(ctx, "ours", n); err != nil {
			return err
		}
		plugin := redis.New()
		from := func() pipeline.Source { return plugin.Source("ours", "bench") }
		if err := e.ours(ctx, m, plugin, from, map[string]any{"plugins.redis.addrs": []string{addr}}); err != nil {
			return err
		}
		if err := e.acked(ctx, "ours", "bench"); err != nil {
			return err
		}
		if err := e.fill(ctx, stockStream, peers); err != nil {
			return err
		}
		sub, err := stockSubscriber(addr)
		if err != nil {
			return err
		}
		if err := stock(ctx, peer, sub, stockStream); err != nil {
			return err
		}
		rate, allocations, err := m.result()
		peerRate, _, peerErr := peer.result()
		pairs["consume-"+place] = pair{rate, peerRate}
		if place == "local" {
			pairs["stream-allocations"] = pair{allocations, e.committed("stream-allocations")}
		}
		return errors.Join(err, peerErr)
	})
	return pairs, err
}

// compareWindow reads one partition with a handler that takes a millisecond.
func compareWindow(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	if err := e.emptyKafka(ctx); err != nil {
		return nil, err
	}
	n, peers := s.messages/5, s.messages/100
	if err := e.createTopics(ctx, 1, "ours", "stock"); err != nil {
		return nil, err
	}
	err := e.send(ctx, func(send sender) error {
		for range n {
			send("ours", "", payload())
		}
		for range peers {
			send("stock", "", payload())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m, peer := newMeter(n, time.Millisecond), newMeter(peers, time.Millisecond)
	plugin := kafka.New()
	from := func() pipeline.Source { return plugin.Source("ours", "ours") }
	if err := e.ours(ctx, m, plugin, from, map[string]any{"plugins.kafka.brokers": e.brokers()}); err != nil {
		return nil, err
	}
	sub, err := stockKafka(e.brokers(), "stock")
	if err != nil {
		return nil, err
	}
	if err := stock(ctx, peer, sub, "stock"); err != nil {
		return nil, err
	}
	rate, allocations, err := m.result()
	peerRate, _, peerErr := peer.result()
	return map[string]pair{
		"window": {rate, peerRate}, "kafka-allocations": {allocations, e.committed("kafka-allocations")},
	}, errors.Join(err, peerErr)
}

// fill replaces a stream by one with n entries in the format of watermill-redisstream, which both
// sides read.
func (e *environment) fill(ctx context.Context, stream string, n int) error {
	if err := e.redis.Del(ctx, stream).Err(); err != nil {
		return err
	}
	for n > 0 {
		pipe := e.redis.Pipeline()
		for range min(n, 1000) {
			pipe.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: []any{redisstream.UUIDHeaderKey, "u", "metadata", "", "payload", payload()}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		n -= 1000
	}
	return nil
}

// acked checks that a group has acknowledged all entries.
func (e *environment) acked(ctx context.Context, stream, group string) error {
	pending, err := e.redis.XPending(ctx, stream, group).Result()
	if err == nil && pending.Count > 0 {
		return fmt.Errorf("refused: %d entries of %s are not acknowledged", pending.Count, stream)
	}
	return err
}
