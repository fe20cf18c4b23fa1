package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// sqliteStore is the store in one file. One connection writes, in exclusive transactions; readers
// see the last commit. Its clock is that of the process.
type sqliteStore struct {
	writer  *sql.DB
	readers *sql.DB
	path    string
	log     *slog.Logger
	skew    *atomic.Int64

	turn  *portable.Turn // to use conn
	conn  *sql.Conn
	stmts map[string]*sql.Stmt // prepared on conn
}

func openSQLite(ctx context.Context, cfg Config, log *slog.Logger, skew *atomic.Int64) (*sqliteStore, error) {
	file, err := sqldb.ParseFile(cfg.DSN.Reveal())
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	common := url.Values{"_pragma": {"cache_size(-32000)", "journal_size_limit(67108864)"}}
	s := &sqliteStore{path: file.Path, log: log, skew: skew, turn: portable.NewTurn(), stmts: map[string]*sql.Stmt{}}
	if s.writer, err = file.Open(ctx, common); err != nil {
		return nil, openError("sqlite at "+file.Path, err)
	}
	s.writer.SetMaxOpenConns(2) // one is conn, one migrates
	common.Set("_query_only", "1")
	if s.readers, err = file.Open(ctx, common); err != nil {
		_ = s.writer.Close()
		return nil, openError("sqlite at "+file.Path, err)
	}
	s.readers.SetMaxOpenConns(4)
	if s.conn, err = s.writer.Conn(ctx); err != nil {
		_ = s.close()
		return nil, openError("sqlite at "+file.Path, err)
	}
	return s, nil
}

func (s *sqliteStore) flushers() int { return 1 }

// pools returns the connection that writes, which a transaction has by its turn, and those that read.
func (s *sqliteStore) pools() []portable.Pool {
	return []portable.Pool{s.turn.Pool(poolPayouts), portable.PoolOf(poolReports, s.readers)}
}

// measureTables does nothing: it would read the whole file.
func (*sqliteStore) measureTables(context.Context, *portable.Metrics) error { return nil }

func (s *sqliteStore) close() error {
	for _, st := range s.stmts {
		_ = st.Close()
	}
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	return errors.Join(err, s.readers.Close(), s.writer.Close())
}

func (s *sqliteStore) migrate(ctx context.Context) error {
	return migrations().Up(ctx, s.writer, portable.SQLite, s.log)
}

func (s *sqliteStore) fault(err error) fault {
	var e *sqlite.Error
	switch {
	case err == nil:
		return faultNone
	case sqldb.Contended(err):
		return faultRetry
	case sqldb.Unreachable(err):
		return faultServer
	case !errors.As(err, &e):
		return faultOther
	}
	if e.Code() == sqlite3.SQLITE_TOOBIG || e.Code() == sqlite3.SQLITE_CONSTRAINT_CHECK && strings.Contains(e.Error(), constraintOfRecord) {
		return faultData
	}
	return faultOther
}

func (s *sqliteStore) now() time.Time {
	return time.Now().Add(time.Duration(s.skew.Load())).UTC().Truncate(time.Microsecond)
}

// beginImmediate begins a write transaction; end releases it.
func (s *sqliteStore) beginImmediate(ctx context.Context) error {
	if err := s.turn.Take(ctx); err != nil {
		return err
	}
	if err := s.run("BEGIN IMMEDIATE"); err != nil {
		s.turn.Give()
		return err
	}
	return nil
}

// end commits or rolls back. A failed commit has changed nothing.
func (s *sqliteStore) end(commit bool) error {
	defer s.turn.Give()
	if !commit {
		return s.run("ROLLBACK")
	}
	if err := s.run("COMMIT"); err != nil {
		_ = s.run("ROLLBACK")
		return err
	}
	return nil
}

// run executes a statement in the write transaction. Statements are short and not interrupted: a
// context that can end would cost one goroutine per statement.
func (s *sqliteStore) run(query string, args ...any) error {
	_, err := s.exec(query, args...)
	return err
}

func (s *sqliteStore) exec(query string, args ...any) (sql.Result, error) {
	st, err := s.prepare(query)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(context.Background(), sqliteArgs(args)...)
}

func (s *sqliteStore) prepare(query string) (*sql.Stmt, error) {
	if st, ok := s.stmts[query]; ok {
		return st, nil
	}
	st, err := s.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	s.stmts[query] = st
	return st, nil
}

func sqliteArgs(args []any) []any {
	for i, a := range args {
		switch v := a.(type) {
		case time.Time:
			args[i] = portable.Micros(v)
		case []byte:
			if v == nil {
				args[i] = nil
			}
		}
	}
	return args
}

// sqliteQuerier runs portable SQL.
type sqliteQuerier struct {
	exe func(ctx context.Context, query string, args ...any) (sql.Result, error)
	get func(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (q sqliteQuerier) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := q.exe(ctx, query, sqliteArgs(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (q sqliteQuerier) query(ctx context.Context, row func(scanner) error, query string, args ...any) error {
	return portable.EachRow(ctx, q.get, func(r *sql.Rows) error { return row(r) }, query, sqliteArgs(args)...)
}

func (sqliteQuerier) forUpdate(bool) string { return "" }

func (sqliteQuerier) anyOf(placeholder string, ids []int64) (string, any) {
	return portable.SQLite.AnyOf(placeholder, ids)
}

func (s *sqliteStore) read(_ context.Context, fn func(querier, time.Time) error) error {
	return fn(sqliteQuerier{s.readers.ExecContext, s.readers.QueryContext}, s.now())
}

func (s *sqliteStore) update(ctx context.Context, _ *payouts.Promotion, fn func(querier, time.Time) error) error {
	if err := s.beginImmediate(ctx); err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			_ = s.end(false)
		}
	}()
	if err := fn(s.transactionQuerier(), s.now()); err != nil {
		return err
	}
	committed = true
	return s.end(true)
}

// transactionQuerier runs SQL in the write transaction.
func (s *sqliteStore) transactionQuerier() sqliteQuerier {
	return sqliteQuerier{
		exe: func(_ context.Context, query string, args ...any) (sql.Result, error) { return s.exec(query, args...) },
		get: func(_ context.Context, query string, args ...any) (*sql.Rows, error) {
			st, err := s.prepare(query)
			if err != nil {
				return nil, err
			}
			return st.QueryContext(context.Background(), args...)
		},
	}
}

var _ store = (*sqliteStore)(nil)
