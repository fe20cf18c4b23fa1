package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/internal/outbox"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Result says what became of an effect, as it was when the effect was settled.
type Result struct {
	Key
	Part       string
	State      rules.State // Success, Failed, Unknown or Cancelled
	AcceptedAt time.Time
	SettledAt  time.Time // no two results of an effect have the same
	Attempts   int
	Receipt    string
	Class      string // why it failed or is unknown
	Error      string // of one that failed or is unknown: the last answer, or the reason of an operator
	Payload    []byte
	Headers    map[string]string

	number int64
	tries  int
}

const (
	// resultsTaken is how long an instance has the results that it publishes for itself.
	resultsTaken = 30 * time.Second
	// resultsMark bounds the wait for the database afterwards.
	resultsMark = 10 * time.Second

	sqlAnyResult = `SELECT 1 FROM once_results WHERE kind = $1 AND until <= $2 ORDER BY kind, until, number LIMIT 1`

	// MATERIALIZED, so that the rows are selected and locked exactly once.
	sqlTakeResults = `WITH picked AS MATERIALIZED (SELECT number FROM once_results WHERE kind = $1 AND until <= $2 ORDER BY kind, until, number LIMIT $3%s)
UPDATE once_results SET until = $4, tries = tries + 1 WHERE number IN (SELECT number FROM picked)
RETURNING number, tries, grp, id, state, at, attempts, coalesce(receipt, ''), coalesce(class, ''), coalesce(error, '')`

	sqlResultEffects = `SELECT r.number, coalesce(e.part, ''), e.accepted_at, e.payload, coalesce(e.headers, '')
FROM once_results AS r JOIN once_effects AS e ON e.kind = r.kind AND e.grp = r.grp AND e.id = r.id WHERE r.number `

	sqlDeleteResults = `DELETE FROM once_results WHERE number `

	sqlPostponeResult = `UPDATE once_results SET until = $2 WHERE number = $1`
)

// Relayed is the result of RelayResults.
type Relayed struct {
	Taken     int // results that were to be published; fewer than the limit: there are no more now
	Published int
}

// RelayResults passes at most limit results of a kind that publishes them to publish, those first that have been due
// longest. publish is called with some of them once or several times. When it fails without naming them
// (pipeline.PartialError) they are tried one by one, so that one bad result delays no other. Those that failed stay for
// later.
//
// Each result is published at least once: after an error of the database some are published again. Several instances may
// relay at once. Two results of one effect, of which there are several only after an operator's action or a restore, may
// be published in either order.
func (l *Ledger) RelayResults(ctx context.Context, kind string, limit int, publish func(context.Context, []Result) error) (r Relayed, err error) {
	k, err := l.registered(kind)
	if err != nil {
		return r, err
	}
	var taken []Result
	if err := l.routine(ctx, "take results", func(ctx context.Context) error {
		taken, err = l.takeResults(ctx, k, limit)
		return err
	}); err != nil || len(taken) == 0 {
		return r, err
	}
	work, cancel := context.WithTimeout(ctx, resultsTaken/2)
	defer cancel()
	published, failed, err := outbox.Publish(work, taken, publish)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), resultsMark)
	defer cancel()
	marked := l.routine(ctx, "mark results", func(ctx context.Context) error { return l.markResults(ctx, published, failed) })
	return Relayed{len(taken), len(published)}, errors.Join(err, marked)
}

// takeResults has this instance publish results of a kind, with what their effects are about.
func (l *Ledger) takeResults(ctx context.Context, k *kind, limit int) (taken []Result, err error) {
	found := false // an empty table is looked at often, and a look writes nothing
	if err := l.store.read(ctx, func(q querier, now time.Time) error {
		return q.query(ctx, func(scanner) error { found = true; return nil }, sqlAnyResult, k.number, now)
	}); err != nil || !found {
		return nil, err
	}
	err = l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
		taken = nil
		at, numbers := map[int64]*Result{}, []int64{}
		if err := q.query(ctx, func(row scanner) error {
			r := &Result{Key: Key{Kind: k.Name}}
			err := row.Scan(&r.number, &r.tries, &r.Group, &r.ID, (*stateColumn)(&r.State), (*portableTime)(&r.SettledAt), &r.Attempts, &r.Receipt, &r.Class, &r.Error)
			at[r.number], numbers = r, append(numbers, r.number)
			return err
		}, fmt.Sprintf(sqlTakeResults, q.forUpdate(true)), k.number, now, limit, now.Add(resultsTaken)); err != nil || len(numbers) == 0 {
			return err
		}
		in, arg := l.store.dialect().AnyOf("$1", numbers)
		return q.query(ctx, func(row scanner) error {
			var number int64
			var e Result
			headers := ""
			if err := row.Scan(&number, &e.Part, (*portableTime)(&e.AcceptedAt), &e.Payload, &headers); err != nil {
				return err
			}
			r := at[number]
			r.Part, r.AcceptedAt, r.Payload = e.Part, e.AcceptedAt, e.Payload
			if headers != "" {
				_ = json.Unmarshal([]byte(headers), &r.Headers) // Accept encoded it
			}
			taken = append(taken, *r)
			return nil
		}, sqlResultEffects+in, arg)
	})
	sorted.By(taken, func(a, b Result) int {
		return cmp.Or(a.SettledAt.Compare(b.SettledAt), cmp.Compare(a.number, b.number))
	})
	return taken, err
}

// markResults forgets results that are published, and has others published later.
func (l *Ledger) markResults(ctx context.Context, published, failed []Result) error {
	return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
		if len(published) > 0 {
			in, arg := l.store.dialect().AnyOf("$1", valuesOf(published, func(r Result) int64 { return r.number }))
			if _, err := q.exec(ctx, sqlDeleteResults+in, arg); err != nil {
				return err
			}
		}
		for _, r := range failed {
			if _, err := q.exec(ctx, sqlPostponeResult, r.number, now.Add(outbox.Delay(r.tries))); err != nil {
				return err
			}
		}
		return nil
	})
}

// sqlResultsWaiting reads at most as many results as a backlog counts.
const sqlResultsWaiting = `SELECT count(*), min(at) FROM (SELECT at FROM once_results WHERE kind = $1 ORDER BY kind, until, number LIMIT $2) AS r`

// ResultsWaiting returns how many results of a kind are not published yet, at most BacklogLimit, and how long the oldest of
// these has waited.
func (l *Ledger) ResultsWaiting(ctx context.Context, kind string) (n int64, oldest time.Duration, err error) {
	err = l.call(ctx, "results that wait", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			return q.query(ctx, func(r scanner) error {
				var at time.Time
				err := r.Scan(&n, (*portableTime)(&at))
				if oldest = 0; n > 0 {
					oldest = max(0, now.Sub(at))
				}
				return err
			}, sqlResultsWaiting, k.number, BacklogLimit)
		})
	})
	return n, oldest, err
}
