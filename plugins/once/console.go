package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Addresses of the pages.
const (
	effectsPage = "effects"
	groupPage   = "effects/group"
	effectPage  = "effects/effect"
)

// shownRows is the number of groups and of problems on a page.
const shownRows = 200

// Console implements console.Contributor: the kinds of this binary, their groups and problems, and one
// effect with its history. A binary without a kind has no such pages.
func (p *Plugin) Console() []console.Page {
	if !p.isUsed() {
		return nil
	}
	return []console.Page{
		{Path: effectsPage, Title: "Effects", Order: 5, Places: []string{kindLedger}, Panels: []console.Panel{
			{Name: "kinds", Title: "Kinds", Load: p.show(p.showKinds), Actions: []string{"once pause", "once resume", "once limit"}},
			{Name: "speed", Title: "Rates and instances", Load: p.show(p.showKindSpeeds)},
			{Name: "find", Title: "Find an effect", Values: []string{"kind", "group"}, Load: showFind},
			{Name: "groups", Title: "Groups", Values: []string{"after_kind", "after_group"}, Load: p.show(showGroups)},
			{Name: "problems", Title: "Failed or unknown", Values: []string{"kind", "group"}, Load: p.show(showProblems), Actions: []string{"once replay"}},
		}},
		{Path: groupPage, Title: "Group of effects", Hidden: true, Panels: []console.Panel{
			{Name: "group", Title: "Totals", Values: []string{"kind", "group"}, Load: p.show(showGroup), Actions: []string{"once pause", "once resume", "once cancel", "once limit"}},
			{Name: "speed", Title: "Rate and instances", Values: []string{"kind", "group"}, Load: p.show(p.showGroupSpeed)},
			{Name: "waiting", Title: "Waiting", Values: []string{"kind", "group"}, Load: p.show(showWaiting)},
			{Name: "parts", Title: "Parts", Values: []string{"kind", "group"}, Load: p.show(showParts)},
			{Name: "problems", Title: "Failed or unknown", Values: []string{"kind", "group"}, Load: p.show(showProblems), Actions: []string{"once replay"}},
		}},
		{Path: effectPage, Title: "Effect", Hidden: true, Panels: []console.Panel{
			{Name: "effect", Title: "What is known", Values: []string{"kind", "group", "id"}, Load: p.show(p.showEffect), Reveal: p.reveal, Actions: []string{"once replay", "once resolve"}},
			{Name: "find", Title: "Find another one", Values: []string{"kind", "group"}, Load: showFind},
		}},
	}
}

// show returns the Load of a panel that reads the ledger.
func (p *Plugin) show(load func(context.Context, *ledger.Ledger, console.Query) (console.Block, error)) func(context.Context, console.Query) (console.Block, error) {
	return func(ctx context.Context, q console.Query) (console.Block, error) {
		l := p.ledger.Load()
		if l == nil {
			return nil, errNotOpen
		}
		return load(ctx, l, q)
	}
}

// showKinds reads the last measurements alone, so it shows what is known while the database is frozen.
func (p *Plugin) showKinds(context.Context, *ledger.Ledger, console.Query) (console.Block, error) {
	t := console.Table{
		Columns: console.Columns("Kind", "Repeat", "State", "Due", "Oldest due", "Waiting", "Being called", "Called here", "Failed", "Unknown", "Limits", "Measured"),
		Note: "Numbers are those of all instances at the last measurement, except Called here, which is of this one. " +
			"Waiting includes what is not due yet and what belongs to a paused group.",
	}
	for _, w := range p.kinds {
		state := console.Word("calls").In(operate.OK)
		if reasons := w.reasons(time.Now()); len(reasons) > 0 {
			var lines []console.Cell
			for _, r := range reasons {
				lines = append(lines, console.Word(r.Text).In(r.Level))
			}
			state = console.Lines(lines...)
		}
		counts := [...]console.Cell{console.Number(nil), console.Word(console.Unknown), console.Number(nil), console.Number(nil), console.Number(nil), console.Number(nil)}
		measured := console.Cell{Text: "never"}
		if m := w.measured.Load(); m != nil {
			b := m.backlog
			due := console.Count(b.Due)
			if b.Due == ledger.BacklogLimit {
				due.Text += " or more"
			}
			counts = [...]console.Cell{
				due, {Text: console.Short(b.OldestDue), Data: b.OldestDue.Seconds(), Right: true}, console.Count(b.Waiting), console.Count(b.Calling),
				problem(b.Failed, operate.Warn), problem(b.Unknown, operate.Fail),
			}
			measured = console.Moment(m.at)
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(w.name), console.Word(w.effects.ledgerKind(p.instance()).Policy.Repeat.String()), state, counts[0], counts[1], counts[2], counts[3],
			console.Count(w.inFlight.Load()), counts[4], counts[5], limitsCell(w.inForce.Load()), measured,
		})
	}
	return t, nil
}

