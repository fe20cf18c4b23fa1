package promotion

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/streams"
)

// draw is the random numbers of one step of a history.
type draw struct{ Step, Pick, How int }

// newDraw draws evenly, which rapid's numbers are not: they are mostly small.
func newDraw(t *rapid.T) draw {
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
	return draw{number(10), number(3), number(5)}
}

// takeStep does one of the steps that are possible now.
func (hist *history) takeStep(d draw) {
	in := hist.ins[d.Pick%2]
	waiting, calls, frozen := 0, 0, hist.frozen()
	for _, other := range hist.ins {
		waiting += len(other.actors)
	}
	waiting -= len(frozen) // a frozen actor stays so until another one takes over
	for _, c := range hist.calls {
		calls += len(c)
	}
	frozenIn := 0 // an operator's command waits for the gate
	if hist.frozenTx != nil {
		frozenIn = 1
	}
	type choice struct {
		weight int
		do     func()
	}
	choices := []choice{
		{40 * min(waiting, 4), func() { hist.resume(d) }},
		{10, func() { hist.startAccept(in, d) }},
		{2 + 10*(calls-len(frozen)), func() { hist.passTime(d) }},
		{5, func() { hist.startOnce(in, "feed", hist.feed(in)) }},
		{1 - frozenIn, func() { hist.command(d.How == 0) }},
		{hist.mayFreeze * (1 - frozenIn), func() { hist.freeze(d) }},
		{3 * frozenIn, hist.thaw},
		{1, func() { hist.offerAgain(d) }},
		{2, func() { hist.crash(in, d) }},
		{1, hist.wipe},
		{1, func() { hist.sweep(in) }},
		{1, func() { hist.lose(d) }},
		{min(5*len(hist.network), 10), func() { hist.arrive(d.Pick%len(hist.network), d.How%2 == 0) }},
		{min(20*len(in.inFlight), 40), func() { hist.startEntry(in, d) }},
		{min(8*len(hist.retries), 16), func() { hist.startRetry(in, d) }},
	}
	switch {
	case !in.reading:
		choices = append(choices, choice{20, func() { hist.reconcile(in) }})
	case !in.paused:
		choices = append(choices, choice{20, func() { hist.read(in, d) }}, choice{6 + 40*len(frozen), func() { hist.reclaim(in, d) }})
		if len(in.inFlight) == 0 {
			choices = append(choices, choice{3, func() { hist.startOnce(in, "idle stop", hist.idleStop(in)) }})
		}
		fallthrough
	default:
		choices = append(choices, choice{3, func() { hist.reconcile(in) }})
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	at := d.Step * total / 1024
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			c.do()
			return
		}
	}
}

func (hist *history) crash(in *modelInstance, d draw) {
	if d.How < 6 {
		hist.flag = !hist.flag // takes effect with the restart
	}
	hist.logf("%s crashes; the flag is %t", in.name, hist.flag)
	in.restart(hist)
}

// passTime lets time pass: less than a lease, more, or more than a key may be used.
func (hist *history) passTime(d draw) {
	hist.pass([]time.Duration{15 * time.Minute, 45 * time.Minute, 61 * time.Minute, 90 * time.Minute, modelTTL + time.Hour}[min(d.How/7, 4)])
}

// offerAgain publishes a record again, or another request for the same payout.
func (hist *history) offerAgain(d draw) {
	hist.offer(int64(1+d.Pick%3), 500+int64(d.How&1))
	last := hist.offers[len(hist.offers)-1]
	hist.logf("target %d is offered with %d", last.target, last.amount)
}

// resume lets one of those that wait do its step.
func (hist *history) resume(d draw) {
	var waiting []*actor
	for _, in := range hist.ins {
		waiting = append(waiting, in.actors...)
	}
	if awake := slices.DeleteFunc(slices.Clone(waiting), func(a *actor) bool { return hist.frozen()[a] }); len(awake) > 0 && d.How%8 > 0 {
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
		hist.deletes(a, m)
		return
	}
	if a.at == "before answer" {
		hist.answered(a, m)
		return
	}
	hist.step(a, m)
}

// deletes watches the step that may delete the stream.
func (hist *history) deletes(a *actor, m move) {
	ctx := context.Background()
	before, err := a.in.manager.Inspect(ctx, hist.promotion.StreamID())
	hist.must(err)
	hist.step(a, m)
	if n, err := hist.watch.Exists(ctx, hist.stream).Result(); err == nil && n == 0 && !before.Drained {
		hist.violation("an idle stop has deleted a stream with %d entries, of which %d were pending", before.Length, before.Pending)
	}
}

func (hist *history) startAccept(in *modelInstance, d draw) {
	for i := range hist.offers {
		rec := hist.offers[(d.How+i)%len(hist.offers)]
		if !rec.busy && !rec.acked {
			hist.startOnce(in, "accept", hist.accept(in, rec))
			return
		}
	}
}

// startOnce starts an actor unless the instance does the same already.
func (hist *history) startOnce(in *modelInstance, what string, do func(context.Context)) {
	if !in.runs(what) {
		hist.start(in, what, do)
	}
}

