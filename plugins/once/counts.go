package once

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// callCount counts the sends or the lookups of an effect.
type callCount struct {
	Calls   int       `json:"calls"`             // all, also those of which no byte was sent
	Counted int       `json:"counted"`           // as attempts, since the last replay
	Most    int       `json:"at_most,omitempty"` // that may count; 0: this program does not have the kind
	FirstAt time.Time `json:"first_at,omitzero"`
	LastAt  time.Time `json:"last_at,omitzero"`
}

// countsOf returns the sends and the lookups of an effect.
func (p *Plugin) countsOf(x ledger.Explanation) (sends, lookups callCount) {
	sends.Counted, lookups.Counted = x.Row.Attempts, x.Row.Lookups
	if w := p.kindOf(x.Kind); w != nil {
		policy := w.effects.ledgerKind(p.instance()).Policy
		sends.Most, lookups.Most = policy.MaxAttempts, policy.MaxLookups
	}
	for _, a := range x.Calls {
		of := &sends
		if a.Kind == rules.CallLookup {
			of = &lookups
		}
		if a.Late { // the answer of a call that has a row of its own
			continue
		}
		if of.Calls++; of.FirstAt.IsZero() {
			of.FirstAt = a.StartedAt
		}
		of.LastAt = a.StartedAt
	}
	return sends, lookups
}

// text says how many calls there were, when, and how many count.
func (c callCount) text() string {
	if c.Calls == 0 {
		return ""
	}
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	text := fmt.Sprintf("%d, from %s to %s", c.Calls, at(c.FirstAt), at(c.LastAt))
	if c.Calls == 1 {
		text = "1, at " + at(c.FirstAt)
	}
	count := "count as attempts"
	if c.Counted == 1 {
		count = "counts as an attempt"
	}
	if text += fmt.Sprintf("; %d %s", c.Counted, count); c.Most > 0 {
		text += fmt.Sprintf(", of at most %d", c.Most)
	}
	return text
}

// namesOf names calls for people. Sends and lookups are numbered apart, and each has a number of its own although it may not
// count as an attempt.
func namesOf(calls []rules.Attempt) []string {
	names, number := make([]string, len(calls)), map[rules.CallKind]int{}
	for i, a := range calls {
		if a.Late {
			names[i] = "late answer"
			continue
		}
		number[a.Kind]++
		names[i] = fmt.Sprintf("%s %d", a.Kind, number[a.Kind])
	}
	return names
}
