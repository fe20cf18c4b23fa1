package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/outbox"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// OutboxKind is the kind of an outbox row.
type OutboxKind string

// The kinds of outbox rows.
const (
	OutboxDead    OutboxKind = "dead"   // a dead letter
	OutboxOutcome OutboxKind = "result" // the end of a payout; Payload is an OutcomeEvent
)

// OutboxMessage is an outbox row to publish.
type OutboxMessage struct {
	ID            int64 // increases; the same when a message is passed again
	Kind          OutboxKind
	Key           payouts.Key
	Class         string // of a dead letter; of a result its state
	Error         string
	Payload       []byte
	Headers       map[string]string
	RecordKey     []byte
	Origin        string
	Route         string
	Attempts      int
	FirstFailedAt time.Time
	CreatedAt     time.Time

	tries int
}

// outboxClaimTime is how long claimed rows are reserved for one instance; it bounds a publish.
const outboxClaimTime = 30 * time.Second

// MATERIALIZED, so that the rows are selected and locked exactly once.
const sqlClaim = `WITH picked AS MATERIALIZED (
	SELECT id FROM outbox WHERE kind = $1 AND published_at IS NULL AND (claimed_until IS NULL OR claimed_until <= $2)
	ORDER BY id LIMIT $3%s)
UPDATE outbox SET claimed_until = $4, tries = tries + 1 WHERE id IN (SELECT id FROM picked)
RETURNING id, type, promotion_id, target_id, class, error, payload, headers, record_key, origin, handler, attempts, tries, first_failed_at, created_at`

// Relay publishes up to limit rows of the outbox, oldest first, and returns the number of published
// rows. Several instances may relay at once: each row is claimed by one. Each row is published at
// least once.
//
// If publish fails without naming the rows (pipeline.PartialError), they are tried one by one, so
// that one bad row delays no other. Failed rows stay for later, and their errors are joined in the
// result.
func (l *Ledger) Relay(ctx context.Context, kind OutboxKind, limit int, publish func(context.Context, []OutboxMessage) error) (int, error) {
	claimed, err := l.claim(ctx, kind, limit)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	work, cancel := context.WithTimeout(ctx, outboxClaimTime/2)
	defer cancel()
	published, failed, err := outbox.Publish(work, claimed, publish)
	n := len(published)
	if marked := l.published(ctx, kind, published); marked != nil {
		n, err = 0, errors.Join(err, marked)
	}
	return n, errors.Join(err, l.postpone(ctx, failed))
}

func (l *Ledger) claim(ctx context.Context, kind OutboxKind, limit int) ([]OutboxMessage, error) {
	var claimed []OutboxMessage
	err := l.routine(ctx, "claim outbox rows", func(q querier, now time.Time) error {
		claimed = claimed[:0]
		return q.query(ctx, func(r scanner) error {
			m := OutboxMessage{Kind: kind}
			var headers string
			if err := r.Scan(&m.ID, (*string)(&m.Key.Type), &m.Key.Promotion, &m.Key.Target, &m.Class, &m.Error, &m.Payload, &headers, &m.RecordKey,
				&m.Origin, &m.Route, &m.Attempts, &m.tries, (*portable.Time)(&m.FirstFailedAt), (*portable.Time)(&m.CreatedAt)); err != nil {
				return err
			}
			var err error
			m.Headers, err = decodeHeaders(headers)
			claimed = append(claimed, m)
			return err
		}, fmt.Sprintf(sqlClaim, q.forUpdate(true)), string(kind), now, limit, now.Add(outboxClaimTime))
	})
	sorted.By(claimed, func(a, b OutboxMessage) int { return cmp.Compare(a.ID, b.ID) })
	return claimed, err
}

// published deletes results. Dead letters stay, because they are counted.
func (l *Ledger) published(ctx context.Context, kind OutboxKind, ms []OutboxMessage) error {
	if len(ms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return l.routine(ctx, "mark outbox rows published", func(q querier, now time.Time) error {
		ids := make([]int64, len(ms))
		for i, m := range ms {
			ids[i] = m.ID
		}
		if kind == OutboxOutcome {
			in, arg := q.anyOf("$1", ids)
			_, err := q.exec(ctx, `DELETE FROM outbox WHERE id `+in, arg)
			return err
		}
		in, arg := q.anyOf("$2", ids)
		_, err := q.exec(ctx, `UPDATE outbox SET published_at = $1 WHERE id `+in, now, arg)
		return err
	})
}

// postpone releases rows, with a delay.
func (l *Ledger) postpone(ctx context.Context, ms []OutboxMessage) error {
	if len(ms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return l.routine(ctx, "postpone outbox rows", func(q querier, now time.Time) error {
		for _, m := range ms {
			if _, err := q.exec(ctx, `UPDATE outbox SET claimed_until = $2 WHERE id = $1 AND published_at IS NULL`, m.ID, now.Add(outbox.Delay(m.tries))); err != nil {
				return err
			}
		}
		return nil
	})
}
