package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	callTimeout   = 5 * time.Second        // one command, or one pipeline of a check
	streamTimeout = 15 * time.Second       // one stream in one round
	slowStream    = time.Second            // a stream that took longer comes last in the next round
	leaseTime     = 30 * time.Second       // longer than streamTimeout
	soon          = 250 * time.Millisecond // pause when the reader had no capacity
	notice        = time.Minute            // the least time between two warnings with the same text
)

// Options is what a Reclaimer needs. Marks, Logger and Lost may be nil.
type Options struct {
	Config   Config
	Instance string
	Targets  []Target
	// Alive says which of the instances have a presence key now: true, or false for one that had
	// it. An instance that is missing in the answer never had one; its entries wait for MinIdle.
	Alive func(ctx context.Context, instances ...string) (map[string]bool, error)
	// Marks returns when each instance renewed its presence last, in ms. With it, a check for dead
	// instances reads no stream while all that may have entries have a presence. Nil: each check
	// reads all streams.
	Marks   func(ctx context.Context) (map[string]int64, error)
	Logger  *slog.Logger
	metrics *metrics
	// Lost is called for entries that were pending and are deleted. It must not block.
	Lost func(stream string, ids []string)
}

// Reclaimer is the service that goes through the targets. It is built offline.
type Reclaimer struct {
	opts    Options
	scripts scripts
	log     *slog.Logger
	call    time.Duration // callTimeout, but in tests
	slow    time.Duration // slowStream, but in tests

	domains []*domain
	loops   loop.Group
}

// NewReclaimer returns a Reclaimer that has not been started.
func NewReclaimer(o Options) *Reclaimer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.metrics == nil {
		o.metrics = newMetrics()
	}
	if o.Lost == nil {
		o.Lost = func(string, []string) {}
	}
	r := &Reclaimer{opts: o, scripts: newScripts(), log: o.Logger, call: callTimeout, slow: slowStream}
	for _, t := range o.Targets {
		r.domains = append(r.domains, newDomain(r, t))
	}
	return r
}

// Start starts one goroutine per target. It connects to nothing.
func (r *Reclaimer) Start(ctx context.Context) error {
	var loops []func(context.Context)
	for _, d := range r.domains {
		loops = append(loops, d.run)
	}
	r.warnOfMinIdle()
	if err := r.loops.Start(ctx, loops...); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	return nil
}

// warnOfMinIdle names the targets that raise MinIdle. The default is what nobody has asked for.
func (r *Reclaimer) warnOfMinIdle() {
	set := r.opts.Config.MinIdle
	raised := map[time.Duration][]string{}
	for _, d := range r.domains {
		if of := d.target.MinIdle(); of > set && set != DefaultConfig().MinIdle {
			raised[of] = append(raised[of], d.target.Domain())
		}
	}
	for _, of := range slices.Sorted(maps.Keys(raised)) {
		slices.Sort(raised[of])
		r.log.Warn("plugins.reclaim.min_idle has no effect on these domains, because their readers renew entries less often: "+
			"lower plugins.redis.min_idle, or plugins.promotion.stream.min_idle for elastic streams",
			slog.Any("domains", slices.Compact(raised[of])), slog.Duration("min_idle", set), slog.Duration("min_idle_of_readers", of))
	}
}

// Stop ends the loops and waits for what is in flight, bounded by ctx.
func (r *Reclaimer) Stop(ctx context.Context) error { return r.loops.Stop(ctx) }

// domain serves one target. Its fields belong to its goroutine.
type domain struct {
	r       *Reclaimer
	target  Target
	log     *slog.Logger
	sampler *logs.Throttle
	minIdle time.Duration

	gone       map[string]time.Time // instance → since when its presence has been missed
	shards     map[string]struct{}  // whose series exist
	failing    map[string]struct{}  // streams that failed, or gave no answer, in this round
	slow       map[string]struct{}  // streams that took long in this round
	unfinished map[string]bool      // streams with more entries than their reader had capacity for
	next       map[string]string    // stream → where the next claim of idle entries begins
	last       survey
	claimed    map[string]int64 // since the start, by reason
	deleted    int64            // pending entries that were found deleted
	problem    string           // of the stream that failed last
	found      atomic.Pointer[found]
}

