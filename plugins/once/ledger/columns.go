package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// column is a column of a table, and its field in a row.
type column[T any] struct {
	name   string
	kind   string           // type in PostgreSQL
	zero   string           // the SQL of the value that is stored as null; empty: none
	dest   func(row *T) any // destination of a scan
	value  func(row *T) any
	values func(rows []*T) any // array of the values, for PostgreSQL
}

func col[T, V any](name string, field func(*T) *V) column[T] {
	kind := ""
	switch any(*new(V)).(type) {
	case string:
		kind = "text"
	case int64:
		kind = "bigint"
	case int:
		kind = "int"
	case bool:
		kind = "bool"
	case []byte:
		kind = "bytea"
	}
	return column[T]{name, kind, "",
		func(r *T) any { return field(r) },
		func(r *T) any { return *field(r) },
		func(rows []*T) any { return valuesOf(rows, func(r *T) V { return *field(r) }) }}
}

// timeCol is a column whose null is the zero time.
func timeCol[T any](name string, field func(*T) *time.Time) column[T] {
	return column[T]{name, "timestamptz", "",
		func(r *T) any { return (*portable.Time)(field(r)) },
		func(r *T) any { return *field(r) },
		func(rows []*T) any { return valuesOf(rows, func(r *T) pgtype.Timestamptz { return stamp(*field(r)) }) }}
}

// stateCol is a column with the number of a state.
func stateCol[T any](name string, field func(*T) *rules.State) column[T] {
	return column[T]{name, "smallint", "",
		func(r *T) any { return (*stateColumn)(field(r)) },
		func(r *T) any { return effectCode(*field(r)) },
		func(rows []*T) any { return valuesOf(rows, func(r *T) int64 { return effectCode(*field(r)) }) }}
}

// or has the zero value stored as null.
func (c column[T]) or(zero string) column[T] {
	c.zero = zero
	return c
}

func (c column[T]) as(kind string) column[T] {
	c.kind = kind
	return c
}

// read is the expression of a SELECT.
func (c column[T]) read(prefix string) string {
	if c.zero == "" {
		return prefix + c.name
	}
	return "coalesce(" + prefix + c.name + ", " + c.zero + ")"
}

// write is the expression of what is stored.
func (c column[T]) write(value string) string {
	if c.zero == "" {
		return value
	}
	return "nullif(" + value + ", " + c.zero + ")"
}

// valuesOf returns one value per row.
func valuesOf[T, V any](rows []T, value func(T) V) []V {
	out := make([]V, len(rows))
	for i, r := range rows {
		out[i] = value(r)
	}
	return out
}

// list joins a text per column; n is the number of its parameter.
func list[T any](columns []column[T], text func(n int, c column[T]) string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = text(i+1, c)
	}
	return strings.Join(parts, ", ")
}

func names[T any](columns []column[T], prefix string) string {
	return list(columns, func(_ int, c column[T]) string { return prefix + c.name })
}

func reads[T any](columns []column[T], prefix string) string {
	return list(columns, func(_ int, c column[T]) string { return c.read(prefix) })
}

// unnest returns the call with one array per column, as the table u.
func unnest[T any](columns []column[T]) string {
	return "unnest(" + list(columns, func(n int, c column[T]) string { return fmt.Sprintf("$%d::%s[]", n, c.kind) }) + ") AS u(" + names(columns, "") + ")"
}

func written[T any](columns []column[T]) string {
	return list(columns, func(_ int, c column[T]) string { return c.write("u." + c.name) })
}

func lite[T any](columns []column[T]) string {
	return list(columns, func(n int, c column[T]) string { return c.write(fmt.Sprintf("?%d", n)) })
}

// statement writes all rows at once in PostgreSQL, and one row in SQLite.
type statement[T any] struct {
	columns          []column[T]
	postgres, sqlite string
}

func insertInto[T any](table string, columns []column[T], onConflict string) statement[T] {
	insert := "INSERT INTO " + table + " (" + names(columns, "") + ") "
	return statement[T]{columns, insert + "SELECT " + written(columns) + " FROM " + unnest(columns) + onConflict,
		insert + "VALUES (" + lite(columns) + ")" + onConflict}
}

// deleteFrom deletes the rows with the columns.
func deleteFrom[T any](table string, columns []column[T]) statement[T] {
	return statement[T]{columns,
		"DELETE FROM " + table + " AS p USING (SELECT * FROM " + unnest(columns) + " OFFSET 0) AS u WHERE " + sameKey(columns),
		"DELETE FROM " + table + " WHERE " + liteKey(columns)}
}

func sameKey[T any](columns []column[T]) string {
	return strings.Join(valuesOf(columns, func(c column[T]) string { return "p." + c.name + " = u." + c.name }), " AND ")
}

func liteKey[T any](columns []column[T]) string {
	return strings.ReplaceAll(list(columns, func(n int, c column[T]) string { return fmt.Sprintf("%s = ?%d", c.name, n) }), ", ", " AND ")
}

