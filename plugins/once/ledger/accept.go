package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// AcceptResult is the result of Accept for one record.
type AcceptResult struct {
	Accepted Accepted // zero with an Err
	// Row is for ClaimRows: the row that the effect waits in with others of its group. 0: only Claim finds it.
	Row int64
	// Err is about this record alone. It wraps ErrInvalid if the record can't be stored, and
	// ErrUnavailable if another transaction holds its key, perhaps that of a caller of AcceptTx. Then
	// Accept may be repeated for the record.
	Err error
}

const (
	// acceptChunk is the number of records per transaction of Accept.
	acceptChunk = 500
	// acceptWait bounds the wait for another transaction with the same key. It is less than the time
	// after which PostgreSQL looks for deadlocks, so that a caller of AcceptTx does not become the victim
	// of one.
	acceptWait = 500 * time.Millisecond
)

// Accept stores records and returns one result per record, in their order. What it has accepted is
// durable when it returns. Of several records with one key the first is accepted, and the others are
// compared with it.
//
// The error is about the database. It wraps ErrUnavailable when Accept may be repeated; then a record
// without a result may have been accepted or not.
func (l *Ledger) Accept(ctx context.Context, records []Record) ([]AcceptResult, error) {
	results := make([]AcceptResult, len(records))
	items := make([]*acceptItem, 0, len(records))
	for i := range records {
		item := &acceptItem{record: &records[i], result: &results[i]}
		if item.kind, item.result.Err = l.checkRecord(item.record); item.result.Err == nil {
			item.key = rowKey{item.kind.number, item.record.Group, item.record.ID}
			items = append(items, item)
		}
	}
	slices.SortStableFunc(items, func(a, b *acceptItem) int { return compareKeys(a.key, b.key) })
	for chunk := range slices.Chunk(items, acceptChunk) {
		began := time.Now()
		err := l.briefly(ctx, "accept", func(ctx context.Context) error {
			return split(ctx, l, chunk, acceptWait, l.acceptTogether, func(item *acceptItem, err error) {
				item.result.Err = l.wrap("accept "+item.record.Key.text(), err)
			})
		})
		l.opts.Metrics.batch(opAccept, len(chunk), time.Since(began))
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

type acceptItem struct {
	record *Record
	kind   *kind
	key    rowKey
	result *AcceptResult
}

// acceptTogether accepts sorted items in one transaction. The rows that exist are read in a second
// one, because most batches have none.
func (l *Ledger) acceptTogether(ctx context.Context, items []*acceptItem, wait time.Duration) error {
	items = slices.DeleteFunc(slices.Clone(items), func(item *acceptItem) bool { return item.result.Accepted != 0 }) // by a try before
	w := readRequest{wait: wait}
	for _, item := range items {
		w.groups = append(w.groups, item.key.of())
	}
	w.groups = uniqueGroups(w.groups)
	var fresh map[rowKey]*storedRow
	err := l.transact(ctx, w, func(_ context.Context, _ transaction, read *readResult, writes *writeSet) error {
		fresh = map[rowKey]*storedRow{}
		for _, item := range items {
			if fresh[item.key] == nil {
				row := newRow(item.record, item.key)
				if !item.record.NoGrace {
					row.grace = item.kind.Grace
				}
				row.Row, _, _ = item.kind.policy().Apply(row.Row, rules.Event{Kind: rules.EventAccept, Now: read.now, Group: read.state(item.key.of()), Published: item.record.Published})
				row.told = item.kind.Results && row.State.Settled()
				fresh[item.key] = row
				writes.inserts = append(writes.inserts, row)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var again []*acceptItem
	taken := map[rowKey]bool{}
	for _, item := range items {
		row := fresh[item.key]
		switch {
		case !row.inserted:
			again = append(again, item)
		case taken[item.key]:
			next, _, d := acceptedAgain(item, row, rules.Event{Now: row.AcceptedAt, Group: rules.GroupRunning})
			item.result.Accepted = resultOf(next, d)
		default:
			taken[item.key] = true
			item.result.Accepted, item.result.Row = Fresh, row.hint
			if row.State == rules.Cancelled {
				item.result.Accepted = Cancelled
			}
		}
	}
	if len(again) == 0 {
		return nil
	}
	return l.acceptAgain(ctx, again, w)
}

// acceptAgain decides items whose effects exist. Locks are taken only for effects that change, since
// their group was cancelled.
func (l *Ledger) acceptAgain(ctx context.Context, items []*acceptItem, w readRequest) error {
	w.messages = true
	w.keys = slices.Compact(valuesOf(items, func(i *acceptItem) rowKey { return i.key }))
	for _, w.lock = range []rowLock{lockNone, lockWait} {
		changed := false
		err := l.transact(ctx, w, func(_ context.Context, _ transaction, read *readResult, writes *writeSet) error {
			changes := l.newChanges(read)
			for _, item := range items {
				row := read.rows[item.key]
				if row == nil {
					return notFound(item.record.Key) // rows are never deleted
				}
				before := row.Row
				next, eff, d := acceptedAgain(item, row, rules.Event{Now: read.now, Group: read.state(item.key.of())})
				if next != before {
					changed = true
					changes.apply(row, next, eff, false)
				}
				item.result.Accepted = resultOf(next, d)
			}
			if w.lock == lockWait {
				changes.writeTo(writes)
			}
			return nil
		})
		if err != nil || !changed {
			return err
		}
	}
	return nil
}

func acceptedAgain(item *acceptItem, row *storedRow, ev rules.Event) (rules.Row, rules.Writes, rules.Decision) {
	ev.Kind, ev.SameRequest = rules.EventAcceptAgain, item.kind.same(row, item.record)
	return item.kind.policy().Apply(row.Row, ev)
}

func resultOf(row rules.Row, d rules.Decision) Accepted {
	switch {
	case d.Next == rules.Conflict:
		return Conflict
	case row.State == rules.Cancelled:
		return Cancelled
	}
	return Known
}

func requestOf(r *Record) []byte {
	if r.Request != nil {
		return r.Request
	}
	return r.Payload
}

// uniqueGroups sorts groups and removes repetitions.
func uniqueGroups(groups []groupID) []groupID {
	all := slices.Clone(groups)
	sorted.By(all, compareGroups)
	return slices.Compact(all)
}

// newRow returns the row of a record before it is accepted.
func newRow(r *Record, k rowKey) *storedRow {
	row := &storedRow{rowKey: k, lane: laneOf(k.group), part: r.Part, payload: r.Payload, origin: clean(r.Origin)}
	if row.payload == nil {
		row.payload = []byte{}
	}
	if r.Request != nil && string(r.Request) != string(r.Payload) {
		row.request = r.Request
	}
	if len(r.Headers) > 0 {
		b, _ := json.Marshal(r.Headers) // a map of strings always encodes
		row.headers = string(b)
	}
	if !r.NotBefore.IsZero() {
		row.notBefore = r.NotBefore.UTC().Truncate(time.Microsecond) // as stored
		row.NextAttemptAt = row.notBefore
	}
	return row
}

const (
	maxKeyBytes     = 100
	maxHeadersBytes = 64 << 10
)

// checkRecord returns the kind of a record, or an error that wraps ErrInvalid.
func (l *Ledger) checkRecord(r *Record) (*kind, error) {
	k, err := l.registered(r.Kind)
	if err != nil {
		return nil, err
	}
	if err := r.Key.check(); err != nil {
		return nil, err
	}
	headers := 0
	for name, value := range r.Headers {
		headers += len(name) + len(value)
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, rules.Invalid("%s: the header %q is not valid UTF-8", r.text(), name)
		}
	}
	switch {
	case len(r.Part) > maxKeyBytes || !plain(r.Part):
		return nil, rules.Invalid("%s: the part has at most %d bytes of UTF-8 without control characters, got %q", r.text(), maxKeyBytes, r.Part)
	case len(r.Payload) > MaxPayloadBytes || len(r.Request) > MaxPayloadBytes:
		return nil, rules.Invalid("%s: the payload has %d bytes and the request %d; the limit is %d", r.text(), len(r.Payload), len(r.Request), MaxPayloadBytes)
	case headers > maxHeadersBytes:
		return nil, rules.Invalid("%s: the headers have %d bytes; the limit is %d", r.text(), headers, maxHeadersBytes)
	case !r.NotBefore.IsZero() && (r.NotBefore.Year() < 1970 || r.NotBefore.Year() > 9999):
		return nil, rules.Invalid("%s: the earliest time is %s; its year must be from 1970 to 9999", r.text(), r.NotBefore)
	}
	return k, nil
}

func (k Key) check() error {
	if err := (Group{k.Kind, k.Group}).check(); err != nil {
		return err
	}
	if k.ID == "" || len(k.ID) > maxKeyBytes || !plain(k.ID) {
		return rules.Invalid("kind %q: group %q: an id has 1 to %d bytes of UTF-8 without control characters, got %q", k.Kind, k.Group, maxKeyBytes, k.ID)
	}
	return nil
}

func (g Group) check() error {
	if g.Name == "" || len(g.Name) > maxKeyBytes || !plain(g.Name) {
		return rules.Invalid("kind %q: a group has 1 to %d bytes of UTF-8 without control characters, got %q", g.Kind, maxKeyBytes, g.Name)
	}
	return nil
}

// text names an effect for people.
func (k Key) text() string { return k.Kind + " " + k.Group + " " + k.ID }

func (g Group) text() string { return g.Kind + " " + g.Name }

// plain reports whether s is valid UTF-8 without control characters.
func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
