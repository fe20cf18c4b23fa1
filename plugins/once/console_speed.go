package once

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// showGroupSpeed shows how fast the group in the address goes, and the instances of its kind.
func (p *Plugin) showGroupSpeed(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	g := ledger.Group{Kind: q.Text("kind"), Name: q.Text("group")}
	s, err := l.Status(ctx, g)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, console.ErrNothing
	} else if err != nil {
		return nil, err
	}
	limits, err := l.LimitsOf(ctx, g.Kind)
	if err != nil {
		return nil, err
	}
	paused, err := l.KindPaused(ctx, g.Kind)
	if err != nil {
		return nil, err
	}
	goes, err := p.speedOfGroup(ctx, l, s, limits, paused)
	if err != nil {
		return nil, err
	}
	return goes.block(), nil
}

// showKindSpeeds shows how fast the kinds of this program go, and what each instance does for them.
func (p *Plugin) showKindSpeeds(ctx context.Context, l *ledger.Ledger, _ console.Query) (console.Block, error) {
	kinds := console.Table{Columns: console.Columns("Kind", "Per second", "Done per second", "Open", "Expected end", "Limited by", "Call takes")}
	instances := console.Table{Empty: "No instance calls or waits."}
	for _, w := range p.kinds {
		b, err := l.Backlog(ctx, w.name)
		if err != nil {
			return nil, err
		}
		limits, err := l.LimitsOf(ctx, w.name)
		if err != nil {
			return nil, err
		}
		s, err := p.speedOfKind(ctx, l, w.name, b, limits)
		if err != nil {
			return nil, err
		}
		row := []console.Cell{console.Word(w.name), console.Rate(nil), console.Rate(nil), console.Count(s.of.open), {}, console.Word(s.LimitedBy), {Text: shortCall(s.Calls.Mean), Data: s.Calls.Mean, Right: true}}
		if s.Rate != nil {
			row[1], row[2] = console.Rate(&s.Rate.PerSecond), console.Rate(&s.Rate.DonePerSecond)
		}
		if !s.ExpectedEnd.IsZero() {
			row[4] = console.Cell{Text: "in about " + console.Short(s.ExpectedEnd.Sub(s.now)), Data: s.ExpectedEnd.Format(time.RFC3339)}
		}
		kinds.Rows = append(kinds.Rows, row)
		instances.Columns = console.Columns(append([]string{"Kind"}, s.columns()...)...)
		for _, row := range s.rows() {
			instances.Rows = append(instances.Rows, append([]console.Cell{console.Word(w.name)}, row...))
		}
	}
	return console.Blocks{kinds, instances}, nil
}
