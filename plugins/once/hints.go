package once

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// hintLane is where the worker finds effects by the rows that entries of streams name. It is no lane of the ledger.
const hintLane = ledger.Lanes

var errDraining = errors.New("once: this instance claims nothing any more, so another one gets the entry")

// hints are the rows of the ledger that entries of streams have named. They only say where to look, so one that
// is lost, late or there twice does no harm.
type hints struct {
	mu      sync.Mutex
	waiting []*hint
	ended   chan struct{} // closed by end
	end     func()
}

type hint struct {
	row  int64
	done chan struct{} // closed when a claim has left nothing in the row
	gone bool          // nobody waits for done
}

func newHints() *hints {
	h := &hints{ended: make(chan struct{})}
	h.end = sync.OnceFunc(func() { close(h.ended) })
	return h
}

// offer hands a row to the worker and waits until the row has been claimed, or until its grace has ended, because
// then a claim by lane finds it. After an error somebody else should be told of the row.
func (h *hints) offer(ctx context.Context, row int64, grace time.Duration, wake func()) error {
	one := &hint{row: row, done: make(chan struct{})}
	h.mu.Lock()
	h.waiting = append(h.waiting, one)
	h.mu.Unlock()
	wake()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	var err error
	select {
	case <-one.done:
		return nil
	case <-timer.C:
	case <-h.ended:
		err = errDraining
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	one.gone = true
	h.waiting = slices.DeleteFunc(h.waiting, func(w *hint) bool { return w == one })
	return err
}

func (h *hints) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
}

// take removes at most n hints, those that have waited longest.
func (h *hints) take(n int) (taken []*hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n = min(n, len(h.waiting))
	taken, h.waiting = h.waiting[:n:n], h.waiting[n:]
	return taken
}

// claimed ends hints that were taken. Those of the rows in rest wait again, behind the others.
func (h *hints) claimed(taken []*hint, rest []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range taken {
		switch {
		case !slices.Contains(rest, one.row):
			close(one.done)
		case !one.gone:
			h.waiting = append(h.waiting, one)
		}
	}
}

// claimFrom claims effects of a lane, or of the rows that entries have named.
func (w *worker) claimFrom(l *ledger.Ledger, lane, limit int) ([]ledger.Claimed, error) {
	if lane != hintLane {
		return l.Claim(w.life, w.name, lane, limit)
	}
	taken := w.hints.take(limit) // each has an effect at least
	if len(taken) == 0 {
		return nil, nil
	}
	rows := make([]int64, len(taken))
	for i, one := range taken {
		rows[i] = one.row
	}
	all, rest, err := l.ClaimRows(w.life, w.name, rows, limit)
	w.hints.claimed(taken, rest)
	return all, err
}
