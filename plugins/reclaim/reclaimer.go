package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

const (
	callTimeout = 5 * time.Second        // one command, or one pipeline of a look
	turnTimeout = 15 * time.Second       // one stream in one round
	slowTurn    = time.Second            // a stream whose turn took longer comes last in the next round
	leaseTime   = 30 * time.Second       // longer than a turn
	soon        = 250 * time.Millisecond // until the next look when the reader had no room for all
)

// Options is what a Reclaimer needs. Logger, Metrics and Lost may be nil.
type Options struct {
	Config   Config
	Instance string
	Targets  []Target
	// Alive answers which of the instances are there, by their presence keys: true, or false for one that was there and is
	// gone. An instance that is not in the answer never had a presence; its entries wait for MinIdle. The answer is about the
	// moment, nothing more.
	Alive   func(ctx context.Context, instances ...string) (map[string]bool, error)
	Logger  *slog.Logger
	Metrics *Metrics
	// Lost is told of entries that were pending and are deleted. It must not block.
	Lost func(stream string, ids []string)
}

// Reclaimer is the service that goes through the targets. It is built offline.
type Reclaimer struct {
	o       Options
	scripts scripts
	log     *slog.Logger
	call    time.Duration // callTimeout, but in tests

	mu      sync.Mutex
	end     context.CancelFunc
	stopped bool
	domains sync.WaitGroup
	done    chan struct{}
}

// NewReclaimer returns a Reclaimer that has not been started.
func NewReclaimer(o Options) *Reclaimer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Lost == nil {
		o.Lost = func(string, []string) {}
	}
	return &Reclaimer{o: o, scripts: newScripts(), log: o.Logger, call: callTimeout, done: make(chan struct{})}
}

// Start starts a goroutine a target. It connects to nothing.
func (r *Reclaimer) Start(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil || r.stopped {
		return errors.New("reclaim: started already")
	}
	ctx, end := context.WithCancel(context.Background())
	r.end = end
	for _, t := range r.o.Targets {
		d := newDomain(r, t)
		r.domains.Go(func() { d.run(ctx) })
	}
	return nil
}

