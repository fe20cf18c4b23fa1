package promotion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// repairRounds is the number of rounds after which every history is settled. Each send and lookup
// of a payout may need one or two.
const repairRounds = 30

// settleEverything ends a history: both instances crash, and one starts again. A paused promotion
// stays unchanged until it is resumed. Then every payout is settled, ledger and charges agree, and
// the stream is deleted.
func (hist *history) settleEverything(t *rapid.T, late bool) {
	hist.logf("the end: both instances crash")
	hist.thaw()
	for _, in := range hist.ins {
		in.restart(hist)
	}
	for len(hist.network) > 0 {
		hist.arrive(0, late)
	}
	if hist.state == statePaused {
		for range 3 {
			hist.repair()
			hist.check(t)
		}
		hist.command(false)
	}
	for n := 0; !hist.quiet(); n++ {
		if n == repairRounds {
			hist.violation("stranded: %s", hist.unsettled())
			break
		}
		hist.repair()
		hist.check(t)
	}
	hist.check(t)
	hist.verify()
	hist.idle()
	hist.check(t)
}

// run plays an actor without a wait.
func (hist *history) run(in *modelInstance, do func(context.Context)) {
	do(context.WithValue(context.Background(), actorKey{}, &actor{hist: hist, in: in, what: "repair", free: true}))
}

// nextAnswer is how the Money API answers during the repair: badly for a while, then well.
func (hist *history) nextAnswer(at string) (answer int) {
	if len(hist.answers) > 0 && (at == "before call" || at == "before lookup") {
		answer, hist.answers = hist.answers[0], hist.answers[1:]
		hist.logf("%s: answer %d", at, answer)
	}
	return answer
}

// repair is a round of everything that makes a bad history good again, by one instance.
func (hist *history) repair() {
	hist.logf("repair")
	in := hist.ins[0]
	in.restart(hist) // the cached Full result is gone
	hist.pass(65 * time.Minute)
	hist.sweep(in)
	for _, rec := range hist.offers {
		if !rec.acked {
			hist.run(in, hist.accept(in, rec))
		}
	}
	hist.reconcile(in)
	hist.run(in, hist.feed(in))
	hist.checkQueues()
	hist.reconcile(in)
	if in.reading && !in.paused {
		hist.reclaim(in, draw{})
	}
	for range 2 {
		if in.reading && !in.paused {
			hist.read(in, draw{})
		}
		for hist.payHeld(in) {
		}
	}
	for _, r := range append([]*retryRecord(nil), hist.retries...) {
		if !r.acked && r.due <= hist.now {
			hist.run(in, hist.payRetry(in, r))
		}
	}
}

func (hist *history) payHeld(in *modelInstance) bool {
	if len(in.inFlight) == 0 {
		return false
	}
	e := in.inFlight[0]
	in.inFlight = in.inFlight[1:]
	hist.run(in, hist.payEntry(in, e))
	return true
}

// quiet reports whether every record is acked and every payout settled.
func (hist *history) quiet() bool {
	for _, rec := range hist.offers {
		if !rec.acked {
			return false
		}
	}
	c, err := hist.ledgers[0].Status(context.Background(), hist.promotion)
	hist.must(err)
	return c.Pending == 0
}

func (hist *history) unsettled() string {
	text := ""
	hist.must(hist.ledgers[0].EachPayout(context.Background(), hist.promotion, func(e ledger.Payout) error {
		if !e.State.Settled() {
			text += fmt.Sprintf("%s %s, queue %s, attempts %d, lookups %d; ", e.Key, e.State, e.Queue, e.Attempts, e.Lookups)
		}
		return nil
	}))
	return text
}

// verify compares the ledger with the charges of the Money API and with the offers.
func (hist *history) verify() {
	ctx := context.Background()
	rows := map[int64]ledger.Payout{}
	hist.must(hist.ledgers[1].EachPayout(ctx, hist.promotion, func(e ledger.Payout) error { rows[e.Target] = e; return nil }))
	amounts := map[int64]map[int64]bool{}
	for _, o := range hist.offers {
		if amounts[o.target] == nil {
			amounts[o.target] = map[int64]bool{}
		}
		amounts[o.target][o.amount] = true
		if _, known := rows[o.target]; !known {
			hist.violation("target %d was acked and is in no row", o.target)
		}
	}
	conflicts, counts := int64(0), map[rules.State]int64{}
	for target, e := range rows {
		counts[e.State]++
		charges := hist.charges[e.Key.String()]
		switch {
		case e.State == rules.Success && (len(charges) != 1 || charges[0].tx != e.Receipt):
			hist.violation("%s is SUCCESS with %q, and its charges are %v", e.Key, e.Receipt, charges)
		case (e.State == rules.Failed || e.State == rules.Cancelled) && len(charges) > 0:
			hist.violation("%s is %s and was charged: %v", e.Key, e.State, charges)
		case len(charges) > 0 && charges[0].body != string(e.Request):
			hist.violation("%s was charged as %s, the ledger has %s", e.Key, charges[0].body, e.Request)
		case e.State == rules.Cancelled && hist.state != stateCancelled:
			hist.violation("%s is CANCELLED, and the promotion is not", e.Key)
		case e.Attempts > 3 || e.Lookups > 3 || e.Released > 4:
			hist.violation("%s had %d sends, %d lookups and %d released calls", e.Key, e.Attempts, e.Lookups, e.Released)
		}
		if len(amounts[target]) == 2 {
			conflicts++
		}
	}
	c, err := hist.ledgers[0].Status(ctx, hist.promotion)
	hist.must(err)
	if c.Conflict != conflicts {
		hist.violation("%d payouts were offered with two requests, and there are %d dead letters of conflicts", conflicts, c.Conflict)
	}
	if c.Paid != counts[rules.Success] || c.Failed != counts[rules.Failed] || c.Unknown != counts[rules.Unknown] || c.Cancelled != counts[rules.Cancelled] {
		hist.violation("the summary %+v is not the rows' %v", c, counts)
	}
}

// idle lets what is left in the streams and retry topics be used up, which changes nothing, and
// then lets the stream go.
func (hist *history) idle() {
	ctx := context.Background()
	charged := len(hist.charges)
	in := hist.ins[0]
	for range 6 {
		hist.repair()
		hist.run(in, hist.idleStop(in))
	}
	if len(hist.charges) != charged {
		hist.violation("something was charged after everything was settled")
	}
	if left := hist.watch.Exists(ctx, hist.stream, streams.MetaKey(hist.stream)).Val(); left > 0 {
		pending, err := hist.watch.XPending(ctx, hist.stream, hist.group).Result()
		hist.violation("the stream is still there: %v %v", pending, errors.Join(err))
	}
	if active, _ := hist.active(in); active {
		hist.violation("the stream is gone, and still on the active set")
	}
}
