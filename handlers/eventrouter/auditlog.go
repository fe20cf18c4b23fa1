package eventrouter

import (
	"context"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// AuditLogs implements operate.Auditor.
func (p *Plugin) AuditLogs() []operate.AuditLog {
	return []operate.AuditLog{{
		Name: "jobs", Title: "Jobs",
		Note: "Each domain keeps about 1,000 resets. A reset is recorded before it begins, so its outcome is not.",
		Recent: func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			return p.settings().RecentResets(ctx, p.shards, f, limit)
		},
	}}
}

var _ operate.Auditor = (*Plugin)(nil)
