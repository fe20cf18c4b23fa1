package once

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations {
	group := []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "group", Help: "the `group` of effects", Required: true},
	}
	effect := append(slices.Clone(group), operate.Field{Name: "id", Help: "the `id` of the effect in its group", Required: true})
	cancel := func(ctx context.Context, l *ledger.Ledger, g ledger.Group, by ledger.By, how ...ledger.Steer) (string, error) {
		c, err := l.Cancel(ctx, g, by, how...)
		if err != nil {
			return "", err
		}
		running, err := underWay(ctx, l, g)
		return fmt.Sprintf("The group is cancelled. Effects that this ended: %d; perhaps done, which %s: %d; %s.", c.Cancelled, p.afterCancel(g.Kind), c.Ambiguous, running), err
	}
	return operate.Operations{
		Reports: []operate.Report{
			{
				About: p.about("once", "List the groups of effects, the newest first", []operate.Field{
					{Name: "kind", Help: "only of this `kind`"},
					{Name: "limit", Type: operate.Number, Default: "50", Help: "largest number of rows"},
				}, "once", "once --kind invoice --limit 200"),
				Read: p.withLedger(p.listGroups),
			},
			{
				About: p.about("once status", "Show how fast a group or a kind goes, and what it waits for", []operate.Field{
					group[0], {Name: "group", Help: "the `group` of effects; without it the whole kind"},
				}, "once status --kind invoice --group acme", "once status --kind invoice"),
				Read: p.withGroup(p.showStatus),
			},
			{
				About: p.about("once explain", "Show the history of one effect, and the next step", effect,
					"once explain --kind invoice --group acme --id 17"),
				Read: p.withEffect(p.explain),
			},
			{
				About: p.about("once problems", "List the effects that failed or ended unknown", []operate.Field{
					{Name: "kind", Help: "only of this `kind`"}, {Name: "group", Help: "only of this `group`, with its kind"},
					{Name: "state", Help: "only in this `state`: FAILED or UNKNOWN"},
					{Name: "limit", Type: operate.Number, Default: "50", Help: "largest number of rows"},
				}, "once problems", "once problems --kind invoice --state UNKNOWN"),
				Read: p.withLedger(listProblems),
			},
			p.lookupReport(effect),
			p.reconcileReport(),
		},
		Actions: append(p.pauseActions(), []operate.Action{
			{
				About: p.about("once cancel", "Cancel what a group has not done yet, for good", append(slices.Clone(group), futureField()),
					"once cancel --kind invoice --group acme --why \"they asked for it\""),
				Danger:  operate.Irreversible,
				Role:    operate.Operator,
				Audited: true,
				Preview: p.previewSteer("cancel"),
				Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
					return p.withGroup(doThenShow(cancel, previewGroup, use))(ctx, r, in)
				},
			},
			p.limitAction(),
			p.recoverAction(),
			p.probeAction(),
			p.replayAction(),
			p.resolveAction(effect),
		}...),
	}
}

func (p *Plugin) about(name, short string, fields []operate.Field, examples ...string) operate.About {
	return operate.About{Name: name, Short: short, Fields: fields, Examples: examples, Register: p.registerCommand}
}

// registerCommand opens the ledger for a command.
func (p *Plugin) registerCommand(r *pipeline.Registry) error {
	switch {
	case !p.isUsed():
		return app.Usage("this binary has no kind of effects: a plugin adds one (millrace new once NAME)")
	case p.config.Ledger.DSN.IsZero():
		return app.Usage("there is no ledger of effects: %s is not set", ledgerSetting)
	}
	r.Service("once.command", &ledgerService{plugin: p, command: true, kinds: func() []*worker { return pipeline.Offers[*worker](r) }})
	return nil
}

type read = func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error)

func (p *Plugin) withLedger(do func(context.Context, *ledger.Ledger, operate.Input) (operate.Answer, error)) read {
	return func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
		l := p.ledger.Load()
		if l == nil {
			return operate.Answer{}, errNotOpen
		}
		if err := p.checkKind(ctx, l, in.Text("kind")); err != nil {
			return operate.Answer{}, err
		}
		return do(ctx, l, in)
	}
}

func (p *Plugin) withGroup(do func(context.Context, *ledger.Ledger, ledger.Group, operate.Input) (operate.Answer, error)) read {
	return p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
		return do(ctx, l, ledger.Group{Kind: in.Text("kind"), Name: in.Text("group")}, in)
	})
}

func (p *Plugin) withEffect(do func(context.Context, *ledger.Ledger, ledger.Key, operate.Input) (operate.Answer, error)) read {
	return p.withGroup(func(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
		return do(ctx, l, ledger.Key{Kind: g.Kind, Group: g.Name, ID: in.Text("id")}, in)
	})
}

func byOf(use operate.Use) ledger.By { return ledger.By{Who: use.Who, Why: use.Why} }