// read is one read of the instance's reader; its answer may be lost.
func (hist *history) read(in *modelInstance, d draw) {
	ctx := context.Background()
	got, err := hist.watch.XReadGroup(ctx, &redis.XReadGroupArgs{Group: hist.group, Consumer: in.reader(), Streams: []string{hist.stream, ">"}, Count: 2, Block: -1}).Result()
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOGROUP"):
		// As streams.subscription.absent: made again when it should run, left alone when not.
		if active, _ := hist.active(in); active {
			hist.must(in.manager.Ensure(ctx, hist.promotion.StreamID()))
		} else {
			in.reading = false
		}
		hist.logf("%s finds the stream gone", in.name)
	case err != nil && !errors.Is(err, redis.Nil):
		hist.must(err)
	case err == nil && d.How < 28:
		in.inFlight = append(in.inFlight, got[0].Messages...)
		hist.logf("%s reads %d", in.name, len(got[0].Messages))
	}
}

func (hist *history) startEntry(in *modelInstance, d draw) {
	if len(in.inFlight) == 0 {
		return
	}
	i := d.How % len(in.inFlight)
	e := in.inFlight[i]
	in.inFlight = append(in.inFlight[:i], in.inFlight[i+1:]...)
	hist.start(in, "pay "+e.ID, hist.payEntry(in, e))
}

func (hist *history) startRetry(in *modelInstance, d draw) {
	for i := range hist.retries {
		r := hist.retries[(d.How+i)%len(hist.retries)]
		if r.acked || r.busy || r.due > hist.now {
			continue
		}
		hist.start(in, "retry", hist.payRetry(in, r))
		return
	}
}

func (hist *history) active(in *modelInstance) (active, paused bool) {
	all, err := in.ledger.Active(context.Background(), hist.promotion.Type)
	hist.must(err)
	for _, a := range all {
		if a.ID == hist.promotion.ID {
			return true, a.Paused
		}
	}
	return false, false
}

// reconcile is a round of the control loop. It starts the reader of an active stream and notes a
// pause. It reactivates a stream that is read and no longer on the active set.
func (hist *history) reconcile(in *modelInstance) {
	ctx := context.Background()
	active, paused := hist.active(in)
	hist.logf("%s reconciles: active %t, paused %t", in.name, active, paused)
	switch {
	case active:
		in.missed, in.paused = 0, paused
		if !in.reading && !paused {
			hist.must(in.manager.Ensure(ctx, hist.promotion.StreamID()))
			in.reading = true
		}
	case in.reading:
		st, err := in.manager.Inspect(ctx, hist.promotion.StreamID())
		hist.must(err)
		if in.missed++; !st.Exists {
			in.reading = false
		} else if in.missed >= 2 {
			hist.must(in.ledger.Activate(ctx, hist.promotion, 0))
		}
	}
}

// frozen returns the actors that are still calling after their lease, and are not replaced yet.
func (hist *history) frozen() map[*actor]bool {
	list := map[*actor]bool{}
	for _, calls := range hist.calls {
		for c := range calls {
			if c.until <= hist.now && len(calls) == 1 {
				list[c.by] = true
			}
		}
	}
	return list
}

// reclaim claims the entries that are pending and that no running actor has. Sometimes it also
// claims those of a running one.
func (hist *history) reclaim(in *modelInstance, d draw) {
	ctx := context.Background()
	held, frozen := map[string]bool{}, hist.frozen()
	for _, other := range hist.ins {
		for _, e := range other.inFlight {
			held[e.ID] = true
		}
		for _, a := range other.actors {
			if frozen[a] {
				continue
			}
			held[strings.TrimPrefix(a.what, "pay ")] = true
		}
	}
	pending, err := hist.watch.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: hist.stream, Group: hist.group, Start: "-", End: "+", Count: 20}).Result()
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
	got, err := hist.watch.XClaim(ctx, &redis.XClaimArgs{Stream: hist.stream, Group: hist.group, Consumer: in.reader(), Messages: ids}).Result()
	hist.must(err)
	in.inFlight = append(in.inFlight, got...)
	hist.logf("%s reclaims %d", in.name, len(got))
}

// wipe is a Redis that has lost everything of this promotion.
func (hist *history) wipe() {
	hist.logf("the stream is wiped")
	token := hist.token()
	hist.unseen = hist.unseen || token != "" && !hist.seen[token]
	hist.must(hist.watch.Del(context.Background(), hist.stream, streams.MetaKey(hist.stream)).Err())
}

// sweep reactivates streams that are not on the active set.
func (hist *history) sweep(in *modelInstance) {
	hist.logf("%s sweeps", in.name)
	hist.must(in.manager.Sweep(context.Background(), 0, func(ctx context.Context, id string) error {
		p, err := payouts.PromotionOfStream(hist.promotion.Type, id)
		if err != nil {
			return err
		}
		return in.ledger.Activate(ctx, p, 0)
	}))
}

// lose drops a retry record, or delivers a record again that was acked.
func (hist *history) lose(d draw) {
	if d.How%2 == 0 && len(hist.retries) > 0 {
		r := hist.retries[d.Pick%len(hist.retries)]
		r.acked = r.acked || !r.busy
		hist.logf("a retry record is lost")
		return
	}
	if rec := hist.offers[d.Pick%len(hist.offers)]; !rec.busy {
		rec.acked = false
		hist.logf("the record of target %d comes again", rec.target)
	}
}
