package deadletter

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

var errStoreNotOpen = fmt.Errorf("%w: the store of dead letters is not open in this instance", pipeline.ErrUnavailable)

// AuditLogs implements operate.Auditor. Without a store the dead letters are in topics and streams, which have
// no place for an audit.
func (p *Plugin) AuditLogs() []operate.AuditLog {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	read := func(recent func(*store.Store, context.Context, operate.AuditFilter, int) (operate.AuditPage, error)) func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		return func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			s := p.store.Load()
			if s == nil {
				return operate.AuditPage{}, errStoreNotOpen
			}
			return recent(s, ctx, f, limit)
		}
	}
	return []operate.AuditLog{
		{Name: "dead-letters", Title: "Dead letters", Note: "What was done to a dead letter is deleted together with it, by deadletter prune.", Recent: read((*store.Store).RecentActions)},
		{Name: "dead-letter-prunes", Title: "Pruned dead letters", Recent: read((*store.Store).RecentPrunes)},
	}
}

var _ operate.Auditor = (*Plugin)(nil)
