package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// addOperations adds a command per report and action below root. A name of several words is below
// the command of the words before the last one, which must exist.
func (h *Host) addOperations(root *cobra.Command, plugin string, o operate.Operations) {
	for _, r := range o.Reports {
		h.addOperation(root, plugin, r.Name, h.operation(r.About, nil, func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			shown := &usersProgress{host: h, label: r.Name}
			defer shown.end()
			return r.Read(operate.WithProgress(ctx, shown.set), reg, in)
		}))
	}
	for _, a := range o.Actions {
		var dryRun bool
		var by By
		long := cmp.Or(a.Long, a.Short+".")
		a.Long = fmt.Sprintf("%s\n\nIt is %s: %s.", long, a.Danger, map[operate.Danger]string{
			operate.Safe: "it can be repeated", operate.Irreversible: "it can't be undone"}[a.Danger])
		validate := a.Validate
		a.Validate = func(in operate.Input) error {
			if validate != nil {
				if err := validate(in); err != nil {
					return err
				}
			}
			if dryRun || !a.Audited {
				return nil
			}
			return by.Check()
		}
		cmd := h.operation(a.About, &dryRun, func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			if dryRun {
				return a.Preview(ctx, reg, in)
			}
			shown := &usersProgress{host: h, label: a.Name}
			defer shown.end()
			return a.Do(ctx, reg, in, operate.Use{ID: watermill.NewULID(), Who: by.Who, Why: by.Why, Progress: shown.set, Say: h.tell})
		})
		cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done, and change nothing")
		if a.Audited {
			by.Flags(cmd)
		}
		h.addOperation(root, plugin, a.Name, cmd)
	}
}

// usersProgress shows the progress of a report or an action from its first step on.
type usersProgress struct {
	host  *Host
	label string
	bar   *Progress
}

func (u *usersProgress) set(done, total int64) {
	if u.bar == nil {
		u.bar = u.host.Progress(total, u.label)
	}
	u.bar.Set(done)
}

func (h *Host) tell(text string) { fmt.Fprintln(h.Err(), Printable(text)) }

func (u *usersProgress) end() {
	if u.bar != nil {
		u.bar.Done()
	}
}

// operation returns the command of a report, or of an action, which only reads if dryRun.
func (h *Host) operation(about operate.About, dryRun *bool, do func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error)) *cobra.Command {
	cmd := h.JSONFlag(&cobra.Command{
		Use:     about.Name[strings.LastIndex(about.Name, " ")+1:],
		Short:   about.Short,
		Long:    about.Long,
		Example: h.examples(about.Examples...),
		Args:    cobra.NoArgs,
	})
	addFields(cmd, about.Fields)
	for _, f := range about.Fields {
		switch {
		case !f.Arguments:
		case f.Type == operate.List:
			cmd.Use += " " + listUse(f)
			cmd.Args = cobra.ArbitraryArgs
		case f.Required:
			cmd.Use += " " + f.Argument()
			cmd.Args = cobra.ExactArgs(1)
		default:
			cmd.Use += " [" + f.Argument() + "]"
			cmd.Args = cobra.MaximumNArgs(1)
		}
	}
	var again bool
	if dryRun == nil {
		cmd.Flags().BoolVar(&again, "watch", false, "show it again every "+watchInterval.String()+", until Ctrl-C")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := inputOf(cmd, about.Fields, args)
		if err := about.Check(in); err != nil {
			return err
		}
		if again && h.JSON(cmd) {
			return Usage("--watch and --json exclude each other")
		}
		o := ServicesOptions{Routes: true, Register: about.Register}
		return h.Services(cmd.Context(), cmd, o, func(ctx context.Context, running *Running) error {
			read := func() (operate.Answer, error) {
				ctx := ctx
				if about.Register == nil { // it connects by itself, so its waiting is bounded here
					bounded, cancel := context.WithTimeout(ctx, running.Settings.StartTimeout)
					defer cancel()
					ctx = bounded
				}
				answer, err := do(ctx, running.Registry, in)
				if running.secretsUsed() != nil && (dryRun == nil || *dryRun) {
					return operate.Answer{}, err // the answer may lack what could not be read
				}
				return answer, err
			}
			if again {
				return watch(ctx, h.Out(), h.IsTerminal(h.Out()), read)
			}
			answer, err := read()
			return h.answer(cmd, answer, err)
		})
	}
	return cmd
}

