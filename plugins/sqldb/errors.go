package sqldb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// Contended reports whether nothing happened because of another transaction. The statement may be
// repeated at once.
func Contended(err error) bool {
	if code, ok := postgresCode(err); ok {
		return code == "40001" || code == "40P01"
	}
	code := liteCode(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

// Locked reports whether nothing happened because a lock was not free within lock_timeout. Another
// transaction holds it, perhaps that of a frozen process. The statement may be repeated later.
func Locked(err error) bool {
	code, _ := postgresCode(err)
	return code == "55P03"
}

// Explain adds to an error about a missing right, or of a pooler in the wrong mode, how to fix it.
// Other errors are returned unchanged.
func Explain(err error) error {
	switch code, _ := postgresCode(err); code {
	case "42501":
	case duplicateStatement, missingStatement:
		return fmt.Errorf("%w; %s", err, poolerRepair)
	default:
		return err
	}
	return fmt.Errorf("%w; the user in the DSN lacks this right: %s", err, rightRepair)
}

// rightRepair is for a missing right. A command may have the DSN of another role than the one that it needs, and then a
// GRANT would take the meaning from the roles.
const rightRepair = "name the DSN of the role that has it (the migrator's to change tables, an operator's for a command that changes something), " +
	"or grant it: \"Roles in PostgreSQL\" in the ledger's README has the roles, and the command doctor prints the GRANT that a service lacks"

// The SQLSTATEs of a session that has the prepared statements of another client, or lacks its own.
const (
	duplicateStatement = "42P05"
	missingStatement   = "26000"
)

const poolerRepair = "a pooler such as PgBouncer gave a transaction the session of another client: set its pool_mode to session, " +
	"or name PostgreSQL itself in the DSN, because prepared statements and settings belong to a session"

// refused reports whether the server is there and refuses the user, the password or the name of the
// database. Waiting does not help.
func refused(err error) bool {
	code, _ := postgresCode(err)
	return strings.HasPrefix(code, "28") || strings.HasPrefix(code, "3D")
}

// Unreachable reports whether the database can't be reached, is going down, can't write, or has not
// confirmed that its standby has a commit. The outcome of the statement may be unknown; it may be
// repeated later.
func Unreachable(err error) bool {
	if errors.Is(err, errNotReplicated) {
		return true
	}
	if code, ok := postgresCode(err); ok {
		return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || useless(code)
	}
	switch liteCode(err) {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
		return true
	}
	var connect *pgconn.ConnectError
	var network net.Error
	var file *fs.PathError
	return errors.As(err, &connect) || errors.As(err, &network) || errors.As(err, &file) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || err != nil && strings.Contains(err.Error(), "conn closed")
}

func postgresCode(err error) (string, bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return "", false
	}
	return pg.Code, true
}

// liteCode returns SQLite's primary result code, or 0.
func liteCode(err error) int {
	var lite *sqlite.Error
	if !errors.As(err, &lite) {
		return 0
	}
	return lite.Code() & 0xff
}

// tries bounds the repetitions of whileContended, over about 2.5 seconds.
const tries = 10

// whileContended repeats fn while Contended, a few times with growing pauses.
func whileContended(ctx context.Context, fn func() error) error {
	return repeatWhile(ctx, Contended, fn)
}

func repeatWhile(ctx context.Context, repeat func(error) bool, fn func() error) error {
	for n := 1; ; n++ {
		err := fn()
		if n == tries || !repeat(err) {
			return err
		}
		if !loop.Sleep(ctx, time.Duration(n)*50*time.Millisecond) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
