// Package checker compares the events that watchers of jobs received with those that were
// published. It has its own copy of all published events.
package checker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
)

// Checker has the published events and the watchers. Safe for concurrent use.
type Checker struct {
	stages event.Stages

	mu       sync.Mutex
	jobs     map[string]*job
	watchers []*Watcher
}

// job is what was published.
type job struct {
	numbered  map[int64][]content // several contents of one number, in the order of publishing
	transient []content
	above     []int64 // per transient event, the highest number before it
	top       int64   // highest number
	end       int64   // lowest terminal number; 0: none
}

// content is what a watcher must receive unchanged.
type content struct{ stage, status, data string }

func contentOf(e event.Event) content {
	var data bytes.Buffer
	if json.Compact(&data, e.Data) != nil {
		data.Reset()
		data.Write(e.Data)
	}
	return content{e.Stage, e.Status, data.String()}
}

// New returns a checker without events.
func New(stages event.Stages) *Checker { return &Checker{stages: stages, jobs: map[string]*job{}} }

func (c *Checker) job(domain, id string) *job {
	key := domain + "/" + id
	if c.jobs[key] == nil {
		c.jobs[key] = &job{numbered: map[int64][]content{}}
	}
	return c.jobs[key]
}

// Published adds an event before it is published.
func (c *Checker) Published(e event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.job(e.Domain, e.JobID)
	if c.stages.IsTransient(e.Stage) {
		j.transient, j.above = append(j.transient, contentOf(e)), append(j.above, j.top)
		return
	}
	j.top = max(j.top, e.Seq)
	j.numbered[e.Seq] = append(j.numbered[e.Seq], contentOf(e))
	if c.stages.IsTerminal(e.Stage) && (j.end == 0 || e.Seq < j.end) {
		j.end = e.Seq
	}
}

// Watcher is one watcher of one job, over all its connections. Safe for concurrent use.
type Watcher struct {
	c          *Checker
	name       string
	domain, id string

	events      map[int64]content
	order       []int64
	gaps        [][2]int64
	takenBack   int // gaps that took numbers back
	transient   int // published transient events that were received or passed
	transients  int
	connections int
	closed      string
	problems    []string
}

// Watch adds a watcher of a job from its beginning. The name is for problems.
func (c *Checker) Watch(name, domain, jobID string) *Watcher {
	w := &Watcher{c: c, name: name, domain: domain, id: jobID, events: map[int64]content{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers = append(c.watchers, w)
	return w
}

// Connected counts a connection. It may repeat the transient events after the last number: they
// have none that says where a stream continues.
func (w *Watcher) Connected() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.connections++
	above := w.c.job(w.domain, w.id).above
	if i, _ := slices.BinarySearch(above, last(w.order)); i < w.transient {
		w.transient = i
	}
}

func (w *Watcher) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("%s, job %s/%s: ", w.name, w.domain, w.id)+fmt.Sprintf(format, args...))
}

// Message checks a message against those before it.
func (w *Watcher) Message(m watch.Message) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.closed != "" {
		w.problem("%s after the end", m.Name)
	}
	switch m.Name {
	case watch.NameEvent:
		w.numbered(m)
	case watch.NameTransient:
		w.takeTransient(m)
	case watch.NameGap:
		var gap struct{ From, To int64 }
		if err := json.Unmarshal(m.Data, &gap); err != nil || gap.From > gap.To {
			w.problem("gap without numbers: %s", m.Data)
		}
		if m.Number() < gap.From {
			w.takeBack(gap.From)
			return
		}
		w.gaps = append(w.gaps, [2]int64{gap.From, gap.To})
	case watch.NameClosed:
		if reason := m.Reason(); w.c.stages.IsTerminal(reason) {
			w.closed = reason
		}
	}
}

// Ended takes the reason that watch.Follow has returned. After a reconnect the end of a job is
// answered without a message.
func (w *Watcher) Ended(reason string) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.closed = cmp.Or(w.closed, reason)
}

func (w *Watcher) decode(m watch.Message) (event.Event, bool) {
	e, err := event.Decode(m.Data)
	if err != nil {
		w.problem("%s", err)
		return e, false
	}
	if e.Domain != w.domain || e.JobID != w.id {
		w.problem("an event of job %s/%s", e.Domain, e.JobID)
		return e, false
	}
	return e, true
}

func (w *Watcher) numbered(m watch.Message) {
	e, ok := w.decode(m)
	if !ok {
		return
	}
	id := strconv.FormatInt(e.Seq, 10)
	if e.StreamID != "" {
		id += "." + e.StreamID
	}
	if own, _, _ := strings.Cut(m.ID, "~"); own != id { // the gaps of the watcher follow
		w.problem("event %d has the id %q", e.Seq, m.ID)
	}
	if n := len(w.order); n > 0 && e.Seq <= w.order[n-1] {
		w.problem("event %d after event %d", e.Seq, w.order[n-1])
	}
	w.order = append(w.order, e.Seq)
	w.events[e.Seq] = contentOf(e)
}

