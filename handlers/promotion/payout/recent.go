package payout

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/internal/sorted"
)

const (
	// recentWindow is the time that Recent looks back.
	recentWindow = time.Minute
	// recentStep is the precision of recentWindow.
	recentStep  = 5 * time.Second
	recentSteps = int64(recentWindow / recentStep)
	// latencySteps are the upper bounds of latencies: 1 ms, and each one a quarter more than the one
	// before it, up to a minute.
	latencySteps = 50
)

// Recent counts what this instance did for each promotion within the last minute. The zero value is ready, a nil
// one counts nothing, and it is safe for concurrent use.
type Recent struct {
	mu  sync.Mutex
	all map[payouts.Promotion]*recentOf
}

// recentOf is a ring of steps, by their number since the beginning of time.
type recentOf struct {
	first   time.Time // when its promotion was seen first, after a minute without it
	latest  int64     // the number of the last step with something
	calling int
	steps   [recentSteps]recentStepOf
}

type recentStepOf struct {
	number  int64
	settled int64
	answers map[string]int64
	took    [latencySteps]int64
}

// RecentStatus is what one instance did for a promotion within the last minute.
type RecentStatus struct {
	// Seconds is the time that it looks back, less than a minute for what began since.
	Seconds float64 `json:"seconds"`
	Settled int64   `json:"settled"` // payouts
	Calling int     `json:"calling"` // calls that run now
	// Answers of the Money API by class.
	Answers map[string]int64 `json:"answers"`
	// Steps are the payouts that were settled in each step of 5 s, the current one first. StepSeconds is how long
	// ago the current one began.
	Steps       []int64 `json:"steps,omitempty"`
	StepSeconds float64 `json:"step_seconds,omitempty"`
	// Took has the calls by how long they took: index i is the number of those below LatencyOf(i).
	Took []int64 `json:"took"`
}

// LatencyOf returns the upper bound of a step of RecentStatus.Took.
func LatencyOf(step int) time.Duration {
	return time.Duration(float64(time.Millisecond) * math.Pow(1.25, float64(step)))
}

func latencyStep(took time.Duration) int {
	for i := range latencySteps {
		if took < LatencyOf(i) {
			return i
		}
	}
	return latencySteps - 1
}

// begin notes that a call begins, and returns what notes its end.
func (r *Recent) begin(p payouts.Promotion) (end func(money.Answer)) {
	if r == nil {
		return func(money.Answer) {}
	}
	began := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(p, began).calling++
	return func(a money.Answer) {
		now := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		x := r.of(p, now)
		x.calling--
		step := x.step(now)
		step.answers[a.Class.String()]++
		if a.Class != money.NotSent {
			step.took[latencyStep(now.Sub(began))]++
		}
	}
}

// settled notes what became of a payout.
func (r *Recent) settled(p payouts.Promotion, s ledger.SettleResult) {
	if r == nil || s.Stale || !s.State.Settled() {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(p, now).step(now).settled++
}

// of returns the counts of a promotion. The mutex is held.
func (r *Recent) of(p payouts.Promotion, now time.Time) *recentOf {
	if x, known := r.all[p]; known {
		return x
	}
	if r.all == nil {
		r.all = map[payouts.Promotion]*recentOf{}
	}
	maps.DeleteFunc(r.all, func(_ payouts.Promotion, x *recentOf) bool {
		return x.calling == 0 && stepAt(now)-x.latest > recentSteps
	})
	x := &recentOf{first: now, latest: stepAt(now)}
	r.all[p] = x
	return x
}

func stepAt(at time.Time) int64 { return at.UnixNano() / int64(recentStep) }

// step returns the step of now, and empties the one that it replaces.
func (x *recentOf) step(now time.Time) *recentStepOf {
	n := stepAt(now)
	if n-x.latest > recentSteps {
		x.first = now
	}
	x.latest = n
	s := &x.steps[n%recentSteps]
	if s.number != n || s.answers == nil {
		*s = recentStepOf{number: n, answers: map[string]int64{}}
	}
	return s
}

// Status returns what this instance did for a promotion. It is false for one that it did nothing for.
func (r *Recent) Status(p payouts.Promotion) (RecentStatus, bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	x, known := r.all[p]
	if !known {
		return RecentStatus{}, false
	}
	return x.status(now)
}

// Latest returns what Status does for the promotions that had something last, at most limit of them, by
// payouts.Promotion.String.
func (r *Recent) Latest(limit int) map[string]RecentStatus {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	latest := slices.Collect(maps.Keys(r.all))
	sorted.By(latest, func(a, b payouts.Promotion) int {
		return cmp.Or(cmp.Compare(r.all[b].latest, r.all[a].latest), payouts.ComparePromotions(a, b))
	})
	all := map[string]RecentStatus{}
	for _, p := range latest[:min(len(latest), limit)] {
		if s, known := r.all[p].status(now); known {
			all[p.String()] = s
		}
	}
	return all
}

// SettledWithin returns the payouts that were settled within the last d, and the seconds in which they were. Both
// are of whole steps, and the seconds are 0 if d is less than the current one.
func (s RecentStatus) SettledWithin(d time.Duration) (settled int64, seconds float64) {
	for i, n := range s.Steps {
		began := s.StepSeconds + float64(i)*recentStep.Seconds()
		if began > d.Seconds() {
			break
		}
		settled, seconds = settled+n, began
	}
	return settled, min(seconds, s.Seconds)
}

// status returns what was done for a promotion. It is false for nothing. The mutex of Recent is held.
func (x *recentOf) status(now time.Time) (RecentStatus, bool) {
	s := RecentStatus{Steps: make([]int64, recentSteps), StepSeconds: now.Sub(time.Unix(0, stepAt(now)*int64(recentStep))).Seconds(),
		Calling: x.calling, Answers: map[string]int64{}, Took: []int64{}, Seconds: min(now.Sub(x.first), recentWindow).Seconds()}
	for i := range x.steps {
		step := &x.steps[i]
		if step.answers == nil || stepAt(now)-step.number >= recentSteps {
			continue
		}
		s.Settled += step.settled
		s.Steps[stepAt(now)-step.number] = step.settled
		for class, n := range step.answers {
			s.Answers[class] += n
		}
		for i, n := range step.took {
			for len(s.Took) <= i && n > 0 {
				s.Took = append(s.Took, 0)
			}
			if n > 0 {
				s.Took[i] += n
			}
		}
	}
	return s, s.Calling > 0 || s.Settled > 0 || len(s.Answers) > 0
}
