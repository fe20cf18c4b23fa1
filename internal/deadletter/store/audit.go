package store

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

const (
	sqlRecentActions = `SELECT id, at, who, why, action, dead_letter, outcome, detail FROM dead_letter_actions
WHERE id < $1 AND action <> '` + actionReturn + `' ORDER BY id DESC LIMIT $2`

	sqlRecentPrunes = `SELECT id, at, who, why, 'prune', '', 'done', CAST(letters AS text) FROM dead_letter_prunes
WHERE id < $1 ORDER BY id DESC LIMIT $2`
)

// RecentActions returns what persons did to dead letters, the newest first. The actions on a dead letter end
// with it.
func (s *Store) RecentActions(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
	return operate.FilterAudit(ctx, f, limit, s.recent(sqlRecentActions))
}

// RecentPrunes returns who deleted finished dead letters, the newest first.
func (s *Store) RecentPrunes(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
	page, err := operate.FilterAudit(ctx, f, limit, s.recent(sqlRecentPrunes))
	for i := range page.Changes {
		page.Changes[i].Detail += " dead letters deleted"
	}
	return page, err
}

func (s *Store) recent(query string) func(context.Context, operate.AuditFilter, int) ([]operate.Change, error) {
	return func(ctx context.Context, f operate.AuditFilter, n int) (changes []operate.Change, err error) {
		from, err := f.RowBefore()
		if err != nil {
			return nil, err
		}
		err = s.read(ctx, func(rows *sql.Rows) error {
			var id int64
			var c operate.Change
			err := rows.Scan(&id, (*portable.Time)(&c.At), &c.Who, &c.Why, &c.Action, &c.Subject, &c.Outcome, &c.Detail)
			c.ID = strconv.FormatInt(id, 10)
			changes = append(changes, c)
			return err
		}, query, from, n)
		if err != nil {
			return nil, s.wrap("read the audit", err)
		}
		return changes, nil
	}
}

// RecordReveal records that a person sees what is masked of dead letters: of all or, with an error, of none. The
// error wraps ErrNotFound when the store does not have one of the ids.
func (s *Store) RecordReveal(ctx context.Context, by By, ids ...string) error {
	var all []DeadLetter
	for _, id := range ids {
		d, _, err := s.Get(ctx, id)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	return s.update(ctx, "record who sees a dead letter", func(q querier, now time.Time) error {
		for i := range all {
			if _, err := s.record(ctx, q, actionReveal, &all[i], by, now, "shown"); err != nil {
				return err
			}
		}
		return nil
	})
}
