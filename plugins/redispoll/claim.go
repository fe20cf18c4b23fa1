package redispoll

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// claimer looks for entries that other readers of the group have held for too long, or have given back,
// and has its reader take them up. Elastic streams have plugins/reclaim for that; a lone Source or
// Subscriber brings its own, so that nothing is stranded.
type claimer struct {
	r        *Reader
	interval time.Duration
	cursor   string // carried on over the rounds: starting at 0-0 each time starves what comes late
}

// claimStep is COUNT of one XAUTOCLAIM: small, because it keeps the server from others.
const claimStep = 10

// run makes one round at once and then one every interval, until the reader stops.
func (k *claimer) run() {
	k.cursor = "0-0"
	tick := time.NewTicker(k.interval)
	defer tick.Stop()
	for {
		if err := k.round(); err != nil && !isNoGroup(err) {
			k.r.log.Warn("reclaiming failed, trying again in the next round", pipeline.Err(err))
		}
		select {
		case <-tick.C:
		case <-k.r.stopping:
			return
		}
	}
}

// round claims what is idle, as long as the reader has room. It probes first: XAUTOCLAIM walks through
// the pending entries even when none is idle.
func (k *claimer) round() error {
	cfg := k.r.cfg
	from := map[string]struct{}{}
	for steps := 0; steps < 100; steps++ {
		room := k.r.room()
		if room == 0 {
			break
		}
		ctx, cancel := k.r.command()
		idle, err := k.r.c.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: cfg.Stream, Group: cfg.Group, Idle: cfg.MinIdle, Start: "-", End: "+", Count: claimStep,
		}).Result()
		cancel()
		if err != nil {
			return err
		}
		if len(idle) == 0 {
			break
		}
		for _, p := range idle {
			if p.Consumer != cfg.Consumer {
				from[p.Consumer] = struct{}{}
			}
		}
		if err := k.claim(min(room, claimStep)); err != nil {
			return err
		}
	}
	for consumer := range from {
		k.forget(consumer)
	}
	return nil
}

// claim takes at most n idle entries over.
func (k *claimer) claim(n int) error {
	cfg := k.r.cfg
	ctx, cancel := k.r.command()
	defer cancel()
	entries, next, deleted, err := k.r.c.XAutoClaimWithDeleted(ctx, &redis.XAutoClaimArgs{
		Stream: cfg.Stream, Group: cfg.Group, Consumer: cfg.Consumer, MinIdle: cfg.MinIdle, Start: k.cursor, Count: int64(n),
	}).Result()
	if err != nil {
		k.r.rereadOwn() // claimed, perhaps, and the reply lost
		return err
	}
	k.cursor = next
	if len(deleted) > 0 {
		k.r.m.ghosts.Add(float64(len(deleted)))
		k.r.log.Error("pending entries were deleted before they were handled", slog.Int("entries", len(deleted)), slog.String("first", deleted[0]))
	}
	if len(entries) == 0 {
		return nil
	}
	k.r.m.reclaimed.Add(float64(len(entries)))
	return k.r.Adopt(ctx, entries, deliveredCounts(ctx, k.r.c, cfg.Stream, cfg.Group, cfg.Consumer, entries))
}

// forget removes a consumer that held idle entries and holds nothing any more. One that is alive after
// all is made again by its next read.
func (k *claimer) forget(consumer string) {
	ctx, cancel := context.WithTimeout(k.r.life, commandTimeout)
	defer cancel()
	if _, err := k.r.scripts.removeConsumer(ctx, k.r.c, k.r.cfg.Stream, k.r.cfg.Group, consumer); err != nil && !isNoGroup(err) {
		k.r.log.Debug("consumer not removed", slog.String("consumer", consumer), pipeline.Err(err))
	}
}

// room is Free for what must be wanted as well: nothing while paused or while the gate is closed.
func (r *Reader) room() int {
	if r.cfg.Gate != nil && !r.cfg.Gate() {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || r.paused || !r.book.canRead() {
		return 0
	}
	return r.book.free()
}

// rereadOwn makes the reader look through its own pending entries again.
func (r *Reader) rereadOwn() {
	r.mu.Lock()
	r.reread = true
	r.mu.Unlock()
	signal(r.wake)
}
