package poll

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
)

// flushBackoff is the delay after a flush that failed.
var flushBackoff = pipeline.Backoff{First: 50 * time.Millisecond, Max: 2 * time.Second}

// flushAcks sends acknowledgements and gives entries back, many with one command, until quit; then it
// flushes what is left.
func (r *Reader) flushAcks(quit <-chan struct{}) {
	failures := 0
	for {
		select {
		case <-r.flush:
			if failures == 0 && !r.flushDue() && !waitMore(r.cfg.AckFlushInterval, r.flush, quit, r.flushDue) {
				continue // quit is handled below
			}
		case <-quit:
			r.finalFlush()
			return
		}
		ctx, cancel := r.command()
		err := r.flushOnce(ctx)
		cancel()
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 {
			r.log.Warn("acknowledging failed, trying again", pipeline.Err(err))
		}
		t := time.NewTimer(flushBackoff.Delay(failures))
		select {
		case <-t.C:
		case <-quit:
		}
		t.Stop()
		signal(r.flush)
	}
}

// waitMore waits for d, or until due answers true after a signal; false when quit came first.
func waitMore(d time.Duration, more <-chan struct{}, quit <-chan struct{}, due func() bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case <-more:
			if due() {
				return true
			}
		case <-quit:
			return false
		}
	}
}

// flushDue reports whether a flush should not wait for company.
func (r *Reader) flushDue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining || len(r.book.returns) > 0 || len(r.book.acks) >= r.cfg.AckBatchSize
}

// finalFlush flushes everything, within finalFlush.
func (r *Reader) finalFlush() {
	ctx, cancel := context.WithTimeout(r.life, finalFlush)
	defer cancel()
	for failures := 1; ; failures++ {
		err := r.flushOnce(ctx)
		if err == nil {
			return
		}
		t := time.NewTimer(flushBackoff.Delay(failures))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			r.mu.Lock()
			acks, returns, counts := len(r.book.acks), len(r.book.returns), len(r.counts)
			r.mu.Unlock()
			if acks > 0 {
				r.log.Warn("acknowledgements lost at the end, these entries will be delivered again", slog.Int("entries", acks), pipeline.Err(err))
			}
			if returns > 0 {
				r.log.Warn("entries not released at the end, others get them after min_idle", slog.Int("entries", returns), pipeline.Err(err))
			}
			if counts > 0 {
				r.log.Warn("delivery counts lost at the end, these entries count as delivered less often", slog.Int("entries", counts), pipeline.Err(err))
			}
			return
		}
	}
}

// flushOnce releases what is to be released, acknowledges everything that waits, in commands of at most
// maxIDs, and at last tells counts. What fails is put back.
func (r *Reader) flushOnce(ctx context.Context) error {
	r.mu.Lock()
	returns := r.book.nextReturns()
	r.mu.Unlock()
	err := r.sendReturns(ctx, returns)
	for err == nil {
		r.mu.Lock()
		acks := r.book.nextAcks(maxIDs)
		r.mu.Unlock()
		if len(acks) == 0 {
			return r.sendCounts(ctx)
		}
		err = r.sendAcks(ctx, acks)
	}
	return err
}

func (r *Reader) sendReturns(ctx context.Context, hs []*held) error {
	if len(hs) == 0 {
		return nil
	}
	answers, err := r.scripts.setIdle(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, r.cfg.MinIdle, idsOf(hs))
	for _, a := range answers {
		if a == keptMine {
			r.m.released.Inc()
		}
	}
	return r.confirm(hs, err)
}

