package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// patient has a domain wait a minute for clients without room, because the machine may stand still.
func (p *process) patient(domain string) {
	d := p.domain(domain)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait = time.Minute
}

// crowd returns watchers that are attached, and have received number 1. Their domain is patient.
func (p *process) crowd(n int, domain, id string) (watches []*watch) {
	p.patient(domain)
	for range n {
		watches = append(watches, p.watch(domain, id, ""))
	}
	for _, w := range watches {
		w.wait("1")
	}
	redistest.Eventually(p.t, "all are attached", func() bool { return p.attached(domain, id) == n })
	return watches
}

// numbers returns the numbers of a job as events.
func (r *redisRig) numbers(id string, from, to int64) (events []event.Event) {
	for n := from; n <= to; n++ {
		events = append(events, r.event(id, n, "step"))
	}
	return events
}

// inOneStream checks that a client received all numbers up to last without a reconnect, which
// begins with the state.
func inOneStream(t *testing.T, got []string, last int) (tokens []string) {
	t.Helper()
	var numbers []string
	for _, one := range got[1:] {
		if strings.HasPrefix(one, "token") {
			tokens = append(tokens, one)
		} else {
			numbers = append(numbers, one)
		}
	}
	var want []string
	for n := 1; n <= last; n++ {
		want = append(want, strconv.Itoa(n))
	}
	require.Equal(t, append(want, "closed done"), numbers)
	return tokens
}

func TestABurstDisconnectsNoClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", func(c *Config) { c.GapWait = time.Minute })
		r.steps("job", 1, 1)
		watches := p.crowd(20, r.domain, "job")
		burst := r.numbers("job", 2, 200)
		var want []string
		for i := range 100 {
			say := r.event("job", 0, "token")
			say.Status = strconv.Itoa(i)
			burst = append(burst, say)
			want = append(want, "token "+say.Status)
		}
		r.publish(r.store(append(burst, r.event("job", 201, "done"))...)...)
		for _, w := range watches {
			require.Equal(t, want, inOneStream(t, w.ends(), 201))
		}
	})
}

// More waits for the clients than a job keeps: transient events are dropped, and the log has the
// numbers.
func TestABurstWithoutRoom(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	w := p.crowd(1, r.domain, "job")[0]
	burst := r.numbers("job", 2, 200)
	for i := range burst {
		burst[i].Data = []byte(`"` + strings.Repeat("x", 30_000) + `"`)
	}
	texts := r.store(burst...)
	for range 200 {
		texts = append(texts, r.store(r.event("job", 0, "token"))...)
	}
	p.domain(r.domain).entries(texts)
	w.wait("200")
	r.add(r.event("job", 201, "done"))
	tokens := inOneStream(t, w.ends(), 201)
	require.Len(t, tokens, heldMost)
	require.InDelta(t, 200-heldMost, testutil.ToFloat64(p.metrics.dropped.WithLabelValues(r.domain)), 0)
}

func TestAReadOfManyNewEventsDisconnectsNoClient(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	watches := p.crowd(20, r.domain, "job")
	r.store(append(r.numbers("job", 2, 500), r.event("job", 501, "done"))...)
	p.domain(r.domain).lost()
	for _, w := range watches {
		require.Empty(t, inOneStream(t, w.ends(), 501))
	}
	require.LessOrEqual(t, p.reads(readLost), 10)
}

// The jobs of one stream share the room of its client.
func TestABurstOfSeveralJobsDisconnectsNoClient(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	p.patient(r.domain)
	query, events := "?", []event.Event{}
	for i := range maxJobs {
		id := fmt.Sprint("job", i)
		query += "&job=" + r.domain + "/" + id
		events = append(append(events, r.numbers(id, 1, 15)...), r.event(id, 16, "done"))
	}
	got, streams := 0, 0
	client := ssetest.Client{
		URL: p.path(r.domain, "job0") + "/events" + query, HTTP: p.client,
		Retry: func(time.Duration) time.Duration { streams++; return time.Millisecond },
		Event: func(e ssetest.Event) error {
			got++
			if e.Name == "closed" {
				return errClosed
			}
			return nil
		},
	}
	end := make(chan error, 1)
	go func() { end <- client.Run(t.Context()) }()
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job31") == 1 })
	p.domain(r.domain).entries(r.store(events...))
	require.ErrorIs(t, <-end, errClosed)
	require.Equal(t, 16*maxJobs+1, got)
	require.Zero(t, streams)
}

// A hole with more than a page of events above it is not read again and again.
func TestAHoleBelowManyEventsIsReadAtIntervals(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	w := p.crowd(1, r.domain, "job")[0]
	r.add(r.numbers("job", 3, 150)...)
	redistest.Eventually(t, "the log is read", func() bool { return p.reads(readHole) > 1 })
	<-time.After(300 * time.Millisecond)
	require.Less(t, p.reads(readHole), 10)
	r.steps("job", 2, 2)
	r.add(r.event("job", 151, "done"))
	inOneStream(t, w.ends(), 151)
}

// The events above a hole do not wait for the next planned read once the feed has closed it.
func TestAHoleThatTheFeedClosesIsOver(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	w := p.crowd(1, r.domain, "job")[0]
	r.add(r.numbers("job", 3, 20)...)
	j := p.domain(r.domain).join("job")
	d := j.domain
	redistest.Eventually(t, "a read is planned", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return j.retry != nil
	})
	d.mu.Lock()
	j.retry.Stop()
	j.later(readHole, time.Hour)
	d.mu.Unlock()
	r.steps("job", 2, 2)
	w.wait("20")
}

func TestAnIdleStreamKeepsNoPage(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 3)
	p.crowd(1, r.domain, "job")
	d := p.domain(r.domain)
	redistest.Eventually(t, "dropped", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for w := range d.jobs["job"].watchers {
			return w.page.items == nil
		}
		return false
	})
}

func TestAReadAfterTheEndOfTheReaderFails(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	require.NoError(t, p.loops.Stop(context.Background()))
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/jobs/x/job", http.NoBody)
	req.SetPathValue("domain", r.domain)
	req.SetPathValue("job", "job")
	req.RemoteAddr, req.Host = "127.0.0.1:1", "127.0.0.1"
	answer := httptest.NewRecorder()
	p.state().ServeHTTP(answer, req)
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
}
