package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// jobsView is what a client of several jobs has received.
type jobsView struct {
	t      *testing.T
	client ssetest.Client
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	got    map[string][]string         // by job: numbers, gaps and closed
	has    map[string]map[int64]string // by job and number: the entries that no gap has taken back
	closed string
}

// watchJobs connects a client to jobs of the domain. before is the client that it continues, or nil.
func (p *process) watchJobs(domain string, before *jobsView, ids ...string) *jobsView {
	v := &jobsView{t: p.t.(*testing.T), done: make(chan error, 1), got: map[string][]string{}, has: map[string]map[int64]string{}}
	url := p.path(domain, ids[0]) + "/events?"
	for _, id := range ids {
		url, v.has[id] = url+"job="+domain+"/"+id+"&", map[int64]string{}
	}
	v.client = ssetest.Client{URL: url, HTTP: p.client, Event: v.take, Retry: func(time.Duration) time.Duration { return time.Millisecond }}
	if before != nil {
		v.client.LastEventID, v.has = before.client.LastEventID, before.has
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	go func() { v.done <- v.client.Run(ctx) }()
	v.t.Cleanup(cancel)
	return v
}

func (v *jobsView) take(e ssetest.Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var data struct {
		Seq, From, To int64
		JobID         string `json:"job_id"`
		StreamID      string `json:"stream_id"`
		Reason        string
	}
	if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
		return err
	}
	id := data.JobID
	switch e.Name {
	case "event":
		if v.has[id][data.Seq] != "" {
			return fmt.Errorf("number %d of job %s is shown twice: %v", data.Seq, id, v.got)
		}
		v.has[id][data.Seq] = data.StreamID
		v.got[id] = append(v.got[id], fmt.Sprint(data.Seq))
	case "gap":
		for n := data.From; n <= data.To; n++ {
			delete(v.has[id], n)
		}
		v.got[id] = append(v.got[id], fmt.Sprintf("gap %d-%d", data.From, data.To))
	case "closed":
		v.closed = data.Reason
		return errClosed
	}
	return nil
}

// wait waits until this was received last for a job.
func (v *jobsView) wait(id, what string) {
	v.t.Helper()
	redistest.Eventually(v.t, what+" of job "+id, func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		got := v.got[id]
		return len(got) > 0 && got[len(got)-1] == what
	})
}

// leave ends the client, which keeps its last id.
func (v *jobsView) leave() *jobsView {
	v.t.Helper()
	v.cancel()
	require.ErrorIs(v.t, <-v.done, context.Canceled)
	return v
}

// ends waits for the end of all jobs.
func (v *jobsView) ends() map[string][]string {
	v.t.Helper()
	select {
	case err := <-v.done:
		require.ErrorIs(v.t, err, errClosed)
	case <-time.After(2 * time.Minute):
		v.mu.Lock()
		defer v.mu.Unlock()
		require.FailNow(v.t, "the stream does not end", "%v", v.got)
	}
	require.Equal(v.t, "done", v.closed)
	return v.got
}

// A client watches several jobs, and one of them is reset. The other jobs go on, and a client that
// comes back continues in each of them.
func TestAResetOfOneOfSeveralJobs(t *testing.T) {
	for name, test := range map[string]struct {
		ended bool  // the job has ended when it is reset
		away  bool  // the client is away during the reset
		runs  int64 // the last number of the second run
		late  bool  // the client comes back when the second run has ended
	}{
		"a job that runs":                          {runs: 2},
		"a job that has ended":                     {ended: true, runs: 2},
		"a job that has ended, and ends at once":   {ended: true, runs: 1},
		"a client that is away":                    {away: true, runs: 2},
		"a client that has the end and is away":    {ended: true, away: true, runs: 2},
		"a client that comes late":                 {away: true, late: true, runs: 5},
		"a client that has the end and comes late": {ended: true, away: true, late: true, runs: 2},
		"a client that is away, an end at once":    {away: true, runs: 1},
		"a client that comes late, an end at once": {ended: true, away: true, late: true, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRedis(t, redistest.Mini(t))
			p := r.start("", func(c *Config) { c.GapWait = time.Minute })
			second := func() {
				r.steps("a", 1, test.runs-1)
				r.add(r.event("a", test.runs, "done"))
			}
			r.steps("b", 1, 2)
			r.steps("a", 1, 2)
			v := p.watchJobs(r.domain, nil, "a", "b")
			v.wait("a", "2")
			v.wait("b", "2")
			redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "b") == 1 })
			if test.ended {
				r.add(r.event("a", 3, "done"))
			} else {
				r.steps("a", 3, 3)
			}
			v.wait("a", "3")
			want := []string{"1", "2", "3", "gap 1-3"}
			if test.away {
				v.leave()
				want = want[3:]
			}
			r.reset(p, "a")
			r.steps("b", 3, 3)
			if test.late {
				second()
			}
			if test.away {
				v = p.watchJobs(r.domain, v, "a", "b")
			}
			v.wait("b", "3")
			redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "b") == 1 })
			if !test.late {
				second()
			}
			for n := range test.runs {
				want = append(want, fmt.Sprint(n+1))
			}
			v.wait("a", fmt.Sprint(test.runs))
			r.add(r.event("b", 4, "done"))
			got := v.ends()
			require.Equal(t, want, got["a"])
			require.Equal(t, []string{"1", "2", "3", "4"}[4-len(got["b"]):], got["b"])
			require.Len(t, v.has["b"], 4)
		})
	}
}

