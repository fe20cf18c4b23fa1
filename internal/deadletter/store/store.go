package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

var (
	// errUnavailable says that the database is unreachable or was too busy: try again later.
	errUnavailable = fmt.Errorf("dead letters: database: %w", pipeline.ErrUnavailable)
	// ErrNotFound says that no dead letter has this id.
	ErrNotFound = errors.New("no such dead letter")
)

// Store is an open table of dead letters. It is safe for concurrent use. Its owner closes it.
type Store struct {
	db      portable.Database
	drivers portable.Databases
	log     *slog.Logger
	prints  fingerprints
	readers chan struct{} // has a value per connection that only reads
}

// connections bounds the connections of a store, and reading those of them that lists and pages may have at once: a route
// waits for its dead letter to be stored, and many slow pages must not delay it.
const (
	connections = 4
	reading     = connections / 2
)

// Connect opens a database with the drivers, such as sqldb.Databases; other stores may use the same
// database. It does not migrate. When the server is unreachable the error wraps pipeline.ErrUnavailable; a
// wrong password or database is another error. log may be nil.
func Connect(ctx context.Context, drivers portable.Databases, dsn setting.Secret, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{drivers: drivers, log: log, prints: newFingerprints(), readers: make(chan struct{}, reading)}
	var err error
	switch s.db, err = drivers.Open(ctx, dsn, log); {
	case err != nil && s.db.Where == "":
		return nil, fmt.Errorf("dead letters: %w", err)
	case err != nil:
		return nil, s.wrap(s.db.Where, err)
	}
	s.db.SetMaxOpenConns(connections)
	if err := s.db.PingContext(ctx); err != nil {
		_ = s.db.Close()
		return nil, s.wrap(s.db.Where, err)
	}
	return s, nil
}

// Close closes the connections.
func (s *Store) Close() error { return s.db.Close() }

// Show lets metrics collect the state of the store's database, until hide or until they show another one.
func (s *Store) Show(in *portable.Metrics) (hide func()) {
	return in.Show(func() []portable.Pool { return []portable.Pool{portable.PoolOf("store", s.db.DB)} })
}

// Measure reads the sizes of the tables.
func (s *Store) Measure(ctx context.Context, to *portable.Metrics) error {
	if err := to.Measure(ctx, s.db, "dead_letters", "dead_letter_actions", "dead_letter_prunes"); err != nil {
		return s.wrap("measure the tables", err)
	}
	return nil
}

// querier is a database or a transaction on it.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// update runs fn in a transaction, with the database's time. What fn only reads may exist on this
// server alone, because its commit did not reach the synchronous standby. So an fn that answers
// "stored already" without a write must have locked the row: a row lock makes PostgreSQL write, and
// its COMMIT then waits for the standby.
func (s *Store) update(ctx context.Context, what string, fn func(q querier, now time.Time) error) error {
	err := s.drivers.WhileContended(ctx, func() error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		now, err := s.clock(ctx, tx)
		if err != nil {
			return err
		}
		if err := fn(tx, now); err != nil {
			return err
		}
		return s.db.Commit(tx)
	})
	if err != nil {
		return s.wrap(what, err)
	}
	return nil
}

// clock returns the time of PostgreSQL. SQLite is a part of this process and has its clock.
func (s *Store) clock(ctx context.Context, q querier) (now time.Time, err error) {
	if s.db.Dialect == portable.SQLite {
		return time.Now().UTC().Truncate(time.Microsecond), nil
	}
	err = s.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&now) }, "SELECT clock_timestamp()")
	return now.UTC(), err
}

// exec returns how many rows were affected.
func (s *Store) exec(ctx context.Context, q querier, query string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, query, s.args(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// query calls row for each row.
func (s *Store) query(ctx context.Context, q querier, row func(*sql.Rows) error, query string, args ...any) error {
	return portable.EachRow(ctx, q.QueryContext, row, query, s.args(args)...)
}

// read is query outside of a transaction, on one of the connections for that.
func (s *Store) read(ctx context.Context, row func(*sql.Rows) error, query string, args ...any) error {
	select {
	case s.readers <- struct{}{}:
		defer func() { <-s.readers }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.query(ctx, s.db, row, query, args...)
}

// args converts times to what SQLite stores.
func (s *Store) args(args []any) []any {
	for i, a := range args {
		if t, ok := a.(time.Time); ok && s.db.Dialect == portable.SQLite {
			args[i] = t.UnixMicro()
		}
	}
	return args
}

// forUpdate is the locking clause of a SELECT. Transactions of SQLite exclude each other without
// it.
func (s *Store) forUpdate() string {
	if s.db.Dialect == portable.Postgres {
		return " FOR UPDATE"
	}
	return ""
}

// wrap adds what was being done, and errUnavailable where it applies.
func (s *Store) wrap(what string, err error) error {
	if s.drivers.Unreachable(err) || s.drivers.Contended(err) {
		return fmt.Errorf("%w: %s: %w", errUnavailable, what, err)
	}
	if repair, ok := s.drivers.Repair(err); ok {
		return fmt.Errorf("dead letters: %s: %w (repair: %s)", what, err, repair)
	}
	return fmt.Errorf("dead letters: %s: %w", what, err)
}
