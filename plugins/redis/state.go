package redis

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

var _ operate.WorkReader = (*Plugin)(nil)

//go:embed lua/state.lua
var stateSource string

// stateKey has what an instance says about itself. It expires with the presence, with which it is written, except the
// last state of an instance that was stopped.
func stateKey(instance string) string { return "millrace:state:" + instance }

// instanceState is what an instance says about itself with each renewal of its presence, for people.
type instanceState struct {
	// Process is the token of the presence with which it is written, because a process before it may have had the name.
	Process string      `json:"process"`
	Started time.Time   `json:"started"`       // by the clock of the instance
	Log     *levelState `json:"log,omitempty"` // nil: not known
	// Work is what the instance does, by route. Nil: it does not tell it.
	Work   map[string]pipeline.RouteWork `json:"work,omitzero"`
	Routes map[string]takenOrder         `json:"routes"` // of this instance, with what it knows is ordered about them
	// Undrainable says that the process takes no order to drain, as that of a demo.
	Undrainable bool `json:"undrainable,omitempty"`
	// Drains says who has ordered that the process ends, which it does now. Nil: nobody.
	Drains *orderedBy `json:"drains,omitempty"`
	// Stopped is the last thing that a process says, after it has drained. Nil: it runs, or has ended in another way.
	Stopped *stoppedState `json:"stopped,omitempty"`
}

type stoppedState struct {
	At      time.Time `json:"at"`
	Version string    `json:"version"`
}

// stoppedKept is how long it is known that an instance was stopped.
const stoppedKept = markKept

// takenOrder is an order that an instance has read, and so follows.
type takenOrder struct {
	At     int64 `json:"at"` // of routeOrder; 0: nothing was ordered
	Paused bool  `json:"paused"`
}

// stateBytes bounds the state of an instance. The last errors that do not fit into it are left out.
const stateBytes = 64 << 10

// encode returns the state as JSON, with as many of the last errors, the latest first, as fit.
func (s instanceState) encode() ([]byte, error) {
	text, err := json.Marshal(s)
	for most := len(s.Work); err == nil && len(text) > stateBytes && most > 0; {
		most /= 2
		s.Work = withErrors(s.Work, most)
		text, err = json.Marshal(s)
	}
	return text, err
}

// withErrors returns the work with so many of the last errors, the latest.
func withErrors(work map[string]pipeline.RouteWork, most int) map[string]pipeline.RouteWork {
	at := func(route string) (t time.Time) {
		if last := work[route].LastError; last != nil {
			t = last.At
		}
		return t
	}
	kept := map[string]pipeline.RouteWork{}
	for i, route := range slices.SortedFunc(maps.Keys(work), func(a, b string) int { return at(b).Compare(at(a)) }) {
		one := work[route]
		if i >= most {
			one.LastError = nil
		}
		kept[route] = one
	}
	return kept
}

// tell stores the state of this instance.
func (p *Plugin) tell(ctx context.Context, c goredis.Scripter, as *presence) error {
	p.mu.Lock()
	drain := p.env.Drain
	p.mu.Unlock()
	s := instanceState{Process: as.process(), Started: as.started, Undrainable: drain == nil, Log: p.levels.Load().state(), Drains: as.drains.Load(), Routes: map[string]takenOrder{}}
	for _, r := range p.routes() {
		o := p.orders.of(r.Name)
		s.Routes[r.Name] = takenOrder{At: o.at, Paused: o.paused}
	}
	s.Work = p.work()
	return s.store(ctx, c, as.instance, presenceTTL)
}

func (s instanceState) store(ctx context.Context, c goredis.Scripter, instance string, kept time.Duration) error {
	text, err := s.encode()
	if err == nil {
		err = goredis.NewScript(stateSource).Run(ctx, c, []string{stateKey(instance)}, text, kept.Milliseconds()).Err()
	}
	if err != nil {
		return fmt.Errorf("redis: state of instance %q: %w", instance, err)
	}
	return nil
}

