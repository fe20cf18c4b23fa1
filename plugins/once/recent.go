package once

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

const (
	// recentWindow is the time that recent looks back, and recentStep its precision.
	recentWindow = time.Minute
	recentStep   = 5 * time.Second
	recentSteps  = int64(recentWindow / recentStep)

	// groupsTold is how many groups an instance tells others about: those with the most settled effects.
	groupsTold = 20
	// groupsKept is how many of them it remembers then, so that those of the next time are known for longer.
	groupsKept = 100
	// groupsCounted bounds the groups that are counted meanwhile. Any further ones are only in the counts of the kind.
	groupsCounted = 1000

	// latencySteps are the upper bounds of the times of calls: 1 ms, and each one a quarter more than the one before it, up to
	// a minute.
	latencySteps = 50
)

// recent counts what this instance did for a kind within the last minute. The zero value is ready, and it is safe for
// concurrent use.
type recent struct {
	mu     sync.Mutex
	all    counted
	groups map[string]*counted
	calls  [recentSteps]callsOfStep
}

// counted is a ring of steps, by their number since the beginning of time.
type counted struct {
	first   time.Time // when it was called for first, after a minute without it
	latest  int64     // the number of the last step with something
	calling int
	steps   [recentSteps]settledInStep
}

type settledInStep struct {
	number        int64
	settled, done int32
}

type callsOfStep struct {
	number  int64
	seconds float64
	answers map[string]int64
	took    [latencySteps]int64
}

// latencyOf returns the upper bound of a step of ledger.Activity.Took.
func latencyOf(step int) time.Duration {
	return time.Duration(float64(time.Millisecond) * math.Pow(1.25, float64(step)))
}

func latencyStep(took time.Duration) int {
	for i := range latencySteps {
		if took < latencyOf(i) {
			return i
		}
	}
	return latencySteps - 1
}

func stepAt(at time.Time) int64 { return at.UnixNano() / int64(recentStep) }

// start notes that the instance begins to call.
func (r *recent) start(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.first, r.all.latest = now, stepAt(now)
}

// begin notes that a call for an effect of the group begins.
func (r *recent) begin(group string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.touch(now).calling++
	if g := r.groups[group]; g != nil {
		g.touch(now).calling++
		return
	}
	if r.groups == nil {
		r.groups = map[string]*counted{}
	}
	if len(r.groups) < groupsCounted {
		r.groups[group] = &counted{first: now, latest: stepAt(now), calling: 1}
	}
}

// called notes the answer of a call.
func (r *recent) called(a Answer, took time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := stepAt(now)
	s := &r.calls[n%recentSteps]
	if s.number != n || s.answers == nil {
		*s = callsOfStep{number: n, answers: map[string]int64{}}
	}
	s.answers[a.Class.String()]++
	if a.Class != NotSent {
		s.took[latencyStep(took)]++
		s.seconds += took.Seconds()
	}
}

// end notes the end of a call that began, and whether it has settled its effect.
func (r *recent) end(group string, settled, done bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []*counted{&r.all, r.groups[group]} {
		if c == nil {
			continue
		}
		s := c.touch(now).step(now)
		if c.calling = max(0, c.calling-1); settled {
			s.settled++
		}
		if done {
			s.done++
		}
	}
}

// touch starts the counts again after a minute without anything, in which no call ran either. It returns c.
func (c *counted) touch(now time.Time) *counted {
	n := stepAt(now)
	if c.calling == 0 && n-c.latest > recentSteps {
		c.first = now
	}
	c.latest = n
	return c
}

// step returns the step of now, and empties the one that it replaces.
func (c *counted) step(now time.Time) *settledInStep {
	n := stepAt(now)
	s := &c.steps[n%recentSteps]
	if s.number != n {
		*s = settledInStep{number: n}
	}
	return s
}

// silent reports whether nothing happened within the last minute.
func (c *counted) silent(now time.Time) bool {
	return c.calling == 0 && stepAt(now)-c.latest >= recentSteps
}

