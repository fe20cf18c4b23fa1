package letters

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// columns are what scan reads, but for the payload that follows them.
const columns = `seq, id, lineage, state, generation, plugin, handler, subject, class, error, fingerprint, kind, source, source_partition,
	source_offset, entry_id, topic, attempts, first_failed_at, failed_at, stored_at, changed_at, traceparent, uuid, record_key, headers, tombstone`

func scan(rows *sql.Rows) (l Letter, err error) {
	var first, failed, stored, changed sqldb.Time
	var partition, offset sql.NullInt64
	var key []byte
	var headers string
	var tombstone bool
	var payload sql.Null[[]byte] // a list has none
	if err := rows.Scan(&l.seq, &l.ID, &l.Lineage, (*string)(&l.State), &l.Generation, &l.Plugin, &l.Handler, &l.Subject, &l.Class, &l.Error,
		&l.Fingerprint, &l.Source.Kind, &l.Source.Name, &partition, &offset, &l.Source.EntryID, &l.Topic, &l.Attempts, &first, &failed, &stored,
		&changed, &l.TraceParent, &l.UUID, &key, &headers, &tombstone, &payload); err != nil {
		return l, err
	}
	if payload.Valid && !tombstone {
		l.Payload = append([]byte{}, payload.V...) // SQLite's driver makes an empty one nil
	}
	if partition.Valid {
		l.Source.Partition = &partition.Int64
	}
	if offset.Valid {
		l.Source.Offset = &offset.Int64
	}
	l.FirstFailed, l.Failed, l.Stored, l.Changed, l.Key = first.Time, failed.Time, stored.Time, changed.Time, string(key)
	l.Headers, err = decodeHeaders(headers)
	return l, err
}

// Filter says which letters are meant. Empty fields mean any.
type Filter struct {
	IDs         []string
	States      []State
	Source      string // topic or stream
	Plugin      string
	Handler     string
	Class       string
	Fingerprint string
	Subject     string
	Lineage     string    // of at most one letter; see LineageOf
	Since       time.Time // failed last at or after
	Until       time.Time // failed last before
	Unchanged   time.Time // its state changed last before
}

// where returns the condition and adds its arguments to args.
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
			add(c.column+" = %s", c.value)
		}
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
	return strings.Join(conditions, " AND "), args
}

func anys[T ~string](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// Get returns a letter with its payload and everything that was done to it, oldest first. The error wraps
// ErrNotFound when there is none.
func (s *Store) Get(ctx context.Context, id string) (Letter, []Action, error) {
	var l Letter
	err := s.query(ctx, s.db, func(rows *sql.Rows) (err error) {
		l, err = scan(rows)
		return err
	}, `SELECT `+columns+`, payload FROM dead_letters WHERE id = $1`, id)
	if err == nil && l.ID == "" {
		return l, nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	actions := []Action{}
	if err == nil {
		err = s.query(ctx, s.db, func(rows *sql.Rows) error {
			var a Action
			var at sqldb.Time
			err := rows.Scan(&a.Generation, &a.Action, &a.Who, &a.Why, &at, &a.Outcome, &a.Detail)
			a.At = at.Time
			actions = append(actions, a)
			return err
		}, `SELECT generation, action, who, why, at, outcome, detail FROM dead_letter_actions WHERE letter = $1 ORDER BY id`, id)
	}
	if err != nil {
		return l, nil, s.wrap("show", err)
	}
	return l, actions, nil
}

// Action is one thing that a person did to a letter, or its coming back.
type Action struct {
	Generation int       `json:"generation"`
	Action     string    `json:"action"` // replay, discard or return
	Who        string    `json:"who,omitempty"`
	Why        string    `json:"why,omitempty"`
	At         time.Time `json:"at"`
	// Outcome of a replay is begun (it died half-way), replayed, already, refused or failed; of anything else the
	// state of the letter after it.
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// List returns up to limit letters, newest first, without payloads, and how many there are.
func (s *Store) List(ctx context.Context, f Filter, limit int) ([]Letter, int64, error) {
	condition, args := f.where(nil)
	list := []Letter{}
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		l, err := scan(rows)
		list = append(list, l)
		return err
	}, `SELECT `+columns+`, NULL FROM dead_letters WHERE `+condition+fmt.Sprintf(` ORDER BY seq DESC LIMIT %d`, limit), args...)
	if err != nil {
		return nil, 0, s.wrap("list", err)
	}
	n, err := s.Count(ctx, f)
	return list, n, err
}

// Count returns how many letters there are.
func (s *Store) Count(ctx context.Context, f Filter) (n int64, err error) {
	condition, args := f.where(nil)
	err = s.query(ctx, s.db, func(rows *sql.Rows) error { return rows.Scan(&n) }, `SELECT count(*) FROM dead_letters WHERE `+condition, args...)
	if err != nil {
		return 0, s.wrap("count", err)
	}
	return n, nil
}

// Group is the letters of one kind of error.
type Group struct {
	Fingerprint string    `json:"fingerprint"`
	Letters     int64     `json:"letters"`
	Class       string    `json:"class"`
	Handler     string    `json:"handler"`
	Error       string    `json:"error"`   // of one of them
	Example     string    `json:"example"` // id of one of them
	FirstFailed time.Time `json:"first_failed_at"`
	LastFailed  time.Time `json:"last_failed_at"`
}

// Groups returns the kinds of errors that letters have, the most frequent first.
func (s *Store) Groups(ctx context.Context, f Filter, limit int) ([]Group, error) {
	condition, args := f.where(nil)
	groups := []Group{}
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		var g Group
		var first, last sqldb.Time
		err := rows.Scan(&g.Fingerprint, &g.Letters, &g.Class, &g.Handler, &g.Error, &g.Example, &first, &last)
		g.FirstFailed, g.LastFailed = first.Time, last.Time
		groups = append(groups, g)
		return err
	}, `SELECT g.fingerprint, g.n, d.class, d.handler, d.error, d.id, g.first, g.last
		FROM (SELECT fingerprint, count(*) AS n, max(seq) AS newest, min(first_failed_at) AS first, max(failed_at) AS last
			FROM dead_letters WHERE `+condition+` GROUP BY fingerprint) g JOIN dead_letters d ON d.seq = g.newest
		ORDER BY g.n DESC, g.newest DESC`+fmt.Sprintf(` LIMIT %d`, limit), args...)
	if err != nil {
		return nil, s.wrap("group", err)
	}
	return groups, nil
}

// Tally is how many waiting letters have a class and a state.
type Tally struct {
	Class   string
	State   State
	Letters int64
}

// Tallies counts the letters that wait for a person, by class and state.
func (s *Store) Tallies(ctx context.Context) ([]Tally, error) {
	var all []Tally
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		var t Tally
		err := rows.Scan(&t.Class, (*string)(&t.State), &t.Letters)
		all = append(all, t)
		return err
	}, `SELECT class, state, count(*) FROM dead_letters WHERE state IN ('open', 'replaying', 'parked') GROUP BY class, state ORDER BY count(*) DESC, class`)
	if err != nil {
		return nil, s.wrap("count by class", err)
	}
	return all, nil
}
