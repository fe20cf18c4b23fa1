package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// list is the output of list --json.
type list struct {
	Total       int64              `json:"total"` // of those that match, also those that are not in the list
	DeadLetters []store.DeadLetter `json:"dead_letters"`
	Next        string             `json:"next,omitempty"` // what --before is to go on; empty: this is all
}

// groups is the output of list --group --json.
type groups struct {
	Groups []store.Group `json:"groups"`
}

// List returns the report "deadletter list".
func (e Deps) List() operate.Report {
	var fields []operate.Field
	for _, f := range (&filterFlags{}).fields() {
		fields = append(fields, f.Field)
	}
	return operate.Report{
		About: operate.About{
			Name: "deadletter list", Short: "List dead letters, newest first, or groups of equal errors",
			Examples: []string{"deadletter list", "deadletter list --group --since 24h", "deadletter list --class rejected --state all"},
			Fields: append(fields,
				operate.Field{Name: "state", Type: operate.List, Help: "only in these `states`: " + joined(store.States()) + ", or all (default " + joined(store.Waiting()) + ")"},
				operate.Field{Name: "group", Type: operate.Switch, Help: "group by error: errors that differ only in numbers and ids are equal"},
				operate.Field{Name: "limit", Type: operate.Number, Default: "50", Help: "largest number of rows"},
				operate.Field{Name: "before", Help: "only those that were stored before this `id`: the last one of a list goes on with it"},
			),
			Validate: func(in operate.Input) error {
				_, _, err := selection(in)
				return err
			},
			Register: e.Register,
		},
		Read: func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			f, limit, err := selection(in)
			if err != nil {
				return operate.Answer{}, err
			}
			var a operate.Answer
			err = e.with(ctx, reg, func(s *store.Store, _ Replayer) error {
				if err := f.check(ctx, s); err != nil {
					return err
				}
				if f.Before, err = expandPrefix(ctx, s, "--before", store.FieldID, f.Before); err != nil {
					return err
				}
				if in.Switch("group") {
					found, err := s.Groups(ctx, f.Filter, store.Place{}, limit)
					if err == nil {
						a = groups{found}.answer()
					}
					return err
				}
				found, total, err := s.List(ctx, f.Filter, limit)
				switch {
				case errors.Is(err, store.ErrNotFound):
					return app.Usage("--before: no dead letter has the id %q; it may have been pruned, so begin again without it", f.Before)
				case err != nil:
					return err
				}
				a = newList(total, found).answer()
				return nil
			})
			return a, err
		},
	}
}

// selection reads the fields of the report.
func selection(in operate.Input) (f filterFlags, limit int, err error) {
	if err := f.takeInput(in); err != nil {
		return f, 0, err
	}
	if f.States, err = parseStates(in.List("state")); err != nil {
		return f, 0, err
	}
	if limit = in.Number("limit"); limit < 1 {
		return f, 0, app.Usage("--limit must be > 0, got %d", limit)
	}
	if f.Before = in.Text("before"); f.Before != "" && in.Switch("group") {
		return f, 0, app.Usage("--before goes on with a list of dead letters, and not with --group")
	}
	return f, limit, nil
}

func newList(total int64, found []store.DeadLetter) list {
	l := list{Total: total, DeadLetters: found}
	if n := len(found); n > 0 && total > int64(n) {
		l.Next = found[n-1].ID
	}
	return l
}

func (l list) answer() operate.Answer {
	table := operate.Table{Columns: []string{"ID", "STATE", "FAILED", "HANDLER", "ABOUT", "CLASS", "ERROR"}, Empty: "No dead letters."}
	for _, d := range l.DeadLetters {
		about := d.Subject
		if about == "" {
			about = d.Source.String()
		}
		table.Rows = append(table.Rows, []string{
			d.ID, string(d.State), d.Failed.Format(time.RFC3339), OneLine(d.Handler, 80), OneLine(about, 60), OneLine(d.Class, errorWidth), OneLine(d.Error, errorWidth),
		})
	}
	a := operate.Answer{Value: l, Tables: []operate.Table{table}}
	if more := l.Total - int64(len(l.DeadLetters)); more > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("… and %d more. Go on with --before %s, or use --limit, a filter, or --group.", more, l.Next))
	}
	return a
}

func (g groups) answer() operate.Answer {
	table := operate.Table{Columns: []string{"FINGERPRINT", "COUNT", "CLASS", "HANDLER", "FIRST", "LAST", "EXAMPLE", "ERROR"}, Empty: "No dead letters."}
	for _, g := range g.Groups {
		table.Rows = append(table.Rows, []string{
			g.Fingerprint, strconv.FormatInt(g.Count, 10), OneLine(g.Class, errorWidth), OneLine(g.Handler, 80),
			g.FirstFailed.Format(time.RFC3339), g.LastFailed.Format(time.RFC3339), g.Example, OneLine(g.Error, errorWidth),
		})
	}
	return operate.Answer{Value: g, Tables: []operate.Table{table}}
}
