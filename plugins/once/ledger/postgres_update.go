package ledger

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Most updates are those of a first begin and of a first answer. They change the same few columns in each row, so
// their statements have no array per column of the table.

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	pgBeginEffects = `UPDATE once_effects AS p SET due = u.due, state = $5, epoch = $6, attempts = $7, lease_until = $8, first_sent_at = $9, key_first_used_at = $10,
	attempt_started_at = $11, attempt_by = $12, next_attempt_at = NULL
FROM (SELECT * FROM unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[]) AS u(kind, grp, id, due) OFFSET 0) AS u WHERE ` + sameKey(keyColumns)

	pgEndEffects = `UPDATE once_effects AS p SET due = NULL, state = $6, settled_at = $7, lease_until = NULL, status = nullif(u.status, 0), receipt = nullif(u.receipt, '')
FROM (SELECT * FROM unnest($1::smallint[], $2::text[], $3::text[], $4::smallint[], $5::text[]) AS u(kind, grp, id, status, receipt) OFFSET 0) AS u WHERE ` + sameKey(keyColumns)
)

// begun is what a first begin sets, besides the number of the row in once_due.
type begun struct {
	epoch                                int64
	attempts                             int
	lease, firstSent, keyUsed, startedAt time.Time
	by                                   string
}

// firstBegin reports whether a row has changed only as pgBeginEffects can change it.
func firstBegin(r *storedRow) (b begun, ok bool) {
	to, from := r.Row, r.read.Row
	from.State, from.Epoch, from.Attempts, from.LeaseUntil, from.FirstSentAt = rules.Sending, to.Epoch, to.Attempts, to.LeaseUntil, to.FirstSentAt
	from.KeyFirstUsedAt, from.AttemptStartedAt, from.AttemptBy, from.NextAttemptAt = to.KeyFirstUsedAt, to.AttemptStartedAt, to.AttemptBy, time.Time{}
	b = begun{to.Epoch, to.Attempts, to.LeaseUntil, to.FirstSentAt, to.KeyFirstUsedAt, to.AttemptStartedAt, to.AttemptBy}
	return b, stored(to) == from && r.status == r.read.status && r.lastSentAt.Equal(r.read.lastSentAt) && to.Attempts > 0 && to.AttemptBy != ""
}

// firstEnd reports whether a row has changed only as pgEndEffects can change it.
func firstEnd(r *storedRow) bool {
	to, from := r.Row, r.read.Row
	from.State, from.SettledAt, from.LeaseUntil, from.Receipt = rules.Success, to.SettledAt, time.Time{}, to.Receipt
	return r.due == 0 && stored(to) == from && r.lastSentAt.Equal(r.read.lastSentAt)
}

// queueUpdates adds the updates of effects that the transaction has locked.
func queueUpdates(b *pgx.Batch, rows []*storedRow) {
	var begins, ends, others []*storedRow
	var begin begun
	for _, r := range rows {
		switch is, ok := firstBegin(r); {
		case ok && (len(begins) == 0 || is == begin):
			begin, begins = is, append(begins, r)
		case firstEnd(r) && (len(ends) == 0 || ends[0].SettledAt.Equal(r.SettledAt)):
			ends = append(ends, r)
		default:
			others = append(others, r)
		}
	}
	keys := func(rows []*storedRow) []any {
		kinds, groups, ids := keyArrays(valuesOf(rows, func(r *storedRow) rowKey { return r.rowKey }))
		return []any{kinds, groups, ids}
	}
	if len(begins) > 0 {
		b.Queue(pgBeginEffects, append(keys(begins), valuesOf(begins, func(r *storedRow) int64 { return r.due }), effectCode(rules.Sending),
			begin.epoch, begin.attempts, stamp(begin.lease), stamp(begin.firstSent), stamp(begin.keyUsed), stamp(begin.startedAt), begin.by)...)
	}
	if len(ends) > 0 {
		b.Queue(pgEndEffects, append(keys(ends), valuesOf(ends, func(r *storedRow) int { return r.status }), valuesOf(ends, func(r *storedRow) string { return r.Receipt }),
			effectCode(rules.Success), stamp(ends[0].SettledAt))...)
	}
	queueRows(b, updateEffects, others)
}