// problem returns a number that is in order only if it is 0.
func problem(n int64, level operate.Level) console.Cell {
	if n == 0 {
		return console.Count(n)
	}
	return console.Count(n).In(level)
}

func showFind(_ context.Context, q console.Query) (console.Block, error) {
	return console.Find{Page: effectPage, Fields: []operate.Field{
		{Name: "kind", Default: q.Text("kind"), Required: true}, {Name: "group", Default: q.Text("group"), Required: true}, {Name: "id", Required: true},
	}}, nil
}

func showGroups(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	after := ledger.Group{Kind: q.Text("after_kind"), Name: q.Text("after_group")} // kind is for the other panels
	groups, more, err := l.Groups(ctx, "", after, shownRows)
	if errors.Is(err, ledger.ErrNotFound) {
		return console.Text(fmt.Sprintf("No kind %q has the group %q. Begin with the newest groups: choose Effects in the navigation.", after.Kind, after.Name)), nil
	} else if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Kind", "Group", "State", "Accepted", "Done", "Waiting", "Being called", "Failed", "Unknown", "Cancelled", "Per second", "Oldest due", "Created"),
		Empty:   "No effect was accepted yet.",
	}
	if after.Name != "" {
		t.Empty, t.Note = "No older group follows.", "These groups follow "+after.Kind+" "+after.Name+"."
	}
	rates, err := ratesOf(ctx, l, groups)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(g.Kind), console.Word(g.Name).At(linkTo(groupPage, ledger.Key{Kind: g.Kind, Group: g.Name})), groupState(shownState(g)),
			acceptedCell(g), console.Count(g.Done), console.Count(g.Waiting), console.Count(g.Calling),
			problem(g.Failed, operate.Warn), problem(g.Unknown, operate.Fail), console.Count(g.Cancelled), rateCell(rates[g.Group]),
			{Text: console.Short(g.OldestDue), Data: g.OldestDue.Seconds(), Right: true}, console.Moment(g.CreatedAt),
		})
	}
	if more {
		t.Next = effectsPage + "?" + url.Values{"after_kind": {groups[len(groups)-1].Kind}, "after_group": {groups[len(groups)-1].Name}}.Encode()
	}
	return t, nil
}

func groupState(state string) console.Cell {
	cell := console.Word(strings.ToLower(state))
	switch rules.GroupState(state) {
	case rules.GroupPaused, rules.GroupCancelled:
		return cell.In(operate.Warn)
	case rules.GroupRunning:
	}
	return cell
}

func acceptedCell(s ledger.Status) console.Cell {
	cell := console.Count(s.Accepted)
	cell.Text = acceptedOf(s, func(n int64) string { return console.Count(n).Text })
	return cell
}

// showProblems shows those of the group in the address, or of all kinds.
func showProblems(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	problems, more, err := l.Problems(ctx, q.Text("kind"), q.Text("group"), "", shownRows)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, console.ErrNothing
	} else if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Kind", "Group", "ID", "State", "Since", "Class", "Answer"),
		Empty:   "No effect has failed or is unknown.",
	}
	for _, x := range problems {
		state := console.Word(strings.ToLower(string(x.State))).In(operate.Warn)
		if x.State == rules.Unknown {
			state.Level = operate.Fail
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(x.Kind), console.Word(x.Group).At(linkTo(groupPage, ledger.Key{Kind: x.Kind, Group: x.Group})),
			console.Word(x.ID).At(linkTo(effectPage, x.Key)), state, console.Moment(x.At), console.Word(x.Class), console.Word(x.Error),
		})
	}
	if more {
		t.Note = fmt.Sprintf("Only the first %d are shown. The command once problems has --kind, --group, --state and --limit.", shownRows)
	}
	return t, nil
}

