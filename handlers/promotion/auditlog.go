package promotion

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// AuditLogs implements operate.Auditor.
func (p *Plugin) AuditLogs() []operate.AuditLog {
	return []operate.AuditLog{{
		Name: "promotions", Title: "Promotions and payouts",
		Recent: func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			l := p.ledger()
			if l == nil {
				return operate.AuditPage{}, fmt.Errorf("%w: the ledger of promotions is not open in this instance", pipeline.ErrUnavailable)
			}
			return l.RecentAudit(ctx, f, limit)
		},
	}}
}

var _ operate.Auditor = (*Plugin)(nil)
