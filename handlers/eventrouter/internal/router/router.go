package router

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Router handles the events of one domain. Safe for concurrent use.
type Router struct {
	// Log has the logs and feeds. Required.
	Log *joblog.Log
	// Stages says which events are transient. Required.
	Stages event.Stages
	// Owned reports whether this process alone reads the shard of a message for redis.OwnedFor, and
	// delivers the message for the first time (redis.Owned). Required.
	Owned func(context.Context) bool
	// Metrics count the events. Required.
	Metrics *Metrics
	// MaxDeliveries limits the deliveries of an event whose log or state can't be written because of
	// what its own keys contain. The last one makes it a dead letter of class delivery_limit. Zero:
	// no limit. Failures of the server have no limit.
	MaxDeliveries int
	// Logger gets a warning when events are dropped that watchers may miss, at most one per reason
	// and ten seconds. Nil: none.
	Logger *slog.Logger

	dropped atomic.Pointer[logs.Throttle]
	closed  atomic.Pointer[time.Time] // the gate, until then
}

const (
	// hold is how long the gate stays closed after a failure.
	hold = time.Second
	// callTimeout limits a call for the logs, and one for the feed. Transient events then reach the
	// feed before another instance can have the shard.
	callTimeout = redis.OwnedFor
)

// Gate is the pipeline.Flow.Gate of the route. It is closed for a second when the server of the
// logs was unavailable, before the messages are nacked. They then stay in front of later ones.
func (r *Router) Gate() bool {
	until := r.closed.Load()
	return until == nil || time.Now().After(*until)
}

func (r *Router) closeGate() {
	until := time.Now().Add(hold)
	r.closed.Store(&until)
}

// unavailable reports whether an error is about the server. Only a reply about a key of another
// type or about a failed script is about one job.
func unavailable(err error) bool {
	if err == nil {
		return false
	}
	ofOneJob := func(reply string) bool { return strings.Contains(err.Error(), reply) }
	return !poll.IsReply(err) || !slices.ContainsFunc([]string{"WRONGTYPE", "ERR user_script:"}, ofOneJob)
}

// Handle is the pipeline.BatchHandler of the domain. All messages of a batch are from one shard
// (pipeline.Batch.PerSource), in their order.
//
// It first appends the numbered events to the logs of their jobs. Then it adds them to the feed of
// the shard, also those that the logs already had: an earlier delivery may have ended in between. A
// job that fails nacks only its own events. Transient events are added to the feed at most once.
func (r *Router) Handle(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
	results := make([]pipeline.BatchResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	b := batch{Router: r, ctx: ctx, msgs: msgs, results: results, texts: make([]string, len(msgs)), transient: make([]bool, len(msgs))}
	source := pipeline.DeliveryFrom(msgs[0].Context()).Source
	b.domain, _, _ = strings.Cut(source, ":")
	shard := source[strings.LastIndexByte(source, ':')+1:]
	number, err := strconv.Atoi(shard)
	if err != nil {
		for i := range results {
			results[i].Err = fmt.Errorf("%q is no shard of a domain: %w", source, err)
		}
		return results
	}
	b.shard, b.label = number, shard
	b.append(b.parse())
	failpoint.Hit(failpoint.Logged)
	b.publish()
	failpoint.Hit(failpoint.Published)
	for _, result := range results {
		if result.Err == nil {
			r.Metrics.processed.WithLabelValues(b.domain, b.label).Inc()
		}
	}
	return results
}

// batch is the messages of one shard on their way.
type batch struct {
	*Router
	ctx     context.Context
	domain  string
	shard   int
	label   string // shard
	msgs    []*message.Message
	results []pipeline.BatchResult
	// texts has the JSON of each event for the feed. It is empty for an event that is not shown.
	texts     []string
	transient []bool
}

// jobEvents are the numbered events of one job.
type jobEvents struct {
	events []event.Event
	at     []int // their messages
}

// parse returns the numbered events by job, and sets the texts of the transient ones.
func (b *batch) parse() []*jobEvents {
	var jobs []*jobEvents
	byID := map[string]*jobEvents{}
	for i, msg := range b.msgs {
		e, err := b.Stages.Parse(msg.Payload, pipeline.DeliveryFrom(msg.Context()).Origin)
		if err != nil {
			b.results[i].Err = err
			continue
		}
		if e.Seq == 0 {
			text, err := e.JSON()
			b.texts[i], b.transient[i], b.results[i].Err = string(text), true, err
			continue
		}
		job := byID[e.JobID]
		if job == nil {
			job = &jobEvents{}
			jobs, byID[e.JobID] = append(jobs, job), job
		}
		job.events, job.at = append(job.events, e), append(job.at, i)
	}
	return jobs
}

func (b *batch) append(jobs []*jobEvents) {
	perJob := make([][]event.Event, len(jobs))
	for i, job := range jobs {
		perJob[i] = job.events
	}
	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	results := b.Log.Append(ctx, b.domain, perJob)
	available := func(r joblog.AppendResult) bool { return !unavailable(r.Err) }
	// A node of a cluster fails only its own jobs.
	if len(results) > 0 && !slices.ContainsFunc(results, available) {
		b.closeGate()
	}
	for i, result := range results {
		b.Metrics.stateUpdates.WithLabelValues(b.domain).Add(float64(result.StateUpdates))
		for n, at := range jobs[i].at {
			if result.Err != nil {
				err := fmt.Errorf("append to the log of job %s: %w", jobs[i].events[n].JobID, result.Err)
				b.results[at].Err = b.limit(b.msgs[at], err)
				continue
			}
			b.texts[at] = result.Answers[n].Text
			if reason := reasonOf(result.Answers[n].Outcome); reason != "" {
				b.skip(reason)
				b.warn(reason, jobs[i].events[n])
				b.results[at].Err = b.lostEnd(reason, jobs[i].events[n], result.Answers[n].Text)
			}
		}
	}
}

// limit returns the error of an event that could not be appended. It is permanent when the error is
// about one job and this is the last delivery: the entry would stop the trimming of its shard.
func (b *batch) limit(msg *message.Message, err error) error {
	d := pipeline.DeliveryFrom(msg.Context())
	delivered := d.Delivered - d.Excused
	if b.MaxDeliveries == 0 || delivered < int64(b.MaxDeliveries) || unavailable(err) {
		return err
	}
	err = fmt.Errorf("failed at delivery %d, plugins.eventrouter.max_deliveries is %d: %w", delivered, b.MaxDeliveries, err)
	return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassDeliveryLimit)
}

