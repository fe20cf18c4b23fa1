package cli

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// finishTimeout bounds recording the outcome of a replay.
const finishTimeout = 10 * time.Second

func (e Deps) replayAction() operate.Action {
	about := operate.About{
		Name:  "deadletter replay",
		Short: "Replay dead letters: the given ones, those of a filter, or all",
		Long: `Replay dead letters: the given ones, those of a filter, or all.

A dead letter of a ledger goes back to the ledger, with its stored request and idempotency key. Any other message is
published to the retry topic of its route if that takes replays, otherwise to where it came from. A generation of a
dead letter is replayed once. A replay that did not finish is resumed by the next one. A message that fails again is
parked: --parked replays it again.`,
		Examples: []string{
			`deadletter replay 9c3f0e --why "the limit is lifted"`,
			`deadletter replay --class rejected --dry-run`,
			`deadletter replay --class rejected --rate 20/s --why "it is fixed"`,
		},
		Fields: actionFields(operate.Field{Name: "parked", Type: operate.Switch, Help: "also those that failed again after a replay"}),
	}
	states := func(in operate.Input) []store.State {
		if in.Switch("parked") {
			return store.Waiting()
		}
		return []store.State{store.Open, store.Replaying}
	}
	return e.action(about, states, func(w *work, in operate.Input) step { return &replay{w, in.Switch("parked")} })
}

// replay is the step of the action of this name.
type replay struct {
	*work
	parked bool
}

func (r *replay) startWork(ctx context.Context, targets []store.Target) error {
	return r.replayer.Start(ctx, targets)
}

func (r *replay) apply(ctx context.Context, id string) (Line, error) {
	lease, err := r.store.Begin(ctx, id, r.by(), r.parked)
	if line, unchanged := unchangedLine(id, err); unchanged {
		return line, nil
	}
	if err != nil {
		return Line{}, err
	}
	failpoint.Hit(failpoint.ReplayBegun)
	bounded, cancel := context.WithDeadline(ctx, lease.Deadline)
	defer cancel()
	out, err := r.replayer.Replay(bounded, lease.DeadLetter, r.by())
	if err != nil {
		out = store.Outcome{Result: store.OutcomeFailed, Reason: err.Error()}
	}
	failpoint.Hit(failpoint.ReplayDone)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if err := r.store.Finish(end, lease, out); err != nil {
		return Line{}, err
	}
	line := Line{ID: id, Result: out.Result, Reason: out.Reason, Resumed: lease.Resumed}
	if lease.Resumed && line.Reason == "" {
		line.Reason = "resumed: an earlier replay did not finish"
	}
	return line, nil
}

func (r *replay) preview(ctx context.Context, d store.DeadLetter) Line {
	now, err := r.replayer.Preview(ctx, d)
	if err != nil {
		return Line{Result: resultUnknown, Reason: err.Error()}
	}
	return Line{Result: now.Replay.Result, Reason: now.Replay.Reason, Now: now.State, to: now.To}
}
