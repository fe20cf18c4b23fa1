package once

import (
	"context"
	"fmt"
	"log/slog"
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
			c, err := e.check(ctx)
			if err != nil && len(e.kinds()) == 0 { // it may be the ledger of nobody
				return []operate.Check{{Level: operate.OK, Text: "not examined, because this program has no kind, and the ledger says: " + err.Error()}}, nil
			}
			return []operate.Check{c}, err
		}}}, nil, nil
	}}}
}

func (e ledgerExam) check(ctx context.Context) (c operate.Check, err error) {
	cfg, log := e.plugin.config.Ledger, e.plugin.log
	schema := ledger.Schema(cfg, ledgerSetting, log)
	upToDate := func() (bool, error) {
		m, err := schema.Plan(ctx)
		return len(m.Steps) == 0, err
	}
	old := operate.Check{Level: operate.OK, Text: "not examined, because the tables are not up to date"} // which is examined on its own
	if portable.DialectOf(cfg.DSN.Reveal()) == portable.SQLite {
		if is, err := upToDate(); err != nil || !is { // an Open would create the file
			return old, err
		}
	}
	l, err := ledger.Open(ctx, cfg, ledger.Options{Instance: "doctor", Log: log})
	if err != nil {
		return c, err
	}
	defer func() { _ = l.CloseContext(ctx) }()
	if is, err := upToDate(); err != nil || !is { // Plan would wait for a server that is away
		return old, err
	}
	left, err := absent(ctx, l, e.kinds())
	if err != nil || len(left) == 0 {
		return operate.Check{Level: operate.OK, Text: "each open effect is of a kind that this program has"}, err
	}
	var each []string
	for _, k := range left {
		each = append(each, fmt.Sprintf("%s (%d)", k.Kind, k.Open))
	}
	return operate.Check{
		Level: operate.Warn, Text: "open effects of kinds that this program does not have: " + strings.Join(each, ", "),
		Remedy: "if no other program with this ledger has the kind, put it back into the settings until its effects are settled, or cancel its groups (once cancel)",
	}, nil
}
