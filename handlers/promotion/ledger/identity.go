package ledger

import (
	"context"
	"errors"
	"time"
)

// ID returns the id of this ledger, created by a migration. A restored ledger keeps its id, and so
// does a copy. Streams in Redis contain it: see streams.Options.Owner.
func (l *Ledger) ID(ctx context.Context) (id string, err error) {
	err = l.read(ctx, "identity", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&id) }, `SELECT id FROM ledger_identity`)
	})
	if err == nil && id == "" {
		err = errors.New("ledger: the table ledger_identity has no row")
	}
	return id, err
}
