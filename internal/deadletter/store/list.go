package store

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// columns are those that scan reads before the payload.
const columns = `seq, id, lineage, state, generation, plugin, handler, subject, class, error, fingerprint, kind, source, ` + position + `,
	topic, attempts, first_failed_at, failed_at, stored_at, changed_at, traceparent, uuid, record_key, headers, tombstone, held_until`

// position reads the position of a source. Versions before migration 6 store its parts.
const position = `CASE WHEN position <> '' THEN position WHEN entry_id <> '' THEN source || '@' || entry_id
	WHEN source_offset IS NOT NULL THEN source || '/' || source_partition || '@' || source_offset ELSE source END`

func scan(rows *sql.Rows) (d DeadLetter, err error) {
	var held time.Time
	var key []byte
	var headers string
	var tombstone bool
	var payload sql.Null[[]byte] // a list has none
	if err := rows.Scan(&d.seq, &d.ID, &d.Lineage, (*string)(&d.State), &d.Generation, &d.Plugin, &d.Handler, &d.Subject, &d.Class, &d.Error,
		&d.Fingerprint, &d.Source.Kind, &d.Source.Name, &d.Source.Position, &d.Topic, &d.Attempts, (*portable.Time)(&d.FirstFailed),
		(*portable.Time)(&d.Failed), (*portable.Time)(&d.Stored), (*portable.Time)(&d.Changed), &d.TraceParent, &d.UUID, &key, &headers, &tombstone, (*portable.Time)(&held), &payload); err != nil {
		return d, err
	}
	if payload.Valid && !tombstone {
		d.Payload = append([]byte{}, payload.V...) // SQLite's driver makes an empty one nil
	}
	d.Key = string(key)
	if d.State == Replaying {
		d.HeldUntil = held
	}
	d.Headers, err = decodeHeaders(headers)
	return d, err
}

// Filter selects dead letters. An empty field selects any.
type Filter struct {
	IDs         []string
	States      []State
	Source      string // topic or stream
	Plugin      string
	Handler     string
	Class       string
	Fingerprint string
	Subject     string
	Under       string    // a subject, and those that begin with it and a colon: POINT:77 has POINT:77:5
	Lineage     string    // at most one dead letter; see LineageOf
	Since       time.Time // failed last at or after
	Until       time.Time // failed last before
	Unchanged   time.Time // its state changed last before
	Before      string    // an id: stored before that dead letter
}

// where returns the SQL condition and appends its arguments to args.
func (f Filter) where(args []any) (condition string, all []any) {
	conditions := []string{"1 = 1"}
	add := func(format string, values ...any) {
		var places []any
		for _, v := range values {
			args = append(args, v)
			places = append(places, fmt.Sprintf("$%d", len(args)))
		}
		conditions = append(conditions, fmt.Sprintf(format, places...))
	}
	if len(f.IDs) > 0 {
		add("id IN (%s"+strings.Repeat(", %s", len(f.IDs)-1)+")", anys(f.IDs)...)
	}
	if len(f.States) > 0 {
		add("state IN (%s"+strings.Repeat(", %s", len(f.States)-1)+")", anys(f.States)...)
	}
	for _, c := range []struct{ column, value string }{
		{"source", f.Source}, {"plugin", f.Plugin}, {"handler", f.Handler}, {"class", f.Class}, {"fingerprint", f.Fingerprint},
		{"subject <> '' AND subject", indexed(f.Subject)}, // as its index says
		{"lineage", indexed(f.Lineage)},
	} {
		if c.value != "" {
			add(c.column+" = %s", clean(c.value))
		}
	}
	if subject := clean(f.Under); subject != "" {
		prefix := subject + ":"
		add(fmt.Sprintf("subject <> '' AND (subject = %%s OR substr(subject, 1, %d) = %%s)", utf8.RuneCountInString(prefix)), subject, prefix)
	}
	if !f.Since.IsZero() {
		add("failed_at >= %s", f.Since)
	}
	if !f.Until.IsZero() {
		add("failed_at < %s", f.Until)
	}
	if !f.Unchanged.IsZero() {
		add("changed_at < %s", f.Unchanged)
	}
	if f.Before != "" {
		add("seq < (SELECT seq FROM dead_letters WHERE id = %s)", clean(f.Before))
	}
	return strings.Join(conditions, " AND "), args
}

func anys[T ~string](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = clean(string(v))
	}
	return out
}

