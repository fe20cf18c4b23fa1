package once

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/linefile"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

const (
	// enqueueBatch is how many records of a file are accepted in one transaction.
	enqueueBatch = 256
	// fewLines is how many lines of a file are named that can't be accepted.
	fewLines = 10
)

// enqueueCommand asks for the effects of a file. It is no action, because a page of the console must not read files of
// the server.
func (p *Plugin) enqueueCommand(h *app.Host) *cobra.Command {
	e := &enqueue{plugin: p, h: h}
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "enqueue",
		Short: "Ask for an effect per line of a file",
		Long: `Ask for an effect per line of a file, which is a record of the kind's topic: one
JSON object per line, or CSV with the names of its fields in the header. A cell
of CSV is a text, and with --number a number.

The whole file is checked first, and a line that the kind can't accept ends the
command before anything is enqueued. Effects are in the ledger when it has
ended, and the instances that run call for them. What was asked for before adds
nothing, so after an interruption the same command goes on. The exit code is 1
if a line asks for something else under a known key, or for an effect of a
cancelled group.

Who and why are in the audit, and once explain names the line of an effect.`,
		Example: "  " + h.Name() + " once enqueue --kind invoice --file orders.ndjson --dry-run\n" +
			"  " + h.Name() + ` once enqueue --kind invoice --file o.csv --number cents --why resent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd) },
	}))
	flags := cmd.Flags()
	flags.StringVar(&e.kind, "kind", "", "the `kind` of effect (required)")
	flags.StringVar(&e.file.path, "file", "", "the `file` with a record per line (required)")
	flags.StringSliceVar(&e.file.numbers, "number", nil, "`columns` of CSV that are numbers in the record")
	flags.BoolVar(&e.dryRun, "dry-run", false, "only check the file, and show the first effect")
	e.by.Flags(cmd)
	return cmd
}

// enqueue is one run of the command.
type enqueue struct {
	plugin *Plugin
	h      *app.Host
	kind   string
	file   requestFile
	dryRun bool
	by     app.By

	report enqueueReport
}

// enqueueReport is the answer for programs.
type enqueueReport struct {
	Kind      string        `json:"kind"`
	File      string        `json:"file"`
	Lines     int64         `json:"lines"` // with a record
	DryRun    bool          `json:"dry_run"`
	First     string        `json:"first"`     // the text of the first effect's key
	Fresh     int64         `json:"fresh"`     // new effects
	Known     int64         `json:"known"`     // asked for before
	Cancelled int64         `json:"cancelled"` // of a cancelled group: nothing is called
	Conflicts int64         `json:"conflicts"` // something else was asked for under their keys
	Refused   int64         `json:"refused"`   // by the ledger
	Examples  []refusedLine `json:"examples"`  // up to 10 of those that are not fresh or known
	Seconds   float64       `json:"seconds"`
}

type refusedLine struct {
	Line   int    `json:"line"`
	Effect string `json:"effect"`
	Reason string `json:"reason"`
}

func (e *enqueue) run(cmd *cobra.Command) error {
	if e.kind == "" || e.file.path == "" {
		return app.Usage("--kind and --file are required")
	}
	switch info, err := os.Stat(e.file.path); {
	case err != nil:
		return app.Usage("--file: %w", err)
	case !info.Mode().IsRegular():
		return app.Usage("--file must be a file, because it is read twice, and %s is none", e.file.path)
	}
	if !e.dryRun {
		if err := e.by.Check(); err != nil {
			return err
		}
	}
	o := app.ServicesOptions{Routes: true, Register: e.plugin.registerCommand}
	return e.h.Services(cmd.Context(), cmd, o, func(ctx context.Context, _ *app.Running) error {
		began := time.Now()
		err := e.work(ctx, e.plugin.ledger.Load())
		if e.report.Seconds = time.Since(began).Seconds(); err != nil {
			return err
		}
		if err := e.h.Show(cmd, e.report, e.show); err != nil {
			return err
		}
		if e.report.Cancelled+e.report.Conflicts+e.report.Refused > 0 {
			return &app.ExitError{Code: app.ExitBad}
		}
		return nil
	})
}

func (e *enqueue) work(ctx context.Context, l *ledger.Ledger) error {
	w := e.plugin.kindOf(e.kind)
	if w == nil {
		return e.plugin.unknownKind(e.kind, "only a program that has a kind can read its records, and this one does not have")
	}
	e.report = enqueueReport{Kind: e.kind, File: e.file.path, DryRun: e.dryRun, Examples: []refusedLine{}}
	if err := e.check(w); err != nil || e.dryRun {
		return err
	}
	if err := l.RecordEnqueue(ctx, e.kind, fmt.Sprintf("%s of %s", app.Plural(e.report.Lines, "line"), e.file.path), ledger.By{Who: e.by.Who, Why: e.by.Why}); err != nil {
		return err
	}
	bar := e.h.Progress(e.report.Lines, "enqueued")
	defer bar.Done()
	var records []ledger.Record
	var lines []int
	accepted := int64(0)
	flush := func() error {
		if len(records) == 0 {
			return nil
		}
		results, err := l.Accept(ctx, records)
		if err != nil {
			return fmt.Errorf("after %s (the same command goes on from there): %w", app.Plural(accepted, "line"), err)
		}
		for i, r := range results {
			e.count(lines[i], records[i].Key, r)
		}
		accepted += int64(len(records))
		records, lines = records[:0], lines[:0]
		bar.Set(accepted)
		return nil
	}
	err := e.file.each(func(line int, payload []byte) error {
		rec, err := w.effects.read(payload)
		if err != nil {
			return e.wrong(line, "the file has changed since it was checked: "+err.Error())
		}
		rec.Origin = fmt.Sprintf("%s, line %d, enqueued by %s", e.file.path, line, e.by.Who)
		rec.NoGrace = true // no entry of a stream names it
		if records, lines = append(records, rec), append(lines, line); len(records) == enqueueBatch {
			return flush()
		}
		return nil
	})
	return errors.Join(err, flush())
}

func (e *enqueue) wrong(line int, problem string) error {
	return &linefile.Error{Path: e.file.path, Line: line, Problem: problem}
}

// check reads the whole file, and reports the first lines that the kind can't accept.
func (e *enqueue) check(w *worker) error {
	var wrong []error
	more := 0
	err := e.file.each(func(line int, payload []byte) error {
		e.report.Lines++
		rec, err := w.effects.read(payload)
		switch {
		case err == nil && e.report.First == "":
			e.report.First = textOf(rec.Key)
		case err == nil:
		case len(wrong) < fewLines:
			wrong = append(wrong, e.wrong(line, err.Error()))
		default:
			more++
		}
		return nil
	})
	switch {
	case err != nil:
		wrong = append(wrong, err)
	case more > 0:
		wrong = append(wrong, fmt.Errorf("and %s", app.Plural(int64(more), "more line")))
	case e.report.Lines == 0:
		wrong = append(wrong, e.wrong(1, "want a record per line, and there is none"))
	}
	if len(wrong) > 0 {
		return app.Usage("nothing was enqueued: %w", errors.Join(wrong...))
	}
	return nil
}

func (e *enqueue) count(line int, k ledger.Key, r ledger.AcceptResult) {
	reason := ""
	switch {
	case r.Err != nil:
		e.report.Refused++
		reason = r.Err.Error()
	case r.Accepted == Fresh:
		e.report.Fresh++
	case r.Accepted == Known:
		e.report.Known++
	case r.Accepted == Cancelled:
		e.report.Cancelled++
		reason = "its group is cancelled, so nothing is called"
	case r.Accepted == Conflict:
		e.report.Conflicts++
		reason = "something else was asked for under this key before, and that stands"
	}
	if reason != "" && len(e.report.Examples) < fewLines {
		e.report.Examples = append(e.report.Examples, refusedLine{line, textOf(k), reason})
	}
}

func (e *enqueue) show(out io.Writer) error {
	r := &e.report
	lines := []string{fmt.Sprintf("%s checked, and nothing enqueued. The first effect is %s.", app.Plural(r.Lines, "line"), r.First)}
	if !r.DryRun {
		lines[0] = fmt.Sprintf("%s: %d new, %d known, %d of a cancelled group, %d that ask for something else, %d refused.",
			app.Plural(r.Lines, "line"), r.Fresh, r.Known, r.Cancelled, r.Conflicts, r.Refused)
	}
	for _, x := range r.Examples {
		lines = append(lines, fmt.Sprintf("  line %d, %s: %s", x.Line, x.Effect, x.Reason))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, app.Printable(line)); err != nil {
			return err
		}
	}
	return nil
}
