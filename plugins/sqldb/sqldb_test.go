package sqldb_test

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

//go:embed testdata
var testdata embed.FS

// notes are the migrations of the tests, up to a version.
func notes(t testing.TB, version int) sqldb.Migrations {
	t.Helper()
	files := fstest.MapFS{}
	paths, err := fs.Glob(testdata, "testdata/migrations/*/*.sql")
	require.NoError(t, err)
	require.Len(t, paths, 4)
	for _, path := range paths {
		text, err := testdata.ReadFile(path)
		require.NoError(t, err)
		if filepath.Base(path) <= fmt.Sprintf("%05d~", version) {
			files[strings.TrimPrefix(path, "testdata/")] = &fstest.MapFile{Data: text}
		}
	}
	return sqldb.Migrations{Name: "notes", Files: files, Table: "note_migrations", Lock: 7, Grants: []portable.Grant{
		{Rights: "SELECT", On: "note_migrations"}, {Rights: "SELECT, INSERT, UPDATE, DELETE", On: "notes"},
	}}
}

// connect opens the database of a DSN, as another process would.
func connect(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	var db *sql.DB
	if portable.DialectOf(dsn) == portable.SQLite {
		file, err := sqldb.ParseFile(dsn)
		require.NoError(t, err)
		db, err = file.Open(t.Context(), nil)
		require.NoError(t, err)
	} else {
		c, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		sqldb.TunePostgres(c)
		db = stdlib.OpenDB(*c)
	}
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// Four instances start at once, one of them of an older version. Each migration runs once, and all
// start.
func TestInstancesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		var together errgroup.Group
		for _, version := range []int{2, 1, 2, 2} {
			db, m := connect(t, dsn), notes(t, version)
			require.NoError(t, db.PingContext(t.Context()), "connected, so that they meet")
			together.Go(func() error { return m.Up(t.Context(), db, portable.DialectOf(dsn), slog.New(slog.DiscardHandler)) })
		}
		require.NoError(t, together.Wait())
		db := connect(t, dsn)
		_, err := db.ExecContext(t.Context(), "INSERT INTO notes (id, body) VALUES (1, 'x')")
		require.NoError(t, err)
		var ran int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM note_migrations WHERE version_id > 0").Scan(&ran))
		require.Equal(t, 2, ran)
	})
}

// A new file is turned to WAL by who comes first, and SQLite refuses who comes at the same moment.
func TestANewFileIsOpenedByManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 30 {
		file := sqldb.File{Path: filepath.Join(t.TempDir(), "new.db")}
		var together errgroup.Group
		for range 6 {
			together.Go(func() error {
				db, err := file.Open(t.Context(), nil)
				if err != nil {
					return err
				}
				return db.Close()
			})
		}
		require.NoError(t, together.Wait())
	}
}

func TestAMigrationThatCanNotRunIsNamed(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		m := notes(t, 2)
		m.Files = fstest.MapFS{
			"migrations/postgres/00001_bad.sql": {Data: []byte("-- +goose Up\nCREATE TABLE;\n")},
			"migrations/sqlite/00001_bad.sql":   {Data: []byte("-- +goose Up\nCREATE TABLE;\n")},
		}
		require.ErrorContains(t, m.Up(t.Context(), connect(t, dsn), portable.DialectOf(dsn), slog.New(slog.DiscardHandler)), "00001_bad.sql")
	})
}

func TestAMigrationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, notes(t, 2).Up(ctx, connect(t, dsn), portable.DialectOf(dsn), slog.New(slog.DiscardHandler)), context.Canceled)
	})
}

