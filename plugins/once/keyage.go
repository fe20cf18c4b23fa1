package once

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// keyAges warns of kinds whose far side may forget a key before the last attempt, because such an attempt is not
// made: the effect is looked up instead, or an operator decides.
func (e ledgerExam) keyAges(context.Context) (found []operate.Check, err error) {
	for _, w := range e.kinds() {
		c := w.config
		longest := c.Retry.Sum(c.MaxRetries) + c.CallTimeout*time.Duration(c.MaxRetries)
		if w.effects.ledgerKind("").Policy.Repeat != rules.ByKey || c.KeyTTL > longest {
			continue
		}
		found = append(found, operate.Check{
			Level:  operate.Warn,
			Text:   fmt.Sprintf("the kind %s has a key_ttl of %s, and its %d retries may last %s (retry, call_timeout): later ones are not sent", w.name, c.KeyTTL, c.MaxRetries, longest),
			Remedy: "raise key_ttl if the far side knows its keys for longer, or lower max_retries or retry.max",
		})
	}
	return found, nil
}
