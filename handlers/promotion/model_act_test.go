package promotion

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// die is one step of a history, before it is known what is possible.
type die struct{ Act, Pick, How int }

// drawDie draws evenly, which rapid's numbers are not: they are mostly small.
func drawDie(t *rapid.T) die {
	bits := rapid.SliceOfN(rapid.Bool(), 18, 18).Draw(t, "bits")
	number := func(n int) (v int) {
		for _, b := range bits[:n] {
			v *= 2
			if b {
				v++
			}
		}
		bits = bits[n:]
		return v
	}
	return die{number(10), number(3), number(5)}
}

// act does one of the things that are possible now.
func (w *world) act(d die) {
	in := w.ins[d.Pick%2]
	waiting, calls, frozen := 0, 0, w.frozen()
	for _, other := range w.ins {
		waiting += len(other.actors)
	}
	waiting -= len(frozen) // who is frozen stays so for a while, and somebody takes over
	for _, c := range w.calls {
		calls += len(c)
	}
	frozenIn := 0 // a person's command waits for the gate
	if w.ice != nil {
		frozenIn = 1
	}
	type choice struct {
		weight int
		do     func()
	}
	choices := []choice{
		{40 * min(waiting, 4), func() { w.goOn(d) }},
		{10, func() { w.actAccept(in, d) }},
		{2 + 10*(calls-len(frozen)), func() { w.actPass(d) }},
		{5, func() { w.actOnce(in, "feed", w.feed(in)) }},
		{1 - frozenIn, func() { w.command(d.How == 0) }},
		{w.mayFreeze * (1 - frozenIn), func() { w.freeze(d) }},
		{3 * frozenIn, w.thaw},
		{1, func() { w.actOffer(d) }},
		{2, func() { w.actCrash(in, d) }},
		{1, w.wipe},
		{1, func() { w.sweep(in) }},
		{1, func() { w.lose(d) }},
		{min(5*len(w.network), 10), func() { w.arrive(d.Pick%len(w.network), d.How%2 == 0) }},
		{min(20*len(in.hand), 40), func() { w.actEntry(in, d) }},
		{min(8*len(w.retries), 16), func() { w.actRetry(in, d) }},
	}
	switch {
	case !in.reading:
		choices = append(choices, choice{20, func() { w.actKeep(in) }})
	case !in.paused:
		choices = append(choices, choice{20, func() { w.actRead(in, d) }}, choice{6 + 40*len(frozen), func() { w.actReclaim(in, d) }})
		if len(in.hand) == 0 {
			choices = append(choices, choice{3, func() { w.actOnce(in, "idle stop", w.idleStop(in)) }})
		}
		fallthrough
	default:
		choices = append(choices, choice{3, func() { w.actKeep(in) }})
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	at := d.Act * total / 1024
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			c.do()
			return
		}
	}
}

func (w *world) actCrash(in *modelInstance, d die) {
	if d.How < 6 {
		w.flag = !w.flag // takes effect with the restart
	}
	w.logf("%s crashes; the flag is %t", in.name, w.flag)
	in.restart(w)
}

// actPass lets time pass: less than a lease, more, or more than a key may be used.
func (w *world) actPass(d die) {
	w.pass([]time.Duration{15 * time.Minute, 45 * time.Minute, 61 * time.Minute, 90 * time.Minute, modelTTL + time.Hour}[min(d.How/7, 4)])
}

// actOffer publishes a record again, or another request for the same payout.
func (w *world) actOffer(d die) {
	w.offer(int64(1+d.Pick%3), 500+int64(d.How&1))
	last := w.offers[len(w.offers)-1]
	w.logf("target %d is offered with %d", last.target, last.amount)
}

// goOn lets one of those that wait do its step.
func (w *world) goOn(d die) {
	var waiting []*actor
	for _, in := range w.ins {
		waiting = append(waiting, in.actors...)
	}
	if awake := slices.DeleteFunc(slices.Clone(waiting), func(a *actor) bool { return w.frozen()[a] }); len(awake) > 0 && d.How%8 > 0 {
		waiting = awake
	}
	if len(waiting) == 0 {
		return
	}
	a := waiting[d.Pick%len(waiting)]
	m := move{fail: d.How == 31}
	if d.How >= 8 { // a third of the calls is paid
		m.answer = d.How % modelAnswerKinds
	}
	if a.what == "idle stop" && strings.HasPrefix(a.at, "before eval") && !m.fail {
		w.deletes(a, m)
		return
	}
	if a.at == "before answer" {
		w.answered(a, m)
		return
	}
	w.step(a, m)
}

// deletes watches the step that may delete the stream.
func (w *world) deletes(a *actor, m move) {
	ctx := context.Background()
	before, err := a.in.manager.Inspect(ctx, w.promotion.ID)
	w.must(err)
	w.step(a, m)
	if n, err := w.watch.Exists(ctx, w.stream).Result(); err == nil && n == 0 && !before.Drained {
		w.broke("an idle stop has deleted a stream with %d entries, of which %d were pending", before.Length, before.Pending)
	}
}

func (w *world) actAccept(in *modelInstance, d die) {
	for i := range w.offers {
		rec := w.offers[(d.How+i)%len(w.offers)]
		if !rec.busy && !rec.acked {
			w.actOnce(in, "accept", w.accept(in, rec))
			return
		}
	}
}

