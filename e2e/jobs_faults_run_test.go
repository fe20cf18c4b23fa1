package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/eventrouter/checker"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	jobwatch "github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis"
)

// jobsShards is the number of shards of the domain scan in the profile router.
const jobsShards = 8

// jobsRun is one case. It has two processes with both roles, each behind a proxy to Redis. The
// events of its jobs are published until the case is over.
type jobsRun struct {
	t        *testing.T
	c        jobsCase
	redis    *node
	proxies  [2]*faults.Proxy
	services [2]*service
	steady   [2]*balancer // each prefers one gateway
	check    *checker.Checker
	client   *goredis.Client // of the producer
	jobs     []*publishedJob
	watchers []*jobWatcher

	stop      context.CancelFunc // ends the producer
	paused    sync.Mutex         // held while nothing may be published
	published chan struct{}      // closed when the ends of all jobs are published
	watching  sync.WaitGroup
	measure   atomic.Bool
	began     time.Time
}

// publishedJob is a job whose events are published.
type publishedJob struct {
	id  string
	seq atomic.Int64 // of the last event that Redis has acknowledged
}

// jobWatcher is a watcher of a job.
type jobWatcher struct {
	*checker.Watcher
	job     *publishedJob
	at      *balancer
	last    atomic.Int64 // number of the last event or gap
	lastID  atomic.Value // its id, a string
	over    atomic.Bool  // the watch has ended
	drained atomic.Bool  // a gateway has closed the stream because it ends

	mu      sync.Mutex
	gaps    []int64        // numbers that were shown as missing
	lacks   map[int64]bool // those of them that have not arrived since
	longest time.Duration  // from publishing to this watcher, while the run measures
}

// startJobsRun starts servers, processes, watchers and the producer. It returns under load.
func startJobsRun(t *testing.T, c jobsCase) *jobsRun {
	t.Helper()
	const program = "redis-server"
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("MILLRACE_TEST_REDIS: %s is not installed", program)
	}
	r := &jobsRun{t: t, c: c, check: checker.New(event.DefaultStages()), published: make(chan struct{}), began: time.Now()}
	r.redis = startNode(t, program, "--appendonly", "yes", "--appendfsync", "always")
	r.client = producerOf(r.redis)
	urls := make([]string, len(r.services))
	for i := range r.services {
		proxy, err := faults.NewProxy(r.redis.addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = proxy.Close() })
		r.proxies[i] = proxy
		s := newJobs(t, proxy.Addr(), fmt.Sprint("process-", i+1), c.env...)
		if c.arm != "" {
			s.program = armedBinary(t)
		}
		if i == 0 {
			s.env = append(slices.Clone(s.env), "MILLRACE_FAULT_POINT="+c.arm)
		}
		r.services[i], urls[i] = s, s.url
	}
	for _, s := range r.services {
		s.launch()
	}
	for _, s := range r.services {
		s.ready()
	}
	for i := range r.steady {
		r.steady[i] = &balancer{to: urls}
		r.steady[i].first.Store(int64(i))
	}
	if c.arm == "" {
		r.await("both processes read shards", func() error {
			if n := len(r.owners()); n != len(r.services) {
				return fmt.Errorf("%d owners", n)
			}
			return nil
		})
	}
	for i := range c.jobs {
		r.jobs = append(r.jobs, &publishedJob{id: fmt.Sprint("job-", i+1)})
	}
	for i := range c.watchers {
		r.watch(i)
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go r.produce(ctx)
	if c.arm == "" {
		r.arrives("under load", r.watchers)
	}
	return r
}

// producerOf returns a client that sends no command again, because a repeated event without a
// number would be shown twice.
func producerOf(n *node) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: n.addr, MaxRetries: -1, ReadTimeout: time.Second})
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *jobsRun) await(what string, check func() error) {
	r.t.Helper()
	if err := until(r.t.Context(), 2*time.Minute, what, check); err != nil {
		require.FailNow(r.t, err.Error(), "%s\n%s\n%+v", r.services[0].log, r.services[1].log, r.check.Report())
	}
	r.t.Logf("after %s: %s", time.Since(r.began).Round(time.Millisecond), what)
}

