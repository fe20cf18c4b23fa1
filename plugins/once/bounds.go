package once

import (
	"sync"
	"time"
)

// What an instance waits for. These are also the words of ledger.Activity.Bound, as are the names of the limits.
const (
	boundConcurrency = "concurrency" // its calls, which are as many as it may make at once
	boundLedger      = "ledger"      // claims, and answers that are stored
	boundNothingDue  = "nothing_due" // nothing that is due is left for it
	boundStopped     = "stopped"     // the client or the far side, which works for no effect
	boundPaused      = "paused"      // an operator, who has paused the kind
)

// bounds adds up for how long an instance waits for what. It is safe for concurrent use.
type bounds struct {
	mu      sync.Mutex
	current string
	since   time.Time
	spent   map[string]time.Duration
}

// wait notes what the instance waits for from now on.
func (b *bounds) wait(what string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(now)
	b.current = what
}

// add adds the time since the last note. The mutex is held.
func (b *bounds) add(now time.Time) {
	if b.spent == nil {
		b.spent = map[string]time.Duration{}
	}
	if b.current != "" {
		b.spent[b.current] += now.Sub(b.since)
	}
	b.since = now
}

// most returns what the instance has waited for most since it was asked last; nothing before the first note.
func (b *bounds) most(now time.Time) (most string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(now)
	most = b.current
	for what, spent := range b.spent {
		if spent > b.spent[most] || spent == b.spent[most] && what < most {
			most = what
		}
	}
	clear(b.spent)
	return most
}
