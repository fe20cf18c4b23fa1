package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// numbered are the tables whose id comes from a sequence. payouts is the one in which no constraint
// refuses a number that is there already: two payouts would show each other's calls.
func numbered() []string { return []string{"payouts", "outbox", "ledger_audit"} }

// CheckSequences returns an error that wraps ErrRefusedByDatabase if a sequence is behind its table, as
// after a move by logical replication, which copies rows and no sequences. It names each such table and
// the repair. Call it before the first accept: from then on each new connection for payouts is asked, too,
// because a server may be exchanged while the process runs. A sequence that the role may not read is left out,
// and SQLite has none. Its cost does not depend on the size of the tables.
func (l *Ledger) CheckSequences(ctx context.Context) error {
	s, ok := l.store.(*postgres)
	if !ok {
		return nil
	}
	s.guarded.Store(true)
	return l.read(ctx, "sequences", func(q querier, _ time.Time) error { return checkSequences(ctx, q, numbered()...) })
}

// checkSequence is asked of each new connection for payouts. The other tables refuse a number twice.
func (s *postgres) checkSequence(ctx context.Context, conn *pgx.Conn) error {
	if !s.guarded.Load() {
		return nil
	}
	return checkSequences(ctx, pgQuerier{conn}, "payouts")
}

func checkSequences(ctx context.Context, q querier, tables ...string) error {
	var behind []error
	for _, table := range tables {
		sequence := ""
		if err := q.query(ctx, func(r scanner) error { return r.Scan(&sequence) },
			`SELECT s FROM pg_get_serial_sequence($1, 'id') AS s WHERE has_sequence_privilege(s, 'SELECT')`, table); err != nil {
			return err
		}
		if sequence == "" {
			continue
		}
		if err := q.query(ctx, func(scanner) error {
			behind = append(behind, fmt.Errorf("%w: %s", ErrRefusedByDatabase, portable.BehindTable(table, "id")))
			return nil
		}, `SELECT 1 FROM `+sequence+` WHERE last_value + CASE WHEN is_called THEN 1 ELSE 0 END <= (SELECT max(id) FROM `+table+`)`); err != nil {
			return err
		}
	}
	return errors.Join(behind...)
}