func showGroup(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	g := ledger.Group{Kind: q.Text("kind"), Name: q.Text("group")}
	s, err := l.Status(ctx, g)
	if errors.Is(err, ledger.ErrNotFound) {
		return console.Text(fmt.Sprintf("No effect of the kind %q has the group %q. The commands once pause and once cancel have --future for a group that is still to come.", g.Kind, g.Name)), nil
	} else if err != nil {
		return nil, err
	}
	limits, err := l.LimitsOf(ctx, g.Kind)
	if err != nil {
		return nil, err
	}
	pause := console.Word("none")
	paused, err := l.KindPaused(ctx, g.Kind)
	if err != nil {
		return nil, err
	}
	if paused != nil {
		pause = console.Word(sincePaused(*paused)).In(operate.Warn)
	}
	audit, err := l.GroupAudit(ctx, g)
	if err != nil {
		return nil, err
	}
	return console.Blocks{
		console.Stats{
			{Name: "Kind", Cell: console.Word(s.Kind)},
			{Name: "Group", Cell: console.Word(s.Name)},
			{Name: "State", Cell: groupState(shownState(s))},
			{Name: "Created", Cell: console.Moment(s.CreatedAt)},
			{Name: "Oldest due", Cell: console.Cell{Text: console.Short(s.OldestDue), Data: s.OldestDue.Seconds()}},
			{Name: "Pause of the kind", Cell: pause},
			{Name: "Limits of the kind", Cell: console.Word(textOfLimits(limits))},
		},
		console.Stats{
			{Name: "Accepted", Cell: acceptedCell(s)},
			{Name: "Done", Cell: console.Count(s.Done)},
			{Name: "Waiting", Cell: console.Count(s.Waiting)},
			{Name: "Being called", Cell: console.Count(s.Calling)},
			{Name: "Failed", Cell: problem(s.Failed, operate.Warn)},
			{Name: "Unknown", Cell: problem(s.Unknown, operate.Fail)},
			{Name: "Cancelled", Cell: console.Count(s.Cancelled)},
		},
		console.Checks{balanceOf(s)},
		auditOf(audit, "No operator has changed the group."),
	}, nil
}

// balanceOf says whether what was accepted has ended or is open.
func balanceOf(s ledger.Status) operate.Check {
	ended, open := s.Done+s.Failed+s.Unknown+s.Cancelled, s.Waiting+s.Calling
	if s.Accepted != ended+open {
		return operate.Check{Name: "balance", Level: operate.Fail, Text: fmt.Sprintf("accepted %d, but ended %d + open %d = %d: the totals of the ledger are wrong", s.Accepted, ended, open, ended+open)}
	}
	return operate.Check{Name: "balance", Level: operate.OK, Text: fmt.Sprintf("accepted %d = ended %d + open %d", s.Accepted, ended, open)}
}

func showParts(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	parts, err := l.Parts(ctx, ledger.Group{Kind: q.Text("kind"), Name: q.Text("group")})
	if errors.Is(err, ledger.ErrNotFound) || err == nil && !slices.ContainsFunc(parts, func(t ledger.Totals) bool { return t.Part != "" }) {
		return nil, console.ErrNothing
	} else if err != nil {
		return nil, err
	}
	t := console.Table{Columns: console.Columns("Part", "Accepted", "Done", "Failed", "Unknown", "Cancelled")}
	for _, x := range parts {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(x.Part), console.Count(x.Accepted), console.Count(x.Done), problem(x.Failed, operate.Warn),
			problem(x.Unknown, operate.Fail), console.Count(x.Cancelled),
		})
	}
	return t, nil
}