// Get returns a dead letter with its payload and its actions, oldest first. The error wraps
// ErrNotFound when the store has none of this id.
func (s *Store) Get(ctx context.Context, id string) (DeadLetter, []Action, error) {
	id = clean(id) // anybody may write an address
	var d DeadLetter
	err := s.read(ctx, func(rows *sql.Rows) (err error) {
		d, err = scan(rows)
		return err
	}, `SELECT `+columns+`, payload FROM dead_letters WHERE id = $1`, id)
	if err == nil && d.ID == "" {
		return d, nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	actions := []Action{}
	if err == nil {
		err = s.read(ctx, func(rows *sql.Rows) error {
			var a Action
			err := rows.Scan(&a.Generation, &a.Action, &a.Who, &a.Why, (*portable.Time)(&a.At), &a.Outcome, &a.Detail)
			actions = append(actions, a)
			return err
		}, `SELECT generation, action, who, why, at, outcome, detail FROM dead_letter_actions WHERE dead_letter = $1 ORDER BY id`, id)
	}
	if err != nil {
		return d, nil, s.wrap("show", err)
	}
	return d, actions, nil
}

// Action is a replay or discard by a person, or a failure after a replay.
type Action struct {
	Generation int       `json:"generation"`
	Action     string    `json:"action"` // replay, discard or return
	Who        string    `json:"who,omitempty"`
	Why        string    `json:"why,omitempty"`
	At         time.Time `json:"at"`
	// Outcome of a replay is OutcomeStarted (it has not finished), replayed, already, refused or
	// failed. Otherwise it is the state of the dead letter after the action.
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// Neighbors returns the ids of the dead letters that were stored just before and just after this one among those
// with its fingerprint, in any state. Empty: there is none.
func (s *Store) Neighbors(ctx context.Context, d DeadLetter) (older, newer string, err error) {
	err = s.read(ctx, func(rows *sql.Rows) error { return rows.Scan(&older, &newer) },
		`SELECT coalesce((SELECT id FROM dead_letters WHERE fingerprint = $1 AND seq < $2 ORDER BY seq DESC LIMIT 1), ''),
			coalesce((SELECT id FROM dead_letters WHERE fingerprint = $1 AND seq > $2 ORDER BY seq LIMIT 1), '')`, d.Fingerprint, d.seq)
	if err != nil {
		return "", "", s.wrap("find the next of a group", err)
	}
	return older, newer, nil
}

// found returns an error that wraps ErrNotFound when a list can't go on after an id, because the store does not
// have it.
func (s *Store) found(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	n, err := s.Count(ctx, Filter{IDs: []string{clean(id)}})
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return err
}

// List returns up to limit dead letters, newest first, without payloads, and the number of all. To go on, Before is
// the last one of the list; the error wraps ErrNotFound when the store does not have it any more.
func (s *Store) List(ctx context.Context, f Filter, limit int) ([]DeadLetter, int64, error) {
	if err := s.found(ctx, f.Before); err != nil {
		return nil, 0, err
	}
	condition, args := f.where(nil)
	list := []DeadLetter{}
	err := s.read(ctx, func(rows *sql.Rows) error {
		d, err := scan(rows)
		list = append(list, d)
		return err
	}, `SELECT `+columns+`, NULL FROM dead_letters WHERE `+condition+fmt.Sprintf(` ORDER BY seq DESC LIMIT %d`, limit), args...)
	if err != nil {
		return nil, 0, s.wrap("list", err)
	}
	n, err := s.Count(ctx, f)
	return list, n, err
}

// Count returns the number of dead letters that f selects.
func (s *Store) Count(ctx context.Context, f Filter) (n int64, err error) {
	condition, args := f.where(nil)
	err = s.read(ctx, func(rows *sql.Rows) error { return rows.Scan(&n) }, `SELECT count(*) FROM dead_letters WHERE `+condition, args...)
	if err != nil {
		return 0, s.wrap("count", err)
	}
	return n, nil
}

// Group is the dead letters of one fingerprint.
type Group struct {
	Fingerprint string    `json:"fingerprint"`
	Count       int64     `json:"count"`
	Class       string    `json:"class"`
	Handler     string    `json:"handler"`
	Error       string    `json:"error"`   // of one of them
	Example     string    `json:"example"` // id of one of them
	FirstFailed time.Time `json:"first_failed_at"`
	LastFailed  time.Time `json:"last_failed_at"`
}

// Place is where a group stands, with its Count and its Example, in the order of Groups. The zero value is before
// the first one.
type Place struct {
	Count   int64
	Example string
}

// Groups returns up to limit groups of dead letters after a place, the largest first. The error wraps ErrNotFound
// when the store does not have the example of the place any more.
func (s *Store) Groups(ctx context.Context, f Filter, after Place, limit int) ([]Group, error) {
	if err := s.found(ctx, after.Example); err != nil {
		return nil, err
	}
	condition, args := f.where(nil)
	further := "1 = 1"
	if after.Example != "" {
		args = append(args, after.Count, after.Example)
		further = fmt.Sprintf("g.n < $%[1]d OR g.n = $%[1]d AND g.newest < (SELECT seq FROM dead_letters WHERE id = $%[2]d)", len(args)-1, len(args))
	}
	groups := []Group{}
	err := s.read(ctx, func(rows *sql.Rows) error {
		var g Group
		err := rows.Scan(&g.Fingerprint, &g.Count, &g.Class, &g.Handler, &g.Error, &g.Example, (*portable.Time)(&g.FirstFailed), (*portable.Time)(&g.LastFailed))
		groups = append(groups, g)
		return err
	}, `SELECT g.fingerprint, g.n, d.class, d.handler, d.error, d.id, g.first, g.last
		FROM (SELECT fingerprint, count(*) AS n, max(seq) AS newest, min(first_failed_at) AS first, max(failed_at) AS last
			FROM dead_letters WHERE `+condition+` GROUP BY fingerprint) g JOIN dead_letters d ON d.seq = g.newest
		WHERE `+further+` ORDER BY g.n DESC, g.newest DESC`+fmt.Sprintf(` LIMIT %d`, limit), args...)
	if err != nil {
		return nil, s.wrap("group", err)
	}
	return groups, nil
}

// Tally is the number of waiting dead letters of a class and state.
type Tally struct {
	Class string
	State State
	Count int64
}

// Tallies counts the dead letters that wait for a person, by class and state, the largest number
// first.
func (s *Store) Tallies(ctx context.Context) ([]Tally, error) {
	var all []Tally
	err := s.read(ctx, func(rows *sql.Rows) error {
		var t Tally
		err := rows.Scan(&t.Class, (*string)(&t.State), &t.Count)
		all = append(all, t)
		return err
	}, `SELECT class, state, count(*) FROM dead_letters WHERE state IN ('open', 'replaying', 'parked') GROUP BY class, state ORDER BY count(*) DESC, class`)
	if err != nil {
		return nil, s.wrap("count by class", err)
	}
	return all, nil
}

// WaitingByHandler counts the dead letters that wait for a person, by the route that failed.
func (s *Store) WaitingByHandler(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	err := s.read(ctx, func(rows *sql.Rows) error {
		var handler string
		var n int64
		err := rows.Scan(&handler, &n)
		counts[handler] = n
		return err
	}, `SELECT handler, count(*) FROM dead_letters WHERE state IN ('open', 'replaying', 'parked') GROUP BY handler`)
	if err != nil {
		return nil, s.wrap("count by handler", err)
	}
	return counts, nil
}

// Target says which plugin or transport replays a dead letter.
type Target struct {
	Plugin     string
	Handler    string // route
	SourceKind string // empty: unknown
	Ledger     bool   // the ledger of the plugin replays it: it has a subject
}

// Target returns the target of a dead letter.
func (d DeadLetter) Target() Target {
	return Target{Plugin: d.Plugin, Handler: d.Handler, SourceKind: d.Source.Kind, Ledger: d.Subject != ""}
}

// Targets returns the different targets of the dead letters that f selects.
func (s *Store) Targets(ctx context.Context, f Filter) ([]Target, error) {
	condition, args := f.where(nil)
	var all []Target
	err := s.read(ctx, func(rows *sql.Rows) error {
		var t Target
		err := rows.Scan(&t.Plugin, &t.Handler, &t.SourceKind, &t.Ledger)
		all = append(all, t)
		return err
	}, `SELECT DISTINCT plugin, handler, kind, subject <> '' FROM dead_letters WHERE `+condition, args...)
	if err != nil {
		return nil, s.wrap("find targets", err)
	}
	return all, nil
}

// walkPage is how many ids Walk reads at once.
const walkPage = 500

// Walk returns the ids of the dead letters that f selects, the oldest first. It ends with those
// that exist when it begins, or with an error.
func (s *Store) Walk(ctx context.Context, f Filter) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var after, last int64
		err := s.read(ctx, func(rows *sql.Rows) error { return rows.Scan(&last) }, `SELECT coalesce(max(seq), 0) FROM dead_letters`)
		for err == nil {
			var ids []string
			if ids, after, err = s.idsAfter(ctx, f, after, last); len(ids) == 0 {
				break
			}
			for _, id := range ids {
				if !yield(id, nil) {
					return
				}
			}
		}
		if err != nil {
			yield("", s.wrap("walk", err))
		}
	}
}

