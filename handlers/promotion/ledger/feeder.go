package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Work is a promotion with unsettled payouts that is not paused.
type Work struct {
	Promotion
	State       PromotionState
	Active      bool
	Queued      bool // it is not active and waits for a place on the active set
	TotalCount  int64
	Incarnation string // recorded of its stream; empty: none
}

// Unfinished returns every promotion with unsettled payouts that is not paused, active or not. It skips
// from promotion to promotion in the index of unsettled payouts: its cost is their number, not the payouts'.
func (l *Ledger) Unfinished(ctx context.Context) ([]Work, error) {
	var work []Work
	err := l.read(ctx, "unfinished promotions", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var w Work
			if err := r.Scan((*string)(&w.Type), &w.ID, (*string)(&w.State), &w.Active, &w.Queued, &w.TotalCount, &w.Incarnation); err != nil {
				return err
			}
			work = append(work, w)
			return nil
		}, sqlUnfinished)
	})
	return work, err
}

// The loose index scan: one probe a promotion.
const sqlUnfinished = `WITH RECURSIVE open(type, promotion_id) AS (
	SELECT * FROM (SELECT type, promotion_id FROM payouts WHERE settled_at IS NULL ORDER BY type, promotion_id LIMIT 1) AS first
	UNION ALL
	SELECT (SELECT p.type FROM payouts AS p WHERE p.settled_at IS NULL AND (p.type, p.promotion_id) > (o.type, o.promotion_id)
			ORDER BY p.type, p.promotion_id LIMIT 1),
		(SELECT p.promotion_id FROM payouts AS p WHERE p.settled_at IS NULL AND (p.type, p.promotion_id) > (o.type, o.promotion_id)
			ORDER BY p.type, p.promotion_id LIMIT 1)
	FROM open AS o WHERE o.type IS NOT NULL
)
SELECT * FROM (SELECT o.type, o.promotion_id,
	coalesce((SELECT pr.state FROM promotions AS pr WHERE pr.type = o.type AND pr.promotion_id = o.promotion_id), 'RUNNING') AS state,
	coalesce((SELECT s.active FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), FALSE) AS active,
	coalesce((SELECT NOT s.active AND s.waiting_since IS NOT NULL FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), FALSE) AS queued,
	coalesce((SELECT s.total_count FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), 0) AS total_count,
	coalesce((SELECT s.incarnation FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), '') AS incarnation
	FROM open AS o WHERE o.type IS NOT NULL) AS w
WHERE state <> 'PAUSED' ORDER BY type, promotion_id`

// LeaseFeeder makes this instance the promotion's feeder for ttl, or prolongs that, and reports whether it
// is. Two feeders at once repeat hints and lose none.
func (l *Ledger) LeaseFeeder(ctx context.Context, p Promotion, ttl time.Duration) (bool, error) {
	var n int64
	err := l.update(ctx, "lease feeder", nil, func(q querier, now time.Time) error {
		var err error
		n, err = q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, feeder, feeder_until)
			VALUES ($1, $2, FALSE, $3, $5)
			ON CONFLICT (type, promotion_id) DO UPDATE SET feeder = excluded.feeder, feeder_until = excluded.feeder_until
			WHERE s.feeder = excluded.feeder OR s.feeder_until IS NULL OR s.feeder_until <= $4`,
			string(p.Type), p.ID, l.opts.Instance, now, now.Add(ttl))
		return err
	})
	return n > 0, err
}

// ReleaseFeeder lets other instances feed at once what this one was the feeder of.
func (l *Ledger) ReleaseFeeder(ctx context.Context) error {
	return l.update(ctx, "release feeder", nil, func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET feeder_until = NULL, feeder = '' WHERE feeder = $1`, l.opts.Instance)
		return err
	})
}