// survey is what the last round over all streams found.
type survey struct {
	streams   map[string]bool // that it read, by name
	instances map[string]bool // that had consumers of them
	newest    int64           // mark of an instance, before the round
}

func newDomain(r *Reclaimer, t Target) *domain {
	return &domain{
		r: r, target: t,
		log:        r.log.With(slog.String(logs.Domain, t.Domain())),
		sampler:    logs.NewThrottle(notice),
		gone:       map[string]time.Time{},
		shards:     map[string]struct{}{},
		failing:    map[string]struct{}{},
		slow:       map[string]struct{}{},
		unfinished: map[string]bool{},
		next:       map[string]string{},
		claimed:    map[string]int64{},
	}
}

// run checks for the dead at every DeadCheck and for idle entries at every Interval, until ctx
// ends. The first round for idle entries comes early: an instance that was restarted may be the one
// they are waiting for.
func (d *domain) run(ctx context.Context) {
	c := d.r.opts.Config
	next := time.Now().Add(jitter(min(c.DeadCheck, c.Interval))) // the next round over all streams
	nextIdle := next
	loop.Repeat(ctx, time.Until(next), func(ctx context.Context) time.Duration {
		var more bool
		if time.Now().Before(next) {
			more = d.continueRound(ctx)
		} else {
			idle := !time.Now().Before(nextIdle)
			more = d.round(ctx, idle)
			if idle {
				nextIdle = time.Now().Add(jitter(c.Interval))
			} else if more {
				more = d.continueRound(ctx) // checks may be due more often than the rest
			}
			next = time.Now().Add(jitter(min(c.DeadCheck, max(time.Until(nextIdle), time.Millisecond))))
		}
		wait := time.Until(next)
		if more {
			wait = min(wait, jitter(soon))
		}
		return max(wait, time.Millisecond)
	})
}

// jitter takes up to a tenth off, so that instances don't look in the same moment forever.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/10+1)) }

// round goes through the streams of the target once. It claims the entries of dead instances, and
// with idle also idle entries. Streams that failed in the last round come last, so that they delay
// the others once only. more says that entries are left because a reader had no capacity, from this
// round or an earlier one.
//
// Without idle, and while no instance is gone, it reads only streams that are new.
func (d *domain) round(ctx context.Context, idle bool) (more bool) {
	streams := d.target.Streams()
	defer d.tell(len(streams))
	newest, gone := d.absences(ctx)
	complete := idle || gone
	if !complete {
		streams = slices.DeleteFunc(slices.Clone(streams), func(s Stream) bool { return d.last.streams[s.Name] })
	}
	if idle {
		names := make(map[string]bool, len(streams))
		for _, s := range streams {
			names[s.Name] = true
		}
		maps.DeleteFunc(d.unfinished, func(name string, _ bool) bool { return !names[name] })
		maps.DeleteFunc(d.next, func(name, _ string) bool { return !names[name] })
	}
	if len(streams) == 0 {
		return len(d.unfinished) > 0
	}
	for _, s := range streams {
		if _, known := d.shards[s.Shard]; !known {
			d.shards[s.Shard] = struct{}{}
			d.r.opts.metrics.initialize(d.target.Domain(), s.Shard)
		}
	}
	d.minIdle = max(d.r.opts.Config.MinIdle, d.target.MinIdle())
	calm, troubled := d.sort(streams)
	seen := map[string]bool{} // instances that read any of the streams
	total := 0
	for _, part := range [][]Stream{calm, troubled} {
		checks := d.check(ctx, part, idle)
		d.findDead(ctx, checks, seen)
		total += d.serveAll(ctx, checks)
	}
	if complete {
		d.last = survey{streams: map[string]bool{}, instances: map[string]bool{}, newest: newest}
		maps.DeleteFunc(d.gone, func(instance string, _ time.Time) bool { return !seen[instance] })
	}
	maps.Copy(d.last.instances, seen)
	for _, s := range streams {
		if _, failed := d.failing[s.Name]; !failed {
			d.last.streams[s.Name] = true
		}
	}
	d.reclaimed(ctx, total, len(streams))
	return len(d.unfinished) > 0 && ctx.Err() == nil
}

