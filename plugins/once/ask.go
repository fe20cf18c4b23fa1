package once

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// ErrOtherKey means that the payload of an Ask names another effect than its key and group.
var ErrOtherKey = errors.New("the payload names another effect")

// Ask is a request of another program for an effect, which arrives in another way than a topic.
type Ask struct {
	Payload []byte // JSON, as a record of the kind's topic
	// ID and Group are what the kind must find in the payload. An empty one is not compared.
	ID, Group string
	NotBefore time.Time // zero: what the kind finds in the payload
	Origin    string    // for people: who asked
}

// Asked is what became of an Ask. It is about a Conflict, too: Key then names the effect that exists.
type Asked struct {
	Accepted Accepted
	Key      Key
	State    State // of the effect; of a Fresh one that of its acceptance
}

// Kinds returns the names of the kinds that were made with New, sorted.
func (p *Plugin) Kinds() []string { return slices.Sorted(slices.Values(p.names)) }

// UsedWhen is for a plugin that makes its kinds in Register, because its settings say which there are. used
// is called when all settings were decoded, and says whether there will be one.
func (p *Plugin) UsedWhen(used func() bool) { p.usedWhen = append(p.usedWhen, used) }

// isUsed reports whether there is a kind, or will be.
func (p *Plugin) isUsed() bool {
	return len(p.names) > 0 || slices.ContainsFunc(p.usedWhen, func(used func() bool) bool { return used() })
}

// Ask accepts an effect of a kind by its name. It is durable when Ask returns. An error that is permanent
// (pipeline.IsPermanent) is about the Ask, which is useless again, and wraps ErrOtherKey or ErrKey where they
// fit. After any other error the effect may have been accepted, and the same Ask may be repeated.
func (p *Plugin) Ask(ctx context.Context, kind string, a Ask) (Asked, error) {
	w, l := p.kindOf(kind), p.ledger.Load()
	switch {
	case l == nil:
		return Asked{}, errNotOpen
	case w == nil:
		return Asked{}, pipeline.Permanent(fmt.Errorf("once: this binary has no kind %q", kind))
	}
	rec, err := w.effects.read(a.Payload)
	if err != nil {
		return Asked{}, pipeline.Permanent(err)
	}
	if a.ID != "" && a.ID != rec.ID || a.Group != "" && a.Group != rec.Group {
		return Asked{}, pipeline.Permanent(fmt.Errorf("%w: it has the group %q and the key %q", ErrOtherKey, rec.Group, rec.ID))
	}
	if !a.NotBefore.IsZero() {
		rec.NotBefore = a.NotBefore
	}
	rec.Headers, rec.Origin = traceHeaders(ctx, nil), a.Origin
	results, err := w.accept(ctx, l, []ledger.Record{rec})
	if err == nil {
		err = results[0].Err
	}
	switch {
	case errors.Is(err, rules.ErrInvalid):
		return Asked{}, pipeline.Permanent(err)
	case err != nil:
		return Asked{}, err
	}
	done := Asked{Accepted: results[0].Accepted, Key: Key{Group: rec.Group, ID: rec.ID, Part: rec.Part}, State: State{State: rules.Pending}}
	if done.Accepted == Fresh {
		return done, nil
	}
	done.State, err = p.stateOf(ctx, l, rec.Key)
	return done, err
}

// StateOf returns what is known about an effect of a kind by its name. The error wraps ledger.ErrNotFound if
// it was never accepted.
func (p *Plugin) StateOf(ctx context.Context, kind string, k Key) (State, error) {
	l := p.ledger.Load()
	if l == nil {
		return State{}, errNotOpen
	}
	return p.stateOf(ctx, l, ledger.Key{Kind: kind, Group: k.Group, ID: k.ID})
}

// statesAtOnce is how many strangers' questions read the ledger at once. They leave connections to the workers,
// which find what is due on the same ones.
const statesAtOnce = 2

func (p *Plugin) stateOf(ctx context.Context, l *ledger.Ledger, k ledger.Key) (State, error) {
	select {
	case p.states <- struct{}{}:
		defer func() { <-p.states }()
		return stateOf(ctx, l, k)
	case <-ctx.Done():
		return State{}, fmt.Errorf("%w: once: too many ask for states of effects: %w", pipeline.ErrUnavailable, ctx.Err())
	}
}
