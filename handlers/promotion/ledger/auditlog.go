package ledger

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

const sqlRecentAudit = `SELECT id, at, who, why, action, detail, db_user, type, promotion_id, target_id FROM ledger_audit
WHERE id < $1 ORDER BY id DESC LIMIT $2`

// RecentAudit returns the actions on all promotions and payouts, newest first.
func (l *Ledger) RecentAudit(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
	return operate.FilterAudit(ctx, f, limit, l.recentAudit)
}

func (l *Ledger) recentAudit(ctx context.Context, f operate.AuditFilter, n int) ([]operate.Change, error) {
	from, err := f.RowBefore()
	if err != nil {
		return nil, err
	}
	return selectAll(ctx, l, "audit", func(r scanner, c *operate.Change, _ time.Time) error {
		var id int64
		var a Audit
		var typ string
		var promotion, target int64
		err := r.Scan(&id, (*portable.Time)(&c.At), &c.Who, &c.Why, &c.Action, &a.Detail, &a.DBUser, &typ, &promotion, &target)
		c.ID, c.Outcome, c.Detail = strconv.FormatInt(id, 10), "done", a.Detail
		k := payouts.Key{Type: payouts.Type(typ), Promotion: promotion, Target: target}
		if c.Subject = k.String(); target == 0 {
			c.Subject = payouts.Promotion{Type: k.Type, ID: promotion}.String()
		}
		if a.DBUser != "" {
			c.Detail = strings.TrimSpace(c.Detail + " (database role " + a.DBUser + ")")
		}
		return err
	}, sqlRecentAudit, from, n)
}
