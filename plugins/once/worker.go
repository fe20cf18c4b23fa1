package once

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/internal/answered"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// caller is a kind without the type of its values.
type caller interface {
	ledgerKind(instance string) ledger.Kind
	// call makes one call for a claimed effect. decoded is false when the value can't be decoded, and
	// then there was no call.
	call(ctx context.Context, c ledger.Claimed) (a Answer, decoded bool)
	// describe returns the idempotency key, and what people see of a stored record.
	describe(k ledger.Key, payload []byte) (idempotency, value string)
	// keyOf returns the idempotency key.
	keyOf(k Key) string
	// sumOf returns what a stored record amounts to, or nil if the kind has no sums.
	sumOf() func(payload []byte) (int64, bool)
	// read returns what the ledger stores of a record, without its origin.
	read(payload []byte) (ledger.Record, error)
	// gated reports whether the kind has a Gate, and ready and take are its.
	gated() bool
	ready() bool
	take(n int) (may int, wait time.Duration)
}

// worker calls for the effects of one kind: it claims what is due when it has free places, and stores each
// answer while the place of its call is used again.
type worker struct {
	plugin  *Plugin
	name    string
	config  *KindConfig
	effects caller

	woken       chan struct{} // capacity 1: there may be work
	freed       chan struct{} // capacity 1: a call has ended
	calling     atomic.Int64  // calls without an answer
	inFlight    atomic.Int64  // these, and those whose answer is not stored
	lastSettled atomic.Int64  // Unix nanoseconds
	answered    answered.Keys[ledger.Key]
	trouble     trouble
	outage      *logs.Outage // what the log says of the calls
	limiter     limiter
	gateOpens   time.Time                      // the far side takes no call before; only the loop uses it
	inForce     atomic.Pointer[ledger.InForce] // the limits at the last look
	limited     atomic.Int64                   // Unix nanoseconds of the last wait for a limit
	measured    atomic.Pointer[measurement]
	measuring   sync.Mutex
	told        bool // the ledger may have an activity of this instance; guarded by measuring
	silent      bool // it has none any more; guarded by measuring
	recent      recent
	bounds      bounds
	begun       atomic.Bool // start was called
	settles     settler
	hints       *hints
	spreadLimit time.Duration // spreadTimeout
	callLimit   time.Duration // streams.Options.CallTimeout; zero, but in tests
	spread      *spread       // nil: effects are found in the ledger alone
	results     *relay        // nil: nobody is told what became of effects

	claiming context.Context // ends when nothing is claimed any more
	drain    context.CancelFunc
	life     context.Context // of the calls
	abandon  context.CancelFunc
	ended    chan struct{} // closed when the loop and all calls have returned
	calls    sync.WaitGroup
	log      *slog.Logger
	next     int  // the lane that is claimed first
	notReady bool // at the last look for free places
}

func newWorker(p *Plugin, name string, config *KindConfig, effects caller) *worker {
	return &worker{
		plugin: p, name: name, config: config, effects: effects, outage: logs.NewOutage(warnEvery, true), woken: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		hints: newHints(), spreadLimit: spreadTimeout,
	}
}