// owners returns the shards of the domain scan per owner of a lease.
func (r *jobsRun) owners() map[string]int {
	owners := map[string]int{}
	for shard := range jobsShards {
		owner := r.redis.HGet(r.t.Context(), redis.MetaKey(fmt.Sprint("scan:events:", shard)), "owner").Val()
		owners[owner]++
	}
	delete(owners, "")
	return owners
}

// awaitOwner waits until one process has all shards.
func (r *jobsRun) awaitOwner() {
	r.t.Helper()
	r.await("one process has all shards", func() error {
		owners := r.owners()
		for _, shards := range owners {
			if shards == jobsShards {
				return nil
			}
		}
		return fmt.Errorf("owners %v", owners)
	})
}

// produce publishes events of the jobs in turn, and the ends of the jobs when ctx is done. Each is
// followed by an event without a number.
func (r *jobsRun) produce(ctx context.Context) {
	defer close(r.published)
	tick := time.NewTicker(r.c.pace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			r.publish(r.jobs[n%len(r.jobs)], "scan", !r.c.noTransient)
			continue
		case <-ctx.Done():
		}
		break
	}
	for _, job := range r.jobs {
		r.publish(job, "done", false)
	}
}

// publish adds an event until Redis acknowledges it. It may then be in the stream twice. An event
// without a number is added with it, at most once.
func (r *jobsRun) publish(job *publishedJob, stage string, transient bool) {
	r.paused.Lock()
	defer r.paused.Unlock()
	seq := job.seq.Load() + 1
	now := time.Now()
	e := event.Event{Domain: "scan", JobID: job.id, Stage: stage, Seq: seq, Timestamp: now.UTC().Format(time.RFC3339Nano)}
	events := []event.Event{e}
	if transient {
		token := e
		token.Stage, token.Seq, token.Status = "token", 0, strconv.FormatInt(seq, 10)
		events = append(events, token)
	}
	for _, one := range events {
		r.check.Published(one)
	}
	for r.add(events) != nil && loop.Sleep(r.t.Context(), 20*time.Millisecond) {
		events = events[:1]
	}
	job.seq.Store(seq)
}

func (r *jobsRun) add(events []event.Event) error {
	pipe := r.client.Pipeline()
	for _, e := range events {
		values := []any{"job_id", e.JobID, "stage", e.Stage, "timestamp", e.Timestamp, "status", e.Status}
		if e.Seq > 0 {
			values = append(values, "seq", e.Seq)
		}
		pipe.XAdd(r.t.Context(), &goredis.XAddArgs{Stream: shardOf(e.JobID), Values: values})
	}
	_, err := pipe.Exec(r.t.Context())
	return err
}

func shardOf(jobID string) string { return fmt.Sprint("scan:events:", event.Shard(jobID, jobsShards)) }

// watch begins the watch of a job. Every third watcher reconnects each second, to the other
// gateway. The others stay at one gateway while they can.
func (r *jobsRun) watch(i int) *jobWatcher {
	job := r.jobs[i/3%len(r.jobs)]
	w := &jobWatcher{Watcher: r.check.Watch(fmt.Sprint("watcher ", i+1), "scan", job.id), job: job, at: r.steady[0], lacks: map[int64]bool{}}
	restless := r.c.restless || !r.c.oneGateway && i%3 == 2
	switch {
	case restless:
		w.at = &balancer{to: r.steady[0].to, turns: true}
	case !r.c.oneGateway && i%3 == 1:
		w.at = r.steady[1]
	}
	r.watchers = append(r.watchers, w)
	r.watching.Go(func() {
		for ctx := r.t.Context(); ctx.Err() == nil; {
			reason, err := r.follow(ctx, w, restless)
			if reason != "" || errors.Is(err, jobwatch.ErrRefused) {
				w.Ended(reason)
				w.over.Store(true)
				return // the checker reports what is missing
			}
		}
	})
	return w
}

