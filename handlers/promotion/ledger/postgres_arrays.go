package ledger

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// Multi-row statements take one array per column. These functions turn rows into columns, in the
// order of the parameters.

func promotionArrays(ps []rules.Promotion) (types []string, ids []int64) {
	types, ids = make([]string, len(ps)), make([]int64, len(ps))
	for i, p := range ps {
		types[i], ids[i] = string(p.Type), p.ID
	}
	return types, ids
}

func keyArrays(keys []rules.Key) (types []string, promotions, targets []int64) {
	types, promotions, targets = make([]string, len(keys)), make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		types[i], promotions[i], targets[i] = string(k.Type), k.Promotion, k.Target
	}
	return types, promotions, targets
}

// column returns one value per row.
func column[T, V any](rows []T, value func(T) V) []V {
	out := make([]V, len(rows))
	for i, r := range rows {
		out[i] = value(r)
	}
	return out
}

func queueInserts(b *pgx.Batch, rows []*storedRow) {
	byKey := make(map[rules.Key]*storedRow, len(rows))
	for _, r := range rows {
		byKey[r.Key] = r
	}
	b.Queue(pgInsertRows,
		column(rows, func(r *storedRow) string { return string(r.Type) }),
		column(rows, func(r *storedRow) int64 { return r.Promotion }),
		column(rows, func(r *storedRow) int64 { return r.Target }),
		column(rows, func(r *storedRow) int64 { return r.SummaryID }),
		column(rows, func(r *storedRow) string { return string(r.State) }),
		column(rows, func(r *storedRow) string { return string(r.Queue) }),
		column(rows, func(r *storedRow) pgtype.Timestamptz { return stamp(r.QueueDue) }),
		column(rows, func(r *storedRow) int64 { return r.Version }),
		column(rows, func(r *storedRow) pgtype.Timestamptz { return stamp(r.AcceptedAt) }),
		column(rows, func(r *storedRow) pgtype.Timestamptz { return stamp(r.SettledAt) }),
		column(rows, func(r *storedRow) []byte { return r.payload }),
		column(rows, func(r *storedRow) []byte { return r.request }),
		column(rows, func(r *storedRow) string { return r.headers }),
		column(rows, func(r *storedRow) []byte { return r.recordKey }),
		column(rows, func(r *storedRow) string { return r.origin }),
	).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id int64
			var k rules.Key
			if err := rows.Scan(&id, (*string)(&k.Type), &k.Promotion, &k.Target); err != nil {
				return err
			}
			byKey[k].ID = id
		}
		return rows.Err()
	})
}

func rowArrays(rows []*rules.Row) []any {
	return []any{
		column(rows, func(r *rules.Row) int64 { return r.ID }),
		column(rows, func(r *rules.Row) string { return string(r.State) }),
		column(rows, func(r *rules.Row) string { return string(r.Queue) }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.QueueDue) }),
		column(rows, func(r *rules.Row) int64 { return r.Version }),
		column(rows, func(r *rules.Row) int64 { return r.Epoch }),
		column(rows, func(r *rules.Row) int32 { return int32(r.Attempts) }),
		column(rows, func(r *rules.Row) int32 { return int32(r.Lookups) }),
		column(rows, func(r *rules.Row) int32 { return int32(r.Failures) }),
		column(rows, func(r *rules.Row) int32 { return int32(r.Interruptions) }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.LeaseUntil) }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.NextAttemptAt) }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.FirstSentAt) }),
		column(rows, func(r *rules.Row) bool { return r.MaybeCharged }),
		column(rows, func(r *rules.Row) bool { return r.LookingUp }),
		column(rows, func(r *rules.Row) string { return r.TransactionKey }),
		column(rows, func(r *rules.Row) string { return r.LastClass }),
		column(rows, func(r *rules.Row) string { return r.LastError }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.AttemptStartedAt) }),
		column(rows, func(r *rules.Row) string { return r.AttemptBy }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.SettledAt) }),
		column(rows, func(r *rules.Row) int32 { return int32(r.Released) }),
		column(rows, func(r *rules.Row) pgtype.Timestamptz { return stamp(r.KeyFirstUsedAt) }),
		column(rows, func(r *rules.Row) bool { return r.NoChargeSeen }),
	}
}

func attemptArrays(rows []attemptRow) []any {
	return []any{
		column(rows, func(r attemptRow) int64 { return r.payoutID }),
		column(rows, func(r attemptRow) int64 { return r.Epoch }),
		column(rows, func(r attemptRow) bool { return r.Late }),
		column(rows, func(r attemptRow) int32 { return int32(r.Number) }),
		column(rows, func(r attemptRow) string { return string(r.Kind) }),
		column(rows, func(r attemptRow) string { return r.Instance }),
		column(rows, func(r attemptRow) pgtype.Timestamptz { return stamp(r.StartedAt) }),
		column(rows, func(r attemptRow) pgtype.Timestamptz { return stamp(r.EndedAt) }),
		column(rows, func(r attemptRow) string { return string(r.Outcome) }),
		column(rows, func(r attemptRow) string { return r.Class }),
		column(rows, func(r attemptRow) string { return r.Answer }),
		column(rows, func(r attemptRow) int32 { return int32(r.Status) }),
	}
}

func outboxArrays(rows []outboxRow) []any {
	return []any{
		column(rows, func(r outboxRow) string { return string(r.kind) }),
		column(rows, func(r outboxRow) string { return string(r.key.Type) }),
		column(rows, func(r outboxRow) int64 { return r.key.Promotion }),
		column(rows, func(r outboxRow) int64 { return r.key.Target }),
		column(rows, func(r outboxRow) string { return r.class }),
		column(rows, func(r outboxRow) string { return r.err }),
		column(rows, func(r outboxRow) []byte { return r.payload }),
		column(rows, func(r outboxRow) string { return r.headers }),
		column(rows, func(r outboxRow) []byte { return r.recordKey }),
		column(rows, func(r outboxRow) string { return r.origin }),
		column(rows, func(r outboxRow) string { return r.handler }),
		column(rows, func(r outboxRow) int32 { return int32(r.attempts) }),
		column(rows, func(r outboxRow) pgtype.Timestamptz { return stamp(r.firstFailedAt) }),
		column(rows, func(r outboxRow) pgtype.Timestamptz { return stamp(r.createdAt) }),
		column(rows, func(r outboxRow) pgtype.Text { return pgtype.Text{String: r.dedupe, Valid: r.dedupe != ""} }),
	}
}

func summaryArrays(rows []summaryDelta) []any {
	return []any{
		column(rows, func(r summaryDelta) string { return string(r.Type) }),
		column(rows, func(r summaryDelta) int64 { return r.ID }),
		column(rows, func(r summaryDelta) int64 { return r.summary }),
		column(rows, func(r summaryDelta) int64 { return r.paid }),
		column(rows, func(r summaryDelta) int64 { return r.failed }),
		column(rows, func(r summaryDelta) int64 { return r.unknown }),
		column(rows, func(r summaryDelta) int64 { return r.cancelled }),
	}
}