// listUse is how help writes the arguments of a list: as its shape says, which is the words of one thing, or as many
// as a person likes.
func listUse(f operate.Field) string {
	switch {
	case f.Shape == "":
		return "[" + f.Argument() + "…]"
	case f.Required:
		return f.Shape
	}
	return "[" + f.Shape + "]"
}

func (h *Host) addOperation(root *cobra.Command, plugin, name string, cmd *cobra.Command) {
	words := strings.Fields(name)
	parent := root
	for _, word := range words[:len(words)-1] {
		for _, c := range parent.Commands() {
			if c.Name() == word {
				parent = c
			}
		}
	}
	if parent == root {
		cmd.GroupID = groupOperate
	}
	if annotation(parent, ofService) == "" { // otherwise they are inherited
		h.ServiceFlags(cmd)
	}
	if plugin != "" {
		annotate(cmd, ofPlugin, plugin)
	}
	for _, c := range parent.Commands() {
		if c.Name() == cmd.Name() { // the plugin's, which only has commands below it
			below := c.Commands()
			c.RemoveCommand(below...)
			parent.RemoveCommand(c)
			cmd.AddCommand(below...)
		}
	}
	parent.AddCommand(cmd)
}

func addFields(cmd *cobra.Command, fields []operate.Field) {
	flags := cmd.Flags()
	for _, f := range fields {
		if f.Arguments {
			continue
		}
		if f.Required {
			f.Help += " (required)"
		}
		switch f.Type {
		case operate.Number:
			n, _ := strconv.Atoi(f.Default) // 0 without a default
			flags.Int(f.Name, n, f.Help)
		case operate.Switch:
			flags.Bool(f.Name, f.Default == strconv.FormatBool(true), f.Help)
		case operate.List:
			flags.StringSlice(f.Name, nil, f.Help)
		default:
			flags.String(f.Name, f.Default, f.Help)
		}
	}
}

func inputOf(cmd *cobra.Command, fields []operate.Field, args []string) operate.Input {
	flags, in := cmd.Flags(), operate.Input{}
	for _, f := range fields {
		if f.Arguments {
			in[f.Name] = args
		} else if list, err := flags.GetStringSlice(f.Name); f.Type == operate.List && err == nil {
			in[f.Name] = list
		} else {
			in[f.Name] = []string{flags.Lookup(f.Name).Value.String()}
		}
	}
	return in
}

// answer shows what a report or an action returned, also together with an error.
func (h *Host) answer(cmd *cobra.Command, a operate.Answer, err error) error {
	if a.Value == nil {
		return err
	}
	if wrong := h.Show(cmd, a.Value, func(out io.Writer) error { return writeAnswer(out, a) }); wrong != nil {
		return wrong
	}
	if err == nil && a.Failed() {
		return &ExitError{Code: ExitBad}
	}
	return err
}

func writeAnswer(out io.Writer, a operate.Answer) error {
	for _, line := range a.Lines {
		fmt.Fprintln(out, Printable(line))
	}
	for _, t := range a.Tables {
		if len(t.Rows) == 0 && t.Empty != "" {
			fmt.Fprintln(out, t.Empty)
			continue
		}
		w := Table(out)
		rows := t.Rows
		if len(t.Columns) > 0 {
			rows = append([][]string{t.Columns}, rows...)
		}
		for _, row := range rows {
			cells := make([]string, len(row))
			for i, cell := range row {
				cells[i] = Printable(cell)
			}
			fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	for _, note := range a.Notes {
		fmt.Fprintln(out, Printable(note))
	}
	for _, c := range a.Checks {
		if _, err := fmt.Fprintln(out, Printable(withoutRepeats(c.String()))); err != nil {
			return fmt.Errorf("write the checks: %w", err)
		}
	}
	return nil
}