// sendCounts tells the server of redeliveries here, so that whoever reclaims an entry counts on.
func (r *Reader) sendCounts(ctx context.Context) error {
	r.mu.Lock()
	counts := r.counts
	if len(counts) == 0 {
		r.mu.Unlock()
		return nil
	}
	r.counts = map[string]int64{}
	r.mu.Unlock()
	err := r.scripts.setCounts(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, counts)
	if err == nil || IsNoGroup(err) {
		return nil
	}
	if IsReply(err) { // refused: the counts are worth less than the acknowledgements that wait behind
		r.log.Warn("delivery counts not written", pipeline.Err(err))
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range counts {
		r.counts[id] = max(n, r.counts[id])
	}
	return err
}

// sendAcks acknowledges hs. Those that may be somebody else's by now go through a script that asks.
func (r *Reader) sendAcks(ctx context.Context, hs []*held) error {
	var plain, fenced []*held
	surely := r.since(time.Now(), r.cfg.MinIdle/2)
	r.mu.Lock()
	for _, h := range hs {
		if h.lost || h.confirmed.Before(surely) {
			fenced = append(fenced, h)
		} else {
			plain = append(plain, h)
		}
	}
	r.mu.Unlock()
	failpoint.Hit(failpoint.BeforeXACK)
	var errPlain, errFenced error
	if len(plain) > 0 {
		n, err := r.c.XAck(ctx, r.cfg.Stream, r.cfg.Group, idsOf(plain)...).Result()
		r.m.ackFlushes.Inc()
		r.m.acks.Add(float64(n))
		errPlain = r.confirm(plain, err)
	}
	if len(fenced) > 0 {
		n, err := r.scripts.ackMine(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, idsOf(fenced))
		r.m.ackFlushes.Inc()
		r.m.acks.Add(float64(n))
		errFenced = r.confirm(fenced, err)
	}
	return errors.Join(errPlain, errFenced)
}

// confirm closes the books on hs when err allows it: a stream that is gone has nothing to acknowledge.
func (r *Reader) confirm(hs []*held, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || IsNoGroup(err) {
		r.book.flushed(hs)
		signal(r.freed)
		return nil
	}
	r.book.retry(hs)
	return err
}

// keepAlive renews what is long in flight: from a third of MinIdle on, with time for two more tries.
func (r *Reader) keepAlive(quit <-chan struct{}) {
	tick := time.NewTicker(max(r.cfg.MinIdle/6, time.Millisecond))
	defer tick.Stop()
	var fence <-chan time.Time
	if r.cfg.Fence != nil {
		watch := time.NewTicker(fenceWatch)
		defer watch.Stop()
		fence = watch.C
	}
	for {
		select {
		case <-fence:
			r.recallStale(r.cfg.Fence())
		case <-tick.C:
			if err := r.renew(); err != nil && !IsNoGroup(err) {
				r.log.Warn("keeping entries alive failed, trying again", pipeline.Err(err))
			}
		case <-quit:
			return
		}
	}
}

// fenceWatch is how often entries that slots offer to handlers are compared with the fence.
const fenceWatch = 5 * time.Second

// recallStale takes back entries that a slot offers, no handler has begun, and were confirmed before the fence.
func (r *Reader) recallStale(fence time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.book.entries {
		if h.stage == stageHeld && !h.begun && h.confirmed.Before(fence) {
			h.recalled = true
			signal(h.recall)
		}
	}
}

func (r *Reader) renew() error {
	now := time.Now()
	oldest := func(limit time.Duration) time.Time {
		if limit == 0 {
			return time.Time{}
		}
		return now.Add(-limit)
	}
	r.mu.Lock()
	due := r.book.renewable(now.Add(-r.cfg.MinIdle/3), oldest(r.cfg.LongestHandlerHold), oldest(r.cfg.LongestHold))
	r.book.forgetLeft(now.Add(-r.cfg.MinIdle))
	if len(r.book.returns) > 0 {
		signal(r.flush)
	}
	r.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	ctx, cancel := r.command()
	defer cancel()
	answers, err := r.scripts.setIdle(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, 0, idsOf(due))

	var renewed, lost, gone int
	r.mu.Lock()
	for i, a := range answers {
		h := due[i]
		switch {
		case a == keptMine:
			h.confirmed = now
			renewed++
		case h.stage == stageAcking || r.book.entries[h.entry.ID] != h:
			// Its ack went out meanwhile.
		case a == keptGone:
			r.book.lose(h)
			gone++
		default:
			r.book.lose(h)
			lost++
		}
	}
	r.mu.Unlock()
	r.m.heartbeats.Add(float64(renewed))
	r.m.lost.Add(float64(lost))
	r.m.deletedPending.Add(float64(gone))
	if lost+gone > 0 {
		r.log.Warn("entries in flight are no longer this reader's", slog.Int("claimed", lost), slog.Int("deleted", gone))
	}
	return err
}