// takeBack forgets the events and gaps from a number on: the numbers are given to other events, or missing
// ones have arrived.
func (w *Watcher) takeBack(from int64) {
	for i := range w.gaps {
		w.gaps[i][1] = min(w.gaps[i][1], from-1)
	}
	w.gaps = slices.DeleteFunc(w.gaps, func(g [2]int64) bool { return g[0] > g[1] })
	w.order = slices.DeleteFunc(w.order, func(seq int64) bool { return seq >= from })
	maps.DeleteFunc(w.events, func(seq int64, _ content) bool { return seq >= from })
	w.takenBack++
}

// takeTransient looks for the event after the last one that was received: some may be missing, none
// may be repeated or change places.
func (w *Watcher) takeTransient(m watch.Message) {
	e, ok := w.decode(m)
	if !ok {
		return
	}
	published := w.c.job(w.domain, w.id).transient
	i := slices.Index(published[w.transient:], contentOf(e))
	if i < 0 {
		w.problem("the transient event %s is a repetition, is out of order, or was not published", m.Data)
		return
	}
	w.transient += i + 1
	w.transients++
}

// Report is the result.
type Report struct {
	Jobs       int      `json:"jobs"`
	Published  int      `json:"published"` // numbered events, each once
	Watchers   int      `json:"watchers"`
	Received   int      `json:"received"`   // numbered events of all watchers
	Transients int      `json:"transients"` // of all watchers
	Reconnects int      `json:"reconnects"`
	Gaps       int      `json:"gaps"`       // numbers that were shown as missing
	TakenBack  int      `json:"taken_back"` // gaps that took numbers back, because others have them or missing ones arrived
	Lost       int      `json:"lost"`       // of them those that had been published
	Problems   []string `json:"problems"`
}

// OK reports whether each watcher received each numbered event once and in order, with the end as
// the last one.
func (r Report) OK() bool { return len(r.Problems) == 0 && r.Lost == 0 }

// Report compares. Each watcher must have seen the end of its job.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Report{Jobs: len(c.jobs), Watchers: len(c.watchers), Problems: []string{}}
	for _, j := range c.jobs {
		r.Published += len(j.numbered)
	}
	first := map[*job]*Watcher{}
	for _, w := range c.watchers {
		j := c.job(w.domain, w.id)
		before := len(w.problems)
		w.compare(j, first[j], &r)
		if first[j] == nil {
			first[j] = w
		}
		r.Received += len(w.order)
		r.Transients += w.transients
		r.TakenBack += w.takenBack
		r.Reconnects += max(0, w.connections-1)
		r.Problems = append(r.Problems, w.problems...)
		w.problems = w.problems[:before] // a second report is the same
	}
	return r
}

// compare adds the problems that only the complete stream shows. first is another watcher of the
// job, or nil.
func (w *Watcher) compare(j *job, first *Watcher, r *Report) {
	if j.end == 0 || w.closed == "" {
		w.problem("the stream did not end: the last event is %d", last(w.order))
	} else if end := last(w.order); end == 0 || !w.c.stages.IsTerminal(w.events[end].stage) || w.closed != w.events[end].stage {
		w.problem("the last event before closed %q is %d", w.closed, end)
	}
	shown := func(seq int64) bool {
		return slices.ContainsFunc(w.gaps, func(g [2]int64) bool { return g[0] <= seq && seq <= g[1] })
	}
	for _, seq := range slices.Sorted(maps.Keys(j.numbered)) {
		got, ok := w.events[seq]
		switch {
		case ok && !slices.Contains(j.numbered[seq], got):
			w.problem("event %d has another content than the published one", seq)
		case ok && first != nil && first.events[seq] != got && first.events[seq] != (content{}):
			w.problem("event %d differs from that of %s", seq, first.name)
		case ok || seq > last(w.order) && w.closed != "":
			// received, or after the end
		case shown(seq):
			r.Lost++
		default:
			w.problem("event %d is missing, and no gap says so", seq)
		}
	}
	for _, seq := range w.order {
		if j.numbered[seq] == nil {
			w.problem("event %d was not published", seq)
		}
	}
	for _, g := range w.gaps {
		r.Gaps += int(g[1] - g[0] + 1)
	}
}

func last(order []int64) int64 {
	if len(order) == 0 {
		return 0
	}
	return order[len(order)-1]
}
