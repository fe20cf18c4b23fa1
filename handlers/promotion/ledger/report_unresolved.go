package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// unknownPage is the number of dead letters that EachUnknown reads at once.
const unknownPage = 500

// Every UNKNOWN payout has a dead letter of its class, and these have an index of their own. So the
// cost depends on the number of payouts that are or were UNKNOWN, not on that of the dead letters.
const sqlUnknown = `SELECT type, promotion_id, target_id FROM outbox
WHERE kind = 'dead' AND class = 'unknown' AND (type, promotion_id, target_id) > ($1, $2, $3)
ORDER BY type, promotion_id, target_id LIMIT $4`

// EachUnknown calls fn for every UNKNOWN payout in order of type, promotion and target, in bounded
// memory. since is the time for which it has been UNKNOWN. An error of fn ends it and is returned
// unchanged.
func (l *Ledger) EachUnknown(ctx context.Context, fn func(r payouts.Row, since time.Duration) error) error {
	for last := (payouts.Key{}); ; {
		keys, err := selectAll(ctx, l, "unknown payouts", func(r scanner, k *payouts.Key, _ time.Time) error {
			return r.Scan((*string)(&k.Type), &k.Promotion, &k.Target)
		}, sqlUnknown, string(last.Type), last.Promotion, last.Target, unknownPage)
		if err != nil {
			return err
		}
		if err := l.eachUnknown(ctx, slices.Compact(slices.Clone(keys)), fn); err != nil {
			return err
		}
		if len(keys) < unknownPage {
			return nil
		}
		last = keys[len(keys)-1]
	}
}

// eachUnknown calls fn for those of keys, sorted and unique, that are UNKNOWN.
func (l *Ledger) eachUnknown(ctx context.Context, keys []payouts.Key, fn func(payouts.Row, time.Duration) error) error {
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

//nolint:gochecknoglobals // constant, but not for the compiler
var sqlPerhapsCharged = sqlPayouts + ` WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL
AND (maybe_charged OR state = 'SENDING' AND NOT asking) ORDER BY first_sent_at, id LIMIT $3`

// PerhapsCharged returns the payouts of a promotion that Counts.PerhapsCharged counts, oldest request first and at most
// limit of them. Its cost depends on the number of unsettled payouts.
func (l *Ledger) PerhapsCharged(ctx context.Context, p payouts.Promotion, limit int) ([]payouts.Row, error) {
	return selectAll(ctx, l, "payouts that are perhaps charged", func(r scanner, row *payouts.Row, _ time.Time) error {
		e, err := scanPayout(r)
		*row = e.Row
		return err
	}, sqlPerhapsCharged, string(p.Type), p.ID, limit)
}

const sqlOldest = `SELECT target_id FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL
ORDER BY accepted_at, id LIMIT $3`

// Oldest returns the unsettled payouts of a promotion that were accepted first, at most limit of them. Its cost depends on
// the number of unsettled payouts.
func (l *Ledger) Oldest(ctx context.Context, p payouts.Promotion, limit int) ([]payouts.Key, error) {
	return selectAll(ctx, l, "oldest payouts", func(r scanner, k *payouts.Key, _ time.Time) error {
		k.Type, k.Promotion = p.Type, p.ID
		return r.Scan(&k.Target)
	}, sqlOldest, string(p.Type), p.ID, limit)
}

// maxAmbiguous is the number of payouts that EachLookupOnly reads.
const maxAmbiguous = 1000

// An AMBIGUOUS payout may have been charged, and these payouts have an index of their own, in whose
// order they are read. So the cost does not depend on the number of other unsettled payouts.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlAmbiguous = `SELECT ` + names(payoutColumns, "") + ` FROM (SELECT * FROM payouts
WHERE settled_at IS NULL AND maybe_charged AND state = 'AMBIGUOUS' ORDER BY type, promotion_id, id) AS doubtful
ORDER BY first_sent_at, id LIMIT $1`

// EachLookupOnly calls fn for every AMBIGUOUS payout that is only looked up, oldest first. since is
// the time since its oldest request started. Resolve with Force ends them. It reads the 1,000
// oldest AMBIGUOUS payouts. An error of fn ends it and is returned unchanged.
func (l *Ledger) EachLookupOnly(ctx context.Context, fn func(r payouts.Row, since time.Duration) error) error {
	states := map[payouts.Promotion]rules.GroupState{}
	var now time.Time
	rows, err := selectAll(ctx, l, "payouts that are looked up", func(r scanner, row *payouts.Row, at time.Time) error {
		e, err := scanPayout(r)
		*row, now = e.Row, at
		states[e.OfPromotion()] = ""
		return err
	}, sqlAmbiguous, maxAmbiguous)
	if err != nil {
		return err
	}
	err = l.read(ctx, "promotions", func(q querier, _ time.Time) error {
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
		if next, _ := l.policy.NextBegin(row.Row, states[row.OfPromotion()], now); next != rules.Lookup {
			continue
		}
		if err := fn(row, now.Sub(row.FirstSentAt)); err != nil {
			return err
		}
	}
	return nil
}
