package rules

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// repeats are the policies of all kinds of far sides.
func repeats() map[string]Policy {
	all := map[string]Policy{}
	for name, change := range map[string]func(*Policy){
		"keys and lookups": func(*Policy) {},
		"keys":             func(p *Policy) { p.MaxLookups = 0 },
		"lookups":          func(p *Policy) { p.Repeat, p.UnderWay = ByLookup, time.Minute },
		"never":            func(p *Policy) { p.Repeat = Never },
		"always":           func(p *Policy) { p.Repeat = Always },
		"not said":         func(p *Policy) { p.Repeat = 0 },
	} {
		p := testPolicy()
		change(&p)
		all[name] = p
	}
	return all
}

// The test runs random histories with an API that charges for every request that reaches it.
// Requests may arrive up to a minute after the lease, and after the caller has gone.
//
// An API with keys deletes a key some time after its first request and then charges again. In half
// of the histories the time counts from the charge instead. An API without keys charges for each
// request. A proxy in front of it gives answers that prove nothing. Only an effect that may happen
// twice is ever charged twice, and none is denied that was charged.
func TestNoEffectHappensTwice(t *testing.T) {
	t.Parallel()
	for name, p := range repeats() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 { // a hundred histories have too few operator's actions
				rapid.Check(t, func(t *rapid.T) { neverPaidTwice(t, p, nil) })
			}
		})
	}
}

// The same holds when the ledger is restored from a backup, also one of a time before the effect was accepted,
// if that is told to it and the record is read again.
func TestNoEffectHappensTwiceAfterARestore(t *testing.T) {
	t.Parallel()
	for name, p := range repeats() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 {
				rapid.Check(t, func(t *rapid.T) { neverPaidTwice(t, p, []string{"backup", "backup", "restore"}) })
			}
		})
	}
}

