package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis"
)

// nodes is a Cluster that a dispatcher ticks. The first letter of an event is its node.
type nodes struct {
	t *testing.T
	*Dispatcher

	mu       sync.Mutex
	events   []string
	noList   bool
	refuses  func(event string) bool
	hangs    func(event string) bool
	ticks    map[string]time.Time
	distance map[string]time.Duration // the longest time between two ticks
}

func never(string) bool { return false }

// newNodes starts a dispatcher in a bubble. It has n events per node.
func newNodes(t *testing.T, n int, names ...string) *nodes {
	t.Helper()
	c := &nodes{t: t, refuses: never, hangs: never}
	for _, name := range names {
		for i := range n {
			c.events = append(c.events, fmt.Sprint(name, i))
		}
	}
	plugin := redis.New()
	server := plugin.Server(nil)
	c.Dispatcher = New(Options{Config: DefaultConfig(), Rooms: room.New(server, room.Options{}), Redis: plugin, Server: server})
	c.log = slog.New(slog.DiscardHandler)
	c.Dispatcher.list, c.Dispatcher.script = c.list, c.script
	c.Dispatcher.node = func(_ context.Context, event string) string { return event[:1] }
	c.measure()
	require.NoError(t, c.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
	c.pass(1500 * time.Millisecond)
	c.on(t, c.events...)
	return c
}

func (c *nodes) list(ctx context.Context) ([]string, error) {
	c.mu.Lock()
	silent := c.noList
	c.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.events, nil
}

// refusal is a reply of the server.
type refusal struct{ error }

func (refusal) RedisError() {}

func (c *nodes) script(ctx context.Context, event string) (room.Tick, error) {
	c.mu.Lock()
	refuses, hangs := c.refuses(event), c.hangs(event)
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return room.Tick{}, ctx.Err()
	}
	time.Sleep(2 * time.Millisecond)
	if refuses {
		return room.Tick{}, refusal{errors.New("ERR")}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if last, ok := c.ticks[event]; ok {
		c.distance[event] = max(c.distance[event], now.Sub(last))
	}
	c.ticks[event] = now
	return room.Tick{Ran: true}, nil
}

// measure begins to measure the ticks.
func (c *nodes) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticks, c.distance = map[string]time.Time{}, map[string]time.Duration{}
}

func (*nodes) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// on checks that each of the events was ticked since measure.
func (c *nodes) on(t *testing.T, events ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, event := range events {
		require.Contains(t, c.ticks, event)
	}
}

func (c *nodes) longest(prefix string) (longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for event, d := range c.distance {
		if strings.HasPrefix(event, prefix) {
			longest = max(longest, d)
		}
	}
	return longest
}

// fail changes which events fail.
func (c *nodes) fail(refuses, hangs func(string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses, c.hangs = refuses, hangs
}

func TestAllFailedEventsReturnWithTheServer(t *testing.T) {
	all := func(string) bool { return true }
	for name, fail := range map[string][2]func(string) bool{"refuses": {all, never}, "hangs": {never, all}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newNodes(t, 100, "a")
				c.fail(fail[0], fail[1])
				c.pass(10 * time.Second)
				c.fail(never, never)
				c.measure()
				c.pass(callTimeout + c.o.PromoteInterval)
				c.on(t, c.events...)
			})
		})
	}
}

// A node that does not answer delays the events of the others once, by one call. Then they are
// ticked at each interval.
func TestASilentNodeDelaysNoOtherEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 50, "a", "b")
		c.fail(never, func(event string) bool { return event[0] == 'a' })
		c.measure()
		c.pass(10 * time.Second)
		require.LessOrEqual(t, c.longest("b"), callTimeout+2*c.o.PromoteInterval)
		c.measure()
		c.pass(10 * time.Second)
		require.LessOrEqual(t, c.longest("b"), c.o.PromoteInterval+tickTime)
		c.on(t, slices.DeleteFunc(slices.Clone(c.events), func(e string) bool { return e[0] == 'a' })...)
		c.fail(never, never)
		c.measure()
		c.pass(callTimeout + c.o.PromoteInterval)
		c.on(t, c.events...)
	})
}

// One event whose script hangs delays the others of its node once.
func TestAnEventThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 50, "a")
		c.fail(never, func(event string) bool { return event == "a0" })
		c.pass(10 * time.Second)
		c.measure()
		c.pass(20 * time.Second)
		require.LessOrEqual(t, c.longest("a"), c.o.PromoteInterval+tickTime)
		c.on(t, c.events[1:]...)
	})
}

// Without the set of events the last known ones are ticked at each interval.
func TestTheLastKnownEventsAreTicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 10, "a")
		c.mu.Lock()
		c.noList = true
		c.mu.Unlock()
		c.measure()
		c.pass(20 * time.Second)
		c.on(t, c.events...)
		require.LessOrEqual(t, c.longest("a"), 2*c.o.PromoteInterval+tickTime)
	})
}

// A failover is counted after a longer outage, too. An outage alone is not.
func TestRecoveriesAreCounted(t *testing.T) {
	d := New(Options{Config: DefaultConfig(), Redis: redis.New()})
	d.metrics.choose(map[string]int64{"e": 0})
	for _, tick := range []room.Tick{
		{Ran: true, Gap: time.Minute, Rewound: true}, {Ran: true, Rewound: true}, {Ran: true, Gap: 4 * time.Second}, {Ran: true, Gap: time.Minute},
	} {
		d.metrics.ticked("e", tick)
	}
	require.Equal(t, 2, (&rig{}).count(d.metrics.rewinds.WithLabelValues("e")))
}
