package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// The kinds of rows of dead_letter_actions.
const (
	ActionReplay  = "replay"
	ActionDiscard = "discard"
	actionReturn  = "return" // the message failed again
	actionReveal  = "reveal" // a person saw what the console masks
)

const sqlInsert = `INSERT INTO dead_letters (id, lineage, state, generation, plugin, handler, subject, class, error, fingerprint,
	kind, source, position, entry_id, topic, attempts, first_failed_at, failed_at, stored_at, changed_at,
	traceparent, uuid, record_key, headers, payload, tombstone)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, '', $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)
ON CONFLICT DO NOTHING`

// Put stores dead letters, all or none. One that is stored already stays unchanged. A message that
// failed again after its replay parks the dead letter of the replay.
func (s *Store) Put(ctx context.Context, batch ...DeadLetter) error {
	batch = slices.Clone(batch)
	for i := range batch {
		s.prepare(&batch[i])
	}
	// All transactions lock rows in the same order, so that they do not deadlock.
	sorted.By(batch, func(a, b DeadLetter) int { return strings.Compare(a.Lineage, b.Lineage) })
	return s.update(ctx, "store", func(q querier, now time.Time) error {
		for i := range batch {
			if err := s.put(ctx, q, batch[i], now); err != nil {
				return fmt.Errorf("dead letter %s: %w", batch[i].ID, err)
			}
		}
		return nil
	})
}

// prepare makes the texts valid for the database and fills in the derived fields.
func (s *Store) prepare(d *DeadLetter) {
	if d.Lineage == "" {
		d.Lineage = d.ID
	}
	for _, text := range []*string{&d.ID, &d.Subject, &d.Lineage, &d.Class} {
		*text = indexed(*text)
	}
	for _, text := range []*string{&d.Plugin, &d.Handler, &d.Error, &d.Source.Kind, &d.Source.Name, &d.Source.Position, &d.Topic, &d.TraceParent, &d.UUID} {
		*text = clean(*text)
	}
	if d.Plugin == "" {
		d.Plugin = PluginOf(d.Handler)
	}
	d.Fingerprint = s.prints.of(d.Class, d.Handler, d.Error)
	d.State, d.Generation = Open, 1
	for _, t := range []*time.Time{&d.FirstFailed, &d.Failed} {
		*t = t.UTC().Truncate(time.Microsecond) // as stored
	}
}

func (s *Store) put(ctx context.Context, q querier, d DeadLetter, now time.Time) error {
	if id, generation, ok := d.replayOf(); ok {
		from, err := s.lock(ctx, q, "id", id)
		if err != nil {
			return err
		}
		if from != nil && from.Plugin == d.Plugin && from.ID != d.ID {
			generation = min(generation, from.Generation) // the header may claim a later one
			if bytes.Equal(from.Payload, d.Payload) && from.Subject == d.Subject {
				return s.failedAgain(ctx, q, from, generation, d, d.ID+"/"+strconv.Itoa(generation), now)
			}
			// The replayed message changed before it failed: store it separately and park it, so
			// that it cannot loop.
			d.State, d.Generation = Parked, generation+1
		}
	}
	fresh, err := s.insert(ctx, q, d, now)
	if fresh || err != nil {
		return err
	}
	from, err := s.lock(ctx, q, "lineage", d.Lineage)
	if err != nil {
		return err
	}
	if from == nil {
		other, err := s.lock(ctx, q, "id", d.ID)
		if err != nil {
			return err
		}
		if other == nil { // the insert met a row with the number that it was given
			return errors.New(portable.BehindTable("dead_letters", "seq"))
		}
		return fmt.Errorf("its id is that of a dead letter of another lineage than %s", d.Lineage)
	}
	if from.ID == d.ID && !d.Failed.After(from.Failed) {
		return nil // stored before
	}
	return s.failedAgain(ctx, q, from, from.Generation, d, d.ID+"@"+d.Failed.Format(time.RFC3339Nano), now)
}

func (s *Store) insert(ctx context.Context, q querier, d DeadLetter, now time.Time) (fresh bool, err error) {
	n, err := s.exec(ctx, q, sqlInsert, d.ID, d.Lineage, string(d.State), d.Generation, d.Plugin, d.Handler, d.Subject, d.Class, d.Error, d.Fingerprint,
		d.Source.Kind, d.Source.Name, d.Source.Position, d.Topic, d.Attempts,
		d.FirstFailed, d.Failed, now, now, d.TraceParent, d.UUID, []byte(d.Key), encodeHeaders(d.Headers), append([]byte{}, d.Payload...), d.Payload == nil)
	return n == 1, err
}

// failedAgain records that d, of the same lineage as from, failed in a generation. from is locked.
// The row gets the newest error and keeps the payload, headers and source of the first failure.
// arrival identifies the event: a second delivery of d is no second event.
func (s *Store) failedAgain(ctx context.Context, q querier, from *DeadLetter, generation int, d DeadLetter, arrival string, now time.Time) error {
	state, next := from.State, from.Generation
	switch {
	case generation < from.Generation:
		// A replay that was published twice failed twice: it is recorded already.
	case from.State == Replaying, from.State == Replayed, from.State == Discarded:
		state, next = Parked, from.Generation+1
	}
	if from.ID != d.ID || state != from.State { // stored again before any action: no event
		detail := clean(d.Class + ": " + d.Error)
		n, err := s.exec(ctx, q, `INSERT INTO dead_letter_actions (dead_letter, generation, action, who, why, at, outcome, detail, arrival)
			VALUES ($1, $2, $3, '', '', $4, $5, $6, $7) ON CONFLICT (arrival) DO NOTHING`,
			from.ID, generation, actionReturn, now, string(state), detail, arrival)
		if err != nil {
			return err
		}
		if n == 0 {
			if !d.Failed.After(from.Failed) {
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
		from.ID, string(state), next, d.Class, d.Error, d.Fingerprint, d.Handler, d.Attempts, d.Failed, now, d.TraceParent)
	return err
}

// lock returns the dead letter of an id or lineage, locked, or nil.
func (s *Store) lock(ctx context.Context, q querier, column, value string) (*DeadLetter, error) {
	var found *DeadLetter
	err := s.query(ctx, q, func(rows *sql.Rows) error {
		d, err := scan(rows)
		found = &d
		return err
	}, `SELECT `+columns+`, payload FROM dead_letters WHERE `+column+` = $1`+s.forUpdate(), clean(value))
	return found, err
}

// fingerprints groups errors that differ only in numbers, ids and white space.
type fingerprints struct{ variable *regexp.Regexp }

// newFingerprints replaces UUIDs, hexadecimal ids and hashes, ULIDs, and numbers with their sign,
// fractions and dots (addresses, versions).
func newFingerprints() fingerprints {
	return fingerprints{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b` +
		`|\b0x[0-9a-f]+\b` +
		`|\b[0-9a-f]{8,}\b` +
		`|\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b` +
		`|-?[0-9]+(?:[.][0-9]+)*`)}
}

// normalize replaces each variable part of an error's text by #.
func (f fingerprints) normalize(text string) string {
	return strings.Join(strings.Fields(f.variable.ReplaceAllString(text, "#")), " ")
}

// of returns the fingerprint: the same for dead letters of one class and handler whose normalized
// errors are equal.
func (f fingerprints) of(class, handler, text string) string {
	return ID(class, handler, f.normalize(text))[:12]
}
