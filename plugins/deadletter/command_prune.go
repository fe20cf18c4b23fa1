package deadletter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// leastAge is the least age of what is pruned: a replayed message that fails again is recognised by its dead letter.
const leastAge = time.Hour

// pruned is what `dead prune --json` prints.
type pruned struct {
	DryRun  bool  `json:"dry_run,omitempty"`
	Deleted int64 `json:"deleted"` // with a dry run: would be deleted
}

func (p *Plugin) pruneCommand(h *app.Host) *cobra.Command {
	var (
		f      filterFlags
		by     letters.By
		states []string
		age    time.Duration
		dry    bool
	)
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "prune --older-than AGE --why REASON",
		Short: "Delete replayed and discarded dead letters from the working copy; it can't be undone",
		Long: `Delete replayed and discarded dead letters, with their history, from the working copy; it can't be undone.

A dead letter that waits (open, replaying, parked) is never deleted: replay or discard it first. The table
dead_letter_prunes records who pruned, why, when and how many.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			for _, name := range states {
				state := letters.State(name)
				if !slices.Contains(letters.Finished(), state) {
					return app.Usage("--state must be of %s, got %q", joined(letters.Finished()), name)
				}
				f.States = append(f.States, state)
			}
			if len(f.States) == 0 {
				return app.Usage("--state must be of %s", joined(letters.Finished()))
			}
			if age < leastAge {
				return app.Usage("--older-than must be at least %s, got %s", leastAge, age)
			}
			if !dry {
				if err := signed(by); err != nil {
					return err
				}
			}
			f.Unchanged = time.Now().Add(-age)
			return p.withStore(h, cmd, func(ctx context.Context, _ *app.Running, s *letters.Store) error {
				if err := f.known(ctx, s); err != nil {
					return err
				}
				total, err := s.Count(ctx, f.Filter)
				if err != nil {
					return err
				}
				if dry {
					return writePruned(h, cmd, pruned{true, total})
				}
				bar := h.Progress(total, "dead letters")
				n, err := s.Prune(ctx, f.Filter, by, bar.Set)
				bar.Done()
				if err != nil {
					return fmt.Errorf("%s deleted before the error: %w", counted(int(n), "dead letter"), err)
				}
				return writePruned(h, cmd, pruned{false, n})
			})
		},
	})
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", stateNames(letters.Finished()), "only in these `states`: "+joined(letters.Finished()))
	flags.DurationVar(&age, "older-than", 0, "only those that were replayed or discarded longer ago than this `age`, such as 720h; required")
	flags.BoolVar(&dry, "dry-run", false, "only count them")
	flags.StringVar(&by.Who, "who", app.Person(), "the `name` that is recorded")
	flags.StringVar(&by.Why, "why", "", "the `reason` that is recorded; required")
	return cmd
}

func writePruned(h *app.Host, cmd *cobra.Command, result pruned) error {
	if h.JSON(cmd) {
		return h.WriteJSON(result)
	}
	verb := "deleted"
	if result.DryRun {
		verb = "would be deleted"
	}
	_, err := fmt.Fprintf(h.Out(), "%s %s.\n", counted(int(result.Deleted), "dead letter"), verb)
	return err
}
