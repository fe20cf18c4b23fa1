package letters

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of rows of dead_letter_actions.
const (
	ActionReplay  = "replay"
	ActionDiscard = "discard"
	ActionReturn  = "return" // the letter came back
)

const sqlInsert = `INSERT INTO dead_letters (id, lineage, state, generation, plugin, handler, subject, class, error, fingerprint,
	kind, source, source_partition, source_offset, entry_id, topic, attempts, first_failed_at, failed_at, stored_at, changed_at,
	traceparent, uuid, record_key, headers, payload, tombstone)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27)
ON CONFLICT DO NOTHING`

// Put stores letters, all or none. A letter that is there already stays as it is, whatever a person has
// made of it since. One that came back after a replay parks the letter it came from.
func (s *Store) Put(ctx context.Context, batch ...Letter) error {
	batch = slices.Clone(batch)
	for i := range batch {
		s.prepare(&batch[i])
	}
	// Every transaction takes rows in one order.
	slices.SortStableFunc(batch, func(a, b Letter) int { return strings.Compare(a.Lineage, b.Lineage) })
	return s.update(ctx, "store", func(q querier, now time.Time) error {
		for i := range batch {
			if err := s.put(ctx, q, batch[i], now); err != nil {
				return fmt.Errorf("letter %s: %w", batch[i].ID, err)
			}
		}
		return nil
	})
}

// prepare makes a letter storable and fills in what follows from the rest.
func (s *Store) prepare(l *Letter) {
	if l.Lineage == "" {
		l.Lineage = l.ID
	}
	for _, text := range []*string{&l.ID, &l.Subject, &l.Lineage, &l.Class} {
		*text = indexed(*text)
	}
	for _, text := range []*string{&l.Plugin, &l.Handler, &l.Error, &l.Source.Name, &l.Source.EntryID, &l.Topic, &l.TraceParent, &l.UUID} {
		*text = clean(*text)
	}
	if l.Plugin == "" {
		l.Plugin = PluginOf(l.Handler)
	}
	l.Fingerprint = s.prints.of(l.Class, l.Handler, l.Error)
	l.State, l.Generation = Open, 1
	for _, t := range []*time.Time{&l.FirstFailed, &l.Failed} {
		*t = t.UTC().Truncate(time.Microsecond) // as stored
	}
}

func (s *Store) put(ctx context.Context, q querier, l Letter, now time.Time) error {
	if id, generation, ok := l.replayOf(); ok {
		from, err := s.lock(ctx, q, "id", id)
		if err != nil {
			return err
		}
		if from != nil && from.Plugin == l.Plugin && from.ID != l.ID {
			generation = min(generation, from.Generation) // a later one can't have been replayed
			if bytes.Equal(from.Payload, l.Payload) && from.Subject == l.Subject {
				return s.came(ctx, q, from, generation, l, l.ID+"/"+strconv.Itoa(generation), now)
			}
			// What the replay was made into failed: another message, or one that a ledger has now, and as little to be looped.
			l.State, l.Generation = Parked, generation+1
		}
	}
	fresh, err := s.insert(ctx, q, l, now)
	if fresh || err != nil {
		return err
	}
	from, err := s.lock(ctx, q, "lineage", l.Lineage)
	if err != nil {
		return err
	}
	if from == nil {
		return fmt.Errorf("its id is that of a letter of another lineage than %s", l.Lineage)
	}
	if from.ID == l.ID && !l.Failed.After(from.Failed) {
		return nil // stored before
	}
	return s.came(ctx, q, from, from.Generation, l, l.ID+"@"+l.Failed.Format(time.RFC3339Nano), now)
}

func (s *Store) insert(ctx context.Context, q querier, l Letter, now time.Time) (fresh bool, err error) {
	n, err := s.exec(ctx, q, sqlInsert, l.ID, l.Lineage, string(l.State), l.Generation, l.Plugin, l.Handler, l.Subject, l.Class, l.Error, l.Fingerprint,
		l.Source.Kind, l.Source.Name, nullable(l.Source.Partition), nullable(l.Source.Offset), l.Source.EntryID, l.Topic, l.Attempts,
		l.FirstFailed, l.Failed, now, now, l.TraceParent, l.UUID, []byte(l.Key), encodeHeaders(l.Headers), append([]byte{}, l.Payload...), l.Payload == nil)
	return n == 1, err
}

func nullable(n *int64) sql.NullInt64 {
	if n == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: *n, Valid: true}
}

// came books a letter that is about the same as from, whose replay in a generation it may be. from is locked.
// What failed last is what the row tells; the payload, headers and source stay those of the first. arrival is the same when
// l is delivered again: that is one event.
func (s *Store) came(ctx context.Context, q querier, from *Letter, generation int, l Letter, arrival string, now time.Time) error {
	state, next := from.State, from.Generation
	switch {
	case generation < from.Generation:
		// A replay that was published twice came back twice: known.
	case from.State == Replaying, from.State == Replayed, from.State == Discarded:
		state, next = Parked, from.Generation+1
	}
	if from.ID != l.ID || state != from.State { // a letter that is stored again before anybody has acted is no event
		detail := clean(l.Class + ": " + l.Error)
		n, err := s.exec(ctx, q, `INSERT INTO dead_letter_actions (letter, generation, action, who, why, at, outcome, detail, arrival)
			VALUES ($1, $2, $3, '', '', $4, $5, $6, $7) ON CONFLICT DO NOTHING`,
			from.ID, generation, ActionReturn, now, string(state), detail, arrival)
		if err != nil {
			return err
		}
		if n == 0 {
			if !l.Failed.After(from.Failed) {
				return nil // stored before
			}
			state, next = from.State, from.Generation
			if _, err := s.exec(ctx, q, `UPDATE dead_letter_actions SET at = $2, detail = $3 WHERE arrival = $1`, arrival, now, detail); err != nil {
				return err
			}
		}
	}
	_, err := s.exec(ctx, q, `UPDATE dead_letters SET state = $2, generation = $3, class = $4, error = $5, fingerprint = $6, handler = $7,
		attempts = $8, failed_at = $9, changed_at = $10, traceparent = $11 WHERE id = $1`,
		from.ID, string(state), next, l.Class, l.Error, l.Fingerprint, l.Handler, l.Attempts, l.Failed, now, l.TraceParent)
	return err
}

// lock returns the letter of that id or lineage, locked, or nil.
func (s *Store) lock(ctx context.Context, q querier, column, value string) (*Letter, error) {
	var found *Letter
	err := s.query(ctx, q, func(rows *sql.Rows) error {
		l, err := scan(rows)
		found = &l
		return err
	}, `SELECT `+columns+`, payload FROM dead_letters WHERE `+column+` = $1`+s.locking("UPDATE"), value)
	return found, err
}