// actOnce starts an actor unless the instance does the same already.
func (w *world) actOnce(in *modelInstance, what string, do func(context.Context)) {
	if !in.does(what) {
		w.start(in, what, do)
	}
}

// actRead is one read of the instance's reader; its answer may be lost.
func (w *world) actRead(in *modelInstance, d die) {
	ctx := context.Background()
	got, err := w.watch.XReadGroup(ctx, &redis.XReadGroupArgs{Group: w.group, Consumer: in.reader(), Streams: []string{w.stream, ">"}, Count: 2, Block: -1}).Result()
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOGROUP"):
		// As streams.subscription.absent: made again when it should run, left alone when not.
		if active, _ := w.active(in); active {
			w.must(in.manager.Ensure(ctx, w.promotion.ID))
		} else {
			in.reading = false
		}
		w.logf("%s finds the stream gone", in.name)
	case err != nil && !errors.Is(err, redis.Nil):
		w.must(err)
	case err == nil && d.How < 28:
		in.hand = append(in.hand, got[0].Messages...)
		w.logf("%s reads %d", in.name, len(got[0].Messages))
	}
}

func (w *world) actEntry(in *modelInstance, d die) {
	if len(in.hand) == 0 {
		return
	}
	i := d.How % len(in.hand)
	e := in.hand[i]
	in.hand = append(in.hand[:i], in.hand[i+1:]...)
	w.start(in, "pay "+e.ID, w.payEntry(in, e))
}

func (w *world) actRetry(in *modelInstance, d die) {
	for i := range w.retries {
		r := w.retries[(d.How+i)%len(w.retries)]
		if r.acked || r.busy || r.due > w.now {
			continue
		}
		w.start(in, "retry", w.payRetry(in, r))
		return
	}
}

func (w *world) active(in *modelInstance) (active, paused bool) {
	all, err := in.ledger.Active(context.Background(), w.promotion.Type)
	w.must(err)
	for _, a := range all {
		if a.ID == w.promotion.ID {
			return true, a.Paused
		}
	}
	return false, false
}

// actKeep is a round of the keeper: start what should run, see what is paused, and put back what is read and has fallen
// off the active set.
func (w *world) actKeep(in *modelInstance) {
	ctx := context.Background()
	active, paused := w.active(in)
	w.logf("%s keeps: active %t, paused %t", in.name, active, paused)
	switch {
	case active:
		in.missed, in.paused = 0, paused
		if !in.reading && !paused {
			w.must(in.manager.Ensure(ctx, w.promotion.ID))
			in.reading = true
		}
	case in.reading:
		st, err := in.manager.Inspect(ctx, w.promotion.ID)
		w.must(err)
		if in.missed++; !st.Exists {
			in.reading = false
		} else if in.missed >= 2 {
			w.must(in.ledger.Activate(ctx, w.promotion, 0))
		}
	}
}

// frozen returns who is still calling although the lease is over, and has not been replaced yet.
func (w *world) frozen() map[*actor]bool {
	list := map[*actor]bool{}
	for _, calls := range w.calls {
		for c := range calls {
			if c.until <= w.now && len(calls) == 1 {
				list[c.by] = true
			}
		}
	}
	return list
}

// actReclaim takes up what is pending and in no living hand: a frozen one gives no sign of life, and now and then
// neither does another.
func (w *world) actReclaim(in *modelInstance, d die) {
	ctx := context.Background()
	held, frozen := map[string]bool{}, w.frozen()
	for _, other := range w.ins {
		for _, e := range other.hand {
			held[e.ID] = true
		}
		for _, a := range other.actors {
			if frozen[a] {
				continue
			}
			held[strings.TrimPrefix(a.what, "pay ")] = true
		}
	}
	pending, err := w.watch.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: w.stream, Group: w.group, Start: "-", End: "+", Count: 20}).Result()
	if err != nil {
		return // no stream, no group
	}
	var ids []string
	for _, p := range pending {
		if !held[p.ID] || d.How < 8 {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	got, err := w.watch.XClaim(ctx, &redis.XClaimArgs{Stream: w.stream, Group: w.group, Consumer: in.reader(), Messages: ids}).Result()
	w.must(err)
	in.hand = append(in.hand, got...)
	w.logf("%s reclaims %d", in.name, len(got))
}

// wipe is a Redis that has lost everything of this promotion.
func (w *world) wipe() {
	w.logf("the stream is wiped")
	token := w.token()
	w.unseen = w.unseen || token != "" && !w.seen[token]
	w.must(w.watch.Del(context.Background(), w.stream, streams.MetaKey(w.stream)).Err())
}

// sweep puts streams back that nobody knows.
func (w *world) sweep(in *modelInstance) {
	w.logf("%s sweeps", in.name)
	w.must(in.manager.Sweep(context.Background(), 0, func(ctx context.Context, id int64) error {
		return in.ledger.Activate(ctx, rules.Promotion{Type: w.promotion.Type, ID: id}, 0)
	}))
}

// lose drops a retry record, or delivers a record again that was acked.
func (w *world) lose(d die) {
	if d.How%2 == 0 && len(w.retries) > 0 {
		r := w.retries[d.Pick%len(w.retries)]
		r.acked = r.acked || !r.busy
		w.logf("a retry record is lost")
		return
	}
	if rec := w.offers[d.Pick%len(w.offers)]; !rec.busy {
		rec.acked = false
		w.logf("the record of target %d comes again", rec.target)
	}
}
