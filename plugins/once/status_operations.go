package once

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// showStatus answers with the status of a group, or of a kind if no group is named.
func (p *Plugin) showStatus(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
	if g.Name == "" {
		return p.showKindStatus(ctx, l, g.Kind)
	}
	a, err := previewGroup(ctx, l, g, in)
	if err != nil {
		return a, err
	}
	group := a.Value.(groupStatus)
	s, err := l.LimitsOf(ctx, g.Kind)
	if err != nil {
		return a, err
	}
	stops, err := l.Stops(ctx, g.Kind)
	if err != nil {
		return a, err
	}
	paused, err := l.KindPaused(ctx, g.Kind)
	if err != nil {
		return a, err
	}
	goes, err := p.speedOfGroup(ctx, l, group.Status, s, paused)
	if err != nil {
		return a, err
	}
	audit, err := l.GroupAudit(ctx, g)
	if err != nil {
		return a, err
	}
	a.Lines = append(a.Lines, statusLines(s, paused, stops, goes)...)
	if len(audit) > 0 {
		a.Tables = append(a.Tables, auditTable(audit, ""))
	}
	if len(goes.Instances) > 0 {
		a.Tables = append(a.Tables, goes.table())
	}
	waiting, _, err := l.Waiting(ctx, g, 1)
	if err != nil {
		return a, err
	}
	then, err := nextOfGroup(ctx, l, waiting)
	if err != nil {
		return a, err
	}
	if then != "" {
		a.Notes = append(a.Notes, "Next "+then)
	}
	a.Notes = append(a.Notes, p.absentNotes(g.Kind, group.Waiting+group.Calling)...)
	a.Value = struct {
		groupStatus
		kindState
		speed
		Audit []ledger.Audit `json:"audit"` // of the group
		Next  string         `json:"next"`  // of what has waited longest; empty: nothing waits
	}{group, kindState{s.InForce, append([]ledger.Stop{}, stops...), paused}, goes, append([]ledger.Audit{}, audit...), then}
	return a, nil
}

// kindState is what holds a kind back, for programs.
type kindState struct {
	Limits ledger.InForce    `json:"limits"`
	Stops  []ledger.Stop     `json:"stops"`       // instances that call for nothing of the kind
	Paused *ledger.KindPause `json:"kind_paused"` // null: it is not
}

// showKindStatus answers with what all groups of a kind have together.
func (p *Plugin) showKindStatus(ctx context.Context, l *ledger.Ledger, kind string) (a operate.Answer, err error) {
	s, err := l.LimitsOf(ctx, kind)
	if err != nil {
		return a, noKind(err, kind)
	}
	b, err := l.Backlog(ctx, kind)
	if err != nil {
		return a, err
	}
	stops, err := l.Stops(ctx, kind)
	if err != nil {
		return a, err
	}
	goes, err := p.speedOfKind(ctx, l, kind, b, s)
	if err != nil {
		return a, err
	}
	due := number(b.Due)
	if b.Due == ledger.BacklogLimit {
		due += " or more"
	}
	a.Lines = append([]string{"the kind " + kind}, statusLines(s, b.Paused, stops, goes)...)
	a.Tables = []operate.Table{{Columns: []string{"EFFECTS", "COUNT"}, Rows: [][]string{
		{"due", due}, {"waiting", number(b.Waiting)}, {"being called", number(b.Calling)}, {"failed", number(b.Failed)}, {"unknown", number(b.Unknown)},
	}}}
	if len(goes.Instances) > 0 {
		a.Tables = append(a.Tables, goes.table())
	}
	if b.OldestDue > 0 {
		a.Notes = append(a.Notes, "The oldest has been due for "+b.OldestDue.Round(time.Millisecond).String()+".")
	}
	a.Notes = append(a.Notes, p.absentNotes(kind, b.Waiting+b.Calling)...)
	a.Value = struct {
		Kind      string  `json:"kind"`
		Due       int64   `json:"due"` // at most 10,000
		Waiting   int64   `json:"waiting"`
		Calling   int64   `json:"calling"`
		Failed    int64   `json:"failed"`
		Unknown   int64   `json:"unknown"`
		OldestDue float64 `json:"oldest_due_seconds"`
		kindState
		speed
	}{kind, b.Due, b.Waiting, b.Calling, b.Failed, b.Unknown, b.OldestDue.Seconds(), kindState{s.InForce, append([]ledger.Stop{}, stops...), b.Paused}, goes}
	return a, nil
}

// statusLines say what holds a kind back, and how fast it or a group of it goes.
func statusLines(s ledger.LimitStatus, paused *ledger.KindPause, stops []ledger.Stop, goes speed) []string {
	lines := []string{"limits of the kind: " + textOfLimits(s)}
	if paused != nil {
		lines = append(lines, textOfPause(*paused))
	}
	for _, stop := range stops {
		lines = append(lines, textOfStops([]ledger.Stop{stop}))
	}
	return append(lines, goes.lines()...)
}

func (p *Plugin) absentNotes(kind string, open int64) []string {
	if p.kindOf(kind) != nil || open == 0 {
		return nil
	}
	return []string{absentNote(ledger.KindBacklog{Kind: kind, Open: open})}
}
