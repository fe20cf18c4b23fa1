package promotion

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// Times of the histories. They pass only when a history says so, so they are long: nothing that really passes counts.
const (
	modelLease   = time.Hour
	modelTTL     = 24 * time.Hour
	modelNetwork = time.Hour // the longest that a request lives in the network after its call has ended
	modelGrace   = 20 * time.Minute
	// modelKeyLife is the precondition of promise 2. It counts from the first request with the key, refused or not.
	modelKeyLife = modelTTL + modelLease + modelNetwork + time.Minute
)

// The answers of the Money API, drawn for every call.
const (
	answerPaid          = iota // charged
	answerLost                 // charged, and the answer is lost
	answerBroken               // not charged, but nobody can know
	answerLate                 // nobody knows; the request is under way and may be carried out later
	answerRejected             // refused for good
	answerThrottled            // 429
	answerMisconfigured        // 401
	answerTryAgain             // 408
	answerProxy                // not charged; a proxy refuses in its own words
	answerProxyCharged         // charged, and a proxy refuses in its own words
	answerOverloaded           // 429 for all, and the client knows it
	modelAnswerKinds    = iota
)

// bookLine is a line of the book.
type bookLine struct {
	body string
	tx   string
}

// request is one that is still in the network.
type request struct {
	key, body string
	until     time.Duration
}

// modelCall is a call under way: its actor has begun the payout, and has not had the answer.
type modelCall struct {
	by    *actor
	until time.Duration
	paid  bool // the answer, once there is one
}

// keyMemory is what the API knows of an idempotency key.
type keyMemory struct {
	since time.Duration // the first request
	tx    string        // of the charge, if there is one
}

// modelAPI is a Money API that honours an idempotency key for modelKeyLife and not a minute longer.
type modelAPI struct{ w *world }

// use is a request with a key, and returns what the API remembers of it.
func (w *world) use(key string) *keyMemory {
	m := w.recall(key)
	if m == nil {
		m = &keyMemory{since: w.now}
		w.keys[key] = m
	}
	return m
}

func (w *world) recall(key string) *keyMemory {
	if m := w.keys[key]; m != nil && m.since+modelKeyLife > w.now {
		return m
	}
	return nil
}

func (w *world) charge(key, body string) string {
	m := w.use(key)
	if m.tx == "" {
		m.tx = fmt.Sprintf("tx-%s-%d", key, len(w.book[key]))
		w.book[key] = append(w.book[key], bookLine{body, m.tx})
		if len(w.book[key]) > 1 {
			w.broke("%s was charged twice: %v", key, w.book[key])
		}
	}
	return m.tx
}

// enter notes a call that has just been begun. The begin and this are one step, so that what was true a moment ago
// was true for the begin.
func (w *world) enter(ctx context.Context, key string, send bool) (c *modelCall, leave func()) {
	c = &modelCall{by: actorOf(ctx), until: w.now + modelLease}
	switch {
	case w.state == statePaused:
		w.broke("%s was begun although the promotion is paused", key)
	case w.state == stateCancelled && send:
		w.broke("%s was begun although the promotion is cancelled", key)
	}
	for other := range w.calls[key] {
		if other.until > w.now {
			w.broke("%s is in the hands of two at once: %s %s and %s %s", key, other.by.in.name, other.by.what, c.by.in.name, c.by.what)
		}
	}
	if w.calls[key] == nil {
		w.calls[key] = map[*modelCall]bool{}
	}
	w.calls[key][c] = true
	return c, func() { delete(w.calls[key], c) }
}

// Slot implements money.API. There is always one.
func (m *modelAPI) Slot(context.Context) (release func(), err error) { return func() {}, nil }

// Charge implements money.API.
func (m *modelAPI) Charge(ctx context.Context, ch money.Charge) money.Answer {
	w, a := m.w, actorOf(ctx)
	c, leave := w.enter(ctx, ch.Key, true)
	defer leave()
	if first, sent := w.bodies[ch.Key]; sent && first != string(ch.Body) {
		w.broke("%s was sent as %s and as %s", ch.Key, first, ch.Body)
	}
	w.bodies[ch.Key] = string(ch.Body)
	kind := a.wait("before call").answer
	if w.now >= c.until {
		return money.Answer{Class: money.NotSent} // the client starts nothing after its deadline
	}
	answer := money.Answer{}
	switch kind {
	case answerPaid:
		answer = money.Answer{Class: money.Paid, TransactionKey: w.charge(ch.Key, string(ch.Body))}
	case answerLost:
		w.charge(ch.Key, string(ch.Body))
	case answerLate:
		w.network = append(w.network, request{ch.Key, string(ch.Body), w.now + modelNetwork})
	case answerRejected:
		w.use(ch.Key)
		answer.Class = money.Rejected
	case answerThrottled, answerOverloaded:
		w.use(ch.Key)
		answer = money.Answer{Class: money.Throttled, RetryAfter: 5 * time.Minute, General: kind == answerOverloaded}
	case answerMisconfigured:
		w.use(ch.Key)
		answer.Class = money.Misconfigured
	case answerTryAgain:
		w.use(ch.Key)
		answer.Class = money.Retry
	case answerProxyCharged:
		w.charge(ch.Key, string(ch.Body))
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
	w, a := m.w, actorOf(ctx)
	c, leave := w.enter(ctx, key, false)
	defer leave()
	kind := a.wait("before ask").answer
	answer := money.Answer{Class: money.NoCharge}
	if m := w.recall(key); m != nil && m.tx != "" {
		answer = money.Answer{Class: money.Paid, TransactionKey: m.tx}
	}
	switch {
	case w.now >= c.until, kind == answerLost, kind == answerBroken:
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

// answered lets an actor have its answer: one that comes while the lease lasts is booked at once.
func (w *world) answered(a *actor, m move) {
	var inTime []string
	for key, calls := range w.calls {
		for c := range calls {
			if c.by == a && c.paid && w.now < c.until && w.ice == nil {
				inTime = append(inTime, key)
			}
		}
	}
	w.step(a, m)
	for _, key := range inTime {
		w.must(w.ledgers[0].EachPayout(context.Background(), w.promotion, func(e ledger.Payout) error {
			if e.Key.String() == key && e.State != rules.Success {
				w.broke("%s was paid while its lease lasted, and is %s", key, e.State)
			}
			return nil
		}))
	}
}

// arrive lets a late request arrive, or get lost.
func (w *world) arrive(i int, carriedOut bool) {
	r := w.network[i]
	w.network = append(w.network[:i], w.network[i+1:]...)
	if carriedOut && r.until >= w.now {
		w.logf("late request for %s is carried out", r.key)
		w.charge(r.key, r.body)
	}
}

var _ money.API = (*modelAPI)(nil)
