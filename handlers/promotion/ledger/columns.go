package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// column is a column of a table, and its field in a row.
type column[T any] struct {
	name   string
	kind   string           // type in PostgreSQL
	dest   func(row *T) any // destination of a scan
	value  func(row *T) any
	values func(rows []*T) any // array of the values, for PostgreSQL
}

func col[T, V any](name string, field func(*T) *V) column[T] {
	kind := ""
	switch any(*new(V)).(type) {
	case string, *string:
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
	return column[T]{name, kind,
		func(r *T) any { return field(r) },
		func(r *T) any { return *field(r) },
		func(rows []*T) any { return valuesOf(rows, func(r *T) V { return *field(r) }) }}
}

// timeCol is a column whose null is the zero time.
func timeCol[T any](name string, field func(*T) *time.Time) column[T] {
	return column[T]{name, "timestamptz",
		func(r *T) any { return (*portable.Time)(field(r)) },
		func(r *T) any { return *field(r) },
		func(rows []*T) any { return valuesOf(rows, func(r *T) pgtype.Timestamptz { return stamp(*field(r)) }) }}
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

// unnest returns the call with one array per column.
func unnest[T any](columns []column[T]) string {
	return "unnest(" + list(columns, func(n int, c column[T]) string { return fmt.Sprintf("$%d::%s[]", n, c.kind) }) + ")"
}

// statement writes all rows at once in PostgreSQL, and one row in SQLite.
type statement[T any] struct {
	columns          []column[T]
	postgres, sqlite string
}

func insertInto[T any](table string, columns []column[T], onConflict string) statement[T] {
	insert := "INSERT INTO " + table + " (" + names(columns, "") + ") "
	row := list(columns, func(n int, _ column[T]) string { return fmt.Sprintf("?%d", n) })
	return statement[T]{columns, insert + "SELECT * FROM " + unnest(columns) + onConflict, insert + "VALUES (" + row + ")" + onConflict}
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

// scanRow reads a row of the columns rowColumns or payoutColumns.
func scanRow(r scanner, columns []column[storedRow]) (*storedRow, error) {
	row := &storedRow{}
	err := r.Scan(destinations(row, columns)...)
	row.before = row.Row
	return row, err
}

// The columns of a payout, by when they are written.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	idColumn = []column[storedRow]{col("id", func(r *storedRow) *int64 { return &r.ID })}

	keyColumns = []column[storedRow]{
		col("type", func(r *storedRow) *string { return (*string)(&r.Type) }),
		col("promotion_id", func(r *storedRow) *int64 { return &r.Promotion }),
		col("target_id", func(r *storedRow) *int64 { return &r.Target }),
	}
	insertedColumns = []column[storedRow]{
		col("summary_id", func(r *storedRow) *int64 { return &r.SummaryID }),
		timeCol("accepted_at", func(r *storedRow) *time.Time { return &r.AcceptedAt }),
	}
	insertedAndUpdatedColumns = []column[storedRow]{
		col("state", func(r *storedRow) *string { return (*string)(&r.State) }),
		col("hint", func(r *storedRow) *string { return (*string)(&r.Queue) }),
		timeCol("hint_due", func(r *storedRow) *time.Time { return &r.QueueDue }),
		col("version", func(r *storedRow) *int64 { return &r.Version }),
		timeCol("settled_at", func(r *storedRow) *time.Time { return &r.SettledAt }),
	}
	updatedColumns = []column[storedRow]{
		col("epoch", func(r *storedRow) *int64 { return &r.Epoch }),
		col("attempts", func(r *storedRow) *int { return &r.Attempts }),
		col("asks", func(r *storedRow) *int { return &r.Lookups }),
		col("released", func(r *storedRow) *int { return &r.Released }),
		col("failures", func(r *storedRow) *int { return &r.Failures }),
		col("interruptions", func(r *storedRow) *int { return &r.Interruptions }),
		timeCol("lease_until", func(r *storedRow) *time.Time { return &r.LeaseUntil }),
		timeCol("next_attempt_at", func(r *storedRow) *time.Time { return &r.NextAttemptAt }),
		timeCol("first_sent_at", func(r *storedRow) *time.Time { return &r.FirstSentAt }),
		timeCol("key_first_used_at", func(r *storedRow) *time.Time { return &r.KeyFirstUsedAt }),
		col("maybe_charged", func(r *storedRow) *bool { return &r.MaybeDone }),
		col("asking", func(r *storedRow) *bool { return &r.LookingUp }),
		col("no_charge_seen", func(r *storedRow) *bool { return &r.NotDoneSeen }),
		col("transaction_key", func(r *storedRow) *string { return &r.Receipt }),
		col("last_class", func(r *storedRow) *string { return &r.LastClass }),
		col("last_error", func(r *storedRow) *string { return &r.LastError }),
		timeCol("attempt_started_at", func(r *storedRow) *time.Time { return &r.AttemptStartedAt }),
		col("attempt_by", func(r *storedRow) *string { return &r.AttemptBy }),
	}
	messageColumns = []column[storedRow]{
		col("payload", func(r *storedRow) *[]byte { return &r.payload }),
		col("request", func(r *storedRow) *[]byte { return &r.request }),
		col("headers", func(r *storedRow) *string { return &r.headers }),
		col("record_key", func(r *storedRow) *[]byte { return &r.recordKey }),
		col("origin", func(r *storedRow) *string { return &r.origin }),
	}

	rowColumns    = slices.Concat(idColumn, keyColumns, insertedColumns, insertedAndUpdatedColumns, updatedColumns)
	payoutColumns = slices.Concat(rowColumns, messageColumns)
)

// The statements of a write set.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	insertPayouts = insertInto("payouts", slices.Concat(keyColumns, insertedColumns, insertedAndUpdatedColumns, messageColumns),
		" ON CONFLICT (type, promotion_id, target_id) DO NOTHING")

	updatePayouts = newUpdatePayouts()

	attemptColumns = []column[attemptRow]{
		col("payout_id", func(r *attemptRow) *int64 { return &r.payoutID }),
		col("epoch", func(r *attemptRow) *int64 { return &r.Epoch }),
		col("late", func(r *attemptRow) *bool { return &r.Late }),
		col("attempt", func(r *attemptRow) *int { return &r.Number }),
		col("kind", func(r *attemptRow) *string { return (*string)(&r.Kind) }),
		col("instance", func(r *attemptRow) *string { return &r.Instance }),
		timeCol("started_at", func(r *attemptRow) *time.Time { return &r.StartedAt }),
		timeCol("ended_at", func(r *attemptRow) *time.Time { return &r.EndedAt }),
		col("outcome", func(r *attemptRow) *string { return (*string)(&r.Outcome) }),
		col("class", func(r *attemptRow) *string { return &r.Class }),
		col("answer", func(r *attemptRow) *string { return &r.Answer }),
		col("http_status", func(r *attemptRow) *int { return &r.Status }),
	}
	insertAttempts = insertInto("attempts", attemptColumns, " ON CONFLICT (payout_id, epoch, late) DO NOTHING") // SQLite

	insertPayoutAttempts = insertInto("payout_attempts", slices.Concat(attemptColumns, []column[attemptRow]{ // PostgreSQL
		col("promotion_id", func(r *attemptRow) *int64 { return &r.promotion }),
	}), " ON CONFLICT (payout_id, epoch, late, promotion_id) DO NOTHING")

	insertOutbox = insertInto("outbox", []column[outboxRow]{
		col("kind", func(r *outboxRow) *string { return (*string)(&r.kind) }),
		col("type", func(r *outboxRow) *string { return (*string)(&r.key.Type) }),
		col("promotion_id", func(r *outboxRow) *int64 { return &r.key.Promotion }),
		col("target_id", func(r *outboxRow) *int64 { return &r.key.Target }),
		col("class", func(r *outboxRow) *string { return &r.class }),
		col("error", func(r *outboxRow) *string { return &r.err }),
		col("payload", func(r *outboxRow) *[]byte { return &r.payload }),
		col("headers", func(r *outboxRow) *string { return &r.headers }),
		col("record_key", func(r *outboxRow) *[]byte { return &r.recordKey }),
		col("origin", func(r *outboxRow) *string { return &r.origin }),
		col("handler", func(r *outboxRow) *string { return &r.handler }),
		col("attempts", func(r *outboxRow) *int { return &r.attempts }),
		timeCol("first_failed_at", func(r *outboxRow) *time.Time { return &r.firstFailedAt }),
		timeCol("created_at", func(r *outboxRow) *time.Time { return &r.createdAt }),
		col("dedupe", func(r *outboxRow) **string { return &r.dedupe }),
	}, " ON CONFLICT (dedupe) DO NOTHING")

	// PostgreSQL has pgAddToSummaries.
	addToSummaries = insertInto("promotion_summaries AS s", []column[summaryDelta]{
		col("type", func(r *summaryDelta) *string { return (*string)(&r.Type) }),
		col("promotion_id", func(r *summaryDelta) *int64 { return &r.ID }),
		col("summary_id", func(r *summaryDelta) *int64 { return &r.summary }),
		col("paid", func(r *summaryDelta) *int64 { return &r.paid }),
		col("failed", func(r *summaryDelta) *int64 { return &r.failed }),
		col("unknown", func(r *summaryDelta) *int64 { return &r.unknown }),
		col("cancelled", func(r *summaryDelta) *int64 { return &r.cancelled }),
	}, ` ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`)
)

