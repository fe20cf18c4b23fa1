package once

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A preview says first what would be done, or that it would be refused, and then what is known now.
type (
	effectPreview struct {
		explained
		Would string `json:"would"`
	}
	groupPreview struct {
		groupStatus
		Would string `json:"would"`
	}
	kindPreview struct {
		kindStatus
		Would string `json:"would"`
	}
	limitPreview struct {
		ledger.LimitStatus
		Would string `json:"would"`
	}
)

// previewChange returns the preview of an action on one effect, of which judge says what it would change.
func (p *Plugin) previewChange(judge func(context.Context, *ledger.Ledger, ledger.Key, operate.Input) (would string, err error)) read {
	return p.withEffect(func(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input) (operate.Answer, error) {
		would, err := judge(ctx, l, k, in)
		if why, refused := reasonOf(err); refused {
			would = "Would be refused, because " + why + "."
		} else if err != nil {
			return operate.Answer{}, refusal(k, err)
		}
		a, err := p.explain(ctx, l, k, in)
		if err != nil {
			return operate.Answer{}, err
		}
		a.Value, a.Lines = effectPreview{a.Value.(explained), would}, append([]string{would}, a.Lines...)
		return a, nil
	})
}

func wouldReplay(ctx context.Context, l *ledger.Ledger, k ledger.Key, _ operate.Input) (string, error) {
	change, err := l.WouldReplay(ctx, k)
	return "Would give it all its attempts again, with the same key and the same bytes: " + change + ".", err
}

// previewSteer returns the preview of an action on a group, or on a kind when the group is empty.
func (p *Plugin) previewSteer(verb string) read {
	return p.withGroup(func(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
		var a operate.Answer
		var err error
		var state rules.GroupState
		var waiting int64
		if g.Name == "" {
			a, err = previewKind(ctx, l, g.Kind)
		} else {
			a, err = previewGroup(ctx, l, g, in)
		}
		if err != nil {
			return operate.Answer{}, err
		}
		paused, refused := "", false
		if g.Name != "" {
			s := a.Value.(groupStatus)
			state, waiting = s.State, s.Waiting
			// What failed or is unknown can be replayed, so a pause holds it back.
			nothingLeft := s.Finished && s.Done+s.Cancelled == s.Accepted
			refused = nothingLeft && !in.Switch("future") && (verb == "cancel" && state != rules.GroupCancelled || verb == "pause" && state == rules.GroupRunning)
			k, err := l.KindPaused(ctx, g.Kind)
			if err != nil {
				return operate.Answer{}, err
			}
			if k != nil {
				paused = " when the kind is resumed, too"
			}
		} else {
			s := a.Value.(kindStatus)
			state, waiting = rules.GroupRunning, s.Waiting
			if s.Paused != nil {
				state = rules.GroupPaused
			}
		}
		running, err := underWay(ctx, l, g)
		if err != nil {
			return operate.Answer{}, err
		}
		would := wouldSteer(verb, state, waiting, running, paused, p.afterCancel(g.Kind))
		if refused {
			would = "Would be refused, because " + whyFinished(g) + ". --future does it for effects that are still to come."
		}
		a.Lines = append([]string{would}, a.Lines...)
		switch v := a.Value.(type) {
		case groupStatus:
			a.Value = groupPreview{v, would}
		case kindStatus:
			a.Value = kindPreview{v, would}
		}
		return a, nil
	})
}

// wouldSteer says what a pause, a resume or a cancellation would do. running says what becomes of calls that run, paused when
// calls of a group start whose kind is paused, too, and perhapsDone what a cancellation leaves of those that are perhaps done.
func wouldSteer(verb string, state rules.GroupState, waiting int64, running, paused, perhapsDone string) string {
	switch {
	case verb == "cancel" && state == rules.GroupCancelled:
		return fmt.Sprintf("It is cancelled already. Of effects that wait (%d), those that certainly were not done would be cancelled.", waiting)
	case verb == "cancel":
		return fmt.Sprintf("Would cancel it for good: of effects that wait (%d), those that certainly were not done would end, and of others nothing would be sent: they %s; %s.", waiting, perhapsDone, running)
	case state == rules.GroupCancelled:
		return "Would be refused, because it is cancelled, which is final."
	case verb == "pause" && state == rules.GroupPaused:
		return "Would change nothing, because it is paused already."
	case verb == "pause":
		return fmt.Sprintf("Would start no call any more until it is resumed: effects that wait (%d) would stay; %s.", waiting, running)
	case state == rules.GroupRunning:
		return "Would change nothing, because it is not paused."
	case paused != "":
		return fmt.Sprintf("Would resume it: calls for effects that wait (%d) would start%s.", waiting, paused)
	}
	return fmt.Sprintf("Would resume it: calls for effects that wait (%d) would start again within seconds.", waiting)
}

// afterCancel says what becomes of effects that are perhaps done when their group is cancelled.
func (p *Plugin) afterCancel(kind string) string {
	w := p.kindOf(kind)
	switch {
	case w == nil:
		return "are looked up, or end UNKNOWN if their kind has no lookup"
	case w.effects.ledgerKind(p.instance()).Policy.MaxLookups == 0:
		return "end UNKNOWN, because their kind has no lookup"
	}
	return "are looked up"
}

// previewLimits says what the limits of a kind would be.
func previewLimits(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
	a, err := showLimits(ctx, l, in)
	if err != nil {
		return a, err
	}
	c, err := changeOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	s := a.Value.(ledger.LimitStatus)
	now, would := s.InForce, "Would set the limits to "
	if c.Settings {
		would = "Would end what operators have set, so that the limits of the settings apply again"
		now.PerSecondFrom, now.InFlightFrom = ledger.FromSettings, ledger.FromSettings
	}
	if c.PerSecond != nil {
		now.PerSecond, now.PerSecondFrom = *c.PerSecond, ledger.FromOperator
	}
	if c.InFlight != nil {
		now.InFlight, now.InFlightFrom = *c.InFlight, ledger.FromOperator
	}
	switch {
	case !c.Settings:
		would += textOfForce(now) + ", within seconds."
	case c.PerSecond != nil || c.InFlight != nil:
		would += ", and set others then."
	default:
		would += "."
	}
	a.Value, a.Lines = limitPreview{s, would}, append([]string{would}, a.Lines...)
	return a, nil
}

// reasonOf returns why the state of an effect does not allow an action. refused is false for any other error.
func reasonOf(err error) (why string, refused bool) {
	var r *ledger.RefusedError
	if !errors.As(err, &r) {
		return "", false
	}
	if r.Late {
		return "a late answer says that it is done, receipt " + r.Receipt + "; --force denies that all the same", true
	}
	return map[rules.Refusal]string{
		rules.RefusedDone:           "it is done",
		rules.RefusedCancelled:      "it was cancelled with its group",
		rules.RefusedUnsettled:      "it is not settled: it is being worked on",
		rules.RefusedGroupCancelled: "its group is cancelled, so nothing would be sent",
		rules.RefusedNoCall:         "it may have been done, and no call can find that out: look at the far side and resolve it",
		rules.RefusedNotUnknown:     "it is not UNKNOWN",
		rules.RefusedLookup:         "it will be looked up again; only --force ends that",
		rules.RefusedChanged:        "it has changed since it was shown to you: look at it again",
	}[r.Refusal], true
}
