package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/killpoint"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Why entries were claimed: a label of metrics.
const (
	claimIdle = "idle"
	claimDead = "dead"
)

// ownPending is how many entries of the same reader may lie between the first and the last one that
// was just claimed. With more, some delivery counts are not known.
const ownPending = 512

// serve claims from one stream, as its only reclaimer: what departed instances have returned, what belongs to the dead, then
// what is idle.
// It returns how many entries were claimed, and whether some were left for want of room.
func (d *domain) serve(ctx context.Context, l *look) (n int, left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	reply, err := d.r.scripts.lease.Run(ctx, d.target.Client(), []string{l.Name, l.Meta}, d.r.o.Instance, leaseTime.Milliseconds()).Slice()
	if err != nil {
		return 0, false, fmt.Errorf("lease: %w", err)
	}
	if len(reply) != 2 {
		return 0, false, nil // another instance is at it, or the stream is gone
	}
	cursor, _ := reply[1].(string)
	defer func() {
		// A lease that is not released ends by itself.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.r.call)
		defer cancel()
		if rerr := d.r.scripts.release.Run(ctx, d.target.Client(), []string{l.Meta}, d.r.o.Instance, cursor).Err(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("release: %w", rerr))
		}
	}()
	for _, consumer := range l.departed {
		got, full, err := d.rescue(ctx, l.Stream, consumer, d.minIdle)
		n, left = n+got, left || full
		if err != nil {
			return n, left, err
		}
	}
	for _, consumer := range l.dead {
		got, full, err := d.rescue(ctx, l.Stream, consumer, d.r.o.Config.DeadAfter)
		n += got
		if err != nil {
			return n, left, err
		}
		removed, err := d.removeReader(ctx, l.Stream, consumer, got)
		left = left || full && !removed
		if err != nil {
			return n, left, err
		}
	}
	if l.idle {
		got, more, next, err := d.claim(ctx, l.Stream, cursor)
		n, left, cursor = n+got, left || more, next
		if err != nil {
			return n, left, err
		}
	}
	return n, left, nil
}

// rescue claims what is pending to a consumer and has been idle for minIdle. It reports whether some may be left, because the
// reader is full or Count is reached.
func (d *domain) rescue(ctx context.Context, s Stream, consumer string, minIdle time.Duration) (n int, full bool, err error) {
	c := d.r.o.Config
	for {
		step := min(c.Step, c.Count-n, s.Reader.Free())
		if step <= 0 {
			return n, true, nil
		}
		reply, err := redispoll.RunOnce(ctx, d.target.Client(), rescueSource, []string{s.Name},
			s.Group, s.Consumer, consumer, minIdle.Milliseconds(), step).Slice()
		if err != nil {
			perhapsClaimed(s, err)
			return n, false, fmt.Errorf("claim from %s: %w", consumer, err)
		}
		got, err := parseRescue(reply)
		if err != nil {
			return n, false, err
		}
		d.lost(s, got.lost)
		if err := d.hand(ctx, s, got, claimDead); err != nil {
			return n, false, err
		}
		n += len(got.entries)
		if len(got.entries)+len(got.lost) < step {
			return n, false, nil
		}
	}
}

// removeReader removes the consumer of a dead instance when it holds nothing; n entries were claimed from it.
func (d *domain) removeReader(ctx context.Context, s Stream, consumer string, n int) (removed bool, err error) {
	instance, _ := instanceOf(consumer)
	removed, err = d.r.scripts.forget.Run(ctx, d.target.Client(), []string{s.Name, s.Meta}, s.Group, consumer, InstanceField(instance)).Bool()
	if err != nil {
		return false, fmt.Errorf("remove reader %s: %w", consumer, err)
	}
	if !removed {
		return false, nil
	}
	d.r.o.Metrics.removed.WithLabelValues(d.target.Domain(), s.Shard).Inc()
	d.log.InfoContext(ctx, "reader of a dead instance removed", slog.String(pipeline.LogStream, s.Name), slog.String("consumer", consumer), slog.Int("entries", n))
	return true, nil
}

// claim claims idle entries from the cursor on, once around at most, and returns where to go on. A
// probe before each step jumps over what is not idle, so that no step is spent on hot entries.
func (d *domain) claim(ctx context.Context, s Stream, cursor string) (n int, left bool, next string, err error) {
	c := d.r.o.Config
	wrapped := cursor == ""
	for n < c.Count {
		step := min(c.Step, c.Count-n, s.Reader.Free())
		if step <= 0 {
			return n, true, cursor, nil
		}
		start := cursor
		if start == "" {
			start = "-"
		}
		probed, err := d.target.Client().XPendingExt(ctx, d.probe(s, start, step)).Result()
		if err != nil {
			return n, false, cursor, fmt.Errorf("probe: %w", err)
		}
		if len(probed) == 0 {
			if wrapped {
				return n, false, "", nil
			}
			wrapped, cursor = true, ""
			continue
		}
		free := claimable(s, probed)
		if len(free) == 0 {
			past, ok := redispoll.NextID(probed[len(probed)-1].ID)
			if !ok {
				return n, false, "", nil
			}
			cursor = past
			continue
		}
		got, reached, err := d.autoClaim(ctx, s, free[0].ID, len(free))
		if err != nil {
			return n, false, cursor, err
		}
		d.lost(s, got.lost)
		if err := d.hand(ctx, s, got, claimIdle); err != nil {
			return n, false, cursor, err
		}
		n += len(got.entries)
		if cursor = reached; reached == "0-0" {
			cursor = ""
			if wrapped {
				return n, false, "", nil
			}
			wrapped = true
		}
	}
	return n, false, cursor, nil
}

