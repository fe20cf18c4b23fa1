package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPayoutNeverPaidTwice plays random histories with an API that charges whenever a request reaches it, also
// after the caller has gone, up to a minute after the lease. It forgets a key some time after the first request with it, refused or not, and then
// charges it once more; in half of the histories it counts from the charge instead. In front of it is a proxy, whose
// answers say nothing.
func TestPayoutNeverPaidTwice(t *testing.T) {
	t.Parallel()
	history := func(t *rapid.T) {
		p := testPolicy()
		// With one attempt a payout is given up often, and a person's word is heard often.
		p.maxAttempts = rapid.IntRange(1, 3).Draw(t, "attempts")
		p.maxAsks = p.maxAttempts
		now := t0
		row, _, _ := p.apply(Row{ID: 1, Key: key(1, 2)}, event{kind: evAccept, now: now, promotion: PromotionRunning})
		promotion := PromotionRunning
		type flight struct {
			epoch int64
			send  bool
			after bool      // a send that followed a lookup
			until time.Time // the worker's lease
			state string    // begun, written, ended
			came  bool      // the request has reached the API, and was charged
		}
		// onItsWay reports whether the network may still deliver the request.
		onItsWay := func(f *flight) bool { return f.state == "written" && !f.came && now.Before(f.until.Add(time.Minute)) }
		var flights []*flight
		looked := false  // a lookup has said since the last send that there is no charge
		var charged bool // the API's book has the charge
		fromFirstUse := rapid.Bool().Draw(t, "keys age from first use")
		var keyKnownSince time.Time
		remembered := false // the charge, by its key
		charges := 0
		forget := func() {
			if now.Sub(keyKnownSince) > p.ttl+2*p.lease+time.Minute {
				keyKnownSince, remembered = time.Time{}, false
			}
		}
		use := func(charge bool) { // a request reaches the API
			forget()
			if keyKnownSince.IsZero() && (charge || fromFirstUse) {
				keyKnownSince = now
			}
			if !charge {
				return
			}
			if !remembered {
				charges++
			}
			charged, remembered = true, true
		}
		request := func() { use(true) }
		step := func(ev event) decision {
			was := row
			ev.now = now
			next, eff, d := p.apply(row, ev)
			checkStep(t, was, next, eff, d)
			require.LessOrEqual(t, next.Attempts, p.maxAttempts)
			require.LessOrEqual(t, next.Asks, p.maxAsks)
			row = next
			if row.State.Settled() && !was.State.Settled() {
				if charged {
					require.Contains(t, []State{Success, Unknown}, row.State, "charged and denied")
				}
			}
			return d
		}
		late := []*flight{} // requests written whose worker gave up; the network may still deliver them
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"begin", "begin", "write", "arrive", "answer", "answer", "give up", "deliver", "wait", "pause", "resume", "cancel", "fed", "lost", "crash", "replay", "replay", "resolve"}).Draw(t, "step") {
			case "begin":
				d := step(event{kind: evBegin, promotion: promotion, same: true})
				if d.next == Send || d.next == Ask {
					if d.next == Send {
						require.NotEqual(t, PromotionCancelled, promotion, "sent after a cancel")
						require.False(t, row.MaybeCharged && row.KeyAge(now) > p.ttl, "sent after the key's time")
						require.False(t, row.KeyAge(now) > p.ttl && !looked, "sent after the key's time, without a lookup")
					}
					flights = append(flights, &flight{epoch: row.Epoch, send: d.next == Send, after: looked, until: now.Add(p.lease), state: "begun"})
					looked = looked && d.next == Ask
				}
			case "write":
				for _, f := range flights {
					if f.state == "begun" && f.send && now.Before(f.until) { // only while its lease lasts
						f.state = "written"
						break
					}
				}
			case "arrive": // the answer comes later, or never
				if i := slices.IndexFunc(flights, onItsWay); i >= 0 {
					request()
					flights[i].came = true
				}
			case "answer", "give up":
				if len(flights) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
				f := flights[i]
				flights = append(flights[:i], flights[i+1:]...)
				res := Result{Key: row.Key, Epoch: f.epoch, Counted: rapid.Bool().Draw(t, "counted")}
				forget()
				switch {
				case !f.send && remembered:
					res.Outcome = rapid.SampledFrom([]Outcome{Paid, PerhapsCharged, NotCharged, Rejected, Unrecognized, NotSent, Interrupted}).Draw(t, "ask")
				case !f.send:
					res.Outcome = rapid.SampledFrom([]Outcome{NoCharge, NoCharge, PerhapsCharged, NotCharged, Rejected, Unrecognized, NotSent, Interrupted}).Draw(t, "ask")
				case f.state == "begun":
					res.Outcome = rapid.SampledFrom([]Outcome{NotSent, Interrupted}).Draw(t, "unsent")
				case f.came:
					res.Outcome = rapid.SampledFrom([]Outcome{Paid, PerhapsCharged, Unrecognized}).Draw(t, "answered")
				case !onItsWay(f):
					res.Outcome = PerhapsCharged // it was lost on the way
				default:
					res.Outcome = rapid.SampledFrom([]Outcome{Paid, PerhapsCharged, PerhapsCharged, Unrecognized, Rejected, TryAgain, NotCharged, OwnFault}).Draw(t, "sent")
					switch res.Outcome {
					case Paid:
						request()
					case PerhapsCharged, Unrecognized: // lost, or a proxy has let it wait and answered by itself
						if rapid.Bool().Draw(t, "arrived") {
							request()
						} else {
							late = append(late, f)
						}
					default:
						use(false)
					}
				}
				if d := step(event{kind: evSettle, result: res}); !d.stale && !d.repeat {
					looked = looked || res.Outcome == NoCharge || f.after && (res.Outcome == NotSent || res.Outcome == Interrupted)
				}
			case "crash": // the worker dies without a word; what it wrote may arrive
				if len(flights) > 0 {
					if onItsWay(flights[0]) {
						late = append(late, flights[0])
					}
					flights = flights[1:]
				}
			case "deliver":
				if len(late) > 0 && onItsWay(late[0]) {
					request()
				}
				if len(late) > 0 {
					late = late[1:]
				}
			case "wait":
				now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 9, 60, 35 * 60, 61 * 60}).Draw(t, "seconds")) * time.Second)
			case "pause":
				if promotion == PromotionRunning {
					promotion = PromotionPaused
				}
			case "resume":
				if promotion == PromotionPaused {
					promotion = PromotionRunning
				}
			case "cancel":
				promotion = PromotionCancelled
				step(event{kind: evCancel})
			case "fed":
				step(event{kind: evFed, version: row.Version})
			case "lost":
				step(event{kind: evLost})
			case "replay":
				step(event{kind: evReplay, promotion: promotion})
			case "resolve": // by a person who looked into the API's book when nothing was under way any more
				if len(late)+len(flights) == 0 {
					step(event{kind: evResolve, resolve: Resolution{Paid: charged, TransactionKey: "tx"}})
				}
			}
			require.LessOrEqual(t, charges, 1, "paid twice")
		}
		if charged {
			require.NotContains(t, []State{Failed, Cancelled}, row.State, "charged and denied")
		}
	}
	for range 5 { // a hundred histories are too few for what a person does after the end of one
		rapid.Check(t, history)
	}
}

