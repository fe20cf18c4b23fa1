package streams

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// stage runs actors in a chosen order. Each actor waits before each step until it is its turn. A
// step is a command to Redis or a change of the active set.
type stage struct {
	parked   chan int // an actor waits before its next step
	finished chan int
	turn     map[int]chan struct{}
}

func newStage(actors int) *stage {
	s := &stage{parked: make(chan int), finished: make(chan int), turn: map[int]chan struct{}{}}
	for i := range actors {
		s.turn[i] = make(chan struct{})
	}
	return s
}

func (s *stage) step(actor int) {
	s.parked <- actor
	<-s.turn[actor]
}

// play runs the actors to their ends. choose picks one of those that could go next.
func (s *stage) play(acts []func(), choose func(ready []int) int) (order []int) {
	waiting := map[int]bool{}
	settle := func() { // until the running actor has parked or finished
		select {
		case a := <-s.parked:
			waiting[a] = true
		case <-s.finished:
		}
	}
	for i, act := range acts {
		go func() { act(); s.finished <- i }()
		settle()
	}
	for len(waiting) > 0 {
		var ready []int
		for i := range acts {
			if waiting[i] {
				ready = append(ready, i)
			}
		}
		next := choose(ready)
		order = append(order, next)
		delete(waiting, next)
		s.turn[next] <- struct{}{}
		settle()
	}
	return order
}

// stepped is an activeSet whose changes are steps of an actor.
type stepped struct {
	*activeSet
	step func()
}

func (s stepped) Activate(ctx context.Context, id string) error {
	s.step()
	return s.activeSet.Activate(ctx, id)
}

func (s stepped) Deactivate(ctx context.Context, id string) error {
	s.step()
	return s.activeSet.Deactivate(ctx, id)
}

// cast is two instances that take an idle stream out and two callers that enqueue, on one stream
// that has been drained for long enough.
type cast struct {
	s      server
	active *activeSet
	actors []*Manager
	hooks  []*hook
	feeds  bool // entries come from a feeder, which activates and makes the stream first
}

func newCast(t *testing.T, s server, actors int) *cast {
	c := quick()
	c.IdleTimeout = time.Nanosecond // whatever has been seen drained is idle
	out := &cast{s: s, active: newActiveSet()}
	for i := range actors {
		in := newInstance(t, s, fmt.Sprintf("i%d", i), out.active, c)
		h := &hook{}
		in.client.AddHook(h)
		out.actors = append(out.actors, in.Manager)
		out.hooks = append(out.hooks, h)
		// Scripts are loaded before, so that each call is one step.
		require.NoError(t, in.Ensure(t.Context(), "1"))
		_, err := in.addEntries(t.Context(), "1", nil)
		require.NoError(t, err)
		_, err = in.cleanUp(t.Context(), "1")
		require.NoError(t, err)
	}
	return out
}

// play runs the actors in the order of choose, beginning with an idle stream. It checks that no
// entry is stranded. An entry that counts as added is in the stream, and a stream with entries is
// active.
func (c *cast) play(t require.TestingT, choose func(ready []int) int) {
	ctx := context.Background()
	watch := c.actors[0]
	stream := watch.opts.Kind.Stream("1")
	require.NoError(t, c.s.client.Del(ctx, stream, MetaKey(stream)).Err())
	c.active.set(Activation{ID: "1"})
	require.NoError(t, watch.Ensure(ctx, "1"))
	_, err := parseVisited(watch.scripts.visit.Run(ctx, c.s.client, []string{stream, MetaKey(stream)}, append(watch.args("1"), "i:w", "{}")...).Result())
	require.NoError(t, err)

	st := newStage(len(c.actors))
	var acts []func()
	added := 0
	var failed error // actors must end, whatever happens: they don't use require
	for i, m := range c.actors {
		step := func() { st.step(i) }
		c.hooks[i].set(func(redis.Cmder) error { step(); return nil }, nil)
		m.opts.Activations = stepped{c.active, step}
		if i%2 == 0 {
			acts = append(acts, func() { m.decommission(ctx, "1") })
			continue
		}
		acts = append(acts, func() {
			if c.feeds {
				if err := errors.Join(m.opts.Activations.Activate(ctx, "1"), m.Ensure(ctx, "1")); err != nil {
					failed = err
				}
			}
			out, err := enqueueOne(ctx, m, "1", newEntry(fmt.Sprint("e", i)))
			if err != nil || out != Added {
				failed = fmt.Errorf("enqueue: %v, %w", out, err)
			}
			added++
		})
	}
	order := st.play(acts, choose)
	for i, h := range c.hooks {
		h.set(nil, nil)
		c.actors[i].opts.Activations = c.active
	}
	require.NoError(t, failed)
	n := c.s.client.XLen(ctx, stream).Val()
	require.Equal(t, int64(added), n, "entries in the stream after %v", order)
	require.True(t, c.active.has("1"), "entries without an activation after %v", order)
}

// The test runs every order of one enqueue with two idle stops, on the real code and scripts. One
// order needs confirm. The enqueue finds the stream absent and activates it. The other idle stop
// deactivates it and finds it absent, too. The enqueue then creates the stream and adds the entry.
func TestNoEntryIsStrandedByAnIdleStopInAnyOrder(t *testing.T) {
	require.Greater(t, everyOrder(t, newCast(t, miniServer(t), 3)), 100)
}

// The same for one entry of the feeder and one idle stop. The order that needs the activation by
// Ensure: the feeder activates; the idle stop deactivates and deletes; the feeder makes the stream
// and adds.
func TestNoFedEntryIsStrandedByAnIdleStopInAnyOrder(t *testing.T) {
	c := newCast(t, miniServer(t), 2)
	c.feeds = true
	require.GreaterOrEqual(t, everyOrder(t, c), 10)
}

// everyOrder plays every order of the steps of a cast, and returns how many there are.
func everyOrder(t *testing.T, c *cast) (plays int) {
	t.Helper()
	// Depth first over all schedules: path is the choice at each point, alternatives how many there
	// were.
	var path, alternatives []int
	for {
		at := 0
		c.play(t, func(ready []int) int {
			if at == len(path) {
				path, alternatives = append(path, 0), append(alternatives, 0)
			}
			alternatives[at] = len(ready)
			at++
			return ready[path[at-1]]
		})
		plays++
		path, alternatives = path[:at], alternatives[:at]
		for len(path) > 0 && path[len(path)-1]+1 == alternatives[len(path)-1] {
			path, alternatives = path[:len(path)-1], alternatives[:len(path)-1]
		}
		if len(path) == 0 {
			break
		}
		path[len(path)-1]++
	}
	t.Logf("%d orders", plays)
	return plays
}

// The same with more actors, in random orders, on every server.
func TestNoEntryIsStrandedByIdleStopsInRandomOrders(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := newCast(t, s, 5)
		rapid.Check(t, func(rt *rapid.T) {
			// A draw may end the run, so all of them come first.
			order := rapid.SliceOfN(rapid.IntRange(0, 59), 60, 60).Draw(rt, "order")
			at := -1
			c.play(rt, func(ready []int) int { at++; return ready[order[at%60]%len(ready)] })
		})
	})
}
