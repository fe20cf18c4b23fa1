package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// A begin writes no index, so a lease that has expired is found only among the payouts of the stream.
// Their entries are lost with the stream, which only Redis knows, so each of their promotions counts.
const (
	sqlFirstToFeed = `coalesce((SELECT TRUE FROM payouts AS p WHERE p.type = o.type AND p.promotion_id = o.promotion_id AND p.settled_at IS NULL AND p.feed = `
	sqlFirstEnd    = ` ORDER BY p.feed_at, p.id LIMIT 1), FALSE)`

	sqlToFeed = sqlOpenPromotions + `SELECT w.* FROM (` + sqlUnfinishedRows + ` AND (` +
		sqlFirstToFeed + `'none'` + sqlFirstEnd + ` OR ` +
		sqlFirstToFeed + `'stream'` + sqlFirstEnd + ` OR ` +
		sqlFirstToFeed + `'retry' AND p.feed_at <= $1` + sqlFirstEnd + ` OR
	coalesce((SELECT CASE WHEN s.active THEN s.incarnation = '' ELSE s.waiting_since IS NOT NULL END
		FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), FALSE))` + sqlUnfinishedEnd
)

// ToFeed returns the promotions of Unfinished for which a feeder may have something to do, by one
// statement: those with a payout that is in no queue, in the stream, or overdue for more than grace,
// those that wait for a place, and the active ones whose stream has no recorded incarnation. All
// other promotions only wait for retries.
func (l *Ledger) ToFeed(ctx context.Context, grace time.Duration) (work []UnfinishedPromotion, err error) {
	err = l.read(ctx, "promotions to feed", func(q querier, now time.Time) error {
		work = nil
		return q.query(ctx, func(r scanner) error {
			var u UnfinishedPromotion
			err := r.Scan(u.columns()...)
			work = append(work, u)
			return err
		}, sqlToFeed, now.Add(-grace))
	})
	return work, err
}

// LeaseFeeder makes this instance the feeder of the promotion for ttl, or extends that, and reports
// whether it is. Two feeders at once only enqueue entries twice.
func (l *Ledger) LeaseFeeder(ctx context.Context, p payouts.Promotion, ttl time.Duration) (bool, error) {
	var n int64
	err := l.routine(ctx, "lease feeder", func(q querier, now time.Time) error {
		var err error
		n, err = q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, feeder, feeder_until)
			VALUES ($1, $2, FALSE, $3, $5)
			ON CONFLICT (type, promotion_id) DO UPDATE SET feeder = excluded.feeder, feeder_until = excluded.feeder_until
			WHERE s.feeder = excluded.feeder OR s.feeder_until IS NULL OR s.feeder_until <= $4`,
			string(p.Type), p.ID, l.opts.Instance, now, now.Add(ttl))
		return err
	})
	if n == 0 {
		l.feedNext.Delete(p)
	}
	return n > 0, err
}

// ReleaseFeeder ends all feeder leases of this instance.
func (l *Ledger) ReleaseFeeder(ctx context.Context) error {
	l.feedNext.Clear()
	return l.routine(ctx, "release feeder", func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET feeder_until = NULL, feeder = '' WHERE feeder = $1`, l.opts.Instance)
		return err
	})
}

// FeedItem is a payout that the feeder enqueues.
type FeedItem struct {
	payouts.Key
	Payload   []byte
	RecordKey []byte
	Headers   map[string]string

	id, version int64
}

const sqlFeedColumns = `SELECT id, version, target_id, payload, record_key, headers FROM payouts
WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND feed = `

const (
	sqlFeedUnqueued = sqlFeedColumns + `'none' ORDER BY feed_at, id LIMIT $3`

	sqlFeedLostEntries = sqlFeedColumns + `'stream' AND hint = 'stream' AND hint_due <= $4
AND (lease_until IS NULL OR lease_until <= $5) AND (next_attempt_at IS NULL OR next_attempt_at <= $5) ORDER BY feed_at, id LIMIT $3`

	sqlFeedOverdue = sqlFeedColumns + `'retry' AND feed_at <= $4 ORDER BY feed_at, id LIMIT $3`

	// Payouts of the stream and of the workers are mixed in one order, because a begin writes no
	// index. So they are read in pages.
	sqlFeedPage = ` FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND feed = 'stream' AND (feed_at, id) > ($3, $4) ORDER BY feed_at, id `

	sqlFeedExpiredLeases = `SELECT id, version, target_id, payload, record_key, headers FROM (SELECT *` + sqlFeedPage + `LIMIT 2000) AS page
WHERE hint = 'retry' AND hint_due <= $5 LIMIT $6`

	sqlFeedPageEnd = `SELECT feed_at, id` + sqlFeedPage + `LIMIT 1 OFFSET 1999`
)

