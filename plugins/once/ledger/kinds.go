package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// kind is a kind with its number in this ledger. A kind of another program has no policy.
type kind struct {
	Kind
	number     int64
	registered bool
	lost       atomic.Pointer[[]rules.Lost] // nil: none
	turns      [Lanes]laneTurn
	told       atomic.Bool // the ledger has a row of this instance in once_instances
}

// laneTurn is whose turn it is in a lane. Every other claim is for the groups that are next, so a group with few effects does
// not wait for all that another one in its lane has accepted before. A turn costs more than a claim of the oldest, so while a
// lane has one group, few claims look whether there is another one.
type laneTurn struct {
	mu     sync.Mutex
	oldest int    // claims for the oldest effects before the next turn
	after  string // the group whose turn was last
}

// oldestAlone is how many claims in a row are for the oldest effects while there is one group.
const oldestAlone = 15

// next returns the group after which the groups of a claim come; nil: the claim is for the oldest effects.
func (t *laneTurn) next() (after *string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.oldest > 0 {
		t.oldest--
		return nil
	}
	group := t.after
	return &group
}

// took notes whose turn it was.
func (t *laneTurn) took(group string, alone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.after, t.oldest = group, 1; alone {
		t.oldest = oldestAlone
	}
}

// policy is that of the settings, with what the ledger has lost.
func (k *kind) policy() rules.Policy {
	p := k.Policy
	p.Lost = k.losses()
	return p
}

// same reports whether the record asks for the effect of the row: with the same request, with the same record, of which another
// version or other settings make another request, or with a request that means the same.
func (k *kind) same(row *storedRow, r *Record) bool {
	stored, offered := row.requestToSend(), requestOf(r)
	return bytes.Equal(stored, offered) || bytes.Equal(row.payload, r.Payload) || k.Same != nil && k.Same(stored, offered)
}

func (k *kind) losses() []rules.Lost {
	if lost := k.lost.Load(); lost != nil {
		return *lost
	}
	return nil
}

// home is where the tables are, for a caller's transaction.
type home struct {
	id     string // of once_ledger
	schema string // quoted, with a point; empty with SQLite
}

// ID returns the id of the ledger. It is empty before Register.
func (l *Ledger) ID() string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.home.id
}

func (k Kind) check() error {
	p := k.Policy
	switch {
	case k.Name == "" || len(k.Name) > 100 || !plain(k.Name):
		return rules.Invalid("the kind %q: a name has 1 to 100 bytes of UTF-8 without control characters", k.Name)
	case p.Lease <= 0 || p.MaxAttempts < 1 || p.MaxReleased < 1:
		return rules.Invalid("the kind %s: Lease, MaxAttempts and MaxReleased must be > 0, got %s, %d and %d", k.Name, p.Lease, p.MaxAttempts, p.MaxReleased)
	case k.Grace < 0:
		return rules.Invalid("the kind %s: Grace must be >= 0, got %s", k.Name, k.Grace)
	case p.Delay == nil:
		return rules.Invalid("the kind %s: Policy.Delay is missing", k.Name)
	case p.Repeat.Validate() != nil:
		return rules.Invalid("the kind %s: Policy.Repeat is missing", k.Name)
	}
	if err := k.Limits.Validate(); err != nil {
		return rules.Invalid("the limits of the kind %s: %s", k.Name, err)
	}
	return nil
}

const (
	sqlKinds = `SELECT number, name, results FROM once_kinds`

	sqlSetResults = `UPDATE once_kinds SET results = $2 WHERE name = $1 AND results <> $2`

	// The caller holds the lock of all kinds.
	sqlAddKind = `INSERT INTO once_kinds (number, name) SELECT coalesce(max(number), 0) + 1, $1 FROM once_kinds WHERE TRUE ON CONFLICT (name) DO NOTHING`

	sqlLedgerID = `SELECT id FROM once_ledger`
)

