package once

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// speed is how fast all instances together settle the effects of a kind or of a group, for programs.
type speed struct {
	// Rate is that of the last minute. Null: no instance that runs says it.
	Rate *rateOfMinute `json:"rate"`
	// ExpectedEnd is when what is open now has ended at this rate. Missing: it is not known well enough.
	ExpectedEnd time.Time `json:"expected_end,omitzero"`
	// LimitedBy says in words what bounds the rate. Missing: nothing waits, or it is not known.
	LimitedBy string `json:"limited_by,omitempty"`
	// Calls are those of the whole kind within the last minute.
	Calls     callsOfMinute    `json:"calls"`
	Instances []instanceStatus `json:"instances"`

	of  wanted
	now time.Time // of the database
}

// rateOfMinute is a number of effects per second.
type rateOfMinute struct {
	PerSecond     float64 `json:"per_second"`      // that have ended, whatever became of them
	DonePerSecond float64 `json:"done_per_second"` // of these
	Seconds       float64 `json:"seconds"`         // that it looks back: less than a minute for what has just begun or was resumed
	// AtLeast says that instances with more groups than they tell about have perhaps settled some of this one, too.
	AtLeast bool `json:"at_least,omitempty"`

	settled int64
	stopped float64 // the part of PerSecond of instances that call for nothing now
}

// callsOfMinute are calls and their answers. The times are 0 without a call.
type callsOfMinute struct {
	Answers map[string]int64 `json:"answers"` // by class
	Mean    float64          `json:"mean_seconds"`
	P50     float64          `json:"p50_seconds"` // rounded up by at most a quarter
	P99     float64          `json:"p99_seconds"`
}

// instanceStatus is one instance. Its numbers are of the whole kind, but for the rate of the group.
type instanceStatus struct {
	Instance       string    `json:"instance"`
	At             time.Time `json:"at,omitzero"` // when it told this; missing: it has told nothing
	Gone           bool      `json:"gone"`
	Leases         int64     `json:"leases"`
	LeasesEnd      time.Time `json:"leases_end,omitzero"`
	Reason         string    `json:"reason,omitempty"` // why it calls for nothing
	Since          time.Time `json:"since,omitzero"`   // of the reason
	Bound          string    `json:"bound,omitempty"`  // what it waits for most
	Calling        int       `json:"calling"`
	Concurrency    int       `json:"concurrency"`
	PerSecond      float64   `json:"per_second"`
	DonePerSecond  float64   `json:"done_per_second"`
	GroupPerSecond *float64  `json:"group_per_second,omitempty"` // missing: it does not tell about the group
	CallSeconds    float64   `json:"mean_call_seconds"`
}

// wanted is of what the speed is asked.
type wanted struct {
	kind, group   string // no group: the whole kind
	waiting, open int64  // open ones are also those that are being called
	missing       int64  // effects that are expected and not accepted yet
	oldestDue     time.Duration
	held          bool               // paused or cancelled
	resumedFor    time.Duration      // 0: it was never paused
	limits        ledger.LimitStatus // of the kind
	plugin        string             // whose settings have the kind; empty: none of this program
}

// speedOfGroup reads how fast a group goes.
func (p *Plugin) speedOfGroup(ctx context.Context, l *ledger.Ledger, s ledger.Status, limits ledger.LimitStatus, paused *ledger.KindPause) (speed, error) {
	all, err := l.Instances(ctx, s.Kind)
	return speedOf(all, wanted{
		kind: s.Kind, group: s.Name, waiting: s.Waiting, open: s.Waiting + s.Calling, missing: max(0, s.Expected-s.Accepted), oldestDue: s.OldestDue,
		held: s.State != rules.GroupRunning || paused != nil, resumedFor: s.ResumedFor, limits: limits, plugin: p.pluginOf(s.Kind),
	}), err
}

// speedOfKind reads how fast a kind goes, of which b is open.
func (p *Plugin) speedOfKind(ctx context.Context, l *ledger.Ledger, kind string, b ledger.Backlog, limits ledger.LimitStatus) (speed, error) {
	all, err := l.Instances(ctx, kind)
	return speedOf(all, wanted{
		kind: kind, waiting: b.Waiting, open: b.Waiting + b.Calling, oldestDue: b.OldestDue, held: b.Paused != nil, limits: limits, plugin: p.pluginOf(kind),
	}), err
}

// ratesOf returns the rates of groups in which something is open, as far as instances say them.
func ratesOf(ctx context.Context, l *ledger.Ledger, groups []ledger.Status) (map[ledger.Group]*float64, error) {
	rates, told := map[ledger.Group]*float64{}, map[string]ledger.Instances{}
	for _, g := range groups {
		if g.Waiting+g.Calling == 0 {
			continue
		}
		all, known := told[g.Kind]
		if !known {
			var err error
			if all, err = l.Told(ctx, g.Kind); err != nil {
				return nil, err
			}
			told[g.Kind] = all
		}
		if r := speedOf(all, wanted{kind: g.Kind, group: g.Name, resumedFor: g.ResumedFor}).Rate; r != nil {
			rates[g.Group] = &r.PerSecond
		}
	}
	return rates, nil
}

