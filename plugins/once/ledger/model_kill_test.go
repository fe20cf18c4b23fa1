package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A process of a history that is killed when a transaction ends. What it remembers is lost, and its ledger goes on as
// the next process.
type death int

const (
	alive death = iota
	beforeCommit
	afterCommit
	inFastPath // after the first of two commits
)

var errKilled = errors.New("killed")

type mortal struct {
	store
	next, died death
	spared     bool            // it does not die in settleFast
	stored     map[rowKey]bool // by settleFast
}

func (s *mortal) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	tx, read, err := s.store.begin(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	return &mortalTransaction{tx, s}, read, nil
}

type mortalTransaction struct {
	transaction
	s *mortal
}

func (tx *mortalTransaction) commit(ctx context.Context, w *writeSet) error {
	writes := len(w.inserts) + len(w.rows) + len(w.due) + len(w.settled) + len(w.attempts)
	if tx.s.next == alive || writes == 0 {
		return tx.transaction.commit(ctx, w)
	}
	tx.s.died, tx.s.next = tx.s.next, alive
	defer tx.s.forget()
	if tx.s.died == afterCommit {
		if err := tx.transaction.commit(ctx, w); err != nil {
			return err
		}
	}
	return errKilled
}

func (s *mortal) settleFast(ctx context.Context, ends []*settleItem, wait time.Duration) ([]bool, error) {
	dies := s.next != alive && !s.spared
	if dies {
		s.died, s.next = s.next, alive
		defer s.forget()
		if s.died == beforeCommit {
			return nil, errKilled
		}
	}
	settled, err := s.store.settleFast(ctx, ends, wait)
	for i, is := range settled {
		if is {
			s.stored[ends[i].key] = true
		}
	}
	if dies && err == nil {
		s.died = inFastPath
		err = errKilled
	}
	return settled, err
}

func (s *mortal) forget() {
	if p, ok := s.store.(*postgres); ok {
		p.batches.mu.Lock()
		defer p.batches.mu.Unlock()
		p.batches.calls, p.batches.rowOf, p.batches.spent = nil, nil, nil
	}
}

// mayDie perhaps lets the next transaction of an instance be its last one, and returns how to find out. What was
// seen before is out of date then.
func (m *model) mayDie(l *Ledger) (died func() death) {
	m.seen = nil
	s := l.store.(*mortal)
	s.spared, s.stored = m.rnd.IntN(2) == 0, map[rowKey]bool{}
	if s.next, s.died = alive, alive; m.rnd.IntN(8) == 0 {
		s.next = []death{beforeCommit, afterCommit}[m.rnd.IntN(2)]
	}
	return func() death {
		if s.died != alive {
			m.log = append(m.log, fmt.Sprint("killed, ", map[death]string{beforeCommit: "before", afterCommit: "after", inFastPath: "between"}[s.died], " the commit"))
		}
		s.next = alive
		return s.died
	}
}

// find applies what a process has accepted that was killed after its first transaction: only new effects.
func (m *model) find(l *Ledger, batch []Record) {
	for _, r := range batch {
		if _, known := m.rows[r.Key]; known {
			continue
		}
		m.parts[r.Key] = r.Part
		row := rules.Row{}
		if !r.NotBefore.IsZero() {
			row.NextAttemptAt = r.NotBefore.Truncate(time.Microsecond).UTC()
		}
		m.apply(l, r.Key, row, rules.Event{Kind: rules.EventAccept, Group: m.state(r.of())}, false)
	}
}

// endedRows counts the rows of once_due whose leases have ended and that have no effect.
func (m *model) endedRows(l *Ledger, now time.Time) (n int) {
	p, ok := l.store.(*mortal).store.(*postgres)
	if !ok {
		return 0
	}
	require.NoError(m.t, p.cold.QueryRow(m.t.Context(), `SELECT count(*) FROM once_due AS d WHERE d.calling AND d.at <= $1
		AND NOT EXISTS (SELECT 1 FROM once_effects AS e WHERE e.due = d.number)`, now).Scan(&n))
	return n
}
