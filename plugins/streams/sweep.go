package streams

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	sweepCount = 500                   // keys looked at in one step
	sweepPause = 10 * time.Millisecond // between two steps, so that a sweep delays no other client
)

// orphans remembers since when streams have been seen without an activation.
type orphans struct {
	mu    sync.Mutex
	since map[string]orphan
	round int64
}

type orphan struct {
	first time.Time
	round int64 // the last sweep that saw it
}

// Sweep scans all keys of the kind. It calls found for each stream that has not been in the active
// set for grace. The caller reactivates those with work. Keys of other types and streams of other
// deployments are left out. Such a stream is left by a crash between an idle stop's two steps, a
// failover that undid a deletion, or a foreign client. Sweep scans in small steps with pauses. An
// error of found ends it.
//
// since when a stream has been an orphan is remembered by this Manager, so one sweep finds nothing
// unless grace is 0.
func (m *Manager) Sweep(ctx context.Context, grace time.Duration, found func(ctx context.Context, id string) error) error {
	var present []string
	if err := m.scan(ctx, func(keys []string) {
		for _, key := range keys {
			if id, ok := m.opts.Kind.id(key); ok {
				present = append(present, id)
			}
		}
	}); err != nil {
		return fmt.Errorf("streams: sweep %s*: %w", m.opts.Kind.StreamPrefix, err)
	}
	// The active set is read after the scan. Read before, a stream that was created in between
	// would look like an orphan.
	active, err := m.active.get(ctx)
	if err != nil {
		return fmt.Errorf("streams: sweep %s*: read the active set: %w", m.opts.Kind.StreamPrefix, err)
	}
	due, foreign, err := m.ours(ctx, m.orphans.note(present, active, grace, time.Now()))
	if err != nil {
		return fmt.Errorf("streams: sweep %s*: read the owners: %w", m.opts.Kind.StreamPrefix, err)
	}
	m.opts.Metrics.foreign(m.opts.Kind.Type, false, foreign)
	for _, id := range due {
		if err := found(ctx, id); err != nil {
			return fmt.Errorf("streams: sweep: stream %s without activation: %w", m.opts.Kind.Stream(id), err)
		}
		m.opts.Metrics.orphan(m.opts.Kind.Type)
	}
	return nil
}

// note returns which of the present streams have not been active for grace.
func (o *orphans) note(present []string, active []Activation, grace time.Duration, now time.Time) []string {
	known := make(map[string]bool, len(active))
	for _, a := range active {
		known[a.ID] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.round++
	var due []string
	for _, id := range present {
		if known[id] {
			continue
		}
		x, seen := o.since[id]
		if !seen {
			x.first = now
		}
		if x.round != o.round && now.Sub(x.first) >= grace {
			due = append(due, id)
		}
		x.round = o.round
		o.since[id] = x
	}
	for id, x := range o.since {
		if x.round != o.round {
			delete(o.since, id)
		}
	}
	return due
}

// scan gives page all streams with the kind's prefix, page by page, on every master of a cluster.
func (m *Manager) scan(ctx context.Context, page func(keys []string)) error {
	pattern := globEscape.Replace(m.opts.Kind.StreamPrefix) + "*"
	var mu sync.Mutex // the masters of a cluster are scanned at the same time
	one := func(ctx context.Context, c redis.Cmdable) error {
		var cursor uint64
		for {
			keys, next, err := c.ScanType(ctx, cursor, pattern, sweepCount, "stream").Result()
			if err != nil {
				return err
			}
			mu.Lock()
			page(keys)
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
			if !loop.Sleep(ctx, sweepPause) {
				return ctx.Err()
			}
		}
	}
	if cluster, ok := m.opts.Client().(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return one(ctx, c) })
	}
	return one(ctx, m.opts.Client())
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