// neverPaidTwice runs one history, in which more may happen.
func neverPaidTwice(t *rapid.T, p Policy, more []string) {
	charges := 0
	// A effect with a single attempt often fails, so operators act often.
	p.MaxAttempts = rapid.IntRange(1, 3).Draw(t, "attempts")
	p.MaxLookups = min(p.MaxLookups, p.MaxAttempts)
	now := t0
	row, _, _ := p.Apply(Row{}, Event{Kind: EventAccept, Now: now, Group: GroupRunning})
	group := GroupRunning
	type kept struct { // a backup
		at    time.Time
		row   Row // without a state: the effect was not accepted yet
		group GroupState
	}
	backup := kept{at: now.Add(-time.Second), group: GroupRunning}
	type flight struct {
		epoch int64
		send  bool
		after bool      // a send that followed a lookup
		until time.Time // the worker's lease
		state string    // leased, written, ended
		came  bool      // the request has reached the API, and was charged
	}
	// onItsWay reports whether the network may still deliver the request.
	onItsWay := func(f *flight) bool { return f.state == "written" && !f.came && now.Before(f.until.Add(time.Minute)) }
	var flights []*flight
	looked := false  // a lookup has said since the last send that there is no charge
	var charged bool // the API has stored the charge
	fromFirstUse := rapid.Bool().Draw(t, "keys age from first use")
	var keyKnownSince time.Time
	remembered := false // the charge, by its key
	deniedByRestore := false
	deleteOldKey := func() {
		if now.Sub(keyKnownSince) > p.KeyTTL+2*p.Lease+time.Minute {
			keyKnownSince, remembered = time.Time{}, false
		}
	}
	use := func(charge bool) { // a request reaches the API
		deleteOldKey()
		if keyKnownSince.IsZero() && (charge || fromFirstUse) {
			keyKnownSince = now
		}
		if !charge {
			return
		}
		if !remembered || p.Repeat != ByKey {
			charges++
		}
		charged, remembered = true, true
	}
	request := func() { use(true) }
	step := func(ev Event) Decision {
		was := row
		ev.Now = now
		next, eff, d := p.Apply(row, ev)
		checkStepOf(t, p, was, next, eff, d)
		require.LessOrEqual(t, next.Attempts, p.MaxAttempts)
		require.LessOrEqual(t, next.Lookups, p.MaxLookups)
		row = next
		if row != was {
			deniedByRestore = false
		}
		if row.State.Settled() && !was.State.Settled() {
			if charged {
				require.Contains(t, []State{Success, Unknown}, row.State, "charged and denied")
			}
		}
		return d
	}
	late := []*flight{} // written requests without a worker; may still arrive
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.SampledFrom(append([]string{"begin", "begin", "write", "arrive", "answer", "answer", "abandon", "deliver", "wait", "pause", "resume", "cancel", "enqueued", "lost", "crash", "replay", "replay", "resolve"}, more...)).Draw(t, "step") {
		case "begin":
			d := step(Event{Kind: EventBegin, Group: group, SameRequest: true})
			if d.Next == Send || d.Next == Lookup {
				if d.Next == Send {
					require.NotEqual(t, GroupCancelled, group, "sent after a cancel")
					old := p.Repeat == ByKey && row.KeyAge(now) > p.KeyTTL
					require.False(t, row.MaybeDone && old, "sent after the key's time")
					require.False(t, old && !looked && p.MaxLookups > 0, "sent after the key's time, without a lookup")
					require.False(t, row.MaybeDone && !p.sendsUnclear(), "sent although it may have been charged")
				}
				flights = append(flights, &flight{epoch: row.Epoch, send: d.Next == Send, after: looked, until: now.Add(p.Lease), state: "leased"})
				looked = looked && d.Next == Lookup
			}
		case "write":
			for _, f := range flights {
				if f.state == "leased" && f.send && now.Before(f.until) {
					f.state = "written"
					break
				}
			}
		case "arrive": // the answer comes later, or never
			if i := slices.IndexFunc(flights, onItsWay); i >= 0 {
				request()
				flights[i].came = true
			}
		case "answer", "abandon":
			if len(flights) == 0 {
				continue
			}
			i := rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
			f := flights[i]
			if now.Before(f.until) {
				f.until = now // no byte of it leaves any more
			}
			flights = append(flights[:i], flights[i+1:]...)
			res := CallResult{Epoch: f.epoch, Counted: rapid.Bool().Draw(t, "counted")}
			deleteOldKey()
			switch {
			case !f.send && (remembered || p.Repeat == ByLookup && charged):
				res.Outcome = rapid.SampledFrom([]Outcome{Done, Unclear, Throttled, Rejected, Unrecognized, NotSent, Interrupted}).Draw(t, "lookup")
			case !f.send:
				res.Outcome = rapid.SampledFrom([]Outcome{NotDone, NotDone, Unclear, Throttled, Rejected, Unrecognized, NotSent, Interrupted}).Draw(t, "lookup")
			case f.state == "leased":
				res.Outcome = rapid.SampledFrom([]Outcome{NotSent, Interrupted}).Draw(t, "unsent")
			case f.came:
				res.Outcome = rapid.SampledFrom([]Outcome{Done, Unclear, Unrecognized}).Draw(t, "answered")
			case !onItsWay(f):
				res.Outcome = Unclear // it was lost on the way
			default:
				res.Outcome = rapid.SampledFrom([]Outcome{Done, Unclear, Unclear, Unrecognized, Rejected, TryAgain, Throttled, Misconfigured}).Draw(t, "sent")
				switch res.Outcome {
				case Done:
					request()
				case Unclear, Unrecognized: // lost, or answered by a proxy
					if rapid.Bool().Draw(t, "arrived") {
						request()
					} else {
						late = append(late, f)
					}
				default:
					use(false)
				}
			}
			if d := step(Event{Kind: EventSettle, Result: res}); !d.Stale && !d.Repeated {
				looked = looked || res.Outcome == NotDone || f.after && (res.Outcome == NotSent || res.Outcome == Interrupted)
			}
		case "crash": // the worker crashes; its request may arrive
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
			if group == GroupRunning {
				group = GroupPaused
			}
		case "resume":
			if group == GroupPaused {
				group = GroupRunning
			}
		case "cancel":
			group = GroupCancelled
			step(Event{Kind: EventCancel})
		case "backup":
			// What an operator replays after the backup may be done, and nobody knows it without a lookup.
			if row.State != Failed || p.lookups() > 0 {
				backup = kept{now, row, group}
			}
		case "restore": // when all workers have stopped
			for _, f := range flights {
				if f.until = minTime(f.until, now); onItsWay(f) {
					late = append(late, f)
				}
			}
			flights, looked = nil, false
			accepted := row.AcceptedAt
			row, group = backup.row, backup.group
			now = now.Add(time.Second)
			p.Lost = append(slices.Clone(p.Lost), Lost{backup.at, now})
			if row.State == "" {
				step(Event{Kind: EventAccept, Group: group, Published: accepted})
			}
			deniedByRestore = row.State == Failed && charged
			backup = kept{now, row, group}
		case "enqueued":
			step(Event{Kind: EventEnqueued, Version: row.Version})
		case "lost":
			step(Event{Kind: EventStreamLost})
		case "replay":
			step(Event{Kind: EventReplay, Group: group})
		case "resolve": // by an operator, when no request is under way
			if len(late)+len(flights) == 0 {
				step(Event{Kind: EventResolve, Resolution: Resolution{Done: charged, Receipt: "tx"}})
			}
		}
		if p.Repeat != Always {
			require.LessOrEqual(t, charges, 1, "paid twice")
		}
	}
	if charged && !deniedByRestore {
		require.NotContains(t, []State{Failed, Cancelled}, row.State, "charged and denied")
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// A effect settles from every state, if its entries are read and the API answers at last.
func TestEachEffectEnds(t *testing.T) {
	t.Parallel()
	policies := repeats()
	rapid.Check(t, func(t *rapid.T) {
		p := policies[rapid.SampledFrom(slices.Sorted(maps.Keys(policies))).Draw(t, "far side")]
		rows := shapes()
		row := rows[rapid.SampledFrom(slices.Sorted(maps.Keys(rows))).Draw(t, "row")]
		group := rapid.SampledFrom([]GroupState{GroupRunning, GroupCancelled}).Draw(t, "group")
		answers := rapid.SliceOfN(rapid.SampledFrom([]Outcome{TryAgain, Unclear, Rejected, NotDone, Throttled, Misconfigured, Unrecognized}), 1, 5).Draw(t, "answers")
		now := t0
		for i := range 60 {
			if row.State.Settled() {
				return
			}
			now = now.Add(2 * p.Lease).Add(time.Minute)
			var d Decision
			row, _, d = p.Apply(row, Event{Kind: EventBegin, Now: now, Group: group, SameRequest: true})
			if d.Next == Send || d.Next == Lookup {
				row, _, _ = p.Apply(row, Event{Kind: EventSettle, Now: now, Result: CallResult{Epoch: row.Epoch, Outcome: answers[i%len(answers)], Counted: true}})
			}
		}
		require.True(t, row.State.Settled(), "still %s after 60 begins", row.State)
	})
}
