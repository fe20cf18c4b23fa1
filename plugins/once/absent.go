package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// absent returns the kinds that have effects which are not settled, and are not among those of this program.
// Nothing calls for them, unless another program with the same ledger has the kind.
func absent(ctx context.Context, l *ledger.Ledger, kinds []*worker) (left []ledger.KindBacklog, err error) {
	all, err := l.OpenKinds(ctx)
	for _, k := range all {
		if kindIn(kinds, k.Kind) == nil {
			left = append(left, k)
		}
	}
	return left, err
}

// warnOfAbsent logs the kinds that the settings have lost while effects of them were open.
func (p *Plugin) warnOfAbsent(ctx context.Context, l *ledger.Ledger, kinds []*worker) {
	left, err := absent(ctx, l, kinds)
	if err != nil {
		p.log.WarnContext(ctx, "the ledger was not searched for effects of kinds that this program does not have", logs.Err(err))
	}
	for _, k := range left {
		p.log.WarnContext(ctx, "the ledger has effects of a kind that this program does not have; unless another one has it, nothing calls for them",
			slog.String("kind", k.Kind), slog.Int64("open", k.Open))
	}
}

// checkKind returns an error that lists the kinds of this program, if neither it nor the ledger has the kind. An
// empty kind is none.
func (p *Plugin) checkKind(ctx context.Context, l *ledger.Ledger, kind string) error {
	if kind == "" || p.kindOf(kind) != nil {
		return nil
	}
	switch _, err := l.LimitsOf(ctx, kind); {
	case errors.Is(err, ledger.ErrNotFound):
		return p.unknownKind(kind, "neither this program nor the ledger has")
	default:
		return err
	}
}

func (p *Plugin) unknownKind(kind, who string) error {
	var names []string
	for _, w := range p.kinds {
		names = append(names, w.name)
	}
	slices.Sort(names)
	has := cmp.Or(strings.Join(names, ", "), "no kind")
	return &operate.InputError{Field: "kind", Problem: fmt.Sprintf("%s the kind %q; this program has %s", who, kind, has)}
}

// absentNote says that a kind is of another program, or of none.
func absentNote(k ledger.KindBacklog) string {
	return fmt.Sprintf("This program does not have the kind %s, of which %s open: unless another one has it, nothing calls for them.", k.Kind, areOpen(k.Open))
}

func areOpen(n int64) string {
	if n == 1 {
		return "1 effect is"
	}
	return fmt.Sprintf("%d effects are", n)
}

// ledgerExam examines the ledger for effects that nothing calls for.
type ledgerExam struct {
	plugin *Plugin
	kinds  func() []*worker
}

// Examinations implements operate.Examined. It is the only look at the ledger of a program whose last kind
// has gone, because that opens no database when it starts.
func (e ledgerExam) Examinations() []operate.Examination {
	p := e.plugin
	if p.config.Ledger.DSN.IsZero() {
		return nil
	}
	return []operate.Examination{{Place: "effects", Open: func(context.Context) ([]operate.Examine, func(), error) {
		return []operate.Examine{{What: "kinds", Read: func(ctx context.Context) ([]operate.Check, error) {
			c, examined, err := e.check(ctx)
			if !examined && len(e.kinds()) == 0 { // it may be the ledger of nobody, of which nothing is said
				return nil, nil
			}
			return []operate.Check{c}, err
		}}, {What: "keys", Read: e.keyAges}}, nil, nil
	}}}
}

// check returns what was found. examined is false if the ledger could not be read, or has no tables yet.
func (e ledgerExam) check(ctx context.Context) (c operate.Check, examined bool, err error) {
	cfg, log := e.plugin.config.Ledger, e.plugin.log
	schema := ledger.Schema(cfg, ledgerSetting, log)
	upToDate := func() (bool, error) {
		m, err := schema.Plan(ctx)
		return len(m.Steps) == 0, err
	}
	old := operate.Check{
		Level: operate.Warn, Text: "not examined, because the tables are not up to date",
		Remedy: "run the command migrate with these settings, and doctor again",
	}
	if portable.DialectOf(cfg.DSN.Reveal()) == portable.SQLite {
		if is, err := upToDate(); err != nil || !is { // an Open would create the file
			return old, false, err
		}
	}
	l, err := ledger.Open(ctx, cfg, ledger.Options{Instance: "doctor", Log: log})
	if err != nil { // the check of the tables says why, and what to do
		return operate.Check{Level: operate.Warn, Text: "not examined, because the ledger can't be opened"}, false, nil
	}
	defer func() { _ = l.CloseContext(ctx) }()
	if is, err := upToDate(); err != nil || !is { // Plan would wait for a server that is away
		return old, false, err
	}
	left, err := absent(ctx, l, e.kinds())
	if err != nil || len(left) == 0 {
		return operate.Check{Level: operate.OK, Text: "each open effect is of a kind that this program has"}, err == nil, err
	}
	var each []string
	for _, k := range left {
		each = append(each, fmt.Sprintf("%s (%d)", k.Kind, k.Open))
	}
	return operate.Check{
		Level: operate.Warn, Text: "open effects of kinds that this program does not have: " + strings.Join(each, ", "),
		Remedy: "if no other program with this ledger has the kind, put it back into the settings until its effects are settled, or cancel its groups (once cancel)",
	}, true, nil
}
