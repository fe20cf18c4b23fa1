package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Waiting is an effect that is not settled.
type Waiting struct {
	Key
	State   rules.State `json:"state"`
	Calling bool        `json:"calling"` // it is under a lease
	// At is when it is called for next or, under a lease, when that ends. Zero: its group is paused.
	At    time.Time `json:"next_at,omitzero"`
	Class string    `json:"class,omitempty"` // of the last answer that was not done
	Error string    `json:"error,omitempty"` // its text
}

// sqlWaiting sorts at most oldestOf effects of a group, so its cost is bounded. It asks for a range of groups, because
// PostgreSQL then takes the index that has their order. For one group it may read what is due of the whole kind.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlWaiting = `SELECT w.id, e.state, w.calling, w.at, coalesce(e.last_class, ''), coalesce(e.last_error, '')
FROM (SELECT d.id, d.calling, d.at FROM (
		SELECT d.id, d.calling, d.at FROM once_due_effects AS d WHERE d.kind = $1 AND d.grp >= $2 AND d.grp <= $2 ORDER BY d.kind, d.grp LIMIT ` + fmt.Sprint(oldestOf) + `
	) AS d ORDER BY d.at IS NULL, d.at, d.id LIMIT $3) AS w
JOIN once_effects AS e ON e.kind = $1 AND e.grp = $2 AND e.id = w.id ORDER BY w.at IS NULL, w.at, w.id`

// Waiting returns the effects of a group that are not settled, beginning with the one that has been due for
// longest; more says that there are more than limit. Of a group with more than 10,000 such effects it sorts so many.
func (l *Ledger) Waiting(ctx context.Context, g Group, limit int) (all []Waiting, more bool, err error) {
	err = l.call(ctx, "waiting", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		all, err = selectAll(ctx, l, func(r scanner, w *Waiting, now time.Time) error {
			w.Key = Key{Kind: g.Kind, Group: g.Name}
			err := r.Scan(&w.ID, (*stateColumn)(&w.State), &w.Calling, (*portableTime)(&w.At), &w.Class, &w.Error)
			w.Calling = w.Calling && w.At.After(now)
			return err
		}, sqlWaiting, k.number, g.Name, limit+1)
		return err
	})
	if len(all) > limit {
		return all[:limit], true, err
	}
	return all, false, err
}