// wake makes an idle worker look for work at once.
func (w *worker) wake() { notify(w.woken) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// accept accepts records and has them called for.
func (w *worker) accept(ctx context.Context, l *ledger.Ledger, records []ledger.Record) ([]ledger.AcceptResult, error) {
	if w.spread != nil && w.spread.isAway() {
		for i := range records {
			records[i].NoGrace = true
		}
	}
	results, err := l.Accept(ctx, records)
	failpoint.Hit(failpoint.AfterInsert)
	w.countAccepted(records, results)
	if w.spread != nil {
		w.spread.publish(ctx, records, results)
	}
	w.wake()
	return results, err
}

// start starts the loop. It belongs to the service, which calls drain and waits for ended.
func (w *worker) start(l *ledger.Ledger) {
	ctx := context.Background()
	w.log = w.plugin.log.With(slog.String("kind", w.name))
	w.claiming, w.drain = context.WithCancel(ctx)
	w.life, w.abandon = context.WithCancel(ctx)
	w.ended = make(chan struct{})
	w.settles.start(l)
	w.recent.start(w.plugin.now())
	w.begun.Store(true)
	go func() {
		defer close(w.ended)
		w.run(l)
		w.calls.Wait()
		w.freeSlots(context.Background(), l)
		w.settles.stop()
		w.endActivity(context.Background(), l)
	}()
}

const (
	// contendedPause is between two looks at lanes whose effects other instances have just claimed.
	contendedPause = 20 * time.Millisecond
	// claimPause is between two claims while at least half of the places are taken.
	claimPause = 5 * time.Millisecond
	// unstored bounds the effects in flight, as a multiple of the calls at once. After a kill, so many are
	// perhaps done.
	unstored = 2
)

func (w *worker) run(l *ledger.Ledger) {
	ctx := w.claiming
	failures := 0
	var claimedAt time.Time
	w.limiter.lease = w.config.lease()
	for ctx.Err() == nil {
		free, retryIn := w.free(time.Now())
		if free == 0 {
			w.bounds.wait(w.boundOfFull(), time.Now())
			w.sleep(ctx, retryIn, nil)
			continue
		}
		// Places that become free one after the other are taken together, because each claim is a commit.
		if pause := claimPause - time.Since(claimedAt); pause > 0 && free <= int(w.calling.Load()) {
			w.sleep(ctx, pause, nil)
			continue
		}
		if w.waitForLimit(ctx) {
			continue
		}
		w.bounds.wait(boundLedger, time.Now())
		due, claimed, err := w.take(ctx, l, free)
		work := len(due.Lanes) > 0 || w.hints.any()
		wait, _ := w.mustWait()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			delay := pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}.Delay(failures)
			if failures == 1 || failures%20 == 0 {
				w.log.WarnContext(ctx, "the ledger gives no effects to call, which is tried again", slog.Int("failures", failures), slog.Duration("in", delay), logs.Err(err))
			}
			w.sleep(ctx, delay, nil)
			continue
		case claimed > 0:
			claimedAt = time.Now()
		case work && wait > 0:
		case work:
			w.bounds.wait(boundNothingDue, time.Now())
			w.sleep(ctx, contendedPause, w.woken)
		default:
			w.bounds.wait(boundNothingDue, time.Now())
			if w.inFlight.Load() == 0 && w.limiter.idle(w.plugin.now()) {
				w.freeSlots(ctx, l)
			}
			next := w.config.PollInterval
			if due.Next >= 0 {
				next = min(next, due.Next)
			}
			w.sleep(ctx, max(next, time.Millisecond), w.woken)
		}
		failures = 0
	}
}

// take claims what is due, at most free effects, and starts their calls.
func (w *worker) take(ctx context.Context, l *ledger.Ledger, free int) (due ledger.Due, claimed int, err error) {
	w.plugin.claims.RLock()
	defer w.plugin.claims.RUnlock()
	due, err = l.Due(ctx, w.name)
	if err != nil {
		return due, 0, err
	}
	w.inForce.Store(&due.Limits)
	lanes := due.Lanes
	if w.hints.any() {
		lanes = append(lanes[:len(lanes):len(lanes)], hintLane)
	}
	if len(lanes) == 0 {
		return due, 0, nil
	}
	free, err = w.allow(ctx, l, due.Limits.Limits, free)
	if err != nil || free == 0 {
		return due, 0, err
	}
	free, wait := w.effects.take(free)
	if free == 0 {
		w.gateOpens = w.plugin.now().Add(min(wait, limitPause))
		return due, 0, nil
	}
	claimed, err = w.claim(ctx, l, lanes, free)
	w.limiter.begun(claimed, w.plugin.now())
	return due, claimed, err
}

// allow returns how many of free calls the limits of the kind let begin now.
func (w *worker) allow(ctx context.Context, l *ledger.Ledger, limits ledger.Limits, free int) (int, error) {
	n, err := w.limiter.allow(limits, free, int(w.inFlight.Load()), w.plugin.now, func(a ledger.Ask) (ledger.Permit, error) {
		p, err := l.Permit(ctx, w.name, a)
		w.plugin.metrics.tokens.WithLabelValues(w.name, tokenGranted).Add(float64(p.Tokens))
		return p, err
	})
	w.plugin.metrics.tokens.WithLabelValues(w.name, tokenLost).Add(float64(w.limiter.takeLost()))
	return n, err
}

