package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
)

// minAge is the least value of --older-than: a replayed message that fails again is recognised by
// its dead letter.
const minAge = time.Hour

// pruned is the output of prune --json.
type pruned struct {
	DryRun  bool  `json:"dry_run,omitempty"`
	Deleted int64 `json:"deleted"` // of a dry run: would be deleted
}

func (e Deps) pruneCommand(h *app.Host) *cobra.Command {
	var (
		f      filterFlags
		by     app.By
		states []string
		age    time.Duration
		dry    bool
	)
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "prune --older-than AGE --why REASON",
		Short: "Delete replayed and discarded dead letters; it can't be undone",
		Long: `Delete replayed and discarded dead letters, with their history; it can't be undone.

A dead letter that waits (open, replaying, parked) is never deleted: replay or discard it first. The table
dead_letter_prunes records who pruned, why, when and how many.`,
		Example: fmt.Sprintf(`  %[1]s deadletter prune --older-than 2160h --dry-run
  %[1]s deadletter prune --older-than 2160h --why "kept for 90 days"`, h.Name()),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			for _, name := range states {
				state := store.State(name)
				if !slices.Contains(store.Finished(), state) {
					return app.Usage("--state must be of %s, got %q", joined(store.Finished()), name)
				}
				f.States = append(f.States, state)
			}
			if len(f.States) == 0 {
				return app.Usage("--state must be of %s", joined(store.Finished()))
			}
			if age < minAge {
				return app.Usage("--older-than must be at least %s, got %s", minAge, age)
			}
			if !dry {
				if err := by.Check(); err != nil {
					return err
				}
			}
			f.Unchanged = time.Now().Add(-age)
			return e.run(h, cmd, func(ctx context.Context, s *session) error {
				if err := f.check(ctx, s.store); err != nil {
					return err
				}
				return s.prune(ctx, f.Filter, store.By{Who: by.Who, Why: by.Why}, dry)
			})
		},
	})
	f.addFlags(cmd)
	by.Flags(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", stateNames(store.Finished()), "only in these `states`: "+joined(store.Finished()))
	flags.DurationVar(&age, "older-than", 0, "only those that were replayed or discarded longer ago than this `age`, such as 720h; required")
	flags.BoolVar(&dry, "dry-run", false, "only count them")
	return cmd
}

func (s *session) prune(ctx context.Context, f store.Filter, by store.By, dry bool) error {
	n, err := s.store.Count(ctx, f)
	if err != nil {
		return err
	}
	verb := "would be deleted"
	if !dry {
		verb = "deleted"
		bar := s.Progress(n, "dead letters")
		n, err = s.store.Prune(ctx, f, by, bar.Set)
		bar.Done()
		if err != nil {
			return fmt.Errorf("%s deleted before the error: %w", app.Plural(n, "dead letter"), err)
		}
	}
	return s.show(pruned{dry, n}, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s %s.\n", app.Plural(n, "dead letter"), verb)
		return err
	})
}
