package reclaim

import (
	"context"

	"github.com/redis/go-redis/v9"
)

const (
	settleTogether = 200    // entries asked for in one pipeline
	settleMost     = 10_000 // entries remembered; above it the counting stops, not the reclaiming
)

// await remembers entries that were handed over, to count them when they are acknowledged.
func (d *domain) await(s Stream, entries []redis.XMessage) {
	known := 0
	for _, ids := range d.handled {
		known += len(ids)
	}
	if known+len(entries) > settleMost {
		return
	}
	ids, ok := d.handled[s.Name]
	if !ok {
		ids = map[string]Stream{}
		d.handled[s.Name] = ids
	}
	for _, e := range entries {
		ids[e.ID] = s
	}
}

// settle counts what has been acknowledged since. An entry that another consumer has by now is no
// longer ours to count.
func (d *domain) settle(ctx context.Context) {
	var batch []string
	var of []Stream
	flush := func() {
		d.settleBatch(ctx, of, batch)
		batch, of = nil, nil
	}
	for name, ids := range d.handled {
		if _, wait := d.failing[name]; wait {
			continue // it would hold up the others
		}
		for id, s := range ids {
			batch, of = append(batch, id), append(of, s)
			if len(batch) == settleTogether {
				flush()
			}
		}
	}
	if len(batch) > 0 {
		flush()
	}
}

func (d *domain) settleBatch(ctx context.Context, of []Stream, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, d.r.call)
	defer cancel()
	pipe := d.target.Client().Pipeline()
	cmds := make([]*redis.XPendingExtCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: of[i].Name, Group: of[i].Group, Start: id, End: id, Count: 1})
	}
	_, _ = pipe.Exec(ctx) // looked at one by one
	for i, cmd := range cmds {
		pending, err := cmd.Result()
		switch {
		case err != nil && !isGone(err):
			continue // asked again
		case err == nil && len(pending) > 0 && pending[0].Consumer == of[i].Consumer:
			continue // in hand
		case err == nil && len(pending) == 0:
			d.r.o.Metrics.messages.WithLabelValues(d.target.Domain(), of[i].Shard).Inc()
		}
		delete(d.handled[of[i].Name], ids[i])
		if len(d.handled[of[i].Name]) == 0 {
			delete(d.handled, of[i].Name)
		}
	}
}
