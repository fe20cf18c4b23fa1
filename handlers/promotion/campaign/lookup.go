package campaign

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

const lookupTimeout = 10 * time.Second

// lookup is the Money API's answer about a key.
type lookup struct {
	Answer         string `json:"answer"` // paid, no_charge, or the reason why there is no answer
	TransactionKey string `json:"transaction_key,omitempty"`
	Status         int    `json:"status,omitempty"`
	Text           string `json:"text,omitempty"`
	// KeyTooOld: the key was first used longer than idempotency_ttl ago. An API that removes old
	// keys then answers no_charge.
	KeyTooOld bool `json:"key_too_old,omitempty"`
	// JustSent: the last request was sent less than a lease ago. It may still be in flight, and
	// no_charge proves nothing.
	JustSent bool `json:"just_sent,omitempty"`
}

func (e Env) lookUp(ctx context.Context, x ledger.Explanation) *lookup {
	api := e.Resources.API()
	if api == nil {
		return &lookup{Answer: "not_asked", Text: ErrSimulatorInside.Error()}
	}
	t, _ := promotiontype.ByName(string(x.Type))
	sent, settings := lastSend(x), e.Settings()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	release, err := api.Slot(ctx)
	if err != nil {
		return &lookup{Answer: money.NotSent.String(), Text: "no call slot: " + err.Error()}
	}
	defer release()
	a := api.Lookup(ctx, t.IdempotencyKey(x.Promotion, x.Target))
	return &lookup{Answer: a.Class.String(), TransactionKey: a.TransactionKey, Status: a.Status, Text: a.Text,
		KeyTooOld: x.KeyAge(x.Now) > settings.IdempotencyTTL,
		JustSent:  !sent.IsZero() && x.Now.Sub(sent) <= settings.Lease}
}

// lastSend returns when the last request was started; zero without one.
func lastSend(x ledger.Explanation) (at time.Time) {
	for _, c := range x.Calls {
		if c.Kind == payouts.CallSend && c.StartedAt.After(at) {
			at = c.StartedAt
		}
	}
	return at
}

func (l *lookup) String() string {
	switch {
	case l.paid():
		return "charged, transaction key " + l.TransactionKey
	case l.noCharge() && l.KeyTooOld:
		return "no charge with this key, which is no proof, and the key is older than idempotency_ttl"
	case l.noCharge():
		return "no charge with this key, which is no proof"
	case l.inFlight():
		return "a request with this key is in flight"
	case l.Text == "":
		return "no answer (" + l.Answer + ")"
	}
	return fmt.Sprintf("no answer (%s: %s)", l.Answer, l.Text)
}

func (l *lookup) paid() bool { return l != nil && l.Answer == money.Paid.String() }

func (l *lookup) noCharge() bool { return l.Answer == money.NoCharge.String() }

func (l *lookup) inFlight() bool {
	return l.Answer == money.Ambiguous.String() && l.Status == http.StatusConflict
}

// source names the source of what the flags claim. The Money API can only prove a charge. That
// there is none is the operator's claim.
func (l *lookup) source(f resolution) string {
	if l.paid() && f.paid == l.TransactionKey {
		return "according to the Money API"
	}
	return "according to " + f.who
}

func (l *lookup) contradicts(f resolution) error {
	switch {
	case l.paid() && f.unpaid:
		return fmt.Errorf("the Money API says it is charged, transaction key %s; --paid %s records that, --force overrides it", l.TransactionKey, l.TransactionKey)
	case l.paid() && f.paid != l.TransactionKey:
		return fmt.Errorf("the Money API says the transaction key is %s, not %s; --force overrides it", l.TransactionKey, f.paid)
	case l.inFlight() && f.unpaid:
		return errors.New("the Money API says that a request is in flight; try again later")
	case l.noCharge() && f.paid != "":
		return errors.New("the Money API has no charge with this key; if you have seen the charge elsewhere, --force records it")
	case f.unpaid && !l.noCharge():
		return fmt.Errorf("the Money API did not answer that it has no charge: %s; if you are sure that there is none, --force records it", l)
	case l.noCharge() && l.KeyTooOld:
		return errors.New("the Money API has no charge with this key. The key is older than idempotency_ttl, and an API that removes old keys always answers so; " +
			"if you are sure, --force records it")
	case f.unpaid && l.JustSent:
		return errors.New("the last request with this key was sent less than a lease ago and may still be in flight; try again later")
	}
	return nil
}
