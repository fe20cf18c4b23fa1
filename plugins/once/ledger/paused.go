package ledger

import (
	"context"
	"fmt"
	"time"
)

// PausedLimit is the highest result of PausedGroups.
const PausedLimit = 1000

// sqlPausedGroups steps from group to group in the index of parked effects, so it reads none twice.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlPausedGroups = fmt.Sprintf(`WITH RECURSIVE parked (grp, n) AS (
	SELECT (SELECT min(grp) FROM once_due WHERE kind = $1 AND at IS NULL), 1
	UNION ALL
	SELECT (SELECT min(d.grp) FROM once_due AS d WHERE d.kind = $1 AND d.at IS NULL AND d.grp > parked.grp), n + 1
		FROM parked WHERE grp IS NOT NULL AND n < %d
) SELECT count(*) FROM parked JOIN once_groups AS g ON g.kind = $1 AND g.grp = parked.grp WHERE g.state = 2`, PausedLimit)

// PausedGroups counts the paused groups of a kind that hold back effects which would be called for otherwise. A group counts
// from when its first effect is due. The cost depends on the number of such groups, up to PausedLimit.
func (l *Ledger) PausedGroups(ctx context.Context, kind string) (groups int, err error) {
	err = l.briefly(ctx, "paused groups", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error { return r.Scan(&groups) }, sqlPausedGroups, k.number)
		})
	})
	return groups, err
}
