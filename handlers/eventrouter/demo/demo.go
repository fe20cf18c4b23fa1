// Package demo runs jobs through a gateway while a router is killed, and checks what the watchers
// received.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/checker"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// Options are the size of the demo, and what it uses. All fields but Killed are required.
type Options struct {
	Domain   string
	Run      string // is in the ids of the jobs
	Jobs     int
	Events   int // of each job, numbered
	Watchers int // of each job
	Rate     int // events per second of all jobs
	Stages   event.Stages

	// URL returns the address of the stream of a job.
	URL func(jobID string) string
	// Publish adds events to their shards.
	Publish func(context.Context, ...event.Event) error
	// Kill is called once, when a third of the events have been received, and before the last ones
	// are published. Nil: nothing is killed.
	Kill func() error
	// Progress is called with the number of numbered events that the watchers have received.
	Progress func(int64)
}

// Total is the number of numbered events that all watchers receive.
func (o Options) Total() int64 { return int64(o.Jobs) * int64(o.Events) * int64(o.Watchers) }

// JobID returns the id of a job.
func (o Options) JobID(i int) string { return fmt.Sprintf("%s-%d", o.Run, i+1) }

// Report is the result.
type Report struct {
	checker.Report
	Killed  bool    `json:"killed"` // a router was killed
	Seconds float64 `json:"seconds"`
	// The time from publishing an event to the watcher, in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// patience is how long the demo waits for the ends of the jobs after the last event was published.
const patience = 90 * time.Second

const killWait = 10 * time.Millisecond

// Run runs the jobs. The error is that of a part that the demo needs.
func Run(ctx context.Context, o Options) (Report, error) {
	r := &run{Options: o, checker: checker.New(o.Stages), published: map[string]time.Time{}}
	start := time.Now()
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watchers sync.WaitGroup
	for i := range o.Jobs {
		for n := range o.Watchers {
			w := r.checker.Watch(fmt.Sprintf("watcher %d", n+1), o.Domain, o.JobID(i))
			watchers.Go(func() {
				if err := r.watch(watching, o.JobID(i), w); err != nil && watching.Err() == nil {
					stop(err)
				}
			})
		}
	}
	err := r.publish(watching, stop)
	if err == nil {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchers.Wait()
		}()
		select {
		case <-ended:
		case <-watching.Done():
		case <-time.After(patience): // the report names those that did not end
		}
	}
	if err == nil && watching.Err() != nil {
		err = context.Cause(watching)
	}
	stop(nil)
	watchers.Wait()
	report := Report{Report: r.checker.Report(), Killed: r.killed.Load(), Seconds: time.Since(start).Seconds()}
	report.P50, report.P99, report.Max = r.delays()
	return report, err
}

type run struct {
	Options
	checker  *checker.Checker
	received atomic.Int64
	killed   atomic.Bool

	mu        sync.Mutex
	published map[string]time.Time // by job and number
	took      []time.Duration
}

func key(jobID string, seq int64) string { return fmt.Sprintf("%s#%d", jobID, seq) }

func (r *run) watch(ctx context.Context, jobID string, w *checker.Watcher) error {
	reason, err := watch.Follow(ctx, watch.Options{
		URL: r.URL(jobID), Connected: w.Connected,
		Message: func(m watch.Message) {
			w.Message(m)
			if m.Name != watch.NameEvent {
				return
			}
			r.Progress(r.received.Add(1))
			var e event.Event
			if json.Unmarshal(m.Data, &e) != nil {
				return // the checker reports it
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.took = append(r.took, time.Since(r.published[key(jobID, e.Seq)]))
		},
	})
	w.Ended(reason)
	return err
}

// publish adds the events of all jobs, in the order of the numbers, and kills in between.
func (r *run) publish(ctx context.Context, stop context.CancelCauseFunc) error {
	stages := []string{"fetch", "scan", "classify", "report"}
	begin, sent := time.Now(), 0
	for seq := 1; seq <= r.Events; seq++ {
		if seq == r.Events {
			if err := r.kill(ctx, stop, true); err != nil {
				return err
			}
		}
		for i := range r.Jobs {
			at := begin.Add(time.Duration(sent) * time.Second / time.Duration(r.Rate))
			if !loop.Sleep(ctx, time.Until(at)) {
				return context.Cause(ctx)
			}
			sent++
			stage := stages[(seq-1)*len(stages)/r.Events]
			if seq == r.Events {
				stage = r.Stages.Terminal[0]
			}
			e := event.Event{
				Domain: r.Domain, JobID: r.JobID(i), Stage: stage, Seq: int64(seq), Status: "running",
				Data: fmt.Appendf(nil, `{"percent":%d}`, 100*seq/r.Events), Timestamp: time.Now().UTC().Format(time.RFC3339Nano),
			}
			batch := []event.Event{e}
			if len(r.Stages.Transient) > 0 && rand.IntN(2) == 0 { //nolint:gosec // no secret
				batch = append(batch, event.Event{Domain: r.Domain, JobID: e.JobID, Stage: r.Stages.Transient[0], Data: fmt.Appendf(nil, `{"text":"word %d "}`, sent)})
			}
			r.mu.Lock()
			r.published[key(e.JobID, e.Seq)] = time.Now()
			r.mu.Unlock()
			for _, e := range batch {
				r.checker.Published(e)
			}
			if err := r.Publish(ctx, batch...); err != nil {
				return err
			}
			if err := r.kill(ctx, stop, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// kill calls Kill when a third of the events have been received. It can wait for them.
func (r *run) kill(ctx context.Context, stop context.CancelCauseFunc, wait bool) error {
	if r.Kill == nil || r.killed.Load() {
		return nil
	}
	enough := min(r.Total()/3, int64(r.Events-1)*int64(r.Jobs*r.Watchers))
	for end := time.Now().Add(patience); r.received.Load() < enough; {
		if !wait || time.Now().After(end) {
			return nil
		}
		if !loop.Sleep(ctx, killWait) {
			return context.Cause(ctx)
		}
	}
	r.killed.Store(true)
	if err := r.Kill(); err != nil {
		stop(err)
		return err
	}
	return nil
}

// delays returns p50, p99 and maximum in milliseconds.
func (r *run) delays() (p50, p99, longest float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.took) == 0 {
		return 0, 0, 0
	}
	slices.Sort(r.took)
	ms := func(share float64) float64 {
		return float64(r.took[int(share*float64(len(r.took)-1))].Microseconds()) / 1000
	}
	return ms(0.5), ms(0.99), ms(1)
}