func (s *Store) idsAfter(ctx context.Context, f Filter, after, last int64) (ids []string, seq int64, err error) {
	condition, args := f.where([]any{after, last})
	err = s.read(ctx, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&seq, &id)
		ids = append(ids, id)
		return err
	}, fmt.Sprintf(`SELECT seq, id FROM dead_letters WHERE seq > $1 AND seq <= $2 AND %s ORDER BY seq LIMIT %d`, condition, walkPage), args...)
	return ids, seq, err
}

// Field is a column that a filter or an argument of a command names.
type Field string

// The fields.
const (
	FieldID          Field = "id"
	FieldSource      Field = "source"
	FieldPlugin      Field = "plugin"
	FieldHandler     Field = "handler"
	FieldClass       Field = "class"
	FieldFingerprint Field = "fingerprint"
)

// Values returns up to limit different values of a field that begin with prefix, the shortest
// first. A value that equals prefix is the first one. All states count.
func (s *Store) Values(ctx context.Context, field Field, prefix string, limit int) ([]string, error) {
	var values []string
	prefix = clean(prefix)
	query := fmt.Sprintf(`SELECT %[1]s FROM dead_letters WHERE substr(%[1]s, 1, $2) = $1 GROUP BY %[1]s ORDER BY length(%[1]s), %[1]s LIMIT %[2]d`, field, limit)
	err := s.read(ctx, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		values = append(values, value)
		return err
	}, query, prefix, utf8.RuneCountInString(prefix))
	if err != nil {
		return nil, s.wrap("find values of "+string(field), err)
	}
	return values, nil
}