// Register makes kinds known, once at the start and after the tables exist. A kind that was registered
// before gets the new policy. The numbers that the ledger gives to kinds are durable when it returns,
// on a synchronous standby, too. It may be repeated after an error that wraps ErrUnavailable.
func (l *Ledger) Register(ctx context.Context, kinds ...Kind) error {
	for i := range kinds {
		if err := kinds[i].check(); err != nil {
			return err
		}
		if kinds[i].Policy.Instance == "" {
			kinds[i].Policy.Instance = l.opts.Instance
		}
	}
	return l.call(ctx, "register kinds", func(ctx context.Context) error {
		var h home
		var began time.Time
		found, lost := map[string]foundKind{}, map[int64][]rules.Lost{}
		// No kind has the number 0, so its lock is the one of all kinds.
		err := l.update(ctx, groupLock{exclusive: &groupID{}}, func(q querier, now time.Time) error {
			began = now
			clear(found)
			for _, k := range kinds {
				_, err := q.exec(ctx, sqlAddKind, k.Name)
				if err == nil && !l.opts.Command {
					_, err = q.exec(ctx, sqlSetResults, k.Name, k.Results)
				}
				if err != nil {
					return err
				}
			}
			if err := readKinds(ctx, q, found); err != nil {
				return err
			}
			clear(lost)
			if err := readLost(ctx, q, lost); err != nil {
				return err
			}
			if err := q.query(ctx, func(r scanner) error { return r.Scan(&h.id) }, sqlLedgerID); err != nil {
				return err
			}
			if l.store.dialect() == portable.SQLite {
				return nil
			}
			return q.query(ctx, func(r scanner) error { return r.Scan(&h.schema) }, `SELECT quote_ident(current_schema()) || '.'`)
		})
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.home = h; l.began.IsZero() {
			l.began = began
		}
		for _, k := range kinds {
			k.Results = found[k.Name].results
			l.add(&kind{Kind: k, number: found[k.Name].number, registered: true})
		}
		l.addFound(found)
		l.setLost(lost)
		return nil
	})
}

// foundKind is a row of once_kinds.
type foundKind struct {
	number  int64
	results bool
}

func readKinds(ctx context.Context, q querier, found map[string]foundKind) error {
	return q.query(ctx, func(r scanner) error {
		var k foundKind
		var name string
		err := r.Scan(&k.number, &name, &k.results)
		found[name] = k
		return err
	}, sqlKinds)
}

func (l *Ledger) add(k *kind) { l.kinds[k.Name], l.numbers[k.number] = k, k }

// addFound adds kinds of other programs, as they are now.
func (l *Ledger) addFound(found map[string]foundKind) {
	for name, f := range found {
		if k := l.kinds[name]; k == nil || !k.registered && k.Results != f.results {
			l.add(&kind{Kind: Kind{Name: name, Results: f.results}, number: f.number})
		}
	}
}

// publishes reports whether the results of a kind are published.
func (l *Ledger) publishes(number int64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	k := l.numbers[number]
	return k != nil && k.Results
}

// registered returns a kind that has a policy.
func (l *Ledger) registered(name string) (*kind, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if k := l.kinds[name]; k != nil && k.registered {
		return k, nil
	}
	return nil, rules.Invalid("the kind %q is not registered in this program", name)
}

// known returns a kind that this or another program has registered. Others return ErrNotFound.
func (l *Ledger) known(ctx context.Context, name string) (*kind, error) {
	find := func() *kind {
		l.mu.RLock()
		defer l.mu.RUnlock()
		return l.kinds[name]
	}
	if k := find(); k != nil {
		return k, nil
	}
	if err := l.findKinds(ctx); err != nil {
		return nil, err
	}
	if k := find(); k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("once: ledger: kind %q: %w", name, ErrNotFound)
}

// findKinds reads the kinds that other programs have registered.
func (l *Ledger) findKinds(ctx context.Context) error {
	found, lost := map[string]foundKind{}, map[int64][]rules.Lost{}
	if err := l.store.read(ctx, func(q querier, _ time.Time) error {
		return errors.Join(readKinds(ctx, q, found), readLost(ctx, q, lost))
	}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addFound(found)
	l.setLost(lost)
	return nil
}

// nameOf returns the name of a kind, which findKinds may have to find first.
func (l *Ledger) nameOf(number int64) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if k := l.numbers[number]; k != nil {
		return k.Name
	}
	return fmt.Sprint("kind ", number)
}

// kindNumbers returns the numbers of the kinds that are known, in order.
func (l *Ledger) kindNumbers() []int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.numbers))
}

func (l *Ledger) keyOf(k rowKey) Key { return Key{Kind: l.nameOf(k.kind), Group: k.group, ID: k.id} }
