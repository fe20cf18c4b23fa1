package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// pauseActions pause and resume a group, or a whole kind.
func (p *Plugin) pauseActions() []operate.Action {
	return []operate.Action{
		p.pauseAction("pause", "Start no call for a group or a kind until it is resumed", `Start no call for a group, or with --all for a whole kind, until it is resumed.

When the command has returned nothing is claimed any more, in any instance.
What was claimed before ends normally; an instance that stalls may send it as
late as lease_margin after that. Effects are accepted meanwhile.

A group that has no effect yet is paused with --future, before its first one.
So is one that is finished, because all of its effects that were expected are
done or cancelled; its pause is for those that are still to come.`,
			func(ctx context.Context, l *ledger.Ledger, g ledger.Group, by ledger.By, how ...ledger.Steer) (string, error) {
				var err error
				if g.Name == "" {
					err = l.PauseKind(ctx, g.Kind, by)
				} else {
					err = l.Pause(ctx, g, by, how...)
				}
				if err != nil {
					return "", err
				}
				running, err := underWay(ctx, l, g)
				return "No call starts any more; " + running + ".", err
			}),
		p.pauseAction("resume", "Call for a paused group or kind again", `Call for a paused group again, or with --all for a paused kind.

A group that was paused for itself stays so when its kind is resumed, and a
group of a paused kind waits for its kind.`,
			func(ctx context.Context, l *ledger.Ledger, g ledger.Group, by ledger.By, _ ...ledger.Steer) (string, error) {
				if g.Name == "" {
					return "Calls start again within seconds.", l.ResumeKind(ctx, g.Kind, by)
				}
				if err := l.Resume(ctx, g, by); err != nil {
					return "", err
				}
				paused, err := l.KindPaused(ctx, g.Kind)
				if paused != nil {
					return "The group is resumed, and calls start when its kind is resumed, too.", err
				}
				return "Calls start again within seconds.", err
			}),
	}
}

// steer does something to a group, or to a kind with an empty group, and says what.
type steer func(context.Context, *ledger.Ledger, ledger.Group, ledger.By, ...ledger.Steer) (string, error)

func futureField() operate.Field {
	return operate.Field{Name: "future", Type: operate.Switch, Help: "also for effects that are still to come, when there is none yet or all are done"}
}

func (p *Plugin) pauseAction(verb, short, long string, do steer) operate.Action {
	about := p.about("once "+verb, short, []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "group", Help: "the `group` of effects"},
		{Name: "all", Type: operate.Switch, Help: "the whole kind, in place of a group"},
	}, "once "+verb+" --kind invoice --group acme --why \"they asked for it\"", "once "+verb+" --kind invoice --all --why \"their API is broken\"")
	about.Long = long
	about.Validate = checkScope
	if verb == "pause" {
		about.Fields = append(about.Fields, futureField())
		about.Examples = append(about.Examples, "once pause --kind invoice --group acme --future --why \"not ready\"")
		about.Validate = func(in operate.Input) error {
			if in.Switch("all") && in.Switch("future") {
				return &operate.InputError{Field: "future", Problem: "--future is for a group: the pause of a whole kind is for effects to come in any case"}
			}
			return checkScope(in)
		}
	}
	show := func(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
		if g.Name == "" {
			return previewKind(ctx, l, g.Kind)
		}
		return previewGroup(ctx, l, g, in)
	}
	return operate.Action{
		About:   about,
		Danger:  operate.Safe,
		Role:    operate.Operator,
		Audited: true,
		Preview: p.previewSteer(verb),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withGroup(doThenShow(do, show, use))(ctx, r, in)
		},
	}
}

// checkScope reports fields that name neither a group nor the whole kind, or both.
func checkScope(in operate.Input) error {
	switch all := in.Switch("all"); {
	case all && in.Text("group") != "":
		return &operate.InputError{Field: "all", Problem: "give --group or --all, not both: --all is the whole kind"}
	case !all && in.Text("group") == "":
		return &operate.InputError{Field: "group", Problem: "--group is required, or --all for the whole kind"}
	}
	return nil
}

