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

	"github.com/stretchr/testify/assert"
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
	late     bool // no replica has a tick
	waiting  bool // each event has a user
	calls    int  // of the script
	refuses  func(event string) bool
	hangs    func(event string) bool
	drawing  []string // events whose pre-queue is drawn
	begun    []string // draws, each ends with a value of drawn
	drawn    chan error
	ticks    map[string]time.Time
	distance map[string]time.Duration // the longest time between two ticks
}

func never(string) bool { return false }

// newNodes starts a dispatcher in a bubble. It has n events per node.
func newNodes(t *testing.T, n int, names ...string) *nodes {
	t.Helper()
	c := &nodes{t: t, refuses: never, hangs: never, drawn: make(chan error)}
	for _, name := range names {
		for i := range n {
			c.events = append(c.events, fmt.Sprint(name, i))
		}
	}
	plugin := redis.New()
	server := plugin.Server(nil)
	c.Dispatcher = New(Options{Config: DefaultConfig(), Rooms: room.New(server, room.Options{}), Redis: plugin, Server: server})
	c.log = slog.New(slog.DiscardHandler)
	c.Dispatcher.list, c.Dispatcher.script, c.Dispatcher.draw = c.list, c.scripts, c.draw
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

// scripts is one call. A server that hangs answers none of the events behind.
func (c *nodes) scripts(ctx context.Context, events []string) []room.Ticked {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	list := make([]room.Ticked, len(events))
	for i, event := range events {
		assert.Equal(c.t, events[0][0], event[0], "the events of a call are of one node")
		if list[i].Err = ctx.Err(); list[i].Err == nil {
			list[i].Tick, list[i].Err = c.script(ctx, event)
		}
	}
	return list
}

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
	if c.late {
		return room.Tick{Ran: true, Promoted: 1, More: true, Table: &room.Table{Waiting: 7}}, fmt.Errorf("tick: %w", redis.ErrNotReplicated)
	}
	if slices.Contains(c.drawing, event) {
		return room.Tick{Ran: true, Table: &room.Table{State: room.Drawing}}, nil
	}
	table := &room.Table{}
	if c.waiting {
		table.Waiting = 1
	}
	return room.Tick{Ran: true, Table: table}, nil
}

func (c *nodes) draw(ctx context.Context, event string) (room.Drawn, error) {
	c.mu.Lock()
	c.begun = append(c.begun, event)
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return room.Drawn{}, ctx.Err()
	case err := <-c.drawn:
		return room.Drawn{}, err
	}
}

// draws returns the draws since the last call, in no order.
func (c *nodes) draws() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := c.begun
	c.begun = nil
	slices.Sort(begun)
	return begun
}

// measure begins to measure the ticks.
func (c *nodes) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticks, c.distance, c.calls = map[string]time.Time{}, map[string]time.Duration{}, 0
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
				c.pass(callTimeout + c.opts.PromoteInterval)
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
		require.LessOrEqual(t, c.longest("b"), callTimeout+2*c.opts.PromoteInterval)
		c.measure()
		c.pass(10 * time.Second)
		require.LessOrEqual(t, c.longest("b"), c.opts.PromoteInterval+tickTime)
		c.on(t, slices.DeleteFunc(slices.Clone(c.events), func(e string) bool { return e[0] == 'a' })...)
		c.fail(never, never)
		c.measure()
		c.pass(callTimeout + c.opts.PromoteInterval)
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
		require.LessOrEqual(t, c.longest("a"), c.opts.PromoteInterval+tickTime)
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
		require.LessOrEqual(t, c.longest("a"), 2*c.opts.PromoteInterval+tickTime)
	})
}

