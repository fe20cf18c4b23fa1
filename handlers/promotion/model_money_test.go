package promotion

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Times of the histories. They pass only when a history says so, so they are long: nothing that
// really passes counts.
const (
	modelLease = time.Hour
	modelTTL   = 24 * time.Hour
	// modelNetwork is the longest time of a request in the network after its call has ended.
	modelNetwork = time.Hour
	modelGrace   = 20 * time.Minute
	// modelKeyLife is the precondition of promise 2. It counts from the first request with the key,
	// refused or not.
	modelKeyLife = modelTTL + modelLease + modelNetwork + time.Minute
)

// The answers of the Money API, drawn for every call.
const (
	answerPaid          = iota // charged
	answerLost                 // charged, and the answer is lost
	answerBroken               // not charged, and the answer does not show it
	answerLate                 // no answer; the request may be carried out later
	answerRejected             // refused for good
	answerThrottled            // 429
	answerMisconfigured        // 401
	answerTryAgain             // 408
	answerProxy                // not charged; a proxy refuses in its own words
	answerProxyCharged         // charged, and a proxy refuses in its own words
	answerOverloaded           // 429 for all
	modelAnswerKinds    = iota
)

// modelCharge is a charge that was carried out.
type modelCharge struct {
	body string
	tx   string
}

// request is one that is still in the network.
type request struct {
	key, body string
	until     time.Duration
}

// modelCall is a call under way: after the begin of the payout, and before the answer.
type modelCall struct {
	by    *actor
	until time.Duration
	paid  bool // the answer, once there is one
}

// keyMemory is what the API has stored about an idempotency key.
type keyMemory struct {
	since time.Duration // the first request
	tx    string        // of the charge, if there is one
}

// modelAPI is a Money API that honours an idempotency key for modelKeyLife and not a minute longer.
type modelAPI struct{ hist *history }

// use is a request with a key, and returns what the API remembers of it.
func (hist *history) use(key string) *keyMemory {
	m := hist.remembered(key)
	if m == nil {
		m = &keyMemory{since: hist.now}
		hist.keys[key] = m
	}
	return m
}

func (hist *history) remembered(key string) *keyMemory {
	if m := hist.keys[key]; m != nil && m.since+modelKeyLife > hist.now {
		return m
	}
	return nil
}

func (hist *history) charge(key, body string) string {
	m := hist.use(key)
	if m.tx == "" {
		m.tx = fmt.Sprintf("tx-%s-%d", key, len(hist.charges[key]))
		hist.charges[key] = append(hist.charges[key], modelCharge{body, m.tx})
		if len(hist.charges[key]) > 1 {
			hist.violation("%s was charged twice: %v", key, hist.charges[key])
		}
	}
	return m.tx
}

// enter notes a call that has just started. The begin and this are one step, so that what was
// true a moment ago was true for the begin.
func (hist *history) enter(ctx context.Context, key string, send bool) (c *modelCall, leave func()) {
	c = &modelCall{by: actorOf(ctx), until: hist.now + modelLease}
	switch {
	case hist.state == statePaused:
		hist.violation("%s was started although the promotion is paused", key)
	case hist.state == stateCancelled && send:
		hist.violation("%s was started although the promotion is cancelled", key)
	}
	for other := range hist.calls[key] {
		if other.until > hist.now {
			hist.violation("%s is in flight twice: %s %s and %s %s", key, other.by.in.name, other.by.what, c.by.in.name, c.by.what)
		}
	}
	if hist.calls[key] == nil {
		hist.calls[key] = map[*modelCall]bool{}
	}
	hist.calls[key][c] = true
	return c, func() { delete(hist.calls[key], c) }
}

// Slot implements money.API. There is always one.
func (m *modelAPI) Slot(context.Context) (release func(), err error) { return func() {}, nil }

