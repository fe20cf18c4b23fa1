package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func publisher(t *testing.T, c goredis.UniversalClient, m *pubsub.Metrics) *pubsub.Publisher {
	t.Helper()
	p, err := pubsub.NewPublisher(c, pubsub.PublisherConfig{Metrics: m})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestPublishWritesPlainFields(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		stream := redistest.Stream(t, c)
		m := message.NewMessage("u", []byte(`{"targetId":777}`))
		m.Metadata.Set(pipeline.MetaKey, "777")
		m.Metadata.Set("a", "1")
		require.NoError(t, publisher(t, c, nil).Publish(stream, m))
		raw, err := c.Do(t.Context(), "XRANGE", stream, "-", "+").Slice()
		require.NoError(t, err)
		require.Len(t, raw, 1)
		require.Equal(t, []any{"key", "777", "message", `{"targetId":777}`, "uuid", "u", "headers", `{"a":"1"}`}, raw[0].([]any)[1])
		require.Equal(t, "777", m.Metadata.Get(pipeline.MetaKey), "the caller's message must not be changed")
	})
}

func TestConcurrentPublishesShareAPipeline(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		stream := redistest.Stream(t, c)
		m := pubsub.NewMetrics()
		far := s.Client(t)
		far.AddHook(hook{before: func([]goredis.Cmder) {
			time.Sleep(2 * time.Millisecond) // the work itself: a distant server
		}})
		p := publisher(t, far, m)
		const callers, calls, each = 50, 20, 3
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for j := range calls {
					var ms []*message.Message
					for k := range each {
						ms = append(ms, message.NewMessage(fmt.Sprintf("%d-%d-%d", i, j, k), []byte("x")))
					}
					if err := p.Publish(stream, ms...); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		entries, err := c.XRange(t.Context(), stream, "-", "+").Result()
		require.NoError(t, err)
		require.Len(t, entries, callers*calls*each)
		at := map[string]int{}
		for i, e := range entries {
			at[e.Values["uuid"].(string)] = i
		}
		require.Len(t, at, callers*calls*each)
		for i := range callers {
			for j := range calls {
				for k := range each {
					here := at[fmt.Sprintf("%d-%d-%d", i, j, k)]
					if k > 0 {
						require.Greater(t, here, at[fmt.Sprintf("%d-%d-%d", i, j, k-1)], "the messages of a call are out of order")
					}
					if j > 0 {
						require.Greater(t, here, at[fmt.Sprintf("%d-%d-%d", i, j-1, k)], "the calls of a caller are out of order")
					}
				}
			}
		}
		require.EqualValues(t, callers*calls*each, redistest.Metric(t, m, "published_total"))
		require.Less(t, redistest.Metric(t, m, "publish_batches_total"), float64(callers*calls)/2)
	})
}

func TestAFailedEntryFailsItsOwnCallOnly(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		good, bad := redistest.Stream(t, c), redistest.Stream(t, c)
		require.NoError(t, c.Set(t.Context(), bad, "a string", 0).Err())
		p := publisher(t, c, nil)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := p.Publish(good, message.NewMessage("good", nil)); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				err := p.Publish(bad, message.NewMessage("bad", nil))
				if err == nil {
					t.Error("published into a string")
				}
			})
		}
		wg.Wait()
		n, err := c.XLen(t.Context(), good).Result()
		require.NoError(t, err)
		require.EqualValues(t, 20, n)
		require.ErrorContains(t, p.Publish(bad, message.NewMessage("u1", nil)), "publish to "+bad+": message u1: WRONGTYPE")
	})
}

func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	// A server that accepts and never answers.
	silent := redistest.NewProxy(t, "127.0.0.1:1")
	silent.Mute()
	c := redistest.Server{Addr: silent.Addr()}.Client(t, func(cfg *goredis.Options) { cfg.ReadTimeout = time.Minute })
	p := publisher(t, c, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	begin := time.Now()
	for range 5 { // one leads, the others wait for it: all must come back
		wg.Go(func() {
			m := message.NewMessage("u", nil)
			m.SetContext(ctx)
			if err := p.Publish("s", m); err == nil {
				t.Error("published to a silent server")
			}
		})
	}
	wg.Wait()
	require.Less(t, time.Since(begin), 20*time.Second)
	m := message.NewMessage("u", nil)
	m.SetContext(ctx)
	require.ErrorIs(t, p.Publish("s", m), context.DeadlineExceeded, "before anything is sent")
}

func TestPublisherClosed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		p := publisher(t, c, nil)
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Publish("s", message.NewMessage("u", nil)), pubsub.ErrPublisherClosed)
		require.NoError(t, p.Publish("s"), "nothing to publish")
		require.NoError(t, c.Ping(t.Context()).Err(), "the client stays its owner's")
	})
}

