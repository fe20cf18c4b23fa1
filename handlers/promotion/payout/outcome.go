package payout

import (
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// answered holds when the Money API last answered about a payout of one type, for two payouts. For
// each payout it can then be said whether another one was answered since a moment. It is safe for
// concurrent use.
type answered struct {
	mu   sync.Mutex
	last [2]struct { // different keys, newest first
		key payouts.Key
		at  time.Time
	}
}

// note stores an answer about key.
func (a *answered) note(key payouts.Key, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last[0].key != key {
		a.last[1] = a.last[0]
	}
	a.last[0].key, a.last[0].at = key, at
}

// othersSince reports whether a payout other than key was answered after a moment.
func (a *answered) othersSince(key payouts.Key, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.last {
		if l.key != key {
			return l.at.After(t)
		}
	}
	return false
}

// counts reports whether a released call counts against its payout. It counts when it was sent, the
// trouble is not general, and another payout of the type was answered since the payout's previous
// call. An outage, a refused credential or general throttling then never ends a payout. counts also
// notes the answer.
func (p *Processor) counts(key payouts.Key, a attempt) bool {
	switch {
	case aboutThePayout(a.answer):
		p.answered.note(key, time.Now())
		return false
	case a.answer.Class == money.NotSent, a.answer.General, a.begin.SinceLastCall == 0:
		return false
	}
	return p.answered.othersSince(key, a.before.Add(-a.begin.SinceLastCall))
}

// aboutThePayout reports whether an answer is the API's own and about one payout.
func aboutThePayout(a money.Answer) bool {
	switch a.Class {
	case money.Paid, money.Rejected, money.NoCharge:
		return true
	case money.Ambiguous:
		return a.Status == http.StatusConflict
	}
	return false
}

// outcomes are the ledger's outcomes of answers. An answer of another class is perhaps charged.
var outcomes = map[money.Class]rules.Outcome{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	money.Paid:          rules.Done,
	money.NotSent:       rules.NotSent,
	money.Throttled:     rules.Throttled,
	money.Rejected:      rules.Rejected,
	money.Misconfigured: rules.Misconfigured,
	money.Retry:         rules.TryAgain,
	money.Unrecognized:  rules.Unrecognized,
	money.NoCharge:      rules.NotDone,
}

// outcomeOf returns the ledger's outcome of an answer. A lookup counts only if the API itself
// answered.
func outcomeOf(a money.Answer, lookup bool) rules.Outcome {
	if outcome, found := outcomes[a.Class]; found {
		return outcome
	}
	if lookup && a.Code == "" {
		return rules.Unrecognized
	}
	return rules.Unclear
}
