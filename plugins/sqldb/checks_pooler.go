package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// poolerRounds is how often the sessions of two connections are compared. One round may miss a shared
// session, because another client of the pooler can take it in between.
const poolerRounds = 5

// protocolViolation is the SQLSTATE of errors that PgBouncer has itself.
const protocolViolation = "08P01"

// readPooler compares the process that each connection was promised at its start with the one that
// answers, because a pooler promises a number of its own. Two connections then tell its mode: the first
// one is idle while the second one is in a transaction, and only a pooler that shares sessions gives
// the session of the first one away.
func readPooler(ctx context.Context, db *sql.DB) (check operate.Check, err error) {
	var r poolerReading
	err = withConn(ctx, db, func(idle *pgx.Conn) error {
		return withConn(ctx, db, func(busy *pgx.Conn) error {
			r.promised = [2]uint32{idle.PgConn().PID(), busy.PgConn().PID()}
			for range poolerRounds {
				if err := r.round(ctx, idle, busy); err != nil || r.refused {
					return err
				}
			}
			return nil
		})
	})
	return r.check(), err
}

// withConn calls do with a connection of its own, which is closed afterwards.
func withConn(ctx context.Context, db *sql.DB, do func(*pgx.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(driver any) error {
		c, ok := driver.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("unexpected connection %T", driver)
		}
		return do(c.Conn())
	})
}

// poolerReading are the processes of PostgreSQL behind two connections.
type poolerReading struct {
	promised [2]uint32
	refused  bool // the pooler takes no transaction
	rounds   []poolerRound
}

// poolerRound has the processes that answered: the idle connection before and after the transaction of
// the busy one, and the transaction.
type poolerRound struct{ before, busy, after uint32 }

// round uses the simple protocol, because a pooler may give a prepared statement to another session.
func (r *poolerReading) round(ctx context.Context, idle, busy *pgx.Conn) error {
	pid := func(from interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}, to *uint32,
	) error {
		return from.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(to)
	}
	var one poolerRound
	if err := pid(idle, &one.before); err != nil {
		return err
	}
	tx, err := busy.Begin(ctx)
	if refusesTransactions(err) {
		r.refused = true
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(pid(tx, &one.busy), pid(idle, &one.after), tx.Rollback(ctx))
	r.rounds = append(r.rounds, one)
	return err
}

// refusesTransactions tells the refusal of PgBouncer from its other errors, such as that of a pool without a free session.
func refusesTransactions(err error) bool {
	code, _ := postgresCode(err)
	return code == protocolViolation && strings.Contains(err.Error(), "statement pooling")
}

func (r poolerReading) check() operate.Check {
	if r.refused {
		return operate.Check{
			Level:  operate.Fail,
			Text:   "a pooler such as PgBouncer refuses transactions, as with pool_mode statement",
			Remedy: "set pool_mode to session for this database, or name PostgreSQL itself in the DSN, because the tables are written in transactions",
		}
	}
	between := false
	for _, one := range r.rounds {
		if one.before != one.after || one.before == one.busy {
			return operate.Check{
				Level:  operate.Fail,
				Text:   "a pooler such as PgBouncer shares sessions: another connection got the session of one that was idle, as with pool_mode transaction",
				Remedy: "set pool_mode to session for this database, or name PostgreSQL itself in the DSN, because prepared statements and settings belong to a session",
			}
		}
		between = between || r.promised != [2]uint32{one.before, one.busy}
	}
	if between {
		return operate.Check{Level: operate.OK, Text: "a pooler such as PgBouncer is in between, and each connection kept its session, as with pool_mode session"}
	}
	return operate.Check{Level: operate.OK, Text: "no pooler is in between"}
}
