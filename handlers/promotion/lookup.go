package promotion

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// lookupTimeout bounds the question to the Money API for evidence.
const lookupTimeout = 10 * time.Second

// lookup is what the Money API says of a key.
type lookup struct {
	Answer         string `json:"answer"` // paid, no_charge, or why it could not say
	TransactionKey string `json:"transaction_key,omitempty"`
	Status         int    `json:"status,omitempty"`
	Text           string `json:"text,omitempty"`
	// KeyTooOld: the first use of the key is longer ago than idempotency_ttl, and an API that forgets keys answers no_charge.
	KeyTooOld bool `json:"key_too_old,omitempty"`
	// JustSent: the last request is not a lease ago. It may still be under way, and no_charge says nothing about it.
	JustSent bool `json:"just_sent,omitempty"`
}

// lookUp asks the Money API about a payout.
func (p *Plugin) lookUp(ctx context.Context, x ledger.Explanation) *lookup {
	if p.run.api == nil {
		return &lookup{Answer: "not_asked", Text: errSimulatorInside.Error()}
	}
	s, _ := strategyOf(string(x.Type))
	sent := lastSend(x)
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	a := p.run.api.Lookup(ctx, s.idempotencyKey(x.Promotion, x.Target))
	return &lookup{Answer: a.Class.String(), TransactionKey: a.TransactionKey, Status: a.Status, Text: a.Text,
		KeyTooOld: x.KeyAge(x.Now) > p.config.Ledger.IdempotencyTTL,
		JustSent:  !sent.IsZero() && x.Now.Sub(sent) <= p.config.MoneyAPI.lease()}
}

// lastSend returns when the last request was begun; zero when none was.
func lastSend(x ledger.Explanation) (at time.Time) {
	for _, c := range x.Calls {
		if c.Kind == ledger.CallSend && c.StartedAt.After(at) {
			at = c.StartedAt
		}
	}
	return at
}

// String says it in plain words.
func (l *lookup) String() string {
	switch {
	case l.paid():
		return "charged, transaction key " + l.TransactionKey
	case l.noCharge() && l.KeyTooOld:
		return "it knows no charge with this key, which is no proof, and the key is older than idempotency_ttl"
	case l.noCharge():
		return "it knows no charge with this key, which is no proof"
	case l.underWay():
		return "a request with this key is under way"
	case l.Text == "":
		return "it could not be asked (" + l.Answer + ")"
	}
	return fmt.Sprintf("it could not be asked (%s: %s)", l.Answer, l.Text)
}

// paid reports whether it was asked and says that the key was charged.
func (l *lookup) paid() bool { return l != nil && l.Answer == money.Paid.String() }

func (l *lookup) noCharge() bool { return l.Answer == money.NoCharge.String() }

func (l *lookup) underWay() bool {
	return l.Answer == money.Ambiguous.String() && l.Status == http.StatusConflict
}

// wordFor names whose word it is that the flags are true. Only a charge can be shown: that there is none is a person's word.
func (l *lookup) wordFor(f resolveFlags) string {
	if l.paid() && f.paid == l.TransactionKey {
		return "as the Money API says"
	}
	return "on the word of " + f.who
}

// contradicts reports why the flags can't be true, or can't be known to be, by what the Money API says.
func (l *lookup) contradicts(f resolveFlags) error {
	switch {
	case l.paid() && f.unpaid:
		return fmt.Errorf("the Money API says it is charged, transaction key %s; --paid %s books that, --force insists", l.TransactionKey, l.TransactionKey)
	case l.paid() && f.paid != l.TransactionKey:
		return fmt.Errorf("the Money API says the transaction key is %s, not %s; --force insists", l.TransactionKey, f.paid)
	case l.underWay() && f.unpaid:
		return errors.New("the Money API says that a request is under way; ask again later")
	case l.noCharge() && f.paid != "":
		return errors.New("the Money API knows no charge with this key; when you have seen the charge elsewhere, --force books it")
	case f.unpaid && !l.noCharge():
		return fmt.Errorf("the Money API did not say that it knows no charge: %s; when you know that there is none, --force books it", l)
	case l.noCharge() && l.KeyTooOld:
		return errors.New("the Money API knows no charge with this key, but the key is older than idempotency_ttl, and an API that forgets keys always answers so; " +
			"when you know it otherwise, --force books it")
	case f.unpaid && l.JustSent:
		return errors.New("the last request with this key was sent less than a lease ago and may still be under way; ask again later")
	}
	return nil
}