func (c *counted) total(now time.Time) (settled int64) {
	for _, s := range c.steps {
		if stepAt(now)-s.number < recentSteps {
			settled += int64(s.settled)
		}
	}
	return settled
}

// counts returns what others are told, without the zeros at the end.
func (c *counted) counts(now time.Time) ledger.Counts {
	all := ledger.Counts{Seconds: min(now.Sub(c.first), recentWindow).Seconds()}
	for _, s := range c.steps {
		age := int(stepAt(now) - s.number)
		if age >= int(recentSteps) || age < 0 {
			continue
		}
		all.Settled, all.Done = put(all.Settled, age, int64(s.settled)), put(all.Done, age, int64(s.done))
	}
	return all
}

// put sets the number at a place of a list that it makes longer. Zero changes nothing.
func put(list []int64, at int, n int64) []int64 {
	for len(list) <= at && n != 0 {
		list = append(list, 0)
	}
	if n != 0 {
		list[at] = n
	}
	return list
}

// tell returns what this instance did, and forgets the groups that others are not told about. It is false for nothing.
func (r *recent) tell(now time.Time) (a ledger.Activity, any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.Counts = r.all.counts(now)
	a.StepSeconds = now.Sub(time.Unix(0, stepAt(now)*int64(recentStep))).Seconds()
	for _, s := range r.calls {
		if s.answers == nil || stepAt(now)-s.number >= recentSteps {
			continue
		}
		if a.Answers == nil {
			a.Answers = map[string]int64{}
		}
		for class, n := range s.answers {
			a.Answers[class] += n
		}
		for i, n := range s.took {
			if n > 0 {
				for len(a.Took) <= i {
					a.Took = append(a.Took, 0)
				}
				a.Took[i] += n
			}
		}
		a.CallSeconds += s.seconds
	}
	a.Groups, a.More = r.tellGroups(now)
	return a, r.all.calling > 0 || len(a.Settled) > 0 || len(a.Answers) > 0
}

// tellGroups returns those with the most settled effects, and whether others had some. The mutex is held.
func (r *recent) tellGroups(now time.Time) (told map[string]ledger.Counts, more bool) {
	maps.DeleteFunc(r.groups, func(_ string, c *counted) bool { return c.silent(now) })
	more = len(r.groups) == groupsCounted
	settled := make(map[string]int64, len(r.groups))
	names := make([]string, 0, len(r.groups))
	for name, c := range r.groups {
		settled[name], names = c.total(now), append(names, name)
	}
	sorted.By(names, func(a, b string) int { return cmp.Or(cmp.Compare(settled[b], settled[a]), strings.Compare(a, b)) })
	told = map[string]ledger.Counts{}
	for i, name := range names {
		switch {
		case i < groupsTold:
			told[name] = r.groups[name].counts(now)
		case settled[name] > 0:
			more = true
		}
		if i >= groupsKept && r.groups[name].calling == 0 {
			delete(r.groups, name)
		}
	}
	return told, more
}

// within returns the effects of counts that were settled and done within the last d, and the seconds in which they were. Both
// are of whole steps, and the seconds are 0 if d is less than the current one.
func within(c ledger.Counts, stepSeconds float64, d time.Duration) (settled, done int64, seconds float64) {
	for i := range int(recentSteps) {
		began := stepSeconds + float64(i)*recentStep.Seconds()
		if began > d.Seconds() && d < recentWindow {
			break
		}
		if i < len(c.Settled) {
			settled += c.Settled[i]
		}
		if i < len(c.Done) {
			done += c.Done[i]
		}
		seconds = began
	}
	if d >= recentWindow {
		seconds = d.Seconds()
	}
	return settled, done, min(seconds, c.Seconds)
}

// quantile returns the upper bound of the step that has the quantile, and 0 without calls.
func quantile(took []int64, q float64) time.Duration {
	var all, below int64
	for _, n := range took {
		all += n
	}
	i := slices.IndexFunc(took, func(n int64) bool { below += n; return n > 0 && float64(below) >= q*float64(all) })
	if i < 0 {
		return 0
	}
	return latencyOf(i)
}