// TestPayoutEnds: whatever happened before, a payout whose hints come and whose API answers in the end settles.
func TestPayoutEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := testPolicy()
		rows := shapes()
		names := make([]string, 0, len(rows))
		for n := range rows {
			names = append(names, n)
		}
		row := rows[rapid.SampledFrom(sorted(names)).Draw(t, "row")]
		promotion := rapid.SampledFrom([]PromotionState{PromotionRunning, PromotionCancelled}).Draw(t, "promotion")
		answers := rapid.SliceOfN(rapid.SampledFrom([]Outcome{TryAgain, PerhapsCharged, Rejected, NoCharge, NotCharged, OwnFault, Unrecognized}), 1, 5).Draw(t, "answers")
		now := t0
		for i := range 60 {
			if row.State.Settled() {
				return
			}
			now = now.Add(2 * p.lease).Add(time.Minute)
			var d decision
			row, _, d = p.apply(row, event{kind: evBegin, now: now, promotion: promotion, same: true})
			if d.next == Send || d.next == Ask {
				row, _, _ = p.apply(row, event{kind: evSettle, now: now, result: Result{Epoch: row.Epoch, Outcome: answers[i%len(answers)], Counted: true}})
			}
		}
		require.True(t, row.State.Settled(), "still %s after 60 begins", row.State)
	})
}
