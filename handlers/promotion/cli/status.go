package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Status is one promotion of `campaign status --json`.
type Status struct {
	Type      payouts.Type `json:"type"`
	Promotion int64        `json:"promotion"`
	Finished  bool         `json:"finished"` // all accepted payouts are settled
	ledger.Counts
	// OldestUnpaid is the age of the oldest unsettled payout; 0 without one.
	OldestUnpaid float64 `json:"oldest_unpaid_seconds"`
	// WaitsForPlace is how long the promotion has waited for a place among max_active_promotions; 0
	// if it does not wait.
	WaitsForPlace float64 `json:"waits_for_place_seconds"`
	// Audit is what operators did to the promotion, oldest first.
	Audit []ledger.Audit `json:"audit"`
	// Instances are the instances that read the promotion's stream, and may be empty. Null: not known,
	// because Redis did not answer, or this version does not have the type.
	Instances []streams.InstanceStatus `json:"instances"`
	// DelayingGroups are foreign consumer groups that delay the trimming and the deletion of the
	// promotion's stream.
	DelayingGroups []streams.DelayingGroup `json:"delaying_groups,omitempty"`
	// ForeignOwner is the id of the deployment that owns the promotion's stream, if it is another
	// one.
	ForeignOwner string `json:"foreign_owner,omitempty"`
}

type statusList struct {
	Promotions []Status `json:"promotions"`
}

const watchInterval = 2 * time.Second

func (c commands) status() *cobra.Command {
	var watch bool
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:        "status [TYPE PROMOTION]",
		SuggestFor: []string{"unpaid"},
		Short:      "Show one promotion, or all that are unfinished or paused",
		Example: `  millrace campaign status
  millrace campaign status --watch
  millrace campaign status POINT 12345`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return promotionArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var only []payouts.Promotion
			if len(args) > 0 {
				id, err := promotionID(args)
				if err != nil {
					return err
				}
				only = []payouts.Promotion{id}
			}
			if watch && c.h.JSON(cmd) {
				return app.Usage("--watch and --json exclude each other")
			}
			return c.with(cmd, Services{Ledger: true, Streams: true}, func(ctx context.Context) error {
				show := func() error { return c.showStatus(ctx, c.h.JSON(cmd), only) }
				if watch {
					return repeat(ctx, c.h.Out(), c.h.IsTerminal(c.h.Out()), show)
				}
				return show()
			})
		},
	})
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every "+watchInterval.String()+", until Ctrl-C")
	return cmd
}

// repeat calls show every watchInterval until ctx ends. It clears the screen of a terminal first.
func repeat(ctx context.Context, out io.Writer, terminal bool, show func() error) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		if terminal {
			fmt.Fprint(out, "\x1b[H\x1b[2J") // cursor to the top, clear the screen
		}
		if err := show(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-tick.C:
			fmt.Fprintln(out)
		case <-ctx.Done():
			return nil
		}
	}
}