// Charge implements money.API.
func (m *modelAPI) Charge(ctx context.Context, ch money.Charge) money.Answer {
	hist, a := m.hist, actorOf(ctx)
	c, leave := hist.enter(ctx, ch.Key, true)
	defer leave()
	if first, sent := hist.bodies[ch.Key]; sent && first != string(ch.Body) {
		hist.violation("%s was sent as %s and as %s", ch.Key, first, ch.Body)
	}
	hist.bodies[ch.Key] = string(ch.Body)
	kind := a.wait("before call").answer
	if hist.now >= c.until {
		return money.Answer{Class: money.NotSent} // the client starts nothing after its deadline
	}
	answer := money.Answer{}
	switch kind {
	case answerPaid:
		answer = money.Answer{Class: money.Paid, TransactionKey: hist.charge(ch.Key, string(ch.Body))}
	case answerLost:
		hist.charge(ch.Key, string(ch.Body))
	case answerLate:
		hist.network = append(hist.network, request{ch.Key, string(ch.Body), hist.now + modelNetwork})
	case answerRejected:
		hist.use(ch.Key)
		answer.Class = money.Rejected
	case answerThrottled, answerOverloaded:
		hist.use(ch.Key)
		answer = money.Answer{Class: money.Throttled, RetryAfter: 5 * time.Minute, General: kind == answerOverloaded}
	case answerMisconfigured:
		hist.use(ch.Key)
		answer.Class = money.Misconfigured
	case answerTryAgain:
		hist.use(ch.Key)
		answer.Class = money.Retry
	case answerProxyCharged:
		hist.charge(ch.Key, string(ch.Body))
		answer.Class = money.Unrecognized
	case answerProxy:
		answer.Class = money.Unrecognized
	}
	c.paid = answer.Class == money.Paid
	a.wait("before answer")
	return answer
}

// Lookup implements money.API.
func (m *modelAPI) Lookup(ctx context.Context, key string) money.Answer {
	hist, a := m.hist, actorOf(ctx)
	c, leave := hist.enter(ctx, key, false)
	defer leave()
	kind := a.wait("before lookup").answer
	answer := money.Answer{Class: money.NoCharge}
	if m := hist.remembered(key); m != nil && m.tx != "" {
		answer = money.Answer{Class: money.Paid, TransactionKey: m.tx}
	}
	switch {
	case hist.now >= c.until, kind == answerLost, kind == answerBroken:
		answer = money.Answer{}
	case kind == answerThrottled, kind == answerOverloaded:
		answer = money.Answer{Class: money.Throttled, General: kind == answerOverloaded}
	case kind == answerMisconfigured:
		answer = money.Answer{Class: money.Misconfigured}
	case kind == answerRejected:
		answer = money.Answer{Class: money.Rejected}
	case kind == answerProxy, kind == answerProxyCharged:
		answer = money.Answer{Class: money.Unrecognized}
	}
	c.paid = answer.Class == money.Paid
	a.wait("before answer")
	return answer
}

// answered lets an actor have its answer: one that comes within the lease is stored at once.
func (hist *history) answered(a *actor, m move) {
	var inTime []string
	for key, calls := range hist.calls {
		for c := range calls {
			if c.by == a && c.paid && hist.now < c.until && hist.frozenTx == nil {
				inTime = append(inTime, key)
			}
		}
	}
	hist.step(a, m)
	for _, key := range inTime {
		hist.must(hist.ledgers[0].EachPayout(context.Background(), hist.promotion, func(e ledger.Payout) error {
			if e.Key.String() == key && e.State != rules.Success {
				hist.violation("%s was paid while its lease lasted, and is %s", key, e.State)
			}
			return nil
		}))
	}
}

// arrive lets a late request arrive, or get lost.
func (hist *history) arrive(i int, carriedOut bool) {
	r := hist.network[i]
	hist.network = append(hist.network[:i], hist.network[i+1:]...)
	if carriedOut && r.until >= hist.now {
		hist.logf("late request for %s is carried out", r.key)
		hist.charge(r.key, r.body)
	}
}

var _ money.API = (*modelAPI)(nil)
