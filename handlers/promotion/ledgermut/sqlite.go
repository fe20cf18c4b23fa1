package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// sqliteStore is the store in one file. One connection writes, and a transaction on it excludes every
// other; readers see the last commit. Its clock is the process's.
type sqliteStore struct {
	writer  *sql.DB
	readers *sql.DB
	path    string
	log     *slog.Logger
	skew    *atomic.Int64

	turn  chan struct{} // holds one token: the right to use conn
	conn  *sql.Conn
	stmts map[string]*sql.Stmt // prepared on conn
}

func openSQLite(ctx context.Context, cfg Config, log *slog.Logger, skew *atomic.Int64) (*sqliteStore, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(cfg.DSN.Reveal(), "sqlite:"), "//"), "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("ledger: dsn: %w", err)
	}
	synchronous := "normal"
	if v := params.Get("synchronous"); v != "" {
		synchronous = v
	}
	if path == "" || strings.Contains(path, ":memory:") {
		return nil, errors.New("ledger: dsn: sqlite needs the path of a file")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("%w: sqlite: %w", ErrUnavailable, err)
	}
	common := url.Values{"_busy_timeout": {"10000"}, "_journal_mode": {"WAL"}, "_synchronous": {synchronous},
		"_pragma": {"cache_size(-32000)", "journal_size_limit(67108864)"}}
	s := &sqliteStore{path: path, log: log, skew: skew, turn: make(chan struct{}, 1), stmts: map[string]*sql.Stmt{}}
	if s.writer, err = sql.Open("sqlite", path+"?"+common.Encode()); err != nil {
		return nil, fmt.Errorf("ledger: sqlite: %w", err)
	}
	s.writer.SetMaxOpenConns(2) // one is conn, one migrates
	common.Set("_query_only", "1")
	if s.readers, err = sql.Open("sqlite", path+"?"+common.Encode()); err != nil {
		_ = s.writer.Close()
		return nil, fmt.Errorf("ledger: sqlite: %w", err)
	}
	s.readers.SetMaxOpenConns(4)
	if s.conn, err = s.writer.Conn(ctx); err != nil {
		_ = s.close()
		return nil, fmt.Errorf("%w: sqlite at %s: %w", ErrUnavailable, path, err)
	}
	s.turn <- struct{}{}
	return s, nil
}

func (s *sqliteStore) flushers() int { return 1 }

func (s *sqliteStore) ping(ctx context.Context) error { return s.readers.PingContext(ctx) }

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

// migrate tries again when another process is migrating the same file: each migration is one transaction,
// so the loser meets a busy file or what the winner has made.
func (s *sqliteStore) migrate(ctx context.Context) error {
	for n := 1; ; n++ {
		err := migrateUp(ctx, goose.DialectSQLite3, "sqlite", s.writer, nil, s.log)
		if err == nil || n == 10 {
			return err
		}
		if err := wait(ctx, time.Duration(n)*50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *sqliteStore) fault(err error) fault {
	if err == nil {
		return faultNone
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return faultOther
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return faultRetry
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return faultData
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
		return faultServer
	}
	return faultOther
}

func (s *sqliteStore) now() time.Time {
	return time.Now().Add(time.Duration(s.skew.Load())).UTC().Truncate(time.Microsecond)
}

// begins a write transaction; end releases it.
func (s *sqliteStore) write(ctx context.Context) error {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.run("BEGIN IMMEDIATE"); err != nil {
		s.turn <- struct{}{}
		return err
	}
	return nil
}

// end commits or rolls back. A commit that fails has changed nothing.
func (s *sqliteStore) end(commit bool) error {
	defer func() { s.turn <- struct{}{} }()
	if !commit {
		return s.run("ROLLBACK")
	}
	if err := s.run("COMMIT"); err != nil {
		_ = s.run("ROLLBACK")
		return err
	}
	return nil
}

// run executes a statement in the caller's turn. Statements are short and not interrupted: a context
// that can end would cost a goroutine each.
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

// micros is a time as it is stored; the zero time is null.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func sqliteArgs(args []any) []any {
	for i, a := range args {
		switch v := a.(type) {
		case time.Time:
			args[i] = micros(v)
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
	rows, err := q.get(ctx, query, sqliteArgs(args)...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (sqliteQuerier) forUpdate(bool) string { return "" }

func (sqliteQuerier) anyOf(placeholder string, ids []int64) (string, any) {
	list, _ := json.Marshal(ids) // numbers always encode
	return "IN (SELECT value FROM json_each(" + placeholder + "))", string(list)
}

func (s *sqliteStore) read(_ context.Context, fn func(querier, time.Time) error) error {
	return fn(sqliteQuerier{s.readers.ExecContext, s.readers.QueryContext}, s.now())
}

func (s *sqliteStore) update(ctx context.Context, _ *Promotion, fn func(querier, time.Time) error) error {
	if err := s.write(ctx); err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			_ = s.end(false)
		}
	}()
	if err := fn(s.inTurn(), s.now()); err != nil {
		return err
	}
	committed = true
	return s.end(true)
}

// inTurn is a querier of the transaction under way.
func (s *sqliteStore) inTurn() sqliteQuerier {
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
