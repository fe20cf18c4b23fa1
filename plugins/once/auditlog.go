package once

import (
	"context"
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// AuditLogs implements operate.Auditor. A binary without a kind has no ledger.
func (p *Plugin) AuditLogs() []operate.AuditLog {
	if !p.isUsed() {
		return nil
	}
	return []operate.AuditLog{{
		Name: "effects", Title: "Effects",
		Recent: func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			l := p.ledger.Load()
			if l == nil {
				return operate.AuditPage{}, errNotOpen
			}
			return l.RecentAudit(ctx, f, limit)
		},
	}}
}

// SendAudit implements app.SendAuditor: a record of a kind's topic asks for an effect.
func (p *Plugin) SendAudit(r *pipeline.Registry, topic string) *app.SendAudit {
	kinds := slices.DeleteFunc(pipeline.Offers[*worker](r), func(w *worker) bool { return w.config.Topic != topic })
	if len(kinds) == 0 {
		return nil
	}
	return &app.SendAudit{Register: p.registerCommand, Record: func(ctx context.Context, payload []byte, by app.By) error {
		l := p.ledger.Load()
		if l == nil {
			return errNotOpen
		}
		for _, w := range kinds {
			rec, err := w.effects.read(payload)
			if err != nil {
				continue // it becomes a dead letter and asks for nothing
			}
			if err := l.RecordSend(ctx, rec.Key, topic, ledger.By{Who: by.Who, Why: by.Why}); err != nil {
				return err
			}
		}
		return nil
	}}
}

var (
	_ app.SendAuditor = (*Plugin)(nil)
	_ operate.Auditor = (*Plugin)(nil)
)