func TestTimesAreReadAsStored(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000, time.FixedZone("KST", 9*3600))
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		db := connect(t, dsn)
		kind, stored, none := "timestamptz", any(at), any(nil)
		if portable.DialectOf(dsn) == portable.SQLite {
			kind, stored, none = "integer", portable.Micros(at), portable.Micros(time.Time{})
		}
		_, err := db.ExecContext(t.Context(), "CREATE TABLE times (at "+kind+", none "+kind+")")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO times VALUES ($1, $2)", stored, none)
		require.NoError(t, err)
		var got, zero time.Time
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT at, none FROM times").Scan((*portable.Time)(&got), (*portable.Time)(&zero)))
		require.Equal(t, at.UTC(), got)
		require.True(t, zero.IsZero())
		require.ErrorContains(t, db.QueryRowContext(t.Context(), "SELECT 'soon'").Scan((*portable.Time)(&got)), "scan a time from string")
	})
}

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("no idea"), context.Canceled, sql.ErrNoRows} {
		require.False(t, sqldb.Contended(err), "%v", err)
		require.False(t, sqldb.Unreachable(err), "%v", err)
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db := connect(t, sqldbtest.Schema(t))
		for query, want := range map[string][2]bool{ // contended, unreachable
			`DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`:    {true, false},
			`DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`:    {true, false},
			`DO $$ BEGIN RAISE SQLSTATE '57P01'; END $$`:    {false, true},
			`DO $$ BEGIN RAISE SQLSTATE '53100'; END $$`:    {false, true},
			`DO $$ BEGIN RAISE SQLSTATE '25006'; END $$`:    {false, true},
			`DO $$ BEGIN RAISE SQLSTATE '25P03'; END $$`:    {false, true},
			`DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$`:    {false, false},
			`SELECT pg_terminate_backend(pg_backend_pid())`: {false, true},
			`SELECT nothing`: {false, false},
			`SELECT 1/0`:     {false, false},
		} {
			_, err := db.ExecContext(t.Context(), query)
			require.Error(t, err, query)
			require.Equal(t, want, [2]bool{sqldb.Contended(err), sqldb.Unreachable(err)}, "%s: %v", query, err)
			require.Equal(t, strings.Contains(query, "55P03"), sqldb.Locked(err), query)
		}
		nowhere := connect(t, "postgres://nobody@127.0.0.1:1/none?connect_timeout=2")
		require.True(t, sqldb.Unreachable(nowhere.PingContext(t.Context())))
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dsn := sqldbtest.File(t)
		first := connect(t, dsn)
		_, err := first.ExecContext(t.Context(), "CREATE TABLE a (b integer); BEGIN IMMEDIATE")
		require.NoError(t, err)
		file, err := sqldb.ParseFile(dsn)
		require.NoError(t, err)
		impatient, err := file.Open(t.Context(), map[string][]string{"_busy_timeout": {"1"}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, impatient.Close()) })
		_, err = impatient.ExecContext(t.Context(), "INSERT INTO a VALUES (1)")
		require.True(t, sqldb.Contended(err), "%v", err)
		require.False(t, sqldb.Unreachable(err), "%v", err)
		_, err = first.ExecContext(t.Context(), "SELECT nothing")
		require.Error(t, err)
		require.False(t, sqldb.Contended(err) || sqldb.Unreachable(err), "%v", err)

		folder := t.TempDir() // a folder is no database
		_, err = sqldb.File{Path: folder}.Open(t.Context(), nil)
		require.True(t, sqldb.Unreachable(err), "%v", err)
		plain := filepath.Join(folder, "plain")
		require.NoError(t, os.WriteFile(plain, nil, 0o600))
		_, err = sqldb.File{Path: filepath.Join(plain, "db")}.Open(t.Context(), nil)
		require.True(t, sqldb.Unreachable(err), "%v", err)
	})
}

func TestDSNs(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]portable.Dialect{
		"postgres://a/b": portable.Postgres, "postgresql://a/b": portable.Postgres, "sqlite:/a": portable.SQLite, "sqlite:///a": portable.SQLite,
		"": "", "mysql://a/b": "", "/a/b": "", "postgres": "", "host=a dbname=b": "",
	} {
		require.Equal(t, want, portable.DialectOf(dsn), dsn)
	}
	for dsn, path := range map[string]string{"sqlite:/a/b.db": "/a/b.db", "sqlite:///a/b.db?synchronous=full": "/a/b.db", "sqlite:b.db": "b.db"} {
		f, err := sqldb.ParseFile(dsn)
		require.NoError(t, err, dsn)
		require.Equal(t, path, f.Path, dsn)
	}
	for dsn, want := range map[string]string{
		"sqlite:": "needs the path", "sqlite::memory:": "needs the path", "sqlite:?synchronous=off": "needs the path", "sqlite:/a?%zz": "invalid URL escape",
	} {
		_, err := sqldb.ParseFile(dsn)
		require.ErrorContains(t, err, want, dsn)
	}
}

func TestSessionsOfPostgres(t *testing.T) {
	t.Parallel()
	dsn := sqldbtest.Schema(t)
	for name, want := range map[string][2]string{ // the default, and what a DSN may say
		"timezone":                            {"UTC", ""},
		"application_name":                    {"millrace", "mine"},
		"idle_in_transaction_session_timeout": {"10s", "20s"},
		"tcp_keepalives_idle":                 {"10", "20"},
		"tcp_keepalives_interval":             {"5", "7"},
		"tcp_keepalives_count":                {"3", "4"},
		"tcp_user_timeout":                    {"15000", "20000"},
	} {
		read := func(dsn string) (value string) {
			require.NoError(t, connect(t, dsn).QueryRowContext(t.Context(), "SHOW "+name).Scan(&value))
			return value
		}
		require.Equal(t, want[0], read(dsn), name)
		if want[1] != "" {
			require.Equal(t, want[1], read(dsn+"&"+name+"="+want[1]), name)
		}
	}
}

