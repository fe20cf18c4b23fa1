package once

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/linefile"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// reconcileReport compares the ledger with the far side's own book.
func (p *Plugin) reconcileReport() operate.Report {
	about := p.about("once reconcile", "Compare the effects of a group with the far side's own book", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "group", Help: "the `group` of effects", Required: true},
		{Name: "book", Help: "the `file` with what the far side has done", Required: true},
		{Name: "as-of", Help: "the `time` at which the far side wrote the book (default: the last change of the file)"},
		{Name: "lag", Default: "10s", Help: "what was done less than this `duration` before that time may be missing"},
		{Name: "csv", Help: "write one line per effect that differs to this `file`"},
		{Name: "all", Type: operate.Switch, Help: "with --csv: one line for every effect"},
	}, "once reconcile --kind invoice --group acme --book invoices.csv", "once reconcile --kind invoice --group acme --book b.jsonl --csv c.csv")
	about.Long = `Compare the effects of a group in the ledger with the far side's own book, one
by one, and name what is lost, done twice, or different.

The book is CSV with a header, or one JSON object per line. Its columns:

  key      the idempotency key that the far side was sent, or
  id       the id of the effect in its group
  group    of the effect; lines of other groups and kinds are left out
  receipt  the far side's name of the effect, compared with the ledger's
  sum      of one execution, a whole number, compared if the kind has sums
  times    how often it was executed; 1 without the column

key or id is required, and other columns are ignored. The books balance when
each effect that is done is in the book once, and no other is in it. Only then
the exit code is 0. What was accepted or done after the book was written proves
nothing. Temporary files need about 150 bytes per effect and per line of the
book; memory does not depend on their number.`
	about.Validate = func(in operate.Input) error {
		_, err := reconcileOf(in)
		return err
	}
	return operate.Report{About: about, Read: p.withGroup(p.reconcile)}
}

// reconciliation is what a person gave.
type reconciliation struct {
	book  string
	asOf  time.Time
	lag   time.Duration
	all   bool
	table *reconcile.Table
}

func reconcileOf(in operate.Input) (r reconciliation, err error) {
	wrong := func(field, format string, args ...any) (reconciliation, error) {
		return r, &operate.InputError{Field: field, Problem: "--" + field + fmt.Sprintf(format, args...)}
	}
	r.book, r.all = in.Text("book"), in.Switch("all")
	switch info, err := os.Stat(r.book); {
	case err != nil:
		return wrong("book", ": %s", err)
	case !info.Mode().IsRegular():
		return wrong("book", " must be a file, and %s is none", r.book)
	default:
		r.asOf = info.ModTime()
	}
	if text := in.Text("as-of"); text != "" {
		if r.asOf, err = time.Parse(time.RFC3339, text); err != nil {
			return wrong("as-of", " must be a time such as 2026-01-31T09:00:00Z, got %q", text)
		}
	}
	if r.lag, err = time.ParseDuration(in.Text("lag")); err != nil || r.lag < 0 {
		return wrong("lag", " must be a duration such as 10s or 0s, got %q", in.Text("lag"))
	}
	r.table = &reconcile.Table{Path: in.Text("csv"), Columns: reconcile.PairColumns()}
	if r.all && r.table.Path == "" {
		return wrong("all", " needs --csv")
	}
	if err := r.table.Check(); err != nil {
		return wrong("csv", ": %s", err)
	}
	return r, nil
}

func (p *Plugin) reconcile(ctx context.Context, l *ledger.Ledger, g ledger.Group, in operate.Input) (operate.Answer, error) {
	given, err := reconcileOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	status, missing := l.Status(ctx, g)
	if missing != nil && !errors.Is(missing, ledger.ErrNotFound) {
		return operate.Answer{}, missing
	}
	now, err := l.Now(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	if given.asOf.After(now) { // an effect that is done from now on is in no book
		given.asOf = now
	}
	input := reconcile.Input{Kind: g.Kind, Group: g.Name, Book: given.book, AsOf: given.asOf, Lag: given.lag}
	var sum func(payload []byte) (int64, bool)
	if w := p.kindOf(g.Kind); w != nil {
		input.Key = func(id string) string { return w.effects.keyOf(Key{Group: g.Name, ID: id}) }
		input.Of = p.ofKey
		sum = w.effects.sumOf()
	}
	input.Sums = sum != nil
	input.Effects = func(sums bool, each func(reconcile.Effect) error) error {
		return eachEffect(ctx, l, g, status.Accepted, sums, sum, each)
	}
	input.Kept = func() (reconcile.Kept, error) {
		s, err := l.Status(ctx, g)
		if errors.Is(err, ledger.ErrNotFound) {
			err = nil
		}
		return reconcile.Kept{Accepted: s.Accepted, Done: s.Done, Failed: s.Failed, Unknown: s.Unknown, Cancelled: s.Cancelled}, err
	}
	input.Each = func(pair reconcile.Pair, in []reconcile.Bucket) error {
		if !given.all && in[0] == reconcile.Matched {
			return given.table.Begin()
		}
		return given.table.Write(pair.Line(g.Kind, g.Name, in))
	}
	report, err := reconcile.Compare(ctx, input)
	err = errors.Join(err, given.table.Close())
	var line *linefile.Error
	switch {
	case errors.As(err, &line):
		return operate.Answer{}, &operate.InputError{Field: "book", Problem: line.Error()}
	case errors.Is(err, reconcile.ErrNoKeys):
		return operate.Answer{}, app.Usage("%s names effects by their idempotency keys, which this program can't derive, because it does not have the kind %s: use a program that has it, or give the book a column id instead", given.book, g.Kind)
	case err != nil:
		return operate.Answer{}, fmt.Errorf("reconcile %s %s: %w", g.Kind, g.Name, err)
	case report.Effects == 0 && missing != nil:
		return operate.Answer{}, noGroup(missing, g)
	}
	return report.Answer(), nil
}

// eachEffect reads the effects of a group for a comparison.
func eachEffect(ctx context.Context, l *ledger.Ledger, g ledger.Group, total int64, sums bool, sum func(payload []byte) (int64, bool), each func(reconcile.Effect) error) error {
	done := int64(0)
	err := l.EachEffect(ctx, g, sums, func(e ledger.Effect) error {
		done++
		operate.Progress(ctx, done, max(done, total))
		one := reconcile.Effect{ID: e.ID, State: e.State, PerhapsDone: e.PerhapsDone, Sent: e.Sent, AcceptedAt: e.AcceptedAt, SettledAt: e.SettledAt, Receipt: e.Receipt}
		if sums {
			one.Sum, one.HasSum = sum(e.Payload)
		}
		return each(one)
	})
	if errors.Is(err, ledger.ErrNotFound) { // no program has the kind, so there are none
		return nil
	}
	return err
}

// ofKey returns the kind and the group that an idempotency key names, as the keys of kinds without a function of their
// own do, if this program has the kind.
func (p *Plugin) ofKey(key string) (kind, group string, ok bool) {
	kind, text, _ := strings.Cut(key, ":")
	w := p.kindOf(kind)
	if w == nil {
		return "", "", false
	}
	k, err := ParseKey(text)
	if err != nil || w.effects.keyOf(k) != key {
		return "", "", false
	}
	return kind, k.Group, true
}

func noGroup(err error, g ledger.Group) error {
	return notFound(err, "group %s of kind %s has no effect in the ledger; `once` lists the groups, and `once pause` and `once cancel` have --future for one that is still to come", g.Name, g.Kind)
}