// Stop ends the rounds and waits for what is under way, bounded by ctx.
func (r *Reclaimer) Stop(ctx context.Context) error {
	r.mu.Lock()
	if !r.stopped {
		r.stopped = true
		if r.end != nil {
			r.end()
		}
		go func() { r.domains.Wait(); close(r.done) }()
	}
	r.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// domain serves one target. Its fields belong to its goroutine.
type domain struct {
	r       *Reclaimer
	target  Target
	log     *slog.Logger
	minIdle time.Duration

	gone    map[string]time.Time // instance → since when its presence has been missed
	shards  map[string]struct{}  // whose series exist
	failing map[string]struct{}  // streams that failed, or gave no answer, in this round
	slow    map[string]struct{}  // streams whose turn took long in this round
	left    map[string]bool      // streams with more than their reader had room for
	next    map[string]string    // stream → where the next claim of idle entries begins, after one that could not claim all
}

func newDomain(r *Reclaimer, t Target) *domain {
	return &domain{
		r: r, target: t,
		log:     r.log.With(slog.String(pipeline.LogDomain, t.Domain())),
		gone:    map[string]time.Time{},
		shards:  map[string]struct{}{},
		failing: map[string]struct{}{},
		slow:    map[string]struct{}{},
		left:    map[string]bool{},
		next:    map[string]string{},
	}
}

// run looks for the dead at every DeadCheck and for idle entries at every Interval, until ctx ends.
// The first round for idle entries comes early: an instance that was restarted may be the one they
// are waiting for.
func (d *domain) run(ctx context.Context) {
	c := d.r.o.Config
	next := time.Now().Add(jitter(min(c.DeadCheck, c.Interval))) // the next round over all streams
	nextIdle := next
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		var more bool
		if time.Now().Before(next) {
			more = d.rest(ctx)
		} else {
			idle := !time.Now().Before(nextIdle)
			more = d.round(ctx, idle)
			if idle {
				nextIdle = time.Now().Add(jitter(c.Interval))
			} else if more {
				more = d.rest(ctx) // checks may be due more often than rest
			}
			next = time.Now().Add(jitter(min(c.DeadCheck, max(time.Until(nextIdle), time.Millisecond))))
		}
		wait := time.Until(next)
		if more {
			wait = min(wait, jitter(soon))
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// jitter takes up to a tenth off, so that instances don't look in the same moment for ever.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/10+1)) }

// round goes through the streams of the target once: the entries of the dead always, idle entries
// when asked to. What was in trouble in the last round comes last, so that it holds up nobody twice. more tells that
// something is left because a reader had no room, from this round or an earlier one.
func (d *domain) round(ctx context.Context, idle bool) (more bool) {
	streams := d.target.Streams()
	if idle {
		names := make(map[string]bool, len(streams))
		for _, s := range streams {
			names[s.Name] = true
		}
		maps.DeleteFunc(d.left, func(name string, _ bool) bool { return !names[name] })
		maps.DeleteFunc(d.next, func(name, _ string) bool { return !names[name] })
	}
	if len(streams) == 0 {
		return len(d.left) > 0
	}
	for _, s := range streams {
		if _, known := d.shards[s.Shard]; !known {
			d.shards[s.Shard] = struct{}{}
			d.r.o.Metrics.known(d.target.Domain(), s.Shard)
		}
	}
	d.minIdle = max(d.r.o.Config.MinIdle, d.target.MinIdle())
	calm, troubled := d.sort(streams)
	seen := map[string]bool{} // instances that read any of the streams
	total := 0
	for _, part := range [][]Stream{calm, troubled} {
		looks := d.look(ctx, part, idle)
		d.judge(ctx, looks, seen)
		total += d.serveAll(ctx, looks)
	}
	maps.DeleteFunc(d.gone, func(instance string, _ time.Time) bool { return !seen[instance] })
	d.reclaimed(ctx, total, len(streams))
	return len(d.left) > 0 && ctx.Err() == nil
}

// rest looks only at streams whose reader had no room for all, and has some now. It reports whether any are left.
func (d *domain) rest(ctx context.Context) (more bool) {
	var streams []Stream
	for _, s := range d.target.Streams() {
		if _, failed := d.failing[s.Name]; d.left[s.Name] && !failed && s.Reader.Free() > 0 {
			streams = append(streams, s)
		}
	}
	if len(streams) > 0 {
		looks := d.look(ctx, streams, true)
		d.judge(ctx, looks, map[string]bool{})
		d.reclaimed(ctx, d.serveAll(ctx, looks), len(streams))
	}
	return len(d.left) > 0 && ctx.Err() == nil
}

func (d *domain) reclaimed(ctx context.Context, entries, streams int) {
	if entries > 0 {
		d.log.InfoContext(ctx, "entries reclaimed", slog.Int("entries", entries), slog.Int("streams", streams))
	}
}

// sort tells the streams that were in trouble in the last round from the others, and begins this one's account.
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

// serveAll serves the streams that need it, one after the other. A stream has nothing left only when its look asked for
// idle entries and was answered.
func (d *domain) serveAll(ctx context.Context, looks []*look) (total int) {
	for _, l := range looks {
		if ctx.Err() != nil {
			return total
		}
		if !l.idle && len(l.departed)+len(l.dead) == 0 {
			if l.answered {
				delete(d.left, l.Name)
			}
			continue
		}
		begin := time.Now()
		n, left, err := d.serve(ctx, l)
		if time.Since(begin) > slowTurn {
			d.slow[l.Name] = struct{}{}
		}
		total += n
		switch {
		case left:
			d.left[l.Name] = true
		case l.answered && err == nil:
			delete(d.left, l.Name)
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
	d.failing[s.Name] = struct{}{}
	d.r.o.Metrics.failures.WithLabelValues(d.target.Domain(), s.Shard).Inc()
	d.log.Error("stream not reclaimed", slog.String(pipeline.LogStream, s.Name), pipeline.Err(err))
}

// isExpected reports whether err says only that the stream was cleaned up meanwhile, is not created yet, or is not read here
// any more.
func isExpected(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !isExpected(err) })
	}
	return isGone(err) || errors.Is(err, redispoll.ErrStopped)
}

var _ pipeline.Service = (*Reclaimer)(nil)