// A server that takes no writes is not connected to, and a session that finds one is closed.
func TestSessionsThatCanNotWrite(t *testing.T) {
	t.Parallel()
	dsn := sqldbtest.Schema(t)
	err := connect(t, dsn+"&default_transaction_read_only=on").PingContext(t.Context())
	require.ErrorContains(t, err, "read only")
	require.True(t, sqldb.Unreachable(err), "%v", err)

	db := connect(t, dsn)
	db.SetMaxOpenConns(1)
	session := func() (pid int) {
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		return pid
	}
	_, err = db.ExecContext(t.Context(), "CREATE TABLE a (b int)")
	require.NoError(t, err)
	before := session()
	_, err = db.ExecContext(t.Context(), "SET default_transaction_read_only = on")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO a VALUES (1)")
	require.True(t, sqldb.Unreachable(err), "%v", err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO a VALUES (1)")
	require.NoError(t, err)
	require.NotEqual(t, before, session())
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "plain", "\x00", "a\x00b", "\xff\xfe", "한국어", strings.Repeat("한", 40), strings.Repeat("x", 101)} {
		got := portable.Text(text, 100)
		require.True(t, utf8.ValidString(got), "%q", text)
		require.NotContains(t, got, "\x00")
		require.LessOrEqual(t, len(got), 102, "a partial character at the cut is replaced")
		if len(text) <= 100 && utf8.ValidString(text) && !strings.Contains(text, "\x00") {
			require.Equal(t, text, got)
		}
	}
}

// Await waits for an unavailable database until ctx ends, and returns any other error at once.
func TestAwait(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	calls := 0
	got, err := sqldb.Await(t.Context(), log, "it", "a.setting", func() (string, error) {
		if calls++; calls == 1 {
			return "", fmt.Errorf("%w: not yet", pipeline.ErrUnavailable)
		}
		return "open", nil
	})
	require.NoError(t, err)
	require.Equal(t, "open", got)
	require.Equal(t, 2, calls)
	_, err = sqldb.Await(t.Context(), log, "it", "a.setting", func() (string, error) { return "", fs.ErrInvalid })
	require.ErrorIs(t, err, fs.ErrInvalid)
	require.ErrorContains(t, err, "a.setting: ")
	require.NotErrorIs(t, err, pipeline.ErrUnavailable)
	_, err = sqldb.Await(t.Context(), log, "it", "a.setting", func() (string, error) {
		return "", &pgconn.PgError{Code: "28P01", Message: "password authentication failed"}
	})
	require.ErrorIs(t, err, pipeline.ErrUnavailable, "as a refused login of Redis or Kafka")
	require.ErrorContains(t, err, "a.setting: ")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = sqldb.Await(short, log, "it", "a.setting", func() (string, error) { return "", pipeline.ErrUnavailable })
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
	ended, end := context.WithCancel(t.Context())
	defer end()
	first := true
	_, err = sqldb.Await(ended, log, "it", "a.setting", func() (string, error) {
		if first {
			first = false
			return "", fmt.Errorf("%w: connection refused", pipeline.ErrUnavailable)
		}
		end()
		return "", ended.Err()
	})
	require.ErrorContains(t, err, "connection refused", "the last attempt was cut short, and does not know why")
}

// A file that can't be opened is no server that may come back.
func TestAwaitDoesNotWaitForAFileThatItMayNotOpen(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{
		"read-only":     &fs.PathError{Op: "mkdir", Path: "/data", Err: syscall.EROFS},
		"another owner": &fs.PathError{Op: "open", Path: "/data/a.db", Err: syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			_, err := sqldb.Await(t.Context(), slog.New(slog.DiscardHandler), "it", "a.setting", func() (string, error) {
				if calls++; calls == 1 {
					return "", fmt.Errorf("%w: %w", pipeline.ErrUnavailable, cause)
				}
				return "open", nil
			})
			require.ErrorIs(t, err, cause)
			require.ErrorContains(t, err, "a.setting: ")
			require.ErrorContains(t, err, "; name a file that this process may open")
		})
	}
}
