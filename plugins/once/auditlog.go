package once

import (
	"context"

	"github.com/millrace-io/millrace/pipeline/operate"
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

var _ operate.Auditor = (*Plugin)(nil)
