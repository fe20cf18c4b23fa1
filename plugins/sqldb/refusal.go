package sqldb

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Refusal is the reason of a database that is there, and refuses a statement because of its own
// state: a sequence behind its table, a missing partition, a missing right, a changed table. No
// message is the reason, so the statement is repeated until an operator has repaired the state.
type Refusal struct {
	Code       string // SQLSTATE, or "sqlite" and its result code
	Constraint string // empty: not about one
	Table      string // empty: not told
	column     string // of a duplicate key; empty: several, or not told
}

// RefusalOf returns the refusal that err wraps. ok is false for any other error: it comes from the
// client or the network, another transaction is its cause, or the database is unavailable.
func RefusalOf(err error) (r Refusal, ok bool) {
	if err == nil || Contended(err) || Locked(err) || Unreachable(err) {
		return Refusal{}, false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return Refusal{Code: pg.Code, Constraint: pg.ConstraintName, Table: pg.TableName, column: columnOf(pg.Detail)}, true
	}
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		return Refusal{Code: fmt.Sprint("sqlite ", lite.Code())}, true
	}
	return Refusal{}, false
}

// Repair says what an operator must do.
func (r Refusal) Repair() string {
	switch {
	case r.Code == "23505" && r.column != "":
		return portable.BehindTable(r.Table, r.column)
	case r.Code == "23514" && r.Constraint == "":
		return fmt.Sprintf("create the missing partition of %s", r.Table)
	case r.Code == "2200H":
		return "a sequence is at its end: raise its MAXVALUE"
	case strings.HasPrefix(r.Code, "28"):
		return "the server refuses the user or the password: put the current ones into the file of the DSN, which is read for each new connection"
	case r.Code == "57014":
		return "raise the statement_timeout of the role, the database or the DSN; without one, somebody has cancelled the statement"
	case r.Code == "42501":
		return rightRepair
	case r.Code == duplicateStatement, r.Code == missingStatement:
		return poolerRepair
	case strings.HasPrefix(r.Code, "42"):
		return "compare the tables with those of this version: millrace migrate --dry-run"
	default:
		return "read the error and repair the database"
	}
}

// columnOf returns the column that a duplicate key is of, or "" if the key has several columns or
// the server's language is not English.
func columnOf(detail string) string {
	column, _, _ := strings.Cut(strings.TrimPrefix(detail, "Key ("), ")=(")
	if !strings.HasPrefix(detail, "Key (") || strings.ContainsAny(column, ", ") {
		return ""
	}
	return column
}
