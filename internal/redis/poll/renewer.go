package poll

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// fenceInterval is the time between two comparisons of offered entries with the fence.
const fenceInterval = 5 * time.Second

// renewer keeps entries alive while they are in flight. The first renewal is after a third of
// MinIdle, so that two more attempts have time.
type renewer struct{ *shared }

func (r renewer) run(ctx context.Context) {
	interval := max(r.opts.MinIdle/6, time.Millisecond)
	loop.Repeat(ctx, interval, func(context.Context) time.Duration {
		start := time.Now()
		r.renew()
		return interval - time.Since(start)
	})
}

func (r renewer) watchFence(ctx context.Context) {
	if r.opts.Fence != nil {
		loop.Every(ctx, fenceInterval, func(context.Context) { r.inflight.revokeBehind(r.opts.Fence()) })
	}
}

func (r renewer) renew() {
	now := time.Now()
	due := r.inflight.renewable(now)
	if len(due) == 0 {
		return
	}
	ctx, cancel := r.command()
	defer cancel()
	answers, err := r.setIdle(ctx, 0, idsOf(due))
	renewed, lost, deleted := r.inflight.renewed(due, answers, now)
	r.m.heartbeats.Add(float64(renewed))
	r.m.lost.Add(float64(lost))
	r.m.deletedPending.Add(float64(deleted))
	if lost+deleted > 0 {
		r.log().Warn("entries in flight are no longer this reader's", slog.Int("claimed", lost), slog.Int("deleted", deleted))
	}
	if err != nil && !IsNoGroup(err) {
		r.log().Warn("keeping entries alive failed, trying again", logs.Err(err))
	}
}