// Incarnation returns the recorded incarnation of the promotion's stream; empty when none is.
func (l *Ledger) Incarnation(ctx context.Context, p Promotion) (token string, err error) {
	err = l.read(ctx, "incarnation", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&token) },
			`SELECT incarnation FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	})
	return token, err
}

// sameIncarnation locks the promotion's stream row and compares.
func sameIncarnation(ctx context.Context, q querier, p Promotion, incarnation string) (bool, error) {
	recorded := ""
	err := q.query(ctx, func(r scanner) error { return r.Scan(&recorded) },
		`SELECT incarnation FROM promotion_streams WHERE type = $1 AND promotion_id = $2`+q.forUpdate(false), string(p.Type), p.ID)
	return recorded == incarnation, err
}

// Adopt records the incarnation of a stream when none is on record, and reports whether incarnation is now
// the one on record. The promotion's feeder calls it for the stream that it feeds, and whoever creates a stream calls it
// before anything is added: so the loss of a stream is noticed that no feeder has seen. A record of an earlier stream
// stays: the feeder books its loss.
func (l *Ledger) Adopt(ctx context.Context, p Promotion, incarnation string) (bool, error) {
	same := false
	err := l.update(ctx, "adopt incarnation", nil, func(q querier, _ time.Time) error {
		if _, err := q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, incarnation)
			VALUES ($1, $2, FALSE, $3) ON CONFLICT (type, promotion_id) DO UPDATE SET incarnation = excluded.incarnation
			WHERE s.incarnation = ''`, string(p.Type), p.ID, incarnation); err != nil {
			return err
		}
		var err error
		same, err = sameIncarnation(ctx, q, p, incarnation)
		return err
	})
	return same, err
}

// AdoptActive is Adopt for a stream that the promotion's feeder has found. It changes nothing while the promotion is off the
// active set: that stream is being cleaned up, and its deletion is not a loss.
func (l *Ledger) AdoptActive(ctx context.Context, p Promotion, incarnation string) error {
	return l.update(ctx, "adopt incarnation", nil, func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET incarnation = $3
			WHERE type = $1 AND promotion_id = $2 AND incarnation = '' AND active`, string(p.Type), p.ID, incarnation)
		return err
	})
}

// Lost books the loss of a stream, when recorded is still the incarnation on record: in one transaction every
// unsettled payout whose hint was in the stream has none, and found is on record (empty: the stream is absent). It
// returns how many payouts lost their hint, and whether there was a loss to book. Only the promotion's feeder calls it.
//
// One call runs at a time and the others wait: each may write a hundred thousand rows, and together they would take every
// connection of status, readiness and outbox.
func (l *Ledger) Lost(ctx context.Context, p Promotion, recorded, found string) (n int64, booked bool, err error) {
	select {
	case l.losses <- struct{}{}:
		defer func() { <-l.losses }()
	case <-ctx.Done():
		return 0, false, ctx.Err()
	}
	err = l.update(ctx, "book a lost stream", nil, func(q querier, now time.Time) error {
		n, booked = 0, false
		same, err := sameIncarnation(ctx, q, p, recorded)
		if err != nil || !same || recorded == "" {
			return err
		}
		if n, err = unhint(ctx, q, p, now); err != nil {
			return err
		}
		booked = true
		_, err = q.exec(ctx, `UPDATE promotion_streams SET incarnation = $3 WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID, found)
		return err
	})
	return n, booked && err == nil, err
}

// unhint sets the hint of every unsettled payout in the stream to none.
func unhint(ctx context.Context, q querier, p Promotion, now time.Time) (int64, error) {
	// The rows are locked in the order of every other batch.
	if q.forUpdate(false) != "" {
		if _, err := q.exec(ctx, `SELECT id FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = 'stream'
			ORDER BY target_id`+q.forUpdate(false), string(p.Type), p.ID); err != nil {
			return 0, err
		}
	}
	return q.exec(ctx, `UPDATE payouts SET hint = 'none', hint_due = $3, version = version + 1
		WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = 'stream'`, string(p.Type), p.ID, now)
}