// mustWait returns how long no call may begin, and the limit that says so.
func (w *worker) mustWait() (d time.Duration, limit string) {
	now := w.plugin.now()
	if d, limit = w.limiter.wait(now, int(w.inFlight.Load())); d > 0 {
		return d, limit
	}
	return w.gateOpens.Sub(now), limitFarSide
}

// waitForLimit waits until a limit may let a call begin, or something has changed, and reports whether it waited.
func (w *worker) waitForLimit(ctx context.Context) bool {
	d, limit := w.mustWait()
	if d <= 0 {
		return false
	}
	started := time.Now()
	w.limited.Store(started.UnixNano())
	w.bounds.wait(limit, started)
	w.sleep(ctx, d, w.woken)
	w.plugin.metrics.waited.WithLabelValues(w.name, limit).Add(time.Since(started).Seconds())
	return true
}

// freeSlots gives the slots back, when no call runs. Otherwise others get them when the ledger forgets them.
func (w *worker) freeSlots(ctx context.Context, l *ledger.Ledger) {
	if !w.limiter.holds {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := l.FreeSlots(ctx, w.name); err != nil {
		w.log.InfoContext(ctx, "the slots of an idle kind were not given back, so the ledger forgets them later", logs.Err(err))
		return
	}
	w.limiter.freed()
}

// notReadyPause is the time between two questions to Gate.Ready.
const notReadyPause = 50 * time.Millisecond

// free returns how many calls may start now. When none may, it returns how long to wait at most.
func (w *worker) free(now time.Time) (n int, retryIn time.Duration) {
	if !w.effects.ready() {
		w.notReady = true
		return 0, notReadyPause
	}
	if w.notReady {
		w.notReady = false
		w.trouble.again()
	}
	limit, wait := w.trouble.limit(w.config.Concurrency, now)
	if n = min(limit-int(w.calling.Load()), unstored*limit-int(w.inFlight.Load())); n > 0 {
		return n, 0
	}
	return 0, wait
}

// sleep returns after d, when a call has ended, when early is ready, or when ctx ends.
func (w *worker) sleep(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.freed:
	case <-early:
	case <-ctx.Done():
	}
}

// claim claims effects of the lanes, at most free of them. The lanes share the free places and take turns
// at being the first, so that a lane with much work leaves places to the others.
func (w *worker) claim(ctx context.Context, l *ledger.Ledger, lanes []int, free int) (claimed int, err error) {
	w.next++
	for i := range lanes {
		lane := lanes[(w.next+i)%len(lanes)]
		limit := max(1, (free-claimed)/(len(lanes)-i))
		// The lease counts from before the claim, so it ends here before it ends in the ledger. A claim that
		// begins late, after lanes that had nothing or a process that was frozen, must not use what is too old.
		before := time.Now()
		if err := ctx.Err(); err != nil {
			return claimed, err
		}
		if claimed == free || w.limiter.may(w.plugin.now(), 1, int(w.inFlight.Load())) == 0 {
			break
		}
		// A drain does not end a claim that has begun. It may be committed, and its effects would then wait for
		// the end of their leases, and count as perhaps done, although nobody has called.
		all, err := w.claimFrom(l, lane, limit)
		if err != nil {
			return claimed, err
		}
		failpoint.Hit(failpoint.AfterSending)
		claimed += len(all)
		for _, c := range all {
			w.calling.Add(1)
			w.inFlight.Add(1)
			w.calls.Go(func() {
				answered := sync.OnceFunc(func() {
					w.calling.Add(-1)
					notify(w.freed)
				})
				defer func() {
					answered()
					w.inFlight.Add(-1)
					notify(w.freed)
				}()
				w.handle(c, before, answered)
			})
		}
	}
	return claimed, nil
}

