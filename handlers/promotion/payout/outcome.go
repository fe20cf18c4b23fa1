package payout

import (
	"net/http"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// counts reports whether a released call counts against its payout. It counts when it was sent, the
// trouble is not general, and another payout of the type was answered since the payout's previous
// call. An outage, a refused credential or general throttling then never ends a payout. counts also
// notes the answer.
func (p *Processor) counts(key payouts.Key, a attempt) bool {
	switch {
	case a.undecodable:
		return true // no other version of this program may ever come that can decode it
	case aboutThePayout(a.answer):
		p.answered.Note(key, time.Now())
		return false
	case a.answer.Class == money.NotSent, a.answer.General, a.begin.SinceLastCall == 0:
		return false
	}
	return p.answered.OthersSince(key, a.before.Add(-a.begin.SinceLastCall))
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
