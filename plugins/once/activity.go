package once

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// activity returns what other processes are told of this instance; nil: it is idle, which nobody needs to know.
func (w *worker) activity(now time.Time) *ledger.Activity {
	a, does := w.recent.tell(now)
	a.Calling, a.Concurrency, a.Bound, a.Reason = int(w.calling.Load()), w.config.Concurrency, w.bounds.most(time.Now()), w.trouble.reason()
	if !w.effects.ready() {
		a.Reason = "its client would send nothing now, such as while the breaker of the far side is open"
	}
	m, waits := w.measured.Load(), false
	switch {
	case a.Reason != "":
		a.Bound = boundStopped
	case m == nil:
	case m.backlog.Paused != nil:
		a.Bound = boundPaused
	default:
		waits = m.backlog.Due > 0
	}
	if a.Reason == "" && !does && !waits {
		return nil
	}
	return &a
}

// tellActivity tells other processes what this instance does, and whether it calls for nothing, and why. The caller holds
// measuring. Before the worker has begun, its client is not ready either, which is no stop.
func (w *worker) tellActivity(ctx context.Context, l *ledger.Ledger) {
	if !w.begun.Load() || w.silent {
		return
	}
	a := w.activity(w.plugin.now())
	if a == nil && !w.told {
		return
	}
	if err := l.SetActivity(ctx, w.name, a); err != nil {
		if ctx.Err() == nil {
			w.warn("the commands are not told whether effects are called for, which is tried again", err)
		}
		return
	}
	w.told = a != nil
}

// endActivity says that this instance has ended. Otherwise others show it as gone for a while.
func (w *worker) endActivity(ctx context.Context, l *ledger.Ledger) {
	w.measuring.Lock()
	defer w.measuring.Unlock()
	if w.silent = true; !w.told {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := l.SetActivity(ctx, w.name, nil); err != nil {
		w.log.InfoContext(ctx, "the commands were not told that this instance has ended, so they show it as gone for a while", logs.Err(err))
	}
}

// boundOfFull is what an instance waits for that has no free place.
func (w *worker) boundOfFull() string {
	switch calling := int(w.calling.Load()); {
	case w.notReady || w.trouble.lasts():
		return boundStopped
	case calling < w.config.Concurrency:
		return boundLedger // the answers of the others are not stored yet
	}
	return boundConcurrency
}
