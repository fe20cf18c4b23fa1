package campaign

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// The fields of actions that say what they are about. An address of the console has them, too.
const (
	FieldPromotion = "promotion"
	FieldPayout    = "payout"
)

// Actions are what an operator can change about promotions and payouts: commands, and forms in the console.
func (e Env) Actions() []operate.Action {
	return []operate.Action{
		e.steering("pause", "although the promotion has none so far, or everything that was announced is paid", "Stop paying a promotion; nothing is lost, and resume continues", `campaign pause POINT 12345 --why "ticket 4711"`,
			operate.Safe, pause),
		e.steering("resume", "although the promotion has none so far", "Continue to pay a paused promotion", `campaign resume POINT 12345 --why "ticket 4711"`,
			operate.Safe, resume),
		e.steering("cancel", "although the promotion has none so far, or everything that was announced is paid", "Cancel all payouts that were not sent yet; irreversible", `campaign cancel POINT 12345 --why "wrong amounts, ticket 4711"`,
			operate.Irreversible, cancel),
		e.rebuild(),
		e.resolve(),
	}
}

func pause(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, by ledger.Steering) (operate.Answer, error) {
	if err := l.Pause(ctx, id, by); err != nil || by.Try {
		return operate.Answer{}, err
	}
	value := map[string]any{"type": id.Type, "promotion": id.ID, "done": "pause"}
	line := fmt.Sprintf("%s: paused. No instance takes a further payout of it.", id)
	n, longest, err := l.UnderWay(ctx, id)
	if err != nil { // it is paused all the same
		line += " How many are under way is not known: " + logs.OneLine(err.Error())
		return operate.Answer{Value: value, Lines: []string{line}}, nil
	}
	value["in_flight"], value["longest_lease_seconds"] = n, longest.Seconds()
	return operate.Answer{Value: value, Lines: []string{line + " " + underWay(n, longest)}}, nil
}

// underWay says what a pause or a cancellation does not stop, and until when.
func underWay(n int64, longest time.Duration) string {
	if n == 0 {
		return "None is under way."
	}
	return fmt.Sprintf("Under way: %s, leased by workers that call the Money API or wait for a call slot. What they have begun ends normally, at the latest in %s.",
		app.Plural(n, "payout"), (longest + time.Second - 1).Truncate(time.Second))
}

func resume(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, by ledger.Steering) (operate.Answer, error) {
	if err := l.Resume(ctx, id, by); err != nil {
		return operate.Answer{}, err
	}
	return operate.Answer{
		Value: map[string]any{"type": id.Type, "promotion": id.ID, "done": "resume"},
		Lines: []string{fmt.Sprintf("%s: resumed. All instances apply it within 2 s.", id)},
	}, nil
}

func cancel(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, by ledger.Steering) (operate.Answer, error) {
	done, err := l.Cancel(ctx, id, by)
	if err != nil {
		return operate.Answer{}, err
	}
	lines := []string{fmt.Sprintf("%s: %s cancelled. %s", id, app.Plural(done.Cancelled, "payout"), underWay(done.InFlight, done.Longest))}
	if done.Ambiguous > 0 {
		lines = append(lines, fmt.Sprintf("Perhaps charged by an earlier call: %s. The service looks them up and sends nothing again.", app.Thousands(done.Ambiguous)))
	}
	return operate.Answer{Value: map[string]any{
		"type": id.Type, "promotion": id.ID, "cancelled": done.Cancelled, "in_flight": done.InFlight,
		"longest_lease_seconds": done.Longest.Seconds(), "ambiguous": done.Ambiguous,
	}, Lines: lines}, nil
}

type steer func(context.Context, *ledger.Ledger, payouts.Promotion, ledger.Steering) (operate.Answer, error)

// steering returns an action on a promotion with an audit.
func (e Env) steering(verb, although, short, example string, danger operate.Danger, do steer) operate.Action {
	const future = "future"
	a := e.onPromotion(verb, short, example, danger)
	a.Fields = append(a.Fields, operate.Field{
		Name: future, Type: operate.Switch,
		Help: "apply it to records that are still to come, " + although,
	})
	a.Preview = func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
		return e.withPromotion(in, func(l *ledger.Ledger, id payouts.Promotion) (operate.Answer, error) {
			if _, err := do(ctx, l, id, ledger.Steering{Who: "you", Why: "a preview", Future: in.Switch(future), Try: true}); err != nil {
				return operate.Answer{}, refused(ctx, l, id, verb, err)
			}
			answer, err := previewPromotion(ctx, l, id, in.Switch(future))
			if err != nil || verb == "resume" {
				return answer, err
			}
			n, longest, err := l.UnderWay(ctx, id)
			if err == nil {
				answer.Lines = append(answer.Lines, underWay(n, longest))
			}
			return answer, err
		})
	}
	a.Do = func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
		return e.withPromotion(in, func(l *ledger.Ledger, id payouts.Promotion) (operate.Answer, error) {
			answer, err := do(ctx, l, id, ledger.Steering{Who: use.Who, Why: use.Why, Future: in.Switch(future)})
			return answer, refused(ctx, l, id, verb, err)
		})
	}
	return a
}