func (p *Plugin) listGroups(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
	limit := in.Number("limit")
	if limit < 1 {
		return operate.Answer{}, &operate.InputError{Problem: "--limit must be > 0"}
	}
	groups, more, err := l.Groups(ctx, in.Text("kind"), ledger.Group{}, limit)
	if err != nil {
		return operate.Answer{}, err
	}
	t := operate.Table{Columns: []string{"KIND", "GROUP", "STATE", "CREATED", "ACCEPTED", "DONE", "FAILED", "UNKNOWN", "CANCELLED", "OPEN", "PER SECOND"}, Empty: "There are no effects."}
	rates, err := ratesOf(ctx, l, groups)
	if err != nil {
		return operate.Answer{}, err
	}
	for _, g := range groups {
		t.Rows = append(t.Rows, []string{
			g.Kind, g.Name, shownState(g), g.CreatedAt.Format(time.RFC3339), acceptedOf(g, number), number(g.Done), number(g.Failed), number(g.Unknown),
			number(g.Cancelled), number(g.Accepted - g.Done - g.Failed - g.Unknown - g.Cancelled), rateCell(rates[g.Group]).Text,
		})
	}
	paused, err := l.PausedKinds(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	list := struct {
		Groups []listedGroup      `json:"groups"`
		More   bool               `json:"more"`         // there are groups that are not in the list
		Paused []ledger.KindPause `json:"paused_kinds"` // whole kinds
	}{make([]listedGroup, len(groups)), more, append([]ledger.KindPause{}, paused...)}
	for i, g := range groups {
		list.Groups[i] = listedGroup{statusOf(g), rates[g.Group]}
	}
	a := operate.Answer{Value: list, Tables: []operate.Table{t}}
	if more {
		a.Notes = []string{fmt.Sprintf("There are more than %d groups; --limit shows them.", limit)}
	}
	for _, k := range paused {
		a.Notes = append(a.Notes, textOfPause(k))
	}
	left, err := absent(ctx, l, p.kinds)
	for _, k := range left {
		a.Notes = append(a.Notes, absentNote(k))
	}
	return a, err
}

// groupStatus is a group for programs.
type groupStatus struct {
	ledger.Status
	Finished  bool    `json:"finished"` // all that were expected are accepted, and all that were accepted are settled
	OldestDue float64 `json:"oldest_due_seconds"`
}

// listedGroup is a group in a list.
type listedGroup struct {
	groupStatus
	PerSecond *float64 `json:"per_second"` // effects that have ended in the last minute; null: nothing is open, or no instance says it
}

func statusOf(s ledger.Status) groupStatus {
	return groupStatus{s, s.Finished(), s.OldestDue.Seconds()}
}

// shownState is the state of a group for people.
func shownState(s ledger.Status) string {
	if s.State == rules.GroupRunning && s.Finished() {
		return "FINISHED"
	}
	return string(s.State)
}

// acceptedOf says how many effects of a group are accepted, and of how many if that is known.
func acceptedOf(s ledger.Status, number func(int64) string) string {
	if s.Expected == 0 {
		return number(s.Accepted)
	}
	return number(s.Accepted) + " of " + number(s.Expected)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// previewGroup answers with the status of a group, which may have no effect yet if the input has future.
func previewGroup(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
	s, err := l.Status(ctx, g)
	if errors.Is(err, ledger.ErrNotFound) && in.Switch("future") {
		s, err = ledger.Status{Group: g, State: rules.GroupRunning}, nil
	}
	if err != nil {
		return operate.Answer{}, noGroup(err, g)
	}
	return answerOf(s), nil
}

func answerOf(s ledger.Status) operate.Answer {
	t := operate.Table{Columns: []string{"EFFECTS", "COUNT"}}
	for _, row := range []struct {
		name string
		n    int64
	}{{"accepted", s.Accepted}, {"done", s.Done}, {"failed", s.Failed}, {"unknown", s.Unknown}, {"cancelled", s.Cancelled}, {"waiting", s.Waiting}, {"being called", s.Calling}} {
		t.Rows = append(t.Rows, []string{row.name, number(row.n)})
	}
	line := fmt.Sprintf("%s %s is %s", s.Kind, s.Name, shownState(s))
	if s.Expected > 0 {
		line += ", " + acceptedOf(s, number) + " accepted"
	}
	a := operate.Answer{Value: statusOf(s), Lines: []string{line}, Tables: []operate.Table{t}}
	if s.OldestDue > 0 {
		a.Notes = append(a.Notes, "The oldest has been due for "+s.OldestDue.Round(time.Millisecond).String()+".")
	}
	return a
}

func listProblems(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
	state := rules.State(strings.ToUpper(in.Text("state")))
	if state != "" && state != rules.Failed && state != rules.Unknown {
		return operate.Answer{}, &operate.InputError{Problem: "--state must be FAILED or UNKNOWN"}
	}
	limit := in.Number("limit")
	if limit < 1 {
		return operate.Answer{}, &operate.InputError{Problem: "--limit must be > 0"}
	}
	list, more, err := l.Problems(ctx, in.Text("kind"), in.Text("group"), state, limit)
	if err != nil {
		return operate.Answer{}, err
	}
	t := operate.Table{Columns: []string{"KIND", "GROUP", "ID", "STATE", "SINCE", "CLASS", "ANSWER"}, Empty: "No effect has failed or is unknown."}
	for _, x := range list {
		t.Rows = append(t.Rows, []string{x.Kind, x.Group, x.ID, string(x.State), x.At.Format(time.RFC3339), x.Class, x.Error})
	}
	a := operate.Answer{Value: struct {
		Problems []ledger.Problem `json:"problems"`
		More     bool             `json:"more"`
	}{append([]ledger.Problem{}, list...), more}, Tables: []operate.Table{t}}
	if more {
		a.Notes = []string{fmt.Sprintf("The list ends after %d; --limit shows more.", limit)}
	}
	return a, nil
}

// refusal says why an operator's action changed nothing.
func refusal(k ledger.Key, err error) error {
	if why, refused := reasonOf(err); refused {
		return app.Bad("%s: nothing was changed, because %s", textOf(k), why)
	}
	return notFound(err, "%s is not in the ledger", textOf(k))
}

func notFound(err error, format string, args ...any) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return app.Bad(format, args...)
	}
	return err
}
