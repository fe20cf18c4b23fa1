package redispoll

import (
	"context"
	"errors"
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
}

// claimStep is how many entries are looked at and taken at once: few, because it keeps the server from others.
const claimStep = 10

// run makes one round at once and then one every interval, until the reader stops.
func (k *claimer) run() {
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

// round goes through what is idle, page by page, and claims it as long as the reader has room. What this reader
// itself has held for too long is for others, and is passed over.
func (k *claimer) round() error {
	cfg := k.r.cfg
	from := map[string]struct{}{}
	for start, more := "-", true; more; {
		room := k.r.room()
		if room == 0 {
			break
		}
		ctx, cancel := k.r.command()
		idle, err := k.r.c.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: cfg.Stream, Group: cfg.Group, Idle: cfg.MinIdle, Start: start, End: "+", Count: int64(min(room, claimStep)),
		}).Result()
		cancel()
		if err != nil {
			return err
		}
		if len(idle) == 0 {
			break
		}
		start, more = NextID(idle[len(idle)-1].ID)
		var ids []string
		for _, p := range idle {
			if k.r.Holds(p.ID) {
				continue
			}
			ids = append(ids, p.ID)
			if p.Consumer != cfg.Consumer {
				from[p.Consumer] = struct{}{}
			}
		}
		if len(ids) == 0 {
			continue
		}
		if err := k.claim(ids); err != nil {
			return err
		}
	}
	for consumer := range from {
		k.forget(consumer)
	}
	return nil
}

// claim takes idle entries over.
func (k *claimer) claim(ids []string) error {
	cfg := k.r.cfg
	ctx, cancel := k.r.command()
	defer cancel()
	got, err := k.r.scripts.claimIdle(ctx, k.r.c, cfg.Stream, cfg.Group, cfg.Consumer, cfg.MinIdle, ids)
	if err != nil {
		k.r.Reread() // claimed, perhaps, and the reply lost
		return err
	}
	if len(got.deleted) > 0 {
		k.r.m.ghosts.Add(float64(len(got.deleted)))
		k.r.log.Error("pending entries were deleted before they were handled", slog.Int("entries", len(got.deleted)), slog.String("first", got.deleted[0]))
	}
	if len(got.entries) == 0 {
		return nil
	}
	k.r.m.reclaimed.Add(float64(len(got.entries)))
	err = k.r.Adopt(ctx, got.entries, got.delivered)
	if errors.Is(err, ErrStopped) {
		return nil // they were given back
	}
	return err
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
	if r.cfg.Gate != nil && !r.cfg.Gate() || r.fenced() {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || r.paused || !r.book.canRead() {
		return 0
	}
	return r.book.free()
}

// Holds reports whether an entry is in this reader's books: it waits here, is being handled, or its acknowledgement is
// under way.
func (r *Reader) Holds(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.book.entries[id]
	return ok
}

// Reread makes the reader look through its own pending entries again: a claim for it may have lost its reply.
func (r *Reader) Reread() {
	r.mu.Lock()
	r.reread = true
	r.mu.Unlock()
	signal(r.wake)
}