// tellStopped stores that a process ends as it should, while it still has its name.
func (p *presence) tellStopped(ctx context.Context) error {
	s := instanceState{Process: p.process(), Stopped: &stoppedState{At: time.Now().UTC().Truncate(time.Second), Version: p.version}}
	return s.store(ctx, p.c, p.instance, stoppedKept)
}

// work returns what this process does, by route.
func (p *Plugin) work() map[string]pipeline.RouteWork {
	p.delays.mu.Lock()
	reg := p.delays.routes
	p.delays.mu.Unlock()
	if reg == nil {
		return nil
	}
	return operate.WorkHere(reg)
}

// ReadWork implements operate.WorkReader.
func (p *Plugin) ReadWork(ctx context.Context) (told []operate.InstanceWork, more bool, err error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return nil, false, err
	}
	defer done()
	all, more, err := readInstances(ctx, c, shownInstances)
	for _, i := range all {
		one := operate.InstanceWork{Instance: i.name}
		if !i.alive {
			more = false // those that follow had their presence before it
			if i.stopped.IsZero() && time.Since(i.last) < goneTold {
				one.Gone = i.last
				told = append(told, one)
			}
			continue
		}
		if i.silent >= silentAfter {
			one.Silent = i.silent
		}
		if i.state != nil {
			one.Routes = i.state.Work
		}
		told = append(told, one)
	}
	return told, more, err
}

// instance is one that has, or had, a presence.
type instance struct {
	name    string
	alive   bool
	version string
	process string         // of the presence that it has
	last    time.Time      // presence, by the clock of Redis
	state   *instanceState // nil: not known, as of an instance that has just started
	silent  time.Duration  // since it has told its state, by the clock of Redis
	stopped time.Time      // by its own clock; zero: it runs, or has ended in another way
}

// goneTold is how long it is told that an instance is gone. The last one of a name that is never used again, as those of
// pods, would be told for a week otherwise.
const goneTold = 15 * time.Minute

// silentAfter is how old the state of an instance is when it was not told again in time: once is left out.
const silentAfter = 2 * PresenceRenewal

// readInstances returns the latest instances, at most so many of them, and reports whether there are more.
func readInstances(ctx context.Context, c goredis.UniversalClient, most int) (all []instance, more bool, err error) {
	marks, err := Marks(ctx, c)
	if err != nil {
		return nil, false, answered(err)
	}
	names := slices.SortedFunc(maps.Keys(marks), func(a, b string) int {
		return cmp.Or(cmp.Compare(marks[b], marks[a]), strings.Compare(a, b))
	})
	if more = len(names) > most; more {
		names = names[:most]
	}
	pipe := c.Pipeline() // the keys are in different slots of a cluster
	presences, states, lives := make([]*goredis.StringCmd, len(names)), make([]*goredis.StringCmd, len(names)), make([]*goredis.DurationCmd, len(names))
	for i, name := range names {
		presences[i], states[i], lives[i] = pipe.Get(ctx, presenceKey(name)), pipe.Get(ctx, stateKey(name)), pipe.PTTL(ctx, stateKey(name))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, name := range names {
		one := instance{name: name, last: time.UnixMilli(marks[name])}
		held, err := presences[i].Result()
		if err != nil && !errors.Is(err, goredis.Nil) {
			return nil, false, answered(fmt.Errorf("redis: presence of instance %q: %w", name, err))
		}
		one.alive = err == nil
		process, version, _ := strings.Cut(held, " ")
		one.process, one.version = process, version
		life, expires := lives[i].Result()
		if text, err := states[i].Bytes(); err == nil && expires == nil {
			var s instanceState
			switch err := json.Unmarshal(text, &s); {
			case err != nil:
			case !one.alive && s.Stopped != nil:
				one.stopped, one.version = s.Stopped.At, s.Stopped.Version
			case one.alive && s.Process == process && s.Stopped == nil:
				one.state, one.silent = &s, presenceTTL-life
			}
		}
		all = append(all, one)
	}
	return all, more, nil
}