// warnEvery limits the warnings about dropped events.
const warnEvery = 10 * time.Second

// warn logs an event that was dropped and may be no repetition.
func (b *batch) warn(reason string, e event.Event) {
	text := map[string]string{
		reasonConflict: "an event was dropped: the log has another event of its job with this number",
		reasonAfterEnd: "an event was dropped: its job has ended",
		reasonExpired:  "an event was dropped: the log of its job has expired",
	}[reason]
	if text == "" || b.Logger == nil {
		return
	}
	if b.dropped.Load() == nil {
		b.dropped.CompareAndSwap(nil, logs.NewThrottle(warnEvery))
	}
	b.dropped.Load().Warn(b.Logger, text, slog.String(logs.Domain, b.domain), slog.String("job", e.JobID),
		slog.Int64("seq", e.Seq), slog.String(logs.Stage, e.Stage), slog.String("event_id", e.EventID),
		slog.String(logs.StreamEntryID, e.StreamID))
}

// lostEnd returns the error of a terminal event whose number another event has, which is stored as a
// text. Without its end the watchers of the job would wait until max_watch, so it becomes a dead
// letter. A worker that repeats its end with other data has ended the job before.
func (b *batch) lostEnd(reason string, e event.Event, stored string) error {
	if reason != reasonConflict || !b.Stages.IsTerminal(e.Stage) {
		return nil
	}
	if first, err := event.Decode([]byte(stored)); err == nil && b.Stages.IsTerminal(first.Stage) {
		return nil
	}
	err := fmt.Errorf("the log of job %s has another event with number %d, so this end of the job is lost: give each event its own number", e.JobID, e.Seq)
	return pipeline.WithClass(pipeline.Permanent(err), event.ClassSeqConflict)
}

func (b *batch) skip(reason string) {
	b.Metrics.skipped.WithLabelValues(b.domain, b.label, reason).Inc()
}

// publish adds the texts to the feed, in the order of the messages. A transient event whose shard
// may have another owner by now is skipped: the feed could have it already, or later ones.
func (b *batch) publish() {
	var texts []string
	var at []int
	for i, text := range b.texts {
		if b.transient[i] && !b.Owned(b.msgs[i].Context()) {
			b.skip(reasonStaleTransient)
			continue
		}
		if text != "" {
			texts, at = append(texts, text), append(at, i)
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	err := b.Log.Publish(ctx, b.domain, b.shard, texts)
	if err == nil {
		b.Metrics.published.WithLabelValues(b.domain, b.label).Add(float64(len(texts)))
		return
	}
	if unavailable(err) {
		b.closeGate()
	}
	b.Metrics.publishFailures.WithLabelValues(b.domain).Inc()
	for _, i := range at {
		b.results[i].Err = err
	}
}