// arrays are the arguments in PostgreSQL.
func (s statement[T]) arrays(rows []*T) []any {
	return valuesOf(s.columns, func(c column[T]) any { return c.values(rows) })
}

// args are the arguments in SQLite.
func (s statement[T]) args(row *T) []any {
	return valuesOf(s.columns, func(c column[T]) any { return c.value(row) })
}

func destinations(row *storedRow, columns []column[storedRow]) []any {
	return valuesOf(columns, func(c column[storedRow]) any { return c.dest(row) })
}

// scanRow reads a row of the columns rowColumns or effectColumns. An unsettled effect is expected at
// its time in once_due, so it is like a retry.
func scanRow(r scanner, columns []column[storedRow]) (*storedRow, error) {
	row := &storedRow{}
	err := r.Scan(destinations(row, columns)...)
	row.remember()
	return row, err
}

// The columns of an effect, by when they are written.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	keyColumns = []column[storedRow]{
		col("kind", func(r *storedRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *storedRow) *string { return &r.group }),
		col("id", func(r *storedRow) *string { return &r.id }),
	}
	insertedColumns = []column[storedRow]{
		col("lane", func(r *storedRow) *int64 { return &r.lane }).as("smallint"),
		col("part", func(r *storedRow) *string { return &r.part }).or("''"),
		timeCol("accepted_at", func(r *storedRow) *time.Time { return &r.AcceptedAt }),
		timeCol("not_before", func(r *storedRow) *time.Time { return &r.notBefore }),
	}
	insertedAndUpdatedColumns = []column[storedRow]{
		// In SQLite it is null.
		col("due", func(r *storedRow) *int64 { return &r.due }).or("0"),
		stateCol("state", func(r *storedRow) *rules.State { return &r.State }),
		timeCol("next_attempt_at", func(r *storedRow) *time.Time { return &r.NextAttemptAt }),
		timeCol("settled_at", func(r *storedRow) *time.Time { return &r.SettledAt }),
		// Set by an acceptance only after a restore.
		col("maybe_done", func(r *storedRow) *bool { return &r.MaybeDone }).or("FALSE"),
		col("looking_up", func(r *storedRow) *bool { return &r.LookingUp }).or("FALSE"),
		timeCol("first_sent_at", func(r *storedRow) *time.Time { return &r.FirstSentAt }),
	}
	updatedColumns = []column[storedRow]{
		col("epoch", func(r *storedRow) *int64 { return &r.Epoch }).or("0"),
		col("status", func(r *storedRow) *int { return &r.status }).as("smallint").or("0"),
		col("attempts", func(r *storedRow) *int { return &r.Attempts }).or("0"),
		col("lookups", func(r *storedRow) *int { return &r.Lookups }).or("0"),
		col("released", func(r *storedRow) *int { return &r.Released }).or("0"),
		col("failures", func(r *storedRow) *int { return &r.Failures }).or("0"),
		col("interruptions", func(r *storedRow) *int { return &r.Interruptions }).or("0"),
		col("not_done_seen", func(r *storedRow) *bool { return &r.NotDoneSeen }).or("FALSE"),
		timeCol("lease_until", func(r *storedRow) *time.Time { return &r.LeaseUntil }),
		timeCol("key_first_used_at", func(r *storedRow) *time.Time { return &r.KeyFirstUsedAt }),
		timeCol("attempt_started_at", func(r *storedRow) *time.Time { return &r.AttemptStartedAt }),
		timeCol("last_sent_at", func(r *storedRow) *time.Time { return &r.lastSentAt }),
		col("attempt_by", func(r *storedRow) *string { return &r.AttemptBy }).or("''"),
		col("receipt", func(r *storedRow) *string { return &r.Receipt }).or("''"),
		col("last_class", func(r *storedRow) *string { return &r.LastClass }).or("''"),
		col("last_error", func(r *storedRow) *string { return &r.LastError }).or("''"),
	}
	messageColumns = []column[storedRow]{
		col("payload", func(r *storedRow) *[]byte { return &r.payload }),
		col("request", func(r *storedRow) *[]byte { return &r.request }),
		col("headers", func(r *storedRow) *string { return &r.headers }).or("''"),
		col("origin", func(r *storedRow) *string { return &r.origin }).or("''"),
	}

	rowColumns    = slices.Concat(keyColumns, insertedColumns, insertedAndUpdatedColumns, updatedColumns)
	effectColumns = slices.Concat(rowColumns, messageColumns)
	acceptColumns = slices.Concat(keyColumns, insertedColumns, insertedAndUpdatedColumns, messageColumns)
)