// newUpdatePayouts returns the update of rows that PostgreSQL has read without a lock. If a row no
// longer has the version that was read, ledger_stale_row raises pgStaleRow, and the complete
// pipeline fails. The parameter after the arrays is the number of rows.
func newUpdatePayouts() statement[storedRow] {
	changed := slices.Concat(insertedAndUpdatedColumns, updatedColumns)
	columns := slices.Concat(keyColumns, changed)
	return statement[storedRow]{columns,
		"WITH done AS (UPDATE payouts AS p SET " + list(changed, func(_ int, c column[storedRow]) string { return c.name + " = u." + c.name }) +
			" FROM (SELECT * FROM " + unnest(columns) + " AS u(" + names(columns, "") + `) OFFSET 0) AS u
WHERE p.type = u.type AND p.promotion_id = u.promotion_id AND p.target_id = u.target_id AND p.version = u.version - 1 RETURNING 1)
SELECT CASE WHEN count(*) = ` + fmt.Sprintf("$%d", len(columns)+1) + ` THEN 1 ELSE ledger_stale_row() END FROM done`,
		"UPDATE payouts SET " + list(changed, func(n int, c column[storedRow]) string { return fmt.Sprintf("%s = ?%d", c.name, n+len(keyColumns)) }) +
			" WHERE type = ?1 AND promotion_id = ?2 AND target_id = ?3"}
}
