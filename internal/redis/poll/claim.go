package poll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// claimStep is the number of entries per claim. It is small because a script blocks the server.
const claimStep = 10

// IdleClaim selects the entries that ClaimIdle claims, and the consumer that receives them.
type IdleClaim struct {
	Stream, Group, Consumer string
	From                    string                         // the present consumer; empty: any
	MinIdle                 time.Duration                  // how long they have been idle
	Start                   string                         // next of the last call
	Step                    int                            // entries per claim, at most
	Capacity                func() int                     // how many more may be claimed now
	Skip                    func(goredis.XPendingExt) bool // selects idle entries not to claim
	Take                    func(Claimed) error            // receives the result of each claim
}

// ClaimIdle claims idle entries in the order of their ids: from Start to the end, then from the
// first up to Start. It ends when there are no more, or no capacity. In the latter case next is the
// id to continue with, otherwise it is empty. A caller that always began with the first id would
// claim only entries that fail and are soon idle again.
//
// It claims exactly the entries that it found idle, so entries that are kept alive cost nothing.
// The client never re-sends a claim. After an error that is no reply (see IsReply), its entries may
// belong to the consumer, which must search for them (Reader.Reread). An error of Take also ends
// it.
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

func (o IdleClaim) claim(ctx context.Context, c goredis.UniversalClient, ids []string) (Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return Consumer{c, o.Stream, o.Group, o.Consumer}.claim(ctx, o.From, o.MinIdle, 1, ids)
}

// claimer claims entries that other readers of the group released, or have had for too long.
// Elastic streams have plugins/reclaim for that.
type claimer struct {
	*shared
	poller *poller
	next   string // IdleClaim.Start of the next round
}

// run makes a round at once, and one per interval.
func (k *claimer) run(ctx context.Context) {
	loop.Repeat(ctx, 0, func(context.Context) time.Duration {
		if err := k.round(); err != nil && !IsNoGroup(err) {
			k.log().Warn("reclaiming failed, trying again in the next round", logs.Err(err))
		}
		return k.opts.ReclaimInterval
	})
}

// round claims idle entries while the reader has room. It leaves the entries of the reader itself
// to others.
func (k *claimer) round() error {
	from := map[string]struct{}{}
	next, err := ClaimIdle(k.life, k.Client, IdleClaim{
		Stream: k.Stream, Group: k.Group, Consumer: k.Name, MinIdle: k.opts.MinIdle, Start: k.next, Step: claimStep,
		Capacity: k.capacity,
		Skip: func(p goredis.XPendingExt) bool {
			inFlight := k.inflight.has(p.ID)
			if !inFlight && p.Consumer != k.Name {
				from[p.Consumer] = struct{}{}
			}
			return inFlight
		},
		Take: k.takeClaimed,
	})
	if err != nil {
		k.poller.searchAgain() // the claim may have succeeded, and its reply is lost
		return err
	}
	k.next = next
	for name := range from {
		k.remove(Consumer{k.Client, k.Stream, k.Group, name}, commandTimeout)
	}
	return nil
}

// capacity is 0 while the reader may not read.
func (k *claimer) capacity() int {
	if room, closed := k.inflight.readable(); !room || closed || !k.poller.mayRead() {
		return 0
	}
	return k.inflight.free()
}

func (k *claimer) takeClaimed(got Claimed) error {
	k.reportDeleted(got.Deleted)
	k.m.reclaimed.Add(float64(len(got.Entries)))
	ctx, cancel := k.command()
	defer cancel()
	err := k.adopt(ctx, got.Entries, got.Delivered, nil)
	if errors.Is(err, ErrStopped) {
		return nil // they were released
	}
	return err
}

// remove removes a consumer without pending entries. A consumer that is alive creates itself again
// with its next read.
func (s *shared) remove(c Consumer, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(s.life, timeout)
	defer cancel()
	if _, err := c.Remove(ctx); err != nil {
		s.log().Warn("consumer not removed from its group", slog.String("consumer", c.Name), logs.Err(err))
	}
}
