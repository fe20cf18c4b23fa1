package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
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
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
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
func (m *meter) result() (rate, allocations float64) {
	got, n := m.handled.Load(), float64(m.goal-1)
	expect(got == m.goal, "%d messages were handled, %d were expected", got, m.goal)
	return n / m.last.Sub(m.first).Seconds(), float64(m.after.Mallocs-m.before.Mallocs) / n
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
func (t *trial) ours(ctx context.Context, m *meter, transport pipeline.Plugin, from func() pipeline.Source, settings map[string]any) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out pipelinetest.Buffer
	args, ended := []string{"run", "--config", t.writeSettings("route", settings)}, make(chan int, 1)
	go func() {
		ended <- app.Main(ctx, app.Options{
			Name: "bench", Plugins: []pipeline.Plugin{transport, route{from, m}}, Args: args,
			Environ: []string{}, Stdout: &out, Stderr: &out,
		})
	}()
	select {
	case <-m.done:
		cancel()
		code := <-ended
		expect(code == 0, "the service ended with %d:\n%s", code, out.String())
	case code := <-ended:
		expect(false, "the service ended with %d before it had handled everything:\n%s", code, out.String())
	}
}

// stock runs a Watermill Router with the same handler.
func stock(ctx context.Context, m *meter, sub message.Subscriber, topic string) {
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	router.AddConsumerHandler("bench", topic, sub, m.handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-m.done:
	case err := <-ended:
		check(errors.New("the router ended"), err)
	}
	check(router.Close())
}

// nearAndFar runs measure on Redis itself, and behind a proxy with a round trip of 1.3 ms.
func (e *environment) nearAndFar(measure func(place, addr string)) {
	addr := e.fleet.Addr(servers.Redis)
	proxy := must(faults.NewProxy(addr))
	defer func() { _ = proxy.Close() }()
	proxy.SetDelay(roundTrip)
	measure("local", addr)
	measure("far", proxy.Addr())
}

// compareConsume reads and acks a stream through the Router, with default settings.
func compareConsume(ctx context.Context, t *trial) {
	t.nearAndFar(func(place, addr string) {
		n, peers := t.messages, t.messages/10
		if place == "far" {
			n, peers = t.messages/3, t.messages/100
		}
		m, peer := newMeter(n, 0), newMeter(peers, 0)
		t.fill(ctx, "ours", n)
		plugin := redis.New()
		from := func() pipeline.Source { return plugin.Source("ours", "bench") }
		t.ours(ctx, m, plugin, from, map[string]any{"plugins.redis.addrs": []string{addr}})
		pending := must(t.redis.XPending(ctx, "ours", "bench").Result()).Count
		expect(pending == 0, "%d entries are not acknowledged", pending)
		t.fill(ctx, stockStream, peers)
		stock(ctx, peer, stockSubscriber(addr), stockStream)
		rate, allocations := m.result()
		peerRate, _ := peer.result()
		t.figure("consume-"+place, rate, peerRate)
		if place == "local" {
			t.figure("stream-allocations", allocations, t.committed("stream-allocations"))
		}
	})
}

// compareWindow reads one partition with a handler that takes a millisecond.
func compareWindow(ctx context.Context, t *trial) {
	t.emptyKafka(ctx)
	n, peers := t.messages/5, t.messages/100
	t.createTopics(ctx, 1, "ours", "stock")
	t.send(ctx, func(send sender) {
		for range n {
			send("ours", "", payload())
		}
		for range peers {
			send("stock", "", payload())
		}
	})
	m, peer := newMeter(n, time.Millisecond), newMeter(peers, time.Millisecond)
	plugin := kafka.New()
	from := func() pipeline.Source { return plugin.Source("ours", "ours") }
	t.ours(ctx, m, plugin, from, map[string]any{"plugins.kafka.brokers": t.brokers()})
	stock(ctx, peer, stockKafka(t.brokers(), "stock"), "stock")
	rate, allocations := m.result()
	peerRate, _ := peer.result()
	t.figure("window", rate, peerRate)
	t.figure("kafka-allocations", allocations, t.committed("kafka-allocations"))
}

// fill replaces a stream by one with n entries in the format of watermill-redisstream, which both
// sides read.
func (e *environment) fill(ctx context.Context, stream string, n int) {
	check(e.redis.Del(ctx, stream).Err())
	for ; n > 0; n -= 1000 {
		pipe := e.redis.Pipeline()
		for range min(n, 1000) {
			pipe.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: []any{redisstream.UUIDHeaderKey, "u", "metadata", "", "payload", payload()}})
		}
		must(pipe.Exec(ctx))
	}
}

const publishers = 8

// comparePublish publishes from eight goroutines, one message and 50 messages per call.
func comparePublish(ctx context.Context, t *trial) {
	t.nearAndFar(func(place, addr string) {
		for _, perCall := range []int{1, 50} {
			n, peers := t.messages/3, t.messages/3
			switch {
			case place == "far" && perCall == 1:
				n, peers = t.messages/30, t.messages/30
			case place == "far":
				peers = t.messages / 30
			}
			client := goredis.NewClient(&goredis.Options{Addr: addr})
			rate := t.publishRate(ctx, must(pubsub.NewPublisher(client, pubsub.PublisherConfig{})), perCall, n)
			check(client.Close())
			t.figure(fmt.Sprintf("publish-%d-%s", perCall, place), rate, t.publishRate(ctx, stockPublisher(addr), perCall, peers))
		}
	})
}

// publishRate publishes about n messages, checks that the stream has them, and closes the
// publisher.
func (e *environment) publishRate(ctx context.Context, publisher message.Publisher, perCall, n int) float64 {
	const stream = "publish"
	check(e.redis.Del(ctx, stream).Err())
	calls := max(1, n/perCall/publishers)
	began := time.Now()
	together(ctx, publishers, func(ctx context.Context, _ int) {
		for range calls {
			messages := make([]*message.Message, perCall)
			for i := range messages {
				messages[i] = message.NewMessage("u", payload())
			}
			check(publisher.Publish(stream, messages...))
		}
		check(ctx.Err())
	})
	took, sent := time.Since(began), publishers*calls*perCall
	got := must(e.redis.XLen(ctx, stream).Result())
	expect(got == int64(sent), "the stream has %d entries, %d were published", got, sent)
	check(publisher.Close())
	return float64(sent) / took.Seconds()
}

var payload = sync.OnceValue(func() []byte { return []byte(strings.Repeat("x", payloadBytes)) }) //nolint:gochecknoglobals // a constant