// The statements of a write set.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	// PostgreSQL has pgAccept.
	insertEffect = insertInto("once_effects", acceptColumns, " ON CONFLICT (kind, grp, id) DO NOTHING")

	updateEffects = newUpdateEffects()

	dueKey = []column[dueRow]{
		col("kind", func(r *dueRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *dueRow) *string { return &r.group }),
		col("id", func(r *dueRow) *string { return &r.id }),
	}
	setDue = insertInto("once_due", slices.Concat(dueKey, []column[dueRow]{
		col("number", func(r *dueRow) *int64 { return &r.number }).or("0"),
		col("lane", func(r *dueRow) *int64 { return &r.lane }).as("smallint"),
		col("calling", func(r *dueRow) *bool { return &r.calling }),
		timeCol("at", func(r *dueRow) *time.Time { return &r.at }),
	}), " ON CONFLICT (kind, grp, id) DO UPDATE SET at = excluded.at, calling = excluded.calling, number = excluded.number")
	deleteDue = deleteFrom("once_due", dueKey)

	insertAttempts = insertInto("once_attempts", []column[attemptRow]{
		col("kind", func(r *attemptRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *attemptRow) *string { return &r.group }),
		col("id", func(r *attemptRow) *string { return &r.id }),
		col("epoch", func(r *attemptRow) *int64 { return &r.Epoch }),
		col("late", func(r *attemptRow) *bool { return &r.Late }),
		col("number", func(r *attemptRow) *int { return &r.Number }),
		col("call", func(r *attemptRow) *string { return (*string)(&r.Kind) }),
		col("instance", func(r *attemptRow) *string { return &r.Instance }),
		timeCol("started_at", func(r *attemptRow) *time.Time { return &r.StartedAt }),
		timeCol("ended_at", func(r *attemptRow) *time.Time { return &r.EndedAt }),
		col("outcome", func(r *attemptRow) *string { return (*string)(&r.Outcome) }),
		col("class", func(r *attemptRow) *string { return &r.Class }).or("''"),
		col("answer", func(r *attemptRow) *string { return &r.Answer }).or("''"),
		col("status", func(r *attemptRow) *int { return &r.Status }).as("smallint").or("0"),
		col("receipt", func(r *attemptRow) *string { return &r.Receipt }).or("''"),
	}, " ON CONFLICT (kind, grp, id, epoch, late) DO NOTHING")

	problemKey = []column[problemRow]{
		col("kind", func(r *problemRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *problemRow) *string { return &r.group }),
		col("id", func(r *problemRow) *string { return &r.id }),
	}
	setProblems = insertInto("once_problems", slices.Concat(problemKey, []column[problemRow]{
		stateCol("state", func(r *problemRow) *rules.State { return &r.state }),
		timeCol("at", func(r *problemRow) *time.Time { return &r.at }),
		col("class", func(r *problemRow) *string { return &r.class }),
	}), " ON CONFLICT (kind, grp, id) DO UPDATE SET state = excluded.state, at = excluded.at, class = excluded.class")
	deleteProblems = deleteFrom("once_problems", problemKey)

	insertResults = insertInto("once_results", []column[resultRow]{
		col("kind", func(r *resultRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *resultRow) *string { return &r.group }),
		col("id", func(r *resultRow) *string { return &r.id }),
		stateCol("state", func(r *resultRow) *rules.State { return &r.state }),
		timeCol("at", func(r *resultRow) *time.Time { return &r.at }),
		timeCol("until", func(r *resultRow) *time.Time { return &r.at }),
		col("attempts", func(r *resultRow) *int { return &r.attempts }),
		col("receipt", func(r *resultRow) *string { return &r.receipt }).or("''"),
		col("class", func(r *resultRow) *string { return &r.class }).or("''"),
		col("error", func(r *resultRow) *string { return &r.error }).or("''"),
	}, "")

	insertDeltas = insertInto("once_deltas", []column[deltaRow]{
		col("kind", func(r *deltaRow) *int64 { return &r.kind }).as("smallint"),
		col("grp", func(r *deltaRow) *string { return &r.group }),
		col("part", func(r *deltaRow) *string { return &r.part }),
		col("number", func(r *deltaRow) *int64 { return &r.number }),
		col("accepted", func(r *deltaRow) *int64 { return &r.accepted }),
		col("done", func(r *deltaRow) *int64 { return &r.done }),
		col("failed", func(r *deltaRow) *int64 { return &r.failed }),
		col("unknown", func(r *deltaRow) *int64 { return &r.unknown }),
		col("cancelled", func(r *deltaRow) *int64 { return &r.cancelled }),
	}, "")
)

func newUpdateEffects() statement[storedRow] {
	changed := slices.Concat(insertedAndUpdatedColumns, updatedColumns)
	columns := slices.Concat(keyColumns, changed)
	set := func(value func(n int, c column[storedRow]) string) string {
		return list(changed, func(n int, c column[storedRow]) string { return c.name + " = " + c.write(value(n, c)) })
	}
	return statement[storedRow]{columns,
		"UPDATE once_effects AS p SET " + set(func(_ int, c column[storedRow]) string { return "u." + c.name }) +
			" FROM (SELECT * FROM " + unnest(columns) + " OFFSET 0) AS u WHERE " + sameKey(keyColumns),
		"UPDATE once_effects SET " + set(func(n int, _ column[storedRow]) string { return fmt.Sprintf("?%d", n+len(keyColumns)) }) + " WHERE " + liteKey(keyColumns)}
}
