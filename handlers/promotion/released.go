package promotion

import (
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// answered remembers when the Money API last spoke about a payout of one type, for two payouts. So it can be said of any payout
// whether others were answered meanwhile. Safe for concurrent use.
type answered struct {
	mu   sync.Mutex
	last [2]struct { // different keys, newest first
		key ledger.Key
		at  time.Time
	}
}

// note remembers an answer about key.
func (a *answered) note(key ledger.Key, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last[0].key != key {
		a.last[1] = a.last[0]
	}
	a.last[0].key, a.last[0].at = key, at
}

// othersSince reports whether a payout other than key was answered after a moment.
func (a *answered) othersSince(key ledger.Key, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.last {
		if l.key != key {
			return l.at.After(t)
		}
	}
	return false
}

// judge notes what an answer shows of the API, and reports whether a released call counts against its payout: it was sent, the
// trouble is not general, and other payouts of the type have been answered since the payout's call before. So an outage, a
// refused credential or general throttling never ends a payout.
func (p *processor) judge(key ledger.Key, begun ledger.Begun, before time.Time, a money.Answer) (counted bool) {
	switch {
	case aboutThePayout(a):
		p.answered.note(key, time.Now())
		return false
	case a.Class == money.NotSent, a.General, begun.SinceLastCall == 0:
		return false
	}
	return p.answered.othersSince(key, before.Add(-begun.SinceLastCall))
}

// aboutThePayout reports whether an answer is the API's own word about one payout.
func aboutThePayout(a money.Answer) bool {
	switch a.Class {
	case money.Paid, money.Rejected, money.NoCharge:
		return true
	case money.Ambiguous:
		return a.Status == http.StatusConflict
	}
	return false
}

// outcomeOf says what an answer means for the ledger. A lookup without any answer of the API's own is no lookup.
func outcomeOf(a money.Answer, lookup bool) ledger.Outcome {
	switch a.Class {
	case money.Paid:
		return ledger.Paid
	case money.NotSent:
		return ledger.NotSent
	case money.Throttled:
		return ledger.NotCharged
	case money.Rejected:
		return ledger.Rejected
	case money.OwnFault:
		return ledger.OwnFault
	case money.Retry:
		return ledger.TryAgain
	case money.Unrecognized:
		return ledger.Unrecognized
	case money.NoCharge:
		return ledger.NoCharge
	}
	if lookup && a.Code == "" {
		return ledger.Unrecognized
	}
	return ledger.PerhapsCharged
}