// claimable returns the first entries of a probe that lie together without one that is stuck here between them: XAUTOCLAIM
// takes whatever is idle, one after the other.
func claimable(s Stream, probed []redis.XPendingExt) []redis.XPendingExt {
	stuck := func(p redis.XPendingExt) bool { return stuckHere(s, p) }
	first := slices.IndexFunc(probed, func(p redis.XPendingExt) bool { return !stuck(p) })
	if first < 0 {
		return nil
	}
	probed = probed[first:]
	if end := slices.IndexFunc(probed, stuck); end >= 0 {
		probed = probed[:end]
	}
	return probed
}

// stuckHere reports whether an entry has been in hand here for so long that it gives no sign of life: it is for others.
func stuckHere(s Stream, p redis.XPendingExt) bool {
	h, ok := s.Reader.(Holder)
	return ok && p.Consumer == s.Consumer && h.Holds(p.ID)
}

// autoClaimCmd is an XAUTOCLAIM that the client never sends again: the second would find nothing idle, and hide that the
// reply of the first was lost.
type autoClaimCmd struct {
	*redis.XAutoClaimWithDeletedCmd
}

// NoRetry keeps the client from sending the command again.
func (autoClaimCmd) NoRetry() bool { return true }

// perhapsClaimed has the reader look through its own pending entries after a claim whose reply was lost.
func perhapsClaimed(s Stream, err error) {
	if r, ok := s.Reader.(Rereader); ok && !redispoll.IsReply(err) {
		r.Reread()
	}
}

// autoClaim runs one XAUTOCLAIM and finds out how often what it claimed was delivered.
func (d *domain) autoClaim(ctx context.Context, s Stream, start string, count int) (got claimed, next string, err error) {
	client := d.target.Client()
	begin := time.Now()
	cmd := autoClaimCmd{redis.NewXAutoClaimWithDeletedCmd(ctx, "xautoclaim", s.Name, s.Group, s.Consumer, d.minIdle.Milliseconds(), start, "count", count)}
	err = client.Process(ctx, cmd)
	entries, next, deleted := cmd.Val()
	d.r.o.Metrics.observe(d.target.Domain(), s.Shard, time.Since(begin))
	if err != nil {
		perhapsClaimed(s, err)
		return claimed{}, "", fmt.Errorf("xautoclaim: %w", err)
	}
	got = claimed{entries: entries, lost: deleted, delivered: make(map[string]int64, len(entries))}
	if len(entries) == 0 {
		return got, next, nil
	}
	pending, err := client.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: s.Name, Group: s.Group, Consumer: s.Consumer,
		Start: entries[0].ID, End: entries[len(entries)-1].ID, Count: int64(len(entries) + ownPending),
	}).Result()
	if err != nil {
		// The count is a hint; the entries are claimed and must be handled.
		d.log.WarnContext(ctx, "delivery counts not known", slog.String(pipeline.LogStream, s.Name), pipeline.Err(err))
	}
	for _, p := range pending {
		got.delivered[p.ID] = p.RetryCount
	}
	return got, next, nil
}

// hand gives claimed entries to the reader. A reader that is being stopped gives them back.
func (d *domain) hand(ctx context.Context, s Stream, got claimed, why string) error {
	if len(got.entries) == 0 {
		return nil
	}
	killpoint.Reach(killpoint.Reclaim)
	n := float64(len(got.entries))
	d.r.o.Metrics.claims.WithLabelValues(d.target.Domain(), s.Shard, why).Add(n)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.r.call)
	defer cancel()
	if err := s.Reader.Adopt(ctx, got.entries, got.delivered); err != nil {
		d.r.o.Metrics.refused.WithLabelValues(d.target.Domain(), s.Shard).Add(n)
		return fmt.Errorf("hand %d entries to the reader: %w", len(got.entries), err)
	}
	d.await(s, got.entries)
	return nil
}

// lost reports entries that were pending and are deleted: somebody trimmed or deleted them unhandled.
func (d *domain) lost(s Stream, ids []string) {
	if len(ids) == 0 {
		return
	}
	d.r.o.Metrics.losses.WithLabelValues(d.target.Domain(), s.Shard).Add(float64(len(ids)))
	d.log.Error("pending entries are deleted from their stream", slog.String(pipeline.LogStream, s.Name), slog.Int("entries", len(ids)), slog.Any("ids", ids))
	d.r.o.Lost(s.Name, ids)
}
