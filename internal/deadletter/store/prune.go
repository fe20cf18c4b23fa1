package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// pruneBatch is how many dead letters one transaction deletes.
const pruneBatch = 1000

// Finished are the states of dead letters that need no more work. Only these are pruned.
func Finished() []State { return []State{Replayed, Discarded} }

// Prune deletes the dead letters that f selects, with their actions, and returns how many. f.States
// must be some of Finished. The table dead_letter_prunes records by, the time and the count, together with what is
// deleted. Prune deletes in batches: after an error the earlier batches stay deleted and recorded. A dead letter
// that changes meanwhile is kept. Prune calls deleted after each batch with the total so far;
// deleted may be nil.
func (s *Store) Prune(ctx context.Context, f Filter, by By, deleted func(total int64)) (n int64, err error) {
	if len(f.States) == 0 || slices.ContainsFunc(f.States, func(state State) bool { return !slices.Contains(Finished(), state) }) {
		return 0, errors.New("dead letters: only replayed and discarded ones are pruned")
	}
	var record, after int64
	for err == nil {
		var ids []string
		last, row := after, record
		err = s.update(ctx, "prune", func(q querier, now time.Time) (err error) {
			if ids, last, err = s.pruneAfter(ctx, q, f, after); err != nil {
				return err
			}
			if row = record; row == 0 { // with the first batch, so that one which fails leaves no record
				return s.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&row) },
					`INSERT INTO dead_letter_prunes (who, why, at, unchanged_since, letters) VALUES ($1, $2, $3, $4, $5) RETURNING id`,
					clean(by.Who), clean(by.Why), now, f.Unchanged, len(ids))
			}
			_, err = s.exec(ctx, q, `UPDATE dead_letter_prunes SET letters = letters + $2 WHERE id = $1`, row, len(ids))
			return err
		})
		if err != nil || len(ids) == 0 {
			break
		}
		after, record = last, row
		n += int64(len(ids))
		if deleted != nil {
			deleted(n)
		}
	}
	return n, err
}

// pruneAfter deletes the first batch with a seq larger than after. It returns the ids and the
// largest seq.
func (s *Store) pruneAfter(ctx context.Context, q querier, f Filter, after int64) (ids []string, last int64, err error) {
	condition, args := f.where([]any{after, pruneBatch})
	last = after
	// Locked first: PostgreSQL then checks the condition again on a row that another transaction
	// has just changed.
	err = s.query(ctx, q, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&last, &id)
		ids = append(ids, id)
		return err
	}, `SELECT seq, id FROM dead_letters WHERE seq > $1 AND `+condition+` ORDER BY seq LIMIT $2`+s.forUpdate(), args...)
	if err != nil || len(ids) == 0 {
		return nil, last, err
	}
	these, args := Filter{IDs: ids}.where(nil)
	if _, err := s.exec(ctx, q, `DELETE FROM dead_letter_actions WHERE dead_letter IN (SELECT id FROM dead_letters WHERE `+these+`)`, args...); err != nil {
		return nil, last, err
	}
	_, err = s.exec(ctx, q, `DELETE FROM dead_letters WHERE `+these, args...)
	return ids, last, err
}
