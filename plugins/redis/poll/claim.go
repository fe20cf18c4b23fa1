package poll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// claimer looks for entries that other readers of the group have held for too long, or have released,
// and has its reader take them up. Elastic streams have plugins/reclaim for that; a lone Source or
// Subscriber brings its own, so that nothing is stranded.
type claimer struct {
	r        *Reader
	interval time.Duration
	next     string // IdleClaim.Start of the next round
}

// claimStep is how many entries are claimed at once: few, because it keeps the server from others.
const claimStep = 10

// IdleClaim says which entries ClaimIdle claims, and for which consumer.
type IdleClaim struct {
	Stream, Group, Consumer string
	From                    string                         // the consumer that has them now; empty: any
	MinIdle                 time.Duration                  // how long they have been idle
	Start                   string                         // the id to begin with, which the last ClaimIdle returned; empty: the first
	Step                    int                            // entries of one claim, at most
	Capacity                func() int                     // how many more may be claimed now
	Skip                    func(goredis.XPendingExt) bool // reports whether an idle entry is left alone
	Take                    func(Claimed) error            // is given what each claim brought
}

// ClaimIdle claims idle entries in the order of their ids, from Start to the end and then from the first up to Start, until there
// are no more, or no room. In the latter case next is the id to go on with; else it is empty. A caller that always began with
// the first would claim the same ones again and again when they fail and become idle sooner than the others have their turn.
//
// It claims exactly what it has found idle, so entries that are kept alive cost it nothing. A claim is never sent again by the
// client: after an error that is no reply (see IsReply) its entries may be the consumer's, which must look for them
// (Reader.Reread). An error of Take ends it too.
func ClaimIdle(ctx context.Context, c goredis.UniversalClient, o IdleClaim) (next string, err error) {
	const first, last = "-", "+"
	start, end := cmp.Or(o.Start, first), last
	for again := start != first; ; {
		room := min(o.Capacity(), maxScriptIDs)
		if room <= 0 {
			return start, nil
		}
		idle, err := o.probe(ctx, c, start, end, room)
		if err != nil {
			return "", fmt.Errorf("probe: %w", err)
		}
		var ids []string
		for _, p := range idle {
			if !o.Skip(p) {
				ids = append(ids, p.ID)
			}
		}
		for len(ids) > 0 {
			n := min(len(ids), o.Step, o.Capacity())
			if n <= 0 {
				return ids[0], nil
			}
			got, err := o.claim(ctx, c, ids[:n])
			if err == nil {
				err = o.Take(got)
			}
			if err != nil {
				return "", err
			}
			ids = ids[n:]
		}
		more := len(idle) == room
		if more {
			start, more = entry.NextID(idle[len(idle)-1].ID)
		}
		if more {
			continue
		}
		if !again {
			return "", nil
		}
		start, end, again = first, o.Start, false // the one at Start is no longer idle
	}
}

// probe returns at most count idle entries between two ids.
func (o IdleClaim) probe(ctx context.Context, c goredis.UniversalClient, start, end string, count int) ([]goredis.XPendingExt, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.XPendingExt(ctx, &goredis.XPendingExtArgs{
		Stream: o.Stream, Group: o.Group, Consumer: o.From, Idle: o.MinIdle, Start: start, End: end, Count: int64(count),
	}).Result()
}

// claim claims at most maxScriptIDs entries that are still idle. It is never sent again.
func (o IdleClaim) claim(ctx context.Context, c goredis.UniversalClient, ids []string) (Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return runClaim(o.Stream, ids, func(keys []string, args ...any) *goredis.Cmd { return runOnce(ctx, c, claimSource, keys, args...) },
		o.Group, o.Consumer, o.MinIdle.Milliseconds(), o.From, 1)
}

// run makes one round at once and then one every interval, until the reader stops.
func (k *claimer) run() {
	tick := time.NewTicker(k.interval)
	defer tick.Stop()
	for {
		if err := k.round(); err != nil && !IsNoGroup(err) {
			k.r.log.Warn("reclaiming failed, trying again in the next round", pipeline.Err(err))
		}
		select {
		case <-tick.C:
		case <-k.r.stopping:
			return
		}
	}
}

// round claims what is idle as long as the reader has room. What this reader itself has held for too long is for others.
func (k *claimer) round() error {
	cfg := k.r.cfg
	from := map[string]struct{}{}
	next, err := ClaimIdle(k.r.life, k.r.c, IdleClaim{
		Stream: cfg.Stream, Group: cfg.Group, Consumer: cfg.Consumer, MinIdle: cfg.MinIdle, Start: k.next, Step: claimStep,
		Capacity: k.r.room,
		Skip: func(p goredis.XPendingExt) bool {
			held := k.r.Holds(p.ID)
			if !held && p.Consumer != cfg.Consumer {
				from[p.Consumer] = struct{}{}
			}
			return held
		},
		Take: k.take,
	})
	if err != nil {
		k.r.Reread() // claimed, perhaps, and the reply lost
		return err
	}
	k.next = next
	for consumer := range from {
		k.forget(consumer)
	}
	return nil
}

// take has the reader take in what was claimed.
func (k *claimer) take(got Claimed) error {
	if len(got.Deleted) > 0 {
		k.r.m.deletedPending.Add(float64(len(got.Deleted)))
		k.r.log.Error("pending entries were deleted before they were handled", slog.Int("entries", len(got.Deleted)), slog.String("first", got.Deleted[0]))
	}
	if len(got.Entries) == 0 {
		return nil
	}
	k.r.m.reclaimed.Add(float64(len(got.Entries)))
	ctx, cancel := k.r.command()
	defer cancel()
	err := k.r.Adopt(ctx, got.Entries, got.Delivered, nil)
	if errors.Is(err, ErrStopped) {
		return nil // they were released
	}
	return err
}

// forget removes a consumer that held idle entries and holds nothing any more. One that is alive after
// all is made again by its next read.
func (k *claimer) forget(consumer string) {
	ctx, cancel := context.WithTimeout(k.r.life, commandTimeout)
	defer cancel()
	if _, err := k.r.scripts.removeConsumer(ctx, k.r.c, k.r.cfg.Stream, k.r.cfg.Group, consumer); err != nil && !IsNoGroup(err) {
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