// continueRound checks the streams that a round has left because their reader had no capacity for all
// entries, and have some now. It reports whether any are left.
func (d *domain) continueRound(ctx context.Context) (more bool) {
	var streams []Stream
	for _, s := range d.target.Streams() {
		if _, failed := d.failing[s.Name]; d.unfinished[s.Name] && !failed && s.Reader.Free() > 0 {
			streams = append(streams, s)
		}
	}
	if len(streams) > 0 {
		checks := d.check(ctx, streams, true)
		d.findDead(ctx, checks, map[string]bool{})
		d.reclaimed(ctx, d.serveAll(ctx, checks), len(streams))
		d.tell(len(d.target.Streams()))
	}
	return len(d.unfinished) > 0 && ctx.Err() == nil
}

func (d *domain) reclaimed(ctx context.Context, entries, streams int) {
	if entries > 0 {
		d.log.InfoContext(ctx, "entries reclaimed", slog.Int("entries", entries), slog.Int("streams", streams))
	}
}

// sort separates the streams that failed or were slow in the last round, and resets both lists.
func (d *domain) sort(streams []Stream) (calm, troubled []Stream) {
	for _, s := range streams {
		_, failed := d.failing[s.Name]
		if _, slow := d.slow[s.Name]; slow || failed {
			troubled = append(troubled, s)
		} else {
			calm = append(calm, s)
		}
	}
	clear(d.failing)
	clear(d.slow)
	return calm, troubled
}

// serveAll serves the streams that need it, one after the other. A stream has nothing left only
// when its check read idle entries and was answered.
func (d *domain) serveAll(ctx context.Context, checks []*check) (total int) {
	for _, l := range checks {
		if ctx.Err() != nil {
			return total
		}
		if !l.idle && len(l.departed)+len(l.dead) == 0 {
			if l.answered {
				delete(d.unfinished, l.Name)
			}
			continue
		}
		begin := time.Now()
		n, unfinished, err := d.serve(ctx, l)
		if time.Since(begin) > d.r.slow {
			d.slow[l.Name] = struct{}{}
		}
		total += n
		switch {
		case unfinished:
			d.unfinished[l.Name] = true
		case l.answered && err == nil:
			delete(d.unfinished, l.Name)
		}
		if err != nil && ctx.Err() == nil {
			d.failed(l.Stream, err)
		}
	}
	return total
}

func (d *domain) failed(s Stream, err error) {
	if isExpected(err) {
		return
	}
	d.failing[s.Name], d.problem = struct{}{}, err.Error()
	d.r.opts.metrics.failures.WithLabelValues(d.target.Domain(), s.Shard).Inc()
	// The next round tries again; an alert says when a person must act. A stream that the server refuses
	// is not hidden by many that got no answer.
	text := "stream not reclaimed, the server did not answer"
	if poll.IsReply(err) {
		text = "stream not reclaimed, the server refused"
	}
	d.sampler.Warn(d.log, text, slog.String(logs.Stream, s.Name), logs.Err(err))
}

// isExpected reports whether err says only that the stream was cleaned up meanwhile, is not created
// yet, or is not read here any more.
func isExpected(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !isExpected(err) })
	}
	return isGone(err) || errors.Is(err, poll.ErrStopped)
}

var _ pipeline.Service = (*Reclaimer)(nil)
