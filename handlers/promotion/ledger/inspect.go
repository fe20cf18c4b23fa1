package ledger

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Entry is a payout as the books have it.
type Entry struct {
	Row
	Payload []byte // as it came
	Request []byte // as it is sent
	Origin  string
}

// Letter is a dead letter that the ledger has written about a payout.
type Letter struct {
	ID            int64     `json:"id"` // of the outbox
	Class         string    `json:"class"`
	Error         string    `json:"error"`
	Origin        string    `json:"origin"`
	Handler       string    `json:"handler"`
	Attempts      int       `json:"attempts"`
	FirstFailedAt time.Time `json:"first_failed_at,omitzero"`
	CreatedAt     time.Time `json:"created_at"`
	PublishedAt   time.Time `json:"published_at,omitzero"` // zero: not yet
	Rival         string    `json:"rival,omitempty"`       // of a conflict or an unannounced entry: what was offered
}

const sqlEntryColumns = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + ` FROM payouts AS p WHERE p.type = $1 AND p.promotion_id = $2`

const sqlPage = sqlEntryColumns + ` AND p.target_id > $3 ORDER BY p.target_id LIMIT $4`

func scanEntry(r scanner) (Entry, error) {
	var e Entry
	var request, recordKey []byte
	var headers string
	var hintDue, lease, next, first, started, accepted, settled, used sqldb.Time
	err := r.Scan(&e.ID, (*string)(&e.Type), &e.Promotion, &e.Target, &e.SummaryID, (*string)(&e.State), (*string)(&e.Hint), &hintDue, &e.Version,
		&e.Epoch, &e.Attempts, &e.Asks, &e.Failures, &e.Interruptions, &lease, &next, &first,
		&e.MaybeCharged, &e.Asking, &e.TransactionKey, &e.LastClass, &e.LastError, &started, &e.AttemptBy, &accepted, &settled,
		&e.Released, &used, &e.NoChargeSeen, &e.Payload, &request, &headers, &recordKey, &e.Origin)
	e.HintDue, e.LeaseUntil, e.NextAttemptAt, e.FirstSentAt = hintDue.Time, lease.Time, next.Time, first.Time
	e.AttemptStartedAt, e.AcceptedAt, e.SettledAt, e.KeyFirstUsedAt = started.Time, accepted.Time, settled.Time, used.Time
	if e.Request = request; request == nil {
		e.Request = e.Payload
	}
	return e, err
}

// booksPage is how many payouts Books holds in memory at once.
const booksPage = 500

// Books calls fn for every payout of a promotion in order of target, in bounded memory. It is not one moment:
// a payout settled meanwhile is told as it is when its page is read. An error of fn ends it and is returned as it is.
func (l *Ledger) Books(ctx context.Context, p Promotion, fn func(Entry) error) error {
	for last := int64(0); ; {
		page := make([]Entry, 0, booksPage)
		err := l.read(ctx, "books", func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error {
				e, err := scanEntry(r)
				page = append(page, e)
				return err
			}, sqlPage, string(p.Type), p.ID, last, booksPage)
		})
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := fn(e); err != nil {
				return err
			}
		}
		if len(page) < booksPage {
			return nil
		}
		last = page[len(page)-1].Target
	}
}

// Explanation is everything the ledger knows of a payout.
type Explanation struct {
	Entry
	PromotionState PromotionState
	Calls          []Attempt // in order of epoch; a late answer after the line of its epoch
	Letters        []Letter  // in the order in which they were written
	Audit          []Audit   // what people did to the payout, in order
	Now            time.Time // the database's, to tell what is due
	// What the next begin would answer, and the earliest time for it; set while the payout is unsettled. It leaves a
	// pause aside.
	Then   Next
	ThenAt time.Time
}

// PaidLate returns the transaction key of an answer that said "paid" after somebody else had taken over, or "".
func (x *Explanation) PaidLate() string {
	for _, a := range x.Calls {
		if key, ok := strings.CutPrefix(a.Answer, lateKey); ok && a.Late && a.Outcome == Paid {
			return key
		}
	}
	return ""
}