func (p *Plugin) showEffect(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	k := ledger.Key{Kind: q.Text("kind"), Group: q.Text("group"), ID: q.Text("id")}
	if k.Kind == "" || k.Group == "" || k.ID == "" {
		return console.Text("Give the kind, the group and the id of an effect."), nil
	}
	x, err := l.Explain(ctx, k)
	if errors.Is(err, ledger.ErrNotFound) {
		return console.Text(p.notAccepted(ctx, k) + "."), nil
	} else if err != nil {
		return nil, err
	}
	then, err := next(ctx, l, x)
	if err != nil {
		return nil, err
	}
	idempotency, value := "", ""
	if w := p.kindOf(k.Kind); w != nil {
		idempotency, value = w.effects.describe(k, x.Payload)
	}
	sends, lookups := p.countsOf(x)
	trace, _ := pipeline.TraceOf(x.Headers[pipeline.MetaTraceParent])
	record := console.Record{
		Fields: console.Stats{
			{Name: "State", Cell: effectState(x.Row.State)},
			{Name: "Next", Cell: console.Word(then)},
			{Name: "Kind", Cell: console.Word(k.Kind)},
			{Name: "Group", Cell: console.Word(k.Group).At(linkTo(groupPage, ledger.Key{Kind: k.Kind, Group: k.Group}))},
			{Name: "State of the group", Cell: groupState(string(x.Group))},
			{Name: "ID", Cell: console.Word(k.ID)},
			{Name: "Part", Cell: console.Word(x.Part)},
			{Name: "Value", Cell: console.Word(value)},
			{Name: "Idempotency key", Cell: console.Word(idempotency)},
			{Name: "Receipt", Cell: console.Word(x.Row.Receipt)},
			{Name: "Perhaps done", Cell: perhapsCell(x)},
			{Name: "From", Cell: console.Word(x.Origin)},
			{Name: "Trace", Cell: console.Trace(trace)},
			{Name: "Accepted", Cell: console.Moment(x.Row.AcceptedAt)},
			{Name: "Key first used", Cell: console.Moment(x.Row.KeyFirstUsedAt)},
			{Name: "Settled", Cell: console.Moment(x.Row.SettledAt)},
			{Name: "Sends", Cell: console.Word(cmp.Or(sends.text(), "none"))},
			{Name: "Lookups", Cell: console.Word(cmp.Or(lookups.text(), "none"))},
		},
		Folds: []console.Fold{{Title: "Record", Payload: x.Payload}, {Title: "Request", Payload: x.Request}, {Title: "Headers", Headers: x.Headers}},
	}
	if !x.NotBefore.IsZero() {
		record.Fields = append(record.Fields, console.Stat{Name: "Not before", Cell: console.Until(x.NotBefore)})
	}
	return console.Blocks{record, callsOf(x.Calls), auditOf(changesOf(x.Audit, x.GroupAudit), "No operator has changed it or its group.")}, nil
}

func effectState(s rules.State) console.Cell {
	cell := console.Word(strings.ToLower(string(s)))
	switch s {
	case rules.Success:
		return cell.In(operate.OK)
	case rules.Failed, rules.Ambiguous, rules.Errored, rules.Cancelled:
		return cell.In(operate.Warn)
	case rules.Unknown:
		return cell.In(operate.Fail)
	case rules.Pending, rules.Sending:
	}
	return cell
}

func perhapsCell(x ledger.Explanation) console.Cell {
	is := x.Row.PerhapsDone() || x.Lost != nil
	return console.Cell{Text: cmp.Or(perhapsDone(is && x.Row.Receipt == "", x.Lost, len(x.Calls)), "no"), Data: is}
}

func callsOf(calls []rules.Attempt) console.Table {
	t := console.Table{Columns: console.Columns("Call", "Started", "Took", "Instance", "Outcome", "Status", "Class", "Answer", "Receipt"), Empty: "No call was made."}
	names := namesOf(calls)
	for i, a := range calls {
		outcome, took := string(a.Outcome), console.Cell{}
		switch {
		case a.Late:
		case a.Open():
			outcome = "not known"
		case !a.StartedAt.IsZero():
			d := a.EndedAt.Sub(a.StartedAt)
			took = console.Cell{Text: d.Round(time.Millisecond).String(), Data: d.Seconds(), Right: true}
		}
		status := console.Cell{}
		if a.Status != 0 {
			status = console.Cell{Text: fmt.Sprint(a.Status), Data: a.Status}
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(names[i]), console.Moment(a.StartedAt), took, console.Word(a.Instance), console.Word(outcome), status,
			console.Word(a.Class), console.Word(a.Answer), console.Word(a.Receipt),
		})
	}
	return t
}

func auditOf(audit []ledger.Audit, empty string) console.Table {
	t := console.Table{Columns: console.Columns("When", "Action", "Who", "Why", "Detail"), Empty: empty}
	for _, a := range audit {
		t.Rows = append(t.Rows, []console.Cell{console.Moment(a.At), console.Word(a.Action), console.Word(a.Who), console.Word(a.Why), console.Word(a.Detail)})
	}
	return t
}

// reveal records that a person sees what is masked of an effect.
func (p *Plugin) reveal(ctx context.Context, q console.Query, use operate.Use) error {
	l := p.ledger.Load()
	if l == nil {
		return errNotOpen
	}
	k := ledger.Key{Kind: q.Text("kind"), Group: q.Text("group"), ID: q.Text("id")}
	err := l.RecordReveal(ctx, k, ledger.By{Who: use.Who, Why: use.Why})
	if errors.Is(err, ledger.ErrNotFound) {
		return console.ErrNothing
	}
	return err
}

// linkTo returns the address of the page of a key, or of its group.
func linkTo(page string, k ledger.Key) string {
	values := url.Values{"kind": {k.Kind}, "group": {k.Group}}
	if k.ID != "" {
		values.Set("id", k.ID)
	}
	return page + "?" + values.Encode()
}

var _ console.Contributor = (*Plugin)(nil)