// feedPosition is a position in the order of the payouts of a stream.
type feedPosition struct {
	at time.Time
	id int64
}

// FeedUnqueued returns payouts that are in no queue, oldest first, because of a full stream, a
// pause or a loss.
//
// The feeder adds the items of the Feed methods to the stream and then calls MarkEnqueued. A crash
// between the two enqueues them twice.
func (l *Ledger) FeedUnqueued(ctx context.Context, p payouts.Promotion, limit int) ([]FeedItem, error) {
	return l.feed(ctx, p, func(time.Time) (string, []any) { return sqlFeedUnqueued, []any{limit} })
}

// FeedLostEntries returns due payouts that were added to the stream more than grace ago. Their
// entries are lost only if the stream is drained or absent.
func (l *Ledger) FeedLostEntries(ctx context.Context, p payouts.Promotion, grace time.Duration, limit int) ([]FeedItem, error) {
	return l.feed(ctx, p, func(now time.Time) (string, []any) {
		return sqlFeedLostEntries, []any{limit, now.Add(-grace), now}
	})
}

// FeedOverdue returns payouts whose retry record, or lease, has been overdue for more than grace.
// Each call looks for expired leases among the oldest payouts, which a dead worker probably had. It
// also reads the page after that of the call before, so that every expired lease is found.
func (l *Ledger) FeedOverdue(ctx context.Context, p payouts.Promotion, grace time.Duration, limit int) ([]FeedItem, error) {
	items, err := l.feed(ctx, p, func(now time.Time) (string, []any) { return sqlFeedOverdue, []any{limit, now.Add(-grace)} })
	if err != nil {
		return nil, err
	}
	items, end, err := l.feedExpired(ctx, p, feedPosition{at: time.Unix(0, 0)}, grace, limit, items)
	if next, ok := l.feedNext.Load(p); ok && end != nil {
		if next := next.(feedPosition); next.at.After(end.at) || next.at.Equal(end.at) && next.id > end.id {
			end = &next
		}
		items, end, err = l.feedExpired(ctx, p, *end, grace, limit, items)
	}
	switch {
	case err != nil || len(items) == limit: // the rest of the page is read next time
	case end == nil:
		l.feedNext.Delete(p)
	default:
		l.feedNext.Store(p, *end)
	}
	return items, err
}

// feedExpired adds the expired leases of a page to items, at most up to limit, and returns its end.
// The end is nil if items is full, or if no page follows.
func (l *Ledger) feedExpired(ctx context.Context, p payouts.Promotion, page feedPosition, grace time.Duration, limit int, items []FeedItem) (_ []FeedItem, end *feedPosition, err error) {
	if len(items) == limit {
		return items, nil, nil
	}
	expired, err := l.feed(ctx, p, func(now time.Time) (string, []any) {
		return sqlFeedExpiredLeases, []any{page.at, page.id, now.Add(-grace), limit - len(items)}
	})
	items = append(items, expired...)
	if err != nil || len(items) == limit {
		return items, nil, err
	}
	err = l.read(ctx, "feed", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error {
			end = new(feedPosition)
			return r.Scan((*portable.Time)(&end.at), &end.id)
		}, sqlFeedPageEnd, string(p.Type), p.ID, page.at, page.id)
	})
	return items, end, err
}

func (l *Ledger) feed(ctx context.Context, p payouts.Promotion, query func(now time.Time) (string, []any)) ([]FeedItem, error) {
	var rows []FeedItem
	err := l.read(ctx, "feed", func(q querier, now time.Time) error {
		sql, args := query(now)
		return q.query(ctx, func(r scanner) error {
			f := FeedItem{Key: payouts.Key{Type: p.Type, Promotion: p.ID}}
			var headers string
			if err := r.Scan(&f.id, &f.version, &f.Target, &f.Payload, &f.RecordKey, &headers); err != nil {
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

// MarkEnqueued records that these payouts were added to the stream of that incarnation, and returns
// their number. Rows that have changed, or are locked, keep their queue location. So do all if
// another incarnation is recorded. The feeder's next run enqueues them again.
func (l *Ledger) MarkEnqueued(ctx context.Context, p payouts.Promotion, incarnation string, items []FeedItem) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	items = slices.Clone(items)
	sorted.By(items, func(a, b FeedItem) int { return payouts.CompareKeys(a.Key, b.Key) })
	for n := 1; ; n++ {
		marked, err := l.store.markEnqueued(ctx, p, incarnation, items)
		if err == nil {
			return marked, nil
		}
		if f := l.faultOf(err); n == maxTries || f != faultRetry || !loop.Sleep(ctx, time.Duration(n)*time.Millisecond) {
			return 0, l.wrap("mark enqueued", err)
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