// Explain tells everything about one payout, or answers ErrNotFound.
func (l *Ledger) Explain(ctx context.Context, k Key) (Explanation, error) {
	var x Explanation
	err := l.read(ctx, "explain", func(q querier, now time.Time) error {
		x.Now = now
		if err := q.query(ctx, func(r scanner) (err error) { x.Entry, err = scanEntry(r); return err },
			sqlEntryColumns+` AND p.target_id = $3`, string(k.Type), k.Promotion, k.Target); err != nil || x.ID == 0 {
			return err
		}
		var err error
		if x.PromotionState, err = readPromotion(ctx, q, k.Of()); err != nil {
			return err
		}
		if x.Letters, err = readLetters(ctx, q, k); err != nil {
			return err
		}
		if x.Audit, err = readAudit(ctx, q, k); err != nil {
			return err
		}
		return q.query(ctx, func(r scanner) error {
			var a Attempt
			var started, ended sqldb.Time
			err := r.Scan(&a.Epoch, &a.Late, &a.Number, (*string)(&a.Kind), &a.Instance, &started, &ended, (*string)(&a.Outcome), &a.Class, &a.Answer, &a.Status)
			a.StartedAt, a.EndedAt = started.Time, ended.Time
			x.Calls = append(x.Calls, a)
			return err
		}, `SELECT epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status FROM attempts
			WHERE payout_id = $1 ORDER BY epoch, late`, x.ID)
	})
	if err != nil {
		return Explanation{}, err
	}
	if x.ID == 0 {
		return Explanation{}, notFound(k)
	}
	if !x.State.Settled() {
		x.Then, x.ThenAt = l.policy.foresee(x.Row, x.PromotionState, x.Now)
	}
	return x, nil
}

// Sorted here: the planner, told not to sort, would read the whole outbox in its order instead.
const sqlLetters = `SELECT id, class, error, origin, handler, attempts, first_failed_at, created_at, published_at,
	CASE WHEN class IN ('conflict', 'unannounced') THEN payload END FROM outbox
WHERE kind = 'dead' AND type = $1 AND promotion_id = $2 AND target_id = $3`

func readLetters(ctx context.Context, q querier, k Key) (letters []Letter, err error) {
	err = q.query(ctx, func(r scanner) error {
		var d Letter
		var first, created, published sqldb.Time
		var rival []byte
		err := r.Scan(&d.ID, &d.Class, &d.Error, &d.Origin, &d.Handler, &d.Attempts, &first, &created, &published, &rival)
		d.Rival = string(rival)
		d.FirstFailedAt, d.CreatedAt, d.PublishedAt = first.Time, created.Time, published.Time
		letters = append(letters, d)
		return err
	}, sqlLetters, string(k.Type), k.Promotion, k.Target)
	slices.SortFunc(letters, func(a, b Letter) int { return compare(a.ID, b.ID) })
	return letters, err
}

// unknownPage is how many letters Unknown reads at once.
const unknownPage = 500

// Every UNKNOWN payout has a letter of its class, and letters are few: the payouts need no index of their own.
const sqlUnknown = `SELECT type, promotion_id, target_id FROM outbox
WHERE kind = 'dead' AND class = 'unknown' AND (type, promotion_id, target_id) > ($1, $2, $3)
ORDER BY type, promotion_id, target_id LIMIT $4`

// Unknown calls fn for every UNKNOWN payout in order of type, promotion and target, in bounded memory, with the time
// for which it has been UNKNOWN. An error of fn ends it and is returned as it is.
func (l *Ledger) Unknown(ctx context.Context, fn func(r Row, since time.Duration) error) error {
	for last := (Key{}); ; {
		n := 0
		var keys []Key
		err := l.read(ctx, "unknown payouts", func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error {
				var k Key
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
func (l *Ledger) eachUnknown(ctx context.Context, keys []Key, fn func(Row, time.Duration) error) error {
	if len(keys) == 0 {
		return nil
	}
	u, s, err := l.store.begin(ctx, want{keys: keys})
	if err != nil {
		return l.wrap("read payouts", err)
	}
	u.rollback()
	for _, k := range keys {
		if row := s.rows[k]; row != nil && row.State == Unknown {
			if err := fn(row.Row, s.now.Sub(row.SettledAt)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mostLookedUp is how many payouts LookedUp considers.
const mostLookedUp = 1000

const sqlAmbiguous = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + ` FROM payouts AS p WHERE p.settled_at IS NULL AND p.state = 'AMBIGUOUS'
ORDER BY p.first_sent_at, p.id LIMIT $1`

// LookedUp calls fn for every AMBIGUOUS payout of which only lookups are left, with the time since its oldest request was begun; the
// oldest comes first. Resolve ends them with Force. It considers the 1,000 oldest AMBIGUOUS payouts. An error of fn ends it and
// is returned unchanged.
func (l *Ledger) LookedUp(ctx context.Context, fn func(r Row, since time.Duration) error) error {
	var rows []Row
	states := map[Promotion]PromotionState{}
	var now time.Time
	err := l.read(ctx, "payouts that are looked up", func(q querier, at time.Time) error {
		now = at
		if err := q.query(ctx, func(r scanner) error {
			e, err := scanEntry(r)
			rows = append(rows, e.Row)
			states[e.Of()] = ""
			return err
		}, sqlAmbiguous, mostLookedUp); err != nil {
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
		if next, _ := l.policy.foresee(row, states[row.Of()], now); next != Ask {
			continue
		}
		if err := fn(row, now.Sub(row.FirstSentAt)); err != nil {
			return err
		}
	}
	return nil
}

func readPromotion(ctx context.Context, q querier, p Promotion) (s PromotionState, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan((*string)(&s)) },
		`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	return s, err
}
