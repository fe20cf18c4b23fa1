package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// changes returns a command per action of the rooms. They are not those that pipeline/app makes of actions, because a
// flag that is not given leaves a limit as it is, and some have two arguments.
func (c commands) changes() (list []*cobra.Command) {
	var rooms *room.Store
	for _, a := range admin.Actions(func() *room.Store { return rooms }) {
		list = append(list, c.change(a, func(r *room.Store) { rooms = r }))
	}
	return list
}

// change is the command of an action. use gives the action the rooms.
func (c commands) change(a operate.Action, use func(*room.Store)) *cobra.Command {
	var by app.By
	var dryRun bool
	var words []string
	for _, f := range a.Fields {
		if f.Arguments {
			words = append(words, f.Name)
		}
	}
	_, verb, _ := strings.Cut(a.Name, " ")
	cmd := &cobra.Command{
		Use: verb + " " + strings.ToUpper(strings.Join(words, " ")) + " --why REASON", Short: a.Short, Long: a.Long,
		Example: "  " + c.h.Name() + " " + strings.Join(a.Examples, "\n  "+c.h.Name()+" "), Args: cobra.ExactArgs(len(words)),
	}
	for _, f := range a.Fields {
		switch {
		case f.Arguments:
		case f.Type == operate.Number:
			cmd.Flags().Int64(f.Name, 0, f.Help)
		default:
			cmd.Flags().String(f.Name, "", f.Help)
		}
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done, and change nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !dryRun {
			if err := by.Check(); err != nil {
				return err
			}
		}
		in := operate.Input{}
		for i, name := range words {
			in[name] = []string{args[i]}
		}
		for _, f := range a.Fields {
			if flag := cmd.Flags().Lookup(f.Name); flag != nil && flag.Changed {
				if in[f.Name] = []string{flag.Value.String()}; flag.Value.String() == "" {
					return app.Usage("--%s must not be empty: leave it out, so that it stays as it is", f.Name)
				}
			}
		}
		if err := a.Check(in); err != nil {
			return err
		}
		return c.run(cmd, func(ctx context.Context, rooms *room.Store) error {
			use(rooms)
			var answer operate.Answer
			var err error
			if dryRun {
				answer, err = a.Preview(ctx, nil, in)
			} else {
				answer, err = a.Do(ctx, nil, in, operate.Use{Who: by.Who, Why: by.Why})
			}
			if err != nil {
				return err
			}
			return c.h.Show(cmd, answer.Value, func(out io.Writer) error { return writeAnswer(out, answer) })
		})
	}
	by.Flags(cmd)
	return c.h.JSONFlag(cmd)
}

func writeAnswer(out io.Writer, a operate.Answer) error {
	var errs []error
	for _, line := range a.Lines {
		_, err := fmt.Fprintln(out, app.Printable(line))
		errs = append(errs, err)
	}
	for _, t := range a.Tables {
		w := app.Table(out)
		for _, row := range append([][]string{t.Columns}, t.Rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t")) // words and numbers of the program
		}
		errs = append(errs, w.Flush())
	}
	return errors.Join(errs...)
}
