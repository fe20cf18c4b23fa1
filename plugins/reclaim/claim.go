package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// Why entries were claimed: a label of metrics.
const (
	claimIdle = "idle"
	claimDead = "dead"
)

// serve claims from one stream, as its only reclaimer: what departed instances have returned, what
// belongs to the dead, then what is idle. It returns how many entries were claimed, and whether
// the stream is unfinished, for want of capacity.
func (d *domain) serve(ctx context.Context, l *check) (n int, unfinished bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	leased, err := d.r.scripts.lease.Run(ctx, d.target.Client(), []string{l.Name, l.Meta}, d.r.opts.Instance, leaseTime.Milliseconds()).Int()
	if err != nil {
		return 0, false, fmt.Errorf("lease: %w", err)
	}
	if leased != 1 {
		return 0, false, nil // another instance is at it, or the stream is gone
	}
	defer func() {
		// A lease that is not released ends by itself.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.r.call)
		defer cancel()
		if rerr := d.r.scripts.release.Run(ctx, d.target.Client(), []string{l.Meta}, d.r.opts.Instance).Err(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("release: %w", rerr))
		}
	}()
	for _, consumer := range l.departed {
		got, next, err := d.claim(ctx, l.Stream, consumer, "", d.minIdle, claimDead)
		n, unfinished = n+got, unfinished || next != ""
		if err != nil {
			return n, unfinished, err
		}
	}
	for _, consumer := range l.dead {
		got, next, err := d.claim(ctx, l.Stream, consumer, "", d.r.opts.Config.PresenceTimeout, claimDead)
		n += got
		if err != nil {
			return n, unfinished, err
		}
		removed, err := d.removeReader(ctx, l.Stream, consumer, got)
		unfinished = unfinished || next != "" && !removed
		if err != nil {
			return n, unfinished, err
		}
	}
	if l.idle {
		got, next, err := d.claim(ctx, l.Stream, "", d.next[l.Name], d.minIdle, claimIdle)
		n, unfinished = n+got, unfinished || next != "" && l.Reader.Free() == 0 // the next round goes on
		if err != nil {
			return n, unfinished, err
		}
		if delete(d.next, l.Name); next != "" {
			d.next[l.Name] = next
		}
	}
	return n, unfinished, nil
}

// claim claims what has been idle for minIdle, at most Count entries, deleted ones included. From
// is the consumer that has them; empty: any. It begins with start and returns where to go on,
// because the reader is full or Count is reached; see poll.ClaimIdle.
func (d *domain) claim(ctx context.Context, s Stream, from, start string, minIdle time.Duration, why string) (n int, next string, err error) {
	c := d.r.opts.Config
	rest := c.Count
	next, err = poll.ClaimIdle(ctx, d.target.Client(), poll.IdleClaim{
		Stream: s.Name, Group: s.Group, Consumer: s.Consumer, From: from, MinIdle: minIdle, Start: start, Step: c.ClaimBatchSize,
		Capacity: func() int { return min(rest, s.Reader.Free()) },
		Skip:     func(p goredis.XPendingExt) bool { return stuckHere(s, p) },
		Take: func(got poll.Claimed) error {
			rest -= len(got.Entries) + len(got.Deleted)
			d.r.opts.metrics.observe(d.target.Domain(), s.Shard, got.Took)
			d.lost(s, got.Deleted)
			if err := d.adopt(ctx, s, got, why); err != nil {
				return err
			}
			n += len(got.Entries)
			return nil
		},
	})
	if err != nil {
		if r, ok := s.Reader.(rereader); ok && !poll.IsReply(err) {
			r.Reread() // claimed, perhaps, and the reply lost
		}
		return n, "", fmt.Errorf("claim: %w", err)
	}
	return n, next, nil
}

// removeReader removes the consumer of a dead instance when it holds nothing; n entries were
// claimed from it.
func (d *domain) removeReader(ctx context.Context, s Stream, consumer string, n int) (removed bool, err error) {
	instance, _ := instanceOf(consumer)
	removed, err = d.r.scripts.remove.Run(ctx, d.target.Client(), []string{s.Name, s.Meta}, s.Group, consumer, InstanceField(instance)).Bool()
	if err != nil {
		return false, fmt.Errorf("remove reader %s: %w", consumer, err)
	}
	if !removed {
		return false, nil
	}
	d.r.opts.metrics.removed.WithLabelValues(d.target.Domain(), s.Shard).Inc()
	d.log.InfoContext(ctx, "reader of a dead instance removed", slog.String(logs.Stream, s.Name), slog.String("consumer", consumer), slog.Int("entries", n))
	return true, nil
}

// stuckHere reports whether an entry has been in flight here for so long that its reader no longer
// renews it. Other instances claim it.
func stuckHere(s Stream, p goredis.XPendingExt) bool {
	h, ok := s.Reader.(holder)
	return ok && p.Consumer == s.Consumer && h.Holds(p.ID)
}

// adopt gives claimed entries to the reader. A reader that is being stopped releases them.
func (d *domain) adopt(ctx context.Context, s Stream, got poll.Claimed, why string) error {
	if len(got.Entries) == 0 {
		return nil
	}
	failpoint.Hit(failpoint.Reclaim)
	n := float64(len(got.Entries))
	d.r.opts.metrics.claims.WithLabelValues(d.target.Domain(), s.Shard, why).Add(n)
	d.claimed[why] += int64(len(got.Entries))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.r.call)
	defer cancel()
	acked := d.r.opts.metrics.messages.WithLabelValues(d.target.Domain(), s.Shard).Inc
	if err := s.Reader.Adopt(ctx, got.Entries, got.Delivered, acked); err != nil {
		d.r.opts.metrics.refused.WithLabelValues(d.target.Domain(), s.Shard).Add(n)
		return fmt.Errorf("give %d entries to the reader: %w", len(got.Entries), err)
	}
	return nil
}

// lost reports entries that were pending and are deleted: a client trimmed or deleted them
// unhandled.
func (d *domain) lost(s Stream, ids []string) {
	if len(ids) == 0 {
		return
	}
	d.r.opts.metrics.losses.WithLabelValues(d.target.Domain(), s.Shard).Add(float64(len(ids)))
	d.deleted += int64(len(ids))
	d.log.Error("pending entries are deleted from their stream", slog.String(logs.Stream, s.Name), slog.Int("entries", len(ids)), slog.Any("ids", ids))
	d.r.opts.Lost(s.Name, ids)
}
