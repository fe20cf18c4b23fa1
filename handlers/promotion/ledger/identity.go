package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// pgDenied is the SQLSTATE of a session whose role lacks a right.
const pgDenied = "42501"

// ID returns the id that a migration has made for this ledger. A restored ledger keeps its id, and so does a copy.
// Streams in Redis carry it: see streams.Options.Owner.
func (l *Ledger) ID(ctx context.Context) (id string, err error) {
	err = l.read(ctx, "identity", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&id) }, `SELECT id FROM ledger_identity`)
	})
	var pg *pgconn.PgError
	switch {
	case err == nil && id == "":
		err = errors.New("ledger: the table ledger_identity has no row")
	case errors.As(err, &pg) && pg.Code == pgDenied:
		err = fmt.Errorf("%w; after a migration the migrator grants rights on new tables: see \"Roles in PostgreSQL\" in the ledger's README", err)
	}
	return id, err
}
