package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

const (
	sqlLost   = `SELECT kind, since, until FROM once_lost ORDER BY kind, until`
	sqlLostOf = `SELECT kind, since, until FROM once_lost WHERE kind = $1 ORDER BY kind, until`

	sqlAddLost = `INSERT INTO once_lost (kind, since, until) VALUES ($1, $2, $3)`
)

func readLost(ctx context.Context, q querier, lost map[int64][]rules.Lost) error {
	return scanLost(ctx, q, lost, sqlLost)
}

func scanLost(ctx context.Context, q querier, lost map[int64][]rules.Lost, sql string, args ...any) error {
	return q.query(ctx, func(r scanner) error {
		var kind int64
		var one rules.Lost
		err := r.Scan(&kind, (*portableTime)(&one.Since), (*portableTime)(&one.Until))
		lost[kind] = append(lost[kind], one)
		return err
	}, sql, args...)
}

// setLost notes what was read. The caller holds the lock.
func (l *Ledger) setLost(lost map[int64][]rules.Lost) {
	for number, k := range l.numbers {
		all := lost[number]
		k.lost.Store(&all)
	}
}

// learnLost reads what a kind has lost.
func (k *kind) learnLost(ctx context.Context, q querier) error {
	lost := map[int64][]rules.Lost{}
	err := scanLost(ctx, q, lost, sqlLostOf, k.number)
	if all := lost[k.number]; err == nil {
		k.lost.Store(&all)
	}
	return err
}

// LearnLost reads what was stored by Recover since the kinds were registered. Due does that, too; an instance
// that claims nothing calls this every few seconds, because it accepts.
func (l *Ledger) LearnLost(ctx context.Context, kind string) error {
	k, err := l.registered(kind)
	if err != nil {
		return err
	}
	return l.briefly(ctx, "losses", func(ctx context.Context) error {
		return l.store.read(ctx, func(q querier, _ time.Time) error { return k.learnLost(ctx, q) })
	})
}

// Recovery is what is known of a kind whose ledger was restored.
type Recovery struct {
	Kind string `json:"kind"`
	rules.Lost
	Open    int64 `json:"open"`    // effects that are not settled
	Calling int64 `json:"calling"` // of those, under a lease
	Failed  int64 `json:"failed"`
	Unknown int64 `json:"unknown"`
}

// Recovered returns what Recover would do now. A time that is not in the past is ErrInvalid, and a kind that
// no program has registered ErrNotFound.
func (l *Ledger) Recovered(ctx context.Context, kind string, since time.Time) (r Recovery, err error) {
	b, err := l.Backlog(ctx, kind)
	if err != nil {
		return r, err
	}
	err = l.call(ctx, "recovery", func(ctx context.Context) error {
		return l.store.read(ctx, func(_ querier, now time.Time) error {
			r = Recovery{Kind: kind, Lost: rules.Lost{Since: since.UTC(), Until: now}, Open: b.Waiting + b.Calling, Calling: b.Calling, Failed: b.Failed, Unknown: b.Unknown}
			return r.check()
		})
	})
	return r, err
}

func (r Recovery) check() error {
	if !r.Since.Before(r.Until) || r.Since.Year() < 1970 {
		return rules.Invalid("recovery of %s: the ledger can't be as it was at %s: it is %s", r.Kind, r.Since.Format(time.RFC3339), r.Until.Format(time.RFC3339))
	}
	return nil
}

// Recover stores that the database was restored and is as it was at since. Each effect of the kind that is not
// settled, and each whose record was published before now and is read again, may have been called for
// since then: it is looked up before anything is sent, or handled as its kind's Repeat says after an unclear
// answer. It has the errors of Recovered.
func (l *Ledger) Recover(ctx context.Context, kind string, since time.Time, by By) (r Recovery, err error) {
	if err := by.check("recover of "+kind, true); err != nil {
		return r, err
	}
	if r, err = l.Recovered(ctx, kind, since); err != nil {
		return r, err
	}
	err = l.call(ctx, "recover", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			r.Until = now
			if _, err := q.exec(ctx, sqlAddLost, k.number, r.Since, r.Until); err != nil {
				return err
			}
			detail := fmt.Sprintf("lost from %s to %s", r.Since.Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339))
			return writeAudit(ctx, q, now, rowKey{kind: k.number}, Audit{By: by, Action: "recover", Detail: detail})
		})
	})
	if err != nil {
		return r, err
	}
	return r, l.call(ctx, "losses", l.findKinds)
}