// A job ends in the backlog of a client that watches another job, too. Its reset reaches the client.
func TestAResetOfAJobThatEndedInTheBacklog(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("a", 1, 2)
	r.add(r.event("a", 3, "done"))
	v := p.watchJobs(r.domain, nil, "a", "b")
	v.wait("a", "3")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "b") == 1 })
	r.reset(p, "a")
	v.wait("a", "gap 1-3")
	r.steps("b", 1, 1)
	v.wait("b", "1")
	r.add(r.event("b", 2, "done"))
	v.wait("b", "2")
	r.add(r.event("a", 1, "done"))
	require.Equal(t, map[string][]string{"a": {"1", "2", "3", "gap 1-3", "1"}, "b": {"1", "2"}}, v.ends())
}

// A job that has ended runs again, and the gateway has not read of its reset. One client has the end and
// watches another job, so the gateway still knows the first run. It decides nothing about the second one.
func TestAJobThatRunsAgainBeforeTheNewsOfItsReset(t *testing.T) {
	for name, empty := range map[string]bool{"the log has an event": false, "the log is empty": true} {
		t.Run(name, func(t *testing.T) {
			r := newRedis(t, redistest.Mini(t))
			p := r.start("", nil)
			has := p.watchJobs(r.domain, nil, "a", "b")
			redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "b") == 1 })
			r.steps("a", 1, 2)
			r.add(r.event("a", 3, "done"))
			has.wait("a", "3")
			r.loses("a")
			if !empty {
				r.store(r.event("a", 1, "step"))
			}
			reads := p.reads(readConnect)
			second := p.watch(r.domain, "a", "")
			if empty {
				redistest.Eventually(t, "it has read the log", func() bool { return p.reads(readConnect) > reads+1 })
				r.reset(p, "a")
				r.steps("a", 1, 1)
			}
			second.wait("1")
			redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "a") == 2 })
			r.add(r.event("a", 2, "step"), r.event("a", 3, "done"), r.event("b", 1, "done"))
			require.Equal(t, []string{"1", "2", "3", "closed done"}, withoutStates(second.ends()))
			require.Equal(t, map[string][]string{"a": {"1", "2", "3", "gap 1-3", "1", "2", "3"}, "b": {"1"}}, has.ends())
		})
	}
}

// The gateway has missed the news of a reset, and reads the logs again.
func TestAResetThatTheFeedHasLost(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	v := p.watchJobs(r.domain, nil, "a", "b")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "b") == 1 })
	r.add(r.event("a", 1, "step"), r.event("a", 2, "done"))
	v.wait("a", "2")
	r.loses("a")
	r.store(r.event("a", 1, "step"))
	p.domain(r.domain).lost()
	v.wait("a", "1")
	r.add(r.event("a", 2, "step"), r.event("a", 3, "done"), r.event("b", 1, "done"))
	require.Equal(t, map[string][]string{"a": {"1", "2", "gap 1-2", "1", "2", "3"}, "b": {"1"}}, v.ends())
}

// The end of a job may come again, and its log may lose what it had. Neither is a second run.
func TestWhatBeginsAJobAgain(t *testing.T) {
	t.Parallel()
	end := item{seq: 2, end: "done", content: 7, entry: entry{10, 0}}
	again, other := end, end
	again.entry, other.entry, other.content = entry{11, 0}, entry{11, 0}, 8
	first, next := item{seq: 1, entry: entry{9, 0}}, item{seq: 2, content: 7, entry: entry{11, 0}}
	for name, tc := range map[string]struct {
		page page
		want bool
	}{
		"the same end":            {page{state: &end, end: 2}, false},
		"the end in a new entry":  {page{state: &again, end: 2}, false},
		"another end":             {page{state: &other, end: 2}, true},
		"the end is lost":         {page{state: &first}, false},
		"a number is given again": {page{state: &next}, true},
		"no state":                {page{}, true},
	} {
		s := newSequence(time.Second)
		require.True(t, s.attach(0, page{}))
		for _, it := range []item{first, end} {
			require.False(t, s.begunAgain(tc.page), name)
			s.feed(it, time.Unix(1e9, 0))
		}
		require.Equal(t, tc.want, s.begunAgain(tc.page), name)
	}
}