// follow watches until the end of the job, or about a second if the watcher is restless.
func (r *jobsRun) follow(ctx context.Context, w *jobWatcher, restless bool) (reason string, err error) {
	if restless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second/2+rand.N(time.Second))
		defer cancel()
	}
	id, _ := w.lastID.Load().(string)
	return jobwatch.Follow(ctx, jobwatch.Options{
		URL: "http://gateways/jobs/scan/" + w.job.id + "/events", LastEventID: id, Client: &http.Client{Transport: w.at},
		Connected: w.Connected, Message: func(m jobwatch.Message) { r.message(w, m) },
	})
}

func (r *jobsRun) message(w *jobWatcher, m jobwatch.Message) {
	w.Message(m)
	if m.ID != "" {
		w.last.Store(m.Number())
		w.lastID.Store(m.ID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch m.Name {
	case jobwatch.NameEvent:
		e, err := event.Decode(m.Data)
		delete(w.lacks, e.Seq)
		if err != nil || !r.measure.Load() {
			return
		}
		if at, err := time.Parse(time.RFC3339Nano, e.Timestamp); err == nil {
			w.longest = max(w.longest, time.Since(at))
		}
	case jobwatch.NameGap:
		from, to := gapOf(m)
		if m.Number() < from { // it takes numbers back, and what is still missing is shown again
			maps.DeleteFunc(w.lacks, func(n int64, _ bool) bool { return n >= from })
			return
		}
		for ; from <= to; from++ {
			w.gaps = append(w.gaps, from)
			w.lacks[from] = true
		}
	case jobwatch.NameClosed:
		w.drained.Store(w.drained.Load() || m.Reason() == "draining")
	}
}

// gapOf returns the missing numbers of a message gap.
func gapOf(m jobwatch.Message) (from, to int64) {
	var gap struct{ From, To int64 }
	_ = json.Unmarshal(m.Data, &gap) // the checker reports it
	return gap.From, gap.To
}

// arrives waits until the watchers have received what is published by now, and one event more.
func (r *jobsRun) arrives(what string, watchers []*jobWatcher) {
	r.t.Helper()
	until := map[*publishedJob]int64{}
	for _, job := range r.jobs {
		until[job] = job.seq.Load() + 1
	}
	r.await(what, func() error {
		for _, w := range watchers {
			if n := w.last.Load(); n < until[w.job] {
				return fmt.Errorf("a watcher of %s is at %d, before %d", w.job.id, n, until[w.job])
			}
		}
		return nil
	})
}

// at returns the watchers that stay at a gateway.
func (r *jobsRun) at(gateway int) []*jobWatcher {
	return slices.DeleteFunc(slices.Clone(r.watchers), func(w *jobWatcher) bool { return w.at != r.steady[gateway] })
}

// verdict ends the jobs, and returns the report of the checker when all watchers have seen it.
func (r *jobsRun) verdict() checker.Report {
	r.t.Helper()
	r.stop()
	<-r.published
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.watching.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		for i, w := range r.watchers {
			if !w.over.Load() {
				r.t.Errorf("watcher %d of %s is at %d", i+1, w.job.id, w.last.Load())
			}
		}
	}
	report := r.check.Report()
	logs := func() string { return r.services[0].log.String() + "\n" + r.services[1].log.String() }
	if !report.OK() && !r.c.loses {
		require.FailNow(r.t, "the checker", "%+v\n%s", report, logs())
	}
	require.Empty(r.t, report.Problems, "%s", logs)
	r.t.Logf("after %s: %d events, %d watchers, %d received, %d transient, %d reconnects, %d gaps", time.Since(r.began).Round(time.Millisecond), report.Published, report.Watchers, report.Received, report.Transients, report.Reconnects, report.Gaps)
	return report
}
