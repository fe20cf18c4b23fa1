package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
)

// finishTimeout bounds recording the outcome of a replay.
const finishTimeout = 10 * time.Second

func (e Env) replayCommand(h *app.Host) *cobra.Command {
	var f actionFlags
	var parked bool
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "replay [ID…]",
		Short: "Replay dead letters: the given ones, those of a filter, or all",
		Long: `Replay dead letters: the given ones, those of a filter, or all.

A dead letter of a ledger goes back to the ledger, with its stored request and idempotency key. Any other message is
published to the retry topic of its route if that takes replays, otherwise to where it came from. A generation of a
dead letter is replayed once. A replay that did not finish is resumed by the next one. A message that fails again is
parked: --parked replays it again.`,
		Example: fmt.Sprintf(`  %[1]s deadletter replay 9c3f0e --why "the limit is lifted"
  %[1]s deadletter replay --class rejected --dry-run
  %[1]s deadletter replay --class rejected --rate 20/s --why "it is fixed"`, h.Name()),
		RunE: func(cmd *cobra.Command, args []string) error {
			states := []store.State{store.Open, store.Replaying}
			if parked {
				states = store.Waiting()
			}
			if err := f.parse(args, states); err != nil {
				return err
			}
			start := func(s *session, ctx context.Context, targets []store.Target) error {
				return s.replayer.Start(ctx, targets)
			}
			return e.act(h, cmd, &f, states, start, func(s *session) action { return &replay{s, store.By(f.by), parked} })
		},
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&parked, "parked", false, "also those that failed again after a replay")
	return cmd
}

// replay is the action of the command replay.
type replay struct {
	*session
	by     store.By
	parked bool
}

func (r *replay) apply(ctx context.Context, id string) (Line, error) {
	lease, err := r.store.Begin(ctx, id, r.by, r.parked)
	if line, unchanged := unchangedLine(id, err); unchanged {
		return line, nil
	}
	if err != nil {
		return Line{}, err
	}
	bounded, cancel := context.WithDeadline(ctx, lease.Deadline)
	defer cancel()
	out, err := r.replayer.Replay(bounded, lease.DeadLetter, r.by)
	if err != nil {
		out = store.Outcome{Result: store.OutcomeFailed, Reason: err.Error()}
	}
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
	return Line{Result: now.Replay.Result, Reason: now.Replay.Reason, Now: now.State}
}