func (c commands) showStatus(ctx context.Context, asJSON bool, only []payouts.Promotion) error {
	if only == nil {
		unfinished, err := c.unfinished(ctx)
		if err != nil {
			return err
		}
		if !asJSON {
			return c.showTable(ctx, unfinished)
		}
		only = unfinished
	}
	all := []Status{}
	for _, id := range only {
		s, err := c.statusOf(ctx, id)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	if asJSON {
		return c.h.WriteJSON(statusList{all})
	}
	for _, s := range all {
		if err := s.write(c.h.Out()); err != nil {
			return err
		}
	}
	return nil
}

func (c commands) unfinished(ctx context.Context) ([]payouts.Promotion, error) {
	all := []payouts.Promotion{}
	work, err := c.Resources.Ledger().Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range work {
		all = append(all, w.Promotion)
	}
	paused, err := c.Resources.Ledger().Paused(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range paused {
		all = append(all, p.Promotion)
	}
	return all, nil
}

func (c commands) statusOf(ctx context.Context, id payouts.Promotion) (Status, error) {
	counts, err := c.Resources.Ledger().Status(ctx, id)
	if err != nil {
		return Status{}, err
	}
	s := Status{Type: id.Type, Promotion: id.ID, Finished: counts.Finished(), Counts: counts, OldestUnpaid: counts.OldestUnpaid.Seconds(), WaitsForPlace: counts.WaitsForPlace.Seconds()}
	if s.Audit, err = c.Resources.Ledger().Audit(ctx, id); err != nil {
		return Status{}, err
	}
	of := c.Resources.Streams(id.Type)
	if of == nil {
		return s, nil
	}
	instances, err := of.Statuses(ctx, id.StreamID())
	if err == nil {
		s.Instances = append([]streams.InstanceStatus{}, instances...)
	}
	if err != nil {
		c.Resources.Log().WarnContext(ctx, "instances unknown: Redis does not answer", logs.Err(err))
	} else if st, err := of.Inspect(ctx, id.StreamID()); err == nil {
		s.DelayingGroups = st.Delaying
		if st.Foreign {
			s.ForeignOwner = st.Owner
		}
	}
	return s, nil
}

func (c commands) showTable(ctx context.Context, all []payouts.Promotion) error {
	if len(all) == 0 {
		return c.showNothingUnfinished(ctx)
	}
	w := app.Table(c.h.Out())
	fmt.Fprintln(w, "PROMOTION\tSTATE\tACCEPTED\tPAID\tFAILED\tUNKNOWN\tPENDING\tIN FLIGHT\tOLDEST UNPAID")
	for _, id := range all {
		s, err := c.Resources.Ledger().Status(ctx, id)
		if err != nil {
			return err
		}
		state := promotionState(s.State, s.Finished())
		if s.WaitsForPlace > 0 {
			state += ", waits for a place"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, state, app.Thousands(s.Accepted), app.Thousands(s.Paid), app.Thousands(s.Failed),
			app.Thousands(s.Unknown), app.Thousands(s.Pending), app.Thousands(s.InFlight), age(s.OldestUnpaid))
	}
	return w.Flush()
}

func (c commands) showNothingUnfinished(ctx context.Context) error {
	totals, err := c.Resources.Ledger().Totals(ctx)
	if err != nil {
		return err
	}
	var unknown, failed int64
	for _, t := range totals {
		unknown, failed = unknown+t.Unknown, failed+t.Failed
	}
	fmt.Fprintln(c.h.Out(), "No promotion is unfinished or paused.")
	if unknown > 0 {
		fmt.Fprintf(c.h.Out(), "UNKNOWN payouts, perhaps charged: %s (millrace unknown list)\n", app.Thousands(unknown))
	}
	if failed > 0 {
		fmt.Fprintf(c.h.Out(), "FAILED payouts, not charged and not retried: %s (millrace deadletter list)\n", app.Thousands(failed))
	}
	return nil
}

func (s Status) write(out io.Writer) error {
	w := app.Table(out)
	fmt.Fprintf(w, "%s:%d\t%s\n", s.Type, s.Promotion, promotionState(s.State, s.Finished))
	for _, a := range s.Audit {
		why := ""
		if a.Why != "" {
			why = ": " + app.Printable(a.Why)
		}
		fmt.Fprintf(w, "  %s\t%s by %s%s\n", stamp(a.At), a.Action, person(a), why)
	}
	waiting := ""
	if s.Dead > 0 {
		waiting = fmt.Sprintf("; those that wait: millrace deadletter list --subject %s:%d", s.Type, s.Promotion)
	}
	fmt.Fprintf(w, "  accepted\t%s\n  paid\t%s\n  failed\t%s\n  unknown\t%s\n  cancelled\t%s\n  pending\t%s, in flight %s\n  dead letters\t%s written, conflicts %s%s\n",
		app.Thousands(s.Accepted), app.Thousands(s.Paid), app.Thousands(s.Failed), app.Thousands(s.Unknown), app.Thousands(s.Cancelled),
		app.Thousands(s.Pending), app.Thousands(s.InFlight), app.Thousands(s.Dead), app.Thousands(s.Conflict), waiting)
	if s.Counts.OldestUnpaid > 0 {
		fmt.Fprintf(w, "  oldest unpaid\t%s\n", age(s.Counts.OldestUnpaid))
	}
	if s.ForeignOwner != "" {
		fmt.Fprintf(w, "  foreign stream\tthe stream belongs to the deployment with the ledger id %s; payouts wait here\n", app.Printable(s.ForeignOwner))
	}
	for _, g := range s.DelayingGroups {
		state := "for at most plugins.promotion.stream.foreign_group_grace"
		if g.Ignored {
			state = "ignored since the grace period ended"
		}
		fmt.Fprintf(w, "  foreign group\t%s has delayed trimming and deletion of the stream for %s, %s\n", app.Printable(g.Group), age(g.For), state)
	}
	if s.Counts.WaitsForPlace > 0 {
		fmt.Fprintf(w, "  waits for a place\tfor %s, until fewer than plugins.promotion.stream.max_active_promotions are active\n", age(s.Counts.WaitsForPlace))
	}
	switch {
	case s.Instances == nil:
		fmt.Fprintln(w, "  the instances that read its stream are not known: Redis did not answer, or this version does not have the type")
		return w.Flush()
	case len(s.Instances) == 0:
		fmt.Fprintln(w, "  no instance reads its stream")
		return w.Flush()
	}
	fmt.Fprintln(w, "  INSTANCE\tSTREAM\tGROUP\tCONCURRENCY\tIN FLIGHT\tSINCE\tLAST MESSAGE")
	for _, x := range s.Instances {
		last := "none yet"
		if !x.LastMessage.IsZero() {
			last = x.LastMessage.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%d\t%s\t%s\n", x.Instance, x.Stream, x.Group, x.Slots, x.InFlight, x.Since.Format(time.RFC3339), last)
	}
	return w.Flush()
}
