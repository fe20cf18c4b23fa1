package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

// list is the output of list --json.
type list struct {
	Total       int64              `json:"total"` // also those that are not in the list
	DeadLetters []store.DeadLetter `json:"dead_letters"`
}

// groups is the output of list --group --json.
type groups struct {
	Groups []store.Group `json:"groups"`
}

func (e Env) listCommand(h *app.Host) *cobra.Command {
	var (
		f      filterFlags
		states []string
		group  bool
		limit  int
	)
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first, or groups of equal errors",
		Example: fmt.Sprintf(`  %[1]s deadletter list
  %[1]s deadletter list --group --since 24h
  %[1]s deadletter list --class rejected --state all`, h.Name()),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			var err error
			if f.States, err = parseStates(states); err != nil {
				return err
			}
			if limit < 1 {
				return app.Usage("--limit must be > 0, got %d", limit)
			}
			return e.run(h, cmd, func(ctx context.Context, s *session) error {
				if err := f.check(ctx, s.store); err != nil {
					return err
				}
				if group {
					return s.listGroups(ctx, f.Filter, limit)
				}
				return s.list(ctx, f.Filter, limit)
			})
		},
	})
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", nil, "only in these `states`: "+joined(store.States())+", or all (default "+joined(store.Waiting())+")")
	flags.BoolVar(&group, "group", false, "group by error: errors that differ only in numbers and ids are equal")
	flags.IntVar(&limit, "limit", 50, "largest number of rows")
	return cmd
}

func (s *session) list(ctx context.Context, f store.Filter, limit int) error {
	found, total, err := s.store.List(ctx, f, limit)
	if err != nil {
		return err
	}
	return s.show(list{total, found}, list{total, found}.write)
}

func (l list) write(out io.Writer) error {
	if len(l.DeadLetters) == 0 {
		_, err := fmt.Fprintln(out, "No dead letters.")
		return err
	}
	w := app.Table(out)
	fmt.Fprintln(w, "ID\tSTATE\tFAILED\tHANDLER\tABOUT\tCLASS\tERROR")
	for _, d := range l.DeadLetters {
		about := d.Subject
		if about == "" {
			about = d.Source.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", app.Printable(d.ID), d.State, d.Failed.Format(time.RFC3339), OneLine(d.Handler, 80), OneLine(about, 60),
			OneLine(d.Class, errorWidth), OneLine(d.Error, errorWidth))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more := l.Total - int64(len(l.DeadLetters)); more > 0 {
		fmt.Fprintf(out, "… and %d more. Use --limit, a filter, or --group.\n", more)
	}
	return nil
}

func (s *session) listGroups(ctx context.Context, f store.Filter, limit int) error {
	found, err := s.store.Groups(ctx, f, limit)
	if err != nil {
		return err
	}
	return s.show(groups{found}, groups{found}.write)
}

func (g groups) write(out io.Writer) error {
	if len(g.Groups) == 0 {
		_, err := fmt.Fprintln(out, "No dead letters.")
		return err
	}
	w := app.Table(out)
	fmt.Fprintln(w, "FINGERPRINT\tCOUNT\tCLASS\tHANDLER\tFIRST\tLAST\tEXAMPLE\tERROR")
	for _, g := range g.Groups {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Fingerprint, g.Count, OneLine(g.Class, errorWidth), OneLine(g.Handler, 80),
			g.FirstFailed.Format(time.RFC3339), g.LastFailed.Format(time.RFC3339), app.Printable(g.Example), OneLine(g.Error, errorWidth))
	}
	return w.Flush()
}
