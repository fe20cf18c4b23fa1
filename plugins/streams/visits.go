package streams

import (
	"encoding/json"
	"time"
)

const (
	// longestVisit is the longest time between two visits of a stream.
	longestVisit = 5 * time.Minute
	// undrainedVisit is the same for a stream that another instance or a foreign group delays.
	undrainedVisit = 30 * time.Second
)

// visits is when a stream is visited. The control loop visits a stream in which something happens
// in each round, and an idle one when its idle timeout may have passed.
type visits struct {
	due      time.Time // zero: in the next round
	changed  bool      // since the visit before
	seen     activitySeen
	delaying []DelayingGroup // what the last visit found
	entries  int64           // the same
}

// activitySeen is the activity of this instance in a stream.
type activitySeen struct {
	entries  int64 // read and acknowledged ones
	state    state
	inFlight int
	last     time.Time
	note     string
}

// dueVisits returns the streams to visit in this round.
func (s *subscription) dueVisits(all []*running, wanted map[string]Activation) (due []*running) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		entries, pending := r.reader.Activity()
		seen := activitySeen{entries: entries, state: r.state}
		seen.inFlight, seen.last = r.inFlight.count()
		if s.m.opts.Note != nil {
			seen.note = string(s.m.opts.Note(r.id))
		}
		r.changed = seen != r.seen || seen.inFlight+pending > 0
		r.seen = seen
		_, active := wanted[r.id]
		if r.changed || wanted != nil && !active || !now.Before(r.due) {
			r.due = time.Time{}
			due = append(due, r)
		}
	}
	return due
}

// visited records the result of a visit.
func (v *visits) visited(t visited, c Config, now time.Time) {
	v.delaying, v.entries = t.delaying, t.length
	wait := c.longestVisit()
	switch {
	case v.changed:
		wait = 0
	case !t.drained || len(t.delaying) > 0:
		wait = min(wait/2, undrainedVisit)
	case !v.seen.state.paused:
		wait = min(wait, c.IdleTimeout-time.Duration(t.idleMillis)*time.Millisecond)
	}
	v.due = now.Add(wait)
}

func (c Config) longestVisit() time.Duration {
	return min(max(c.IdleTimeout, c.ReconcileInterval), longestVisit)
}

// status is the status of a stream in this instance, as JSON.
func (s *subscription) status(r *running, c Config) string {
	st := wireStatus{
		Slots: r.seen.state.slots, Paused: r.seen.state.paused, Since: r.since.UnixMilli(), InFlight: r.seen.inFlight,
		Next: c.longestVisit().Milliseconds(),
	}
	if r.changed {
		st.Next = c.ReconcileInterval.Milliseconds()
	}
	if !r.seen.last.IsZero() {
		st.Last = r.seen.last.UnixMilli()
	}
	if r.seen.note != "" {
		st.Note = json.RawMessage(r.seen.note)
	}
	text, _ := json.Marshal(st) // numbers, a bool and what is JSON: can't fail
	return string(text)
}