// Feed is a payout whose hint is to be enqueued.
type Feed struct {
	Key
	Payload   []byte
	RecordKey []byte
	Headers   map[string]string

	id, seq int64
}

const sqlFeedColumns = `SELECT id, version, target_id, payload, record_key, headers FROM payouts
WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = `

const (
	sqlFeedNone = sqlFeedColumns + `'none' ORDER BY hint_due, id LIMIT $3`

	sqlFeedLostTail = sqlFeedColumns + `'stream' AND hint_due <= $4
AND (lease_until IS NULL OR lease_until <= $5) AND (next_attempt_at IS NULL OR next_attempt_at <= $5) ORDER BY hint_due, id LIMIT $3`

	sqlFeedOverdue = sqlFeedColumns + `'retry' AND hint_due <= $4 ORDER BY hint_due, id LIMIT $3`
)

// FeedNone returns payouts without a hint, oldest first: those that met a full stream, a pause or a loss.
//
// The feeder adds what the Feed functions return to the stream and then calls MarkFed. A crash between the
// two repeats a hint.
func (l *Ledger) FeedNone(ctx context.Context, p Promotion, limit int) ([]Feed, error) {
	return l.feed(ctx, p, func(time.Time) (string, []any) { return sqlFeedNone, []any{limit} })
}

// FeedLostTail returns due payouts whose hint went into the stream more than grace ago. Only when the stream
// is drained or absent does that mean that the hint is gone.
func (l *Ledger) FeedLostTail(ctx context.Context, p Promotion, grace time.Duration, limit int) ([]Feed, error) {
	return l.feed(ctx, p, func(now time.Time) (string, []any) {
		return sqlFeedLostTail, []any{limit, now.Add(-grace), now}
	})
}

// FeedOverdue returns payouts whose retry record, or whose worker's lease, has been overdue for more than grace.
func (l *Ledger) FeedOverdue(ctx context.Context, p Promotion, grace time.Duration, limit int) ([]Feed, error) {
	return l.feed(ctx, p, func(now time.Time) (string, []any) { return sqlFeedOverdue, []any{limit, now.Add(-grace)} })
}

func (l *Ledger) feed(ctx context.Context, p Promotion, query func(now time.Time) (string, []any)) ([]Feed, error) {
	var rows []Feed
	err := l.read(ctx, "feed", func(q querier, now time.Time) error {
		sql, args := query(now)
		return q.query(ctx, func(r scanner) error {
			f := Feed{Key: Key{Type: p.Type, Promotion: p.ID}}
			var headers string
			if err := r.Scan(&f.id, &f.seq, &f.Target, &f.Payload, &f.RecordKey, &headers); err != nil {
				return err
			}
			var err error
			f.Headers, err = decodeHeaders(headers)
			rows = append(rows, f)
			return err
		}, sql, append([]any{string(p.Type), p.ID}, args...)...)
	})
	return rows, err
}

// MarkFed says that these payouts were added to the stream of that incarnation. Payouts whose hint has changed
// since they were read keep what they have, and so do those whose row another transaction has locked, and all when another
// incarnation is on record: the next round feeds them again. It returns how many were marked.
func (l *Ledger) MarkFed(ctx context.Context, p Promotion, incarnation string, fed []Feed) (int, error) {
	if len(fed) == 0 {
		return 0, nil
	}
	fed = slices.Clone(fed)
	slices.SortFunc(fed, func(a, b Feed) int { return compareKeys(a.Key, b.Key) })
	for n := 1; ; n++ {
		marked, err := l.store.markFed(ctx, p, incarnation, fed)
		if err == nil {
			return marked, nil
		}
		if n == tries || l.store.fault(err) != faultRetry || wait(ctx, time.Duration(n)*time.Millisecond) != nil {
			return 0, l.wrap("mark fed", err)
		}
	}
}

func decodeHeaders(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var h map[string]string
	err := json.Unmarshal([]byte(s), &h)
	return h, err
}