// onPromotion returns an action without its functions.
func (e Env) onPromotion(verb, short, example string, danger operate.Danger) operate.Action {
	return operate.Action{
		About: operate.About{
			Name: "campaign " + verb, Short: short, Examples: []string{example},
			Fields: []operate.Field{{
				Name: FieldPromotion, Type: operate.List, Required: true, Arguments: true, Shape: "TYPE PROMOTION",
				Help: "the promotion, such as POINT:12345",
			}},
			Validate: func(in operate.Input) error {
				_, err := PromotionOf(in.List(FieldPromotion))
				return asInput(err, FieldPromotion)
			},
			Register: e.register(Services{Ledger: true}),
		},
		Danger: danger, Role: operate.Operator, Audited: true,
	}
}

// asInput names the field that an error of arguments is about.
func asInput(err error, field string) error {
	if err == nil {
		return nil
	}
	return &operate.InputError{Problem: err.Error(), Field: field}
}

// withPromotion calls do for the promotion of an input, and gives its error an exit code.
func (e Env) withPromotion(in operate.Input, do func(*ledger.Ledger, payouts.Promotion) (operate.Answer, error)) (operate.Answer, error) {
	id, err := PromotionOf(in.List(FieldPromotion))
	if err != nil {
		return operate.Answer{}, err
	}
	l, err := e.ledger()
	if err != nil {
		return operate.Answer{}, err
	}
	a, err := do(l, id)
	return a, WithExitCode(err)
}

// previewPromotion says what state a promotion is in, and what an action would find.
func previewPromotion(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, future bool) (operate.Answer, error) {
	c, err := l.Status(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) && future {
		text := id.String() + " has no record so far. Nothing was changed."
		return operate.Answer{Value: map[string]any{"type": id.Type, "promotion": id.ID}, Lines: []string{text}}, nil
	} else if err != nil {
		return operate.Answer{}, err
	}
	text := fmt.Sprintf("%s is %s: %s accepted, of them %s pending, and %s of those leased by a worker. Nothing was changed.",
		id, promotionState(c.State, c.Finished(c.TotalCount)), app.Plural(c.Accepted, "payout"), app.Thousands(c.Pending), app.Thousands(c.InFlight))
	return operate.Answer{Value: map[string]any{
		"type": id.Type, "promotion": id.ID, "state": c.State, "accepted": c.Accepted, "pending": c.Pending, "in_flight": c.InFlight,
	}, Lines: []string{text}}, nil
}

// refused adds to an error of an action what an operator can do about it, and in which state a promotion stays that has
// nothing left: it may be paused.
func refused(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, verb string, err error) error {
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return fmt.Errorf("%w (--future applies it before the first record)", err)
	case !errors.Is(err, ledger.ErrFinished):
		return err
	}
	stays := "its state is unchanged"
	if s, failed := l.Status(ctx, id); failed == nil {
		stays = "it stays " + promotionState(s.State, s.Finished(s.TotalCount))
	}
	return fmt.Errorf("%w, so there is nothing to %s; %s (--future applies it to records that are still to come)", err, verb, stays)
}

func (e Env) rebuild() operate.Action {
	a := e.onPromotion("rebuild", "Enqueue the payouts of a promotion's stream again", `campaign rebuild POINT 12345 --why "entries deleted by hand"`, operate.Safe)
	a.Long = strings.TrimSpace(`
Enqueue all payouts again whose queue location is the promotion's stream.

The feeder detects a lost stream by itself. This command is for a stream that was damaged in another way. It is safe at any
time: the stream may contain an entry twice, and the ledger ignores the second one.`)
	a.Preview = func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
		return e.withPromotion(in, func(l *ledger.Ledger, id payouts.Promotion) (operate.Answer, error) {
			if _, err := l.Rebuild(ctx, id, ledger.Steering{Who: "you", Why: "a preview", Try: true}); err != nil {
				return operate.Answer{}, err
			}
			return previewPromotion(ctx, l, id, false)
		})
	}
	a.Do = func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
		return e.withPromotion(in, func(l *ledger.Ledger, id payouts.Promotion) (operate.Answer, error) {
			n, err := l.Rebuild(ctx, id, ledger.Steering{Who: use.Who, Why: use.Why})
			if err != nil {
				return operate.Answer{}, err
			}
			return operate.Answer{
				Value: map[string]any{"type": id.Type, "promotion": id.ID, "enqueued_again": n},
				Lines: []string{fmt.Sprintf("%s: the feeder of a running instance enqueues %s again within %s, or after a resume if the promotion is paused.",
					id, app.Plural(n, "payout"), e.Settings().FeederInterval)},
			}, nil
		})
	}
	return a
}
