package promotion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// healingRounds is how many rounds of everything that heals settle any history: each of the sends and asks that a
// payout has may need one or two.
const healingRounds = 30

// settleEverything ends a history: both instances die, and one comes back. A paused promotion stays as it is until it is
// resumed; then every payout is settled, the books are right, and the stream goes away.
func (w *world) settleEverything(t *rapid.T, late bool) {
	w.logf("the end: both instances crash")
	w.thaw()
	for _, in := range w.ins {
		in.restart(w)
	}
	for len(w.network) > 0 {
		w.arrive(0, late)
	}
	if w.state == statePaused {
		for range 3 {
			w.heal()
			w.judge(t)
		}
		w.command(false)
	}
	for n := 0; !w.quiet(); n++ {
		if n == healingRounds {
			w.broke("stranded: %s", w.unsettled())
			break
		}
		w.heal()
		w.judge(t)
	}
	w.judge(t)
	w.verify()
	w.idle()
	w.judge(t)
}

// run plays an actor without a wait.
func (w *world) run(in *modelInstance, do func(context.Context)) {
	do(context.WithValue(context.Background(), actorKey{}, &actor{w: w, in: in, what: "heals", free: true}))
}

// nextAnswer is how the Money API answers while everything heals: badly for a while, then well.
func (w *world) nextAnswer(at string) (answer int) {
	if len(w.answers) > 0 && (at == "before call" || at == "before ask") {
		answer, w.answers = w.answers[0], w.answers[1:]
		w.logf("%s: answer %d", at, answer)
	}
	return answer
}

// heal is a round of everything that makes a bad history good again, by one instance.
func (w *world) heal() {
	w.logf("heal")
	in := w.ins[0]
	in.restart(w) // which forgets that the stream was full
	w.pass(65 * time.Minute)
	w.sweep(in)
	for _, rec := range w.offers {
		if !rec.acked {
			w.run(in, w.accept(in, rec))
		}
	}
	w.actKeep(in)
	w.run(in, w.feed(in))
	w.hinted()
	w.actKeep(in)
	if in.reading && !in.paused {
		w.actReclaim(in, die{})
	}
	for range 2 {
		if in.reading && !in.paused {
			w.actRead(in, die{})
		}
		for w.actHeld(in) {
		}
	}
	for _, r := range append([]*retryRecord(nil), w.retries...) {
		if !r.acked && r.due <= w.now {
			w.run(in, w.payRetry(in, r))
		}
	}
}

func (w *world) actHeld(in *modelInstance) bool {
	if len(in.hand) == 0 {
		return false
	}
	e := in.hand[0]
	in.hand = in.hand[1:]
	w.run(in, w.payEntry(in, e))
	return true
}

// quiet reports whether every record is acked and every payout settled.
func (w *world) quiet() bool {
	for _, rec := range w.offers {
		if !rec.acked {
			return false
		}
	}
	c, err := w.ledgers[0].Status(context.Background(), w.promotion)
	w.must(err)
	return c.Pending == 0
}

func (w *world) unsettled() string {
	text := ""
	w.must(w.ledgers[0].EachPayout(context.Background(), w.promotion, func(e ledger.Payout) error {
		if !e.State.Settled() {
			text += fmt.Sprintf("%s %s, queue %s, attempts %d, lookups %d; ", e.Key, e.State, e.Queue, e.Attempts, e.Lookups)
		}
		return nil
	}))
	return text
}

// verify holds the ledger against the book of the Money API and against what was offered.
func (w *world) verify() {
	ctx := context.Background()
	rows := map[int64]ledger.Payout{}
	w.must(w.ledgers[1].EachPayout(ctx, w.promotion, func(e ledger.Payout) error { rows[e.Target] = e; return nil }))
	amounts := map[int64]map[int64]bool{}
	for _, o := range w.offers {
		if amounts[o.target] == nil {
			amounts[o.target] = map[int64]bool{}
		}
		amounts[o.target][o.amount] = true
		if _, known := rows[o.target]; !known {
			w.broke("target %d was acked and is in no row", o.target)
		}
	}
	conflicts, counts := int64(0), map[rules.State]int64{}
	for target, e := range rows {
		counts[e.State]++
		charges := w.book[e.Key.String()]
		switch {
		case e.State == rules.Success && (len(charges) != 1 || charges[0].tx != e.TransactionKey):
			w.broke("%s is SUCCESS with %q, and its charges are %v", e.Key, e.TransactionKey, charges)
		case (e.State == rules.Failed || e.State == rules.Cancelled) && len(charges) > 0:
			w.broke("%s is %s and was charged: %v", e.Key, e.State, charges)
		case len(charges) > 0 && charges[0].body != string(e.Request):
			w.broke("%s was charged as %s, the ledger has %s", e.Key, charges[0].body, e.Request)
		case e.State == rules.Cancelled && w.state != stateCancelled:
			w.broke("%s is CANCELLED, and nobody has cancelled", e.Key)
		case e.Attempts > 3 || e.Lookups > 3 || e.Released > 4:
			w.broke("%s had %d sends, %d lookups and %d released calls", e.Key, e.Attempts, e.Lookups, e.Released)
		}
		if len(amounts[target]) == 2 {
			conflicts++
		}
	}
	c, err := w.ledgers[0].Status(ctx, w.promotion)
	w.must(err)
	if c.Conflict != conflicts {
		w.broke("%d payouts were offered with two requests, and there are %d dead letters of conflicts", conflicts, c.Conflict)
	}
	if c.Paid != counts[rules.Success] || c.Failed != counts[rules.Failed] || c.Unknown != counts[rules.Unknown] || c.Cancelled != counts[rules.Cancelled] {
		w.broke("the summary %+v is not the rows' %v", c, counts)
	}
}

// idle lets what is left in the streams and retry topics be used up, which changes nothing, and then lets the stream go.
func (w *world) idle() {
	ctx := context.Background()
	charged := len(w.book)
	in := w.ins[0]
	for range 6 {
		w.heal()
		w.run(in, w.idleStop(in))
	}
	if len(w.book) != charged {
		w.broke("something was charged after everything was settled")
	}
	if left := w.watch.Exists(ctx, w.stream, streams.MetaKey(w.stream)).Val(); left > 0 {
		pending, err := w.watch.XPending(ctx, w.stream, w.group).Result()
		w.broke("the stream is still there: %v %v", pending, errors.Join(err))
	}
	if active, _ := w.active(in); active {
		w.broke("the stream is gone, and still on the active set")
	}
}