// handle calls for a claimed effect within its lease and stores the answer. The place of the call is free
// from answered on, so the next call does not wait for the store.
func (w *worker) handle(c ledger.Claimed, before time.Time, answered func()) {
	lease := before.Add(w.config.lease())
	ctx := pipeline.ExtractTrace(w.life, traced(c.Headers))
	end := ledger.End{Key: c.Key, CallResult: rules.CallResult{Epoch: c.Epoch}}
	// A process that was frozen, or is being stopped, sends nothing that could outlast the lease.
	if ctx.Err() != nil || timeLeft(lease, time.Now(), time.Now().Round(0)) < w.config.CallTimeout {
		end.Outcome, end.Class, end.Answer, end.Feed = rules.Interrupted, string(rules.Interrupted), "the call was not started", true
		w.store(ctx, end, lease)
		return
	}
	started := time.Now()
	w.recent.begin(c.Group, w.plugin.now())
	answer, decoded := w.callOne(ctx, c)
	took := time.Since(started)
	w.recent.called(answer, took, w.plugin.now())
	failpoint.Hit(failpoint.AfterCall)
	end.Outcome = outcomeOf(answer, c.Lookup)
	end.Receipt, end.RetryAfter, end.Class, end.Answer, end.Status = answer.Receipt, answer.RetryAfter, classOf(answer), textOfAnswer(answer), answer.Status
	end.Counted = w.counts(c, answer, before, decoded)
	if !decoded {
		end.Class = pipeline.ClassUndecodable
	}
	w.learn(answer, decoded, time.Now())
	answered()
	w.plugin.metrics.called(w.name, c.Lookup, answer, took)
	settled, stored := w.store(ctx, end, lease)
	w.recent.end(c.Group, stored && !settled.Stale && settled.State.Settled(), !settled.Stale && settled.State == rules.Success, w.plugin.now())
	if decoded {
		w.tell(ctx, c.Key, answer, nextOfCall(settled, stored))
	}
}

// timeLeft returns the time until a lease ends. It looks at both clocks, because the monotonic one stands still while a machine
// is suspended, and the other one may be set back.
func timeLeft(lease, monotonic, wall time.Time) time.Duration {
	return min(lease.Sub(monotonic), lease.Round(0).Sub(wall))
}

func (w *worker) callOne(ctx context.Context, c ledger.Claimed) (a Answer, decoded bool) {
	ctx, cancel := context.WithTimeout(ctx, w.config.CallTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			w.log.ErrorContext(ctx, "the call of an effect panicked, so its outcome is unclear", slog.String("effect", textOf(c.Key)), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
			a, decoded = Answer{Text: fmt.Sprintf("the call panicked: %v", r)}, true
		}
	}()
	return w.effects.call(ctx, c)
}

// storeTimeout is how long an answer is kept for the ledger at least. It is kept as long as the lease, too,
// because after it another instance may call again.
const storeTimeout = 5 * time.Second

// store stores the end of a call, and repeats it while the ledger does not answer. The epoch makes a
// repeated store harmless. An answer that is lost leaves the effect perhaps done when the lease ends.
func (w *worker) store(ctx context.Context, end ledger.End, lease time.Time) (settled ledger.Settled, stored bool) {
	until := time.Now().Add(storeTimeout)
	if lease.After(until) {
		until = lease
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	for n := 1; ; n++ {
		settled, err := w.settles.settle(ctx, end)
		if err == nil {
			if end.Outcome != rules.Interrupted { // which is no sign that effects are called for
				w.lastSettled.Store(time.Now().UnixNano())
			}
			w.plugin.metrics.settled(w.name, settled)
			if w.results != nil && settled.State.Settled() {
				notify(w.results.woken)
			}
			return settled, true
		}
		timer := time.NewTimer(pipeline.Backoff{First: 50 * time.Millisecond, Max: time.Second}.Delay(n))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			w.log.ErrorContext(ctx, "the answer of a call was not stored; after its lease the effect counts as perhaps done",
				slog.String("effect", textOf(end.Key)), slog.String("answer", string(end.Outcome)), logs.Err(err))
			return settled, false
		}
	}
}