// pluginOf returns the plugin that has registered a kind, and nothing if none of this program has.
func (p *Plugin) pluginOf(kind string) string {
	if p.routes == nil {
		return ""
	}
	for _, e := range p.routes.Endpoints() {
		if e.Use == pipeline.UseFollows && e.Endpoint == placeOf(kind) {
			return e.Plugin
		}
	}
	return ""
}

// speedOf adds up what instances say. Those that are gone count for nothing.
func speedOf(all ledger.Instances, of wanted) speed {
	s := speed{Instances: []instanceStatus{}, Calls: callsOfMinute{Answers: map[string]int64{}}, of: of, now: all.Now}
	var r rateOfMinute
	var took []int64
	var calls int64
	var seconds float64
	var looks float64
	said, unknown := 0, 0
	for _, i := range all.All {
		one := statusOfInstance(i)
		settled, done, lookedBack := within(i.Counts, i.StepSeconds, recentWindow)
		one.PerSecond, one.DonePerSecond = perSecond(settled, lookedBack), perSecond(done, lookedBack)
		group, known := i.Groups[of.group]
		if of.group == "" {
			group, known = i.Counts, true
		}
		back := recentWindow
		if of.resumedFor > 0 {
			back = min(back, of.resumedFor)
		}
		settled, done, lookedBack = within(group, i.StepSeconds, back)
		if of.group != "" && known {
			of := perSecond(settled, lookedBack)
			one.GroupPerSecond = &of
		}
		if s.Instances = append(s.Instances, one); i.Gone || i.At.IsZero() {
			continue
		}
		if said++; !known && i.More {
			r.AtLeast = true
			unknown++
		}
		looks = max(looks, min(i.Seconds, back.Seconds()))
		r.add(settled, done, lookedBack, i.Reason != "")
		for class, n := range i.Answers {
			s.Calls.Answers[class] += n
		}
		for step, n := range i.Took {
			for len(took) <= step {
				took = append(took, 0)
			}
			took[step], calls = took[step]+n, calls+n
		}
		seconds += i.CallSeconds
	}
	if r.Seconds == 0 { // it has done nothing for the group
		r.Seconds = looks
	}
	if calls > 0 {
		s.Calls.Mean, s.Calls.P50, s.Calls.P99 = seconds/float64(calls), quantile(took, 0.5).Seconds(), quantile(took, 0.99).Seconds()
	}
	if said > unknown && (r.settled > 0 || !r.AtLeast) {
		s.Rate = &r
	}
	bound := boundOf(all.All)
	s.ExpectedEnd = s.expectedEnd(bound)
	s.LimitedBy = s.limitedBy(bound)
	return s
}

func statusOfInstance(i ledger.Instance) instanceStatus {
	one := instanceStatus{
		Instance: i.Name, At: i.At, Gone: i.Gone, Leases: i.Leases, LeasesEnd: i.LeasesEnd, Reason: i.Reason, Bound: i.Bound, Calling: i.Calling, Concurrency: i.Concurrency,
	}
	if i.Reason != "" {
		one.Since = i.Since
	}
	var calls int64
	for _, n := range i.Took {
		calls += n
	}
	if calls > 0 {
		one.CallSeconds = i.CallSeconds / float64(calls)
	}
	return one
}

func perSecond(n int64, seconds float64) float64 { return float64(n) / max(1, seconds) }

func (r *rateOfMinute) add(settled, done int64, seconds float64, stopped bool) {
	if seconds == 0 {
		return
	}
	n := perSecond(settled, seconds)
	r.PerSecond, r.DonePerSecond, r.settled = r.PerSecond+n, r.DonePerSecond+perSecond(done, seconds), r.settled+settled
	if r.Seconds = max(r.Seconds, seconds); stopped {
		r.stopped += n
	}
}

// What must be known of a rate for an expected end.
const (
	endAfterSeconds = 10
	endAfterEffects = 10
	endWithin       = 10 * 365 * 24 * time.Hour
)

// expectedEnd returns when what is open has ended at the rate of the instances that call now. It is zero if that is not known
// well enough, such as when nothing is due for most of the time, because what is open then waits for a time of its own.
func (s speed) expectedEnd(bound string) time.Time {
	r := s.Rate
	if r == nil || r.Seconds < endAfterSeconds || r.settled < endAfterEffects || s.of.open == 0 || s.of.held || bound == boundNothingDue || bound == boundStopped || r.PerSecond <= r.stopped {
		return time.Time{}
	}
	left := float64(s.of.open) / (r.PerSecond - r.stopped)
	if left > endWithin.Seconds() {
		return time.Time{}
	}
	return s.now.Add(time.Duration(left * float64(time.Second))).UTC().Truncate(time.Second)
}

// boundOf returns what most instances wait for, and nothing if none says it. One that calls for nothing leaves the work to the
// others, so it only counts when all do.
func boundOf(all []ledger.Instance) (most string) {
	votes := map[string]int{}
	for _, i := range all {
		if !i.Gone && i.Bound != "" && i.Bound != boundStopped {
			votes[i.Bound]++
		}
	}
	for what, n := range votes {
		if n > votes[most] || n == votes[most] && what < most {
			most = what
		}
	}
	if most != "" {
		return most
	}
	for _, i := range all {
		if !i.Gone && i.Bound == boundStopped {
			return boundStopped
		}
	}
	return ""
}
