package poll_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The readers of a server that does not answer do not wait for each other when they stop.
func TestManyReadersOfASilentServerStopTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	proxy := redistest.NewProxy(t, s.Addr)
	proxy.Mute()
	options := redistest.Options(proxy.Addr())
	options.PoolSize = 5
	c := goredis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	var scheduler poll.Scheduler
	var drains sync.WaitGroup
	begin := time.Now()
	for range 500 {
		r := poll.NewReader(c, poll.Options{Stream: "s", Group: "g", Consumer: "c", Scheduler: &scheduler}, make(chan *message.Message), nil, nil)
		r.Start()
		drains.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = r.Drain(ctx) // nothing can be removed
			<-r.Done()
		})
	}
	drains.Wait()
	require.Less(t, time.Since(begin), 30*time.Second)
}

// A connection that does not answer delays only the streams whose reads were sent on it.
func TestASlowPipelineDelaysNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		slow, good := newRig(t, s), newRig(t, s)
		c, release := s.Client(t), make(chan struct{})
		sent := make(chan struct{}, 1)
		c.AddHook(blocked{slow.Stream, sent, release})
		o := slow.config("c", 4)
		o.Scheduler = &poll.Scheduler{}
		_, _ = slow.reader(c, o, nil)
		t.Cleanup(func() { close(release) })
		<-sent
		o.Stream = good.Stream
		_, out := good.reader(c, o, nil)
		good.Add(0, 10)
		redistest.Handle(t, out, nil).WaitFor(t, 10)
	})
}

// blocked holds the commands on one stream until release is closed.
type blocked struct {
	stream  string
	sent    chan<- struct{}
	release <-chan struct{}
}

func (blocked) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (b blocked) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		b.wait(cmd)
		return next(ctx, cmd)
	}
}

func (b blocked) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		b.wait(cmds...)
		return next(ctx, cmds)
	}
}

func (b blocked) wait(cmds ...goredis.Cmder) {
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if arg == b.stream {
				select {
				case b.sent <- struct{}{}:
				default:
				}
				<-b.release
			}
		}
	}
}