// The ticks have run, so they are counted, and the instance is ready. Each call waits for the
// replicas, so a tick is one call.
func TestTicksWithoutReplicasCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 10, "a")
		c.mu.Lock()
		c.late = true
		c.mu.Unlock()
		c.measure()
		c.pass(10*time.Second + 500*time.Millisecond)
		c.on(t, c.events...)
		require.LessOrEqual(t, c.longest("a"), c.opts.PromoteInterval+tickTime)
		require.Equal(t, 10, (&rig{}).count(c.metrics.promoted.WithLabelValues(c.metrics.labels.Name("a0"))))
		r := &rig{t: t, Dispatcher: c.Dispatcher}
		require.InDelta(t, 70, r.gauge("millrace_room_waiting"), 0)
		require.InDelta(t, 10, r.gauge("millrace_room_replicas_missing"), 0)
		c.stall()
		c.pass(c.opts.PromoteInterval)
		require.NoError(t, c.progressing(t.Context()))
		c.mu.Lock()
		c.late = false
		c.mu.Unlock()
		c.pass(2 * time.Second)
		require.Zero(t, r.gauge("millrace_room_replicas_missing"))
	})
}

// A failover is counted after a longer outage, too. An outage alone is not.
func TestRecoveriesAreCounted(t *testing.T) {
	d := New(Options{Config: DefaultConfig(), Redis: redis.New()})
	d.metrics.labels.Choose("dispatcher", map[string]int64{"e": 0})
	for _, tick := range []room.Tick{
		{Ran: true, Gap: time.Minute, Rewound: true}, {Ran: true, Rewound: true}, {Ran: true, Gap: 4 * time.Second}, {Ran: true, Gap: time.Minute},
	} {
		d.metrics.ticked("e", tick)
	}
	require.Equal(t, 2, (&rig{}).count(d.metrics.rewinds.WithLabelValues("e")))
	require.Equal(t, 4, (&rig{}).count(d.metrics.holds.WithLabelValues("e")))
}

// W21: a draw of one event delays no ticks. There are at most two. One that failed begins again.
func TestADrawDelaysNoOtherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 50, "a")
		c.mu.Lock()
		c.drawing = []string{"a0", "a1"}
		c.mu.Unlock()
		c.measure()
		c.pass(20 * time.Second)
		require.Equal(t, []string{"a0", "a1"}, c.draws(), "once each")
		require.LessOrEqual(t, c.longest("a"), c.opts.PromoteInterval+tickTime)
		c.on(t, c.events...)
		c.mu.Lock()
		c.drawing = []string{"a0", "a1", "a2"}
		c.mu.Unlock()
		c.pass(5 * time.Second)
		require.Empty(t, c.draws(), "there are two")
		c.drawn <- errors.New("no server")
		c.drawn <- nil
		c.pass(2 * c.opts.PromoteInterval)
		require.Len(t, c.draws(), 2)
		failures := 0
		for _, name := range []string{"a0", "a1", "a2"} {
			failures += (&rig{}).count(c.metrics.undrawn.WithLabelValues(name))
		}
		require.Equal(t, 1, failures)
	})
}

// The events without users of a node share calls: three for 50 events. Each has its own result.
func TestEventsWithoutUsersShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNodes(t, 50, "a", "b")
		calls := func(healthy []string) int {
			c.pass(5 * time.Second)
			c.measure()
			c.pass(10 * time.Second)
			c.on(t, healthy...)
			require.LessOrEqual(t, c.longest(""), c.opts.PromoteInterval+tickTime)
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.calls
		}
		require.Equal(t, 10*(3+3), calls(c.events))
		first := func(event string) bool { return event == "a0" }
		c.fail(first, never)
		require.Equal(t, 10*(3+3+1), calls(c.events[1:]), "the event that is refused is alone")
		c.fail(never, first)
		require.Less(t, calls(c.events[1:]), 10*(3+3+1), "and so is one that hangs")
		c.fail(never, never)
		require.Equal(t, 10*(3+3), calls(c.events))
		c.mu.Lock()
		c.waiting = true
		c.mu.Unlock()
		require.Equal(t, 10*100, calls(c.events), "an event with users has calls of its own")
	})
}
