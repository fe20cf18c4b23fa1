package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// sqlExpect writes nothing when the number is the same, because each instance may say it.
const sqlExpect = `INSERT INTO once_groups AS g (kind, grp, state, created_at, changed_at, expected) VALUES ($1, $2, 1, $3, $3, $4)
ON CONFLICT (kind, grp) DO UPDATE SET expected = excluded.expected WHERE g.expected IS NULL OR g.expected <> excluded.expected`

// Expect says how many effects a group will have, before its first one or later. It only decides about Status.Finished, so more
// or fewer are accepted all the same. It may be repeated, by any instance, and the last number counts. Zero changes nothing.
// A kind that no program has registered returns ErrNotFound.
func (l *Ledger) Expect(ctx context.Context, g Group, total int64) error {
	if err := g.check(); err != nil {
		return err
	}
	if total < 0 {
		return rules.Invalid("group %s can't have %d effects", g.text(), total)
	}
	return l.briefly(ctx, "expect", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil || total == 0 {
			return err
		}
		return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			_, err := q.exec(ctx, sqlExpect, k.number, g.Name, now, total)
			return err
		})
	})
}
