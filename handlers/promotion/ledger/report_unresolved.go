package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// unknownPage is the number of dead letters that EachUnknown reads at once.
const unknownPage = 500

// Every UNKNOWN payout has a dead letter of its class. Dead letters are few, so the payouts need no
// index of their own.
const sqlUnknown = `SELECT type, promotion_id, target_id FROM outbox
WHERE kind = 'dead' AND class = 'unknown' AND (type, promotion_id, target_id) > ($1, $2, $3)
ORDER BY type, promotion_id, target_id LIMIT $4`

// EachUnknown calls fn for every UNKNOWN payout in order of type, promotion and target, in bounded
// memory. since is the time for which it has been UNKNOWN. An error of fn ends it and is returned
// unchanged.
func (l *Ledger) EachUnknown(ctx context.Context, fn func(r rules.Row, since time.Duration) error) error {
	for last := (rules.Key{}); ; {
		n := 0
		var keys []rules.Key
		err := l.read(ctx, "unknown payouts", func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error {
				var k rules.Key
				err := r.Scan((*string)(&k.Type), &k.Promotion, &k.Target)
				if n++; k != last {
					keys = append(keys, k)
				}
				last = k
				return err
			}, sqlUnknown, string(last.Type), last.Promotion, last.Target, unknownPage)
		})
		if err != nil {
			return err
		}
		if err := l.eachUnknown(ctx, keys, fn); err != nil {
			return err
		}
		if n < unknownPage {
			return nil
		}
	}
}

// eachUnknown calls fn for those of keys, sorted and unique, that are UNKNOWN.
func (l *Ledger) eachUnknown(ctx context.Context, keys []rules.Key, fn func(rules.Row, time.Duration) error) error {
	if len(keys) == 0 {
		return nil
	}
	tx, read, err := l.store.begin(ctx, readRequest{keys: keys})
	if err != nil {
		return l.wrap("read payouts", err)
	}
	tx.rollback()
	for _, k := range keys {
		if row := read.rows[k]; row != nil && row.State == rules.Unknown {
			if err := fn(row.Row, read.now.Sub(row.SettledAt)); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxAmbiguous is the number of payouts that EachLookupOnly reads.
const maxAmbiguous = 1000

const sqlAmbiguous = ` WHERE settled_at IS NULL AND state = 'AMBIGUOUS' ORDER BY first_sent_at, id LIMIT $1`

// EachLookupOnly calls fn for every AMBIGUOUS payout that is only looked up, oldest first. since is
// the time since its oldest request started. Resolve with Force ends them. It reads the 1,000
// oldest AMBIGUOUS payouts. An error of fn ends it and is returned unchanged.
func (l *Ledger) EachLookupOnly(ctx context.Context, fn func(r rules.Row, since time.Duration) error) error {
	var rows []rules.Row
	states := map[rules.Promotion]rules.PromotionState{}
	var now time.Time
	err := l.read(ctx, "payouts that are looked up", func(q querier, at time.Time) error {
		now = at
		if err := q.query(ctx, func(r scanner) error {
			e, err := scanPayout(r)
			rows = append(rows, e.Row)
			states[e.OfPromotion()] = ""
			return err
		}, sqlPayouts+sqlAmbiguous, maxAmbiguous); err != nil {
			return err
		}
		for p := range states {
			var err error
			if states[p], err = readPromotion(ctx, q, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range rows {
		if next, _ := l.policy.NextBegin(row, states[row.OfPromotion()], now); next != rules.Lookup {
			continue
		}
		if err := fn(row, now.Sub(row.FirstSentAt)); err != nil {
			return err
		}
	}
	return nil
}