// underWay says how many effects of a group are being called, or of a kind with an empty group, and until when at most.
func underWay(ctx context.Context, l *ledger.Ledger, g ledger.Group) (string, error) {
	calls, atMost, err := l.UnderWay(ctx, g)
	if calls == 0 {
		return "none is being called", err
	}
	return fmt.Sprintf("effects that are being called (%d) end normally, within %s at most", calls, atMost.Truncate(time.Second)+time.Second), err
}

// doThenShow does something to a group, or to a kind with an empty group, and answers with what is so then.
func doThenShow(do steer, show func(context.Context, *ledger.Ledger, ledger.Group, operate.Input) (operate.Answer, error),
	use operate.Use) func(context.Context, *ledger.Ledger, ledger.Group, operate.Input) (operate.Answer, error) {
	return func(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
		var how []ledger.Steer
		if in.Switch("future") {
			how = append(how, ledger.Future)
		}
		line, err := do(ctx, l, g, byOf(use), how...)
		switch {
		case errors.Is(err, ledger.ErrFinished):
			return operate.Answer{}, app.Bad("nothing was changed, because %s. --future does it for effects that are still to come", whyFinished(g))
		case err != nil && g.Name == "":
			return operate.Answer{}, noKind(err, g.Kind)
		case err != nil:
			return operate.Answer{}, noGroup(err, g)
		}
		a, err := show(ctx, l, g, in)
		a.Lines = append([]string{line}, a.Lines...)
		return a, err
	}
}

func whyFinished(g ledger.Group) string {
	return fmt.Sprintf("all effects of group %s of kind %s that were expected are done or cancelled", g.Name, g.Kind)
}

// kindStatus is a kind for programs.
type kindStatus struct {
	Kind         string            `json:"kind"`
	Paused       *ledger.KindPause `json:"paused"` // null: it is not
	PausedGroups int               `json:"paused_groups"`
	Waiting      int64             `json:"waiting"`
	Calling      int64             `json:"calling"`
	Failed       int64             `json:"failed"`
	Unknown      int64             `json:"unknown"`
	Audit        []ledger.Audit    `json:"audit"`
}

// previewKind answers with whether a kind is paused, and what waits.
func previewKind(ctx context.Context, l *ledger.Ledger, kind string) (operate.Answer, error) {
	b, err := l.Backlog(ctx, kind)
	if err != nil {
		return operate.Answer{}, noKind(err, kind)
	}
	groups, err := l.PausedGroups(ctx, kind)
	if err != nil {
		return operate.Answer{}, err
	}
	limits, err := l.LimitsOf(ctx, kind) // which has the audit of the kind
	if err != nil {
		return operate.Answer{}, err
	}
	line := "The kind " + kind + " is not paused"
	if b.Paused != nil {
		line = textOfPause(*b.Paused)
	}
	t := operate.Table{Columns: []string{"EFFECTS", "COUNT"}, Rows: [][]string{
		{"waiting", number(b.Waiting)}, {"being called", number(b.Calling)}, {"failed", number(b.Failed)}, {"unknown", number(b.Unknown)},
	}}
	a := operate.Answer{
		Value: kindStatus{kind, b.Paused, groups, b.Waiting, b.Calling, b.Failed, b.Unknown, limits.Audit},
		Lines: []string{line}, Tables: []operate.Table{t, auditTable(limits.Audit, "No operator has changed the kind.")},
	}
	if groups > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%s paused as well, and waits for a resume of its own.", heldGroups(groups)))
	}
	return a, nil
}

// textOfPause says since when a kind is paused, and by whom and why.
func textOfPause(p ledger.KindPause) string { return "The kind " + p.Kind + " " + sincePaused(p) }

func sincePaused(p ledger.KindPause) string {
	return fmt.Sprintf("has been paused since %s by %s: %s", p.Since.UTC().Format(time.RFC3339), p.Who, p.Why)
}

func resumeKind(kind string) string { return "once resume --kind " + kind + " --all" }
