package ledger

import (
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// The columns of payouts that both databases read, in the order of rowDestinations.
const (
	rowColumns = `p.id, p.type, p.promotion_id, p.target_id, p.summary_id, p.state, p.hint, p.hint_due, p.version,
	p.epoch, p.attempts, p.asks, p.failures, p.interruptions, p.lease_until, p.next_attempt_at, p.first_sent_at,
	p.maybe_charged, p.asking, p.transaction_key, p.last_class, p.last_error, p.attempt_started_at, p.attempt_by,
	p.accepted_at, p.settled_at, p.released, p.key_first_used_at, p.no_charge_seen`

	messageColumns = `p.payload, p.request, p.headers, p.record_key, p.origin`
)

// rowTimes are the columns of a row that may be null.
type rowTimes struct{ due, lease, next, first, started, accepted, settled, used sqldb.Time }

// rowDestinations are the destinations of a scan of rowColumns, and of messageColumns. After the
// scan, t.copyTo sets the times of the row.
func rowDestinations(r *storedRow, t *rowTimes, messages bool) []any {
	dest := []any{&r.ID, (*string)(&r.Type), &r.Promotion, &r.Target, &r.SummaryID, (*string)(&r.State), (*string)(&r.Queue), &t.due,
		&r.Version, &r.Epoch, &r.Attempts, &r.Lookups, &r.Failures, &r.Interruptions, &t.lease, &t.next, &t.first,
		&r.MaybeCharged, &r.LookingUp, &r.TransactionKey, &r.LastClass, &r.LastError, &t.started, &r.AttemptBy, &t.accepted, &t.settled,
		&r.Released, &t.used, &r.NoChargeSeen}
	if messages {
		dest = append(dest, &r.payload, &r.request, &r.headers, &r.recordKey, &r.origin)
	}
	return dest
}

func (t *rowTimes) copyTo(r *rules.Row) {
	r.QueueDue, r.LeaseUntil, r.NextAttemptAt, r.FirstSentAt = t.due.Time, t.lease.Time, t.next.Time, t.first.Time
	r.AttemptStartedAt, r.AcceptedAt, r.SettledAt, r.KeyFirstUsedAt = t.started.Time, t.accepted.Time, t.settled.Time, t.used.Time
}