func TestConstructorsRefuseNil(t *testing.T) {
	t.Parallel()
	_, err := pubsub.NewPublisher(nil, pubsub.PublisherConfig{})
	require.Error(t, err)
	_, err = pubsub.NewSubscriber(nil, pubsub.SubscriberConfig{})
	require.Error(t, err)
}

func TestAFailedMessageFailsAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Mini(t).Client(t)
	c.AddHook(hook{after: func(cmds []goredis.Cmder) {
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any("bad")) {
				cmd.SetErr(errors.New("refused"))
			}
		}
	}})
	m := pubsub.NewMetrics()
	p := publisher(t, c, m)
	err := p.Publish("s", message.NewMessage("first", nil), message.NewMessage("bad", nil), message.NewMessage("last", nil))
	require.EqualError(t, err, "publish to s: 1 of 3 not published: message bad: refused")
	partial, ok := errors.AsType[*pipeline.PartialError](err)
	require.True(t, ok)
	require.Contains(t, partial.Failed, 1)
	require.EqualValues(t, 2, redistest.Metric(t, m, "published_total"))
	require.EqualError(t, p.Publish("s", message.NewMessage("bad", nil)), "publish to s: message bad: refused")
	require.EqualValues(t, 2, redistest.Metric(t, m, "published_total"))
}

// Few calls do not wait for each other.
func TestASlowCallDelaysNoOther(t *testing.T) {
	t.Parallel()
	c := redistest.Mini(t).Client(t)
	reached, release := make(chan struct{}), make(chan struct{})
	c.AddHook(hook{before: func(cmds []goredis.Cmder) {
		if slices.Contains(cmds[0].Args(), any("slow")) {
			close(reached)
			<-release
		}
	}})
	p := publisher(t, c, nil)
	slow := make(chan error, 1)
	go func() { slow <- p.Publish("s", message.NewMessage("slow", nil)) }()
	<-reached
	require.NoError(t, p.Publish("s", message.NewMessage("one", nil)))
	require.NoError(t, p.Publish("s", message.NewMessage("two", nil), message.NewMessage("three", nil)))
	close(release)
	require.NoError(t, <-slow)
}

// After panics of the client, no call hangs, and none that was not sent succeeds.
func TestAPanicOfTheClientStopsNoOtherCall(t *testing.T) {
	t.Parallel()
	c := redistest.Mini(t).Client(t)
	const calls = 40
	release := make(chan struct{})
	c.AddHook(hook{before: func(cmds []goredis.Cmder) {
		<-release
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any("bad")) {
				panic("the test's")
			}
		}
	}})
	p := publisher(t, c, nil)
	publish := func(uuid string) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		return p.Publish("s", message.NewMessage(uuid, nil))
	}
	var bad sync.WaitGroup
	for range calls {
		bad.Go(func() {
			if publish("bad") == nil {
				t.Error("a call that panicked succeeds")
			}
		})
	}
	close(release)
	bad.Wait()
	require.NoError(t, publish("good"))
	require.EqualValues(t, 1, c.XLen(t.Context(), "s").Val())
}

// A node of a Cluster that does not answer delays only its own streams.
func TestASilentNodeDelaysNoOther(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Protocol: 2, DisableIdentity: true,
		ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) {
			return []goredis.ClusterSlot{{Start: 0, End: 16383, Nodes: []goredis.ClusterNode{{Addr: s.Addr}}}}, nil
		},
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	const calls = 40
	release := make(chan struct{})
	c.AddHook(hook{before: func(cmds []goredis.Cmder) {
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any("silent")) {
				<-release
			}
		}
	}})
	p := publisher(t, c, nil)
	var silent, others sync.WaitGroup
	publish := func(wg *sync.WaitGroup, stream string) {
		for range calls {
			wg.Go(func() {
				if err := p.Publish(stream, message.NewMessage("u", nil)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	publish(&silent, "silent")
	publish(&others, "other")
	others.Wait()
	close(release)
	silent.Wait()
}

// hook calls before and after around each command or pipeline.
type hook struct{ before, after func([]goredis.Cmder) }

func (hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := h.around([]goredis.Cmder{cmd}, func() error { return next(ctx, cmd) })
		return errors.Join(err, cmd.Err())
	}
}

func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		return h.around(cmds, func() error { return next(ctx, cmds) })
	}
}

func (h hook) around(cmds []goredis.Cmder, next func() error) error {
	if h.before != nil {
		h.before(cmds)
	}
	err := next()
	if h.after != nil {
		h.after(cmds)
	}
	return err
}
