package reclaim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// checkBatchSize is how many streams one pipeline checks.
const checkBatchSize = 100

// check is the state of a stream at the beginning of a round.
type check struct {
	Stream
	consumers []redis.XInfoConsumer // of the group, without this instance's own
	departed  []string              // hold entries; no presence for less than PresenceTimeout
	dead      []string              // their instances are dead
	idle      bool                  // something has been pending for min_idle
	answered  bool                  // idle was requested, and is known
}

// check reads, in pipelines, the consumers of the streams. For a round for idle entries it also
// reads whether an entry has been pending for min_idle. A failure is reported, and the next round
// tries again.
func (d *domain) check(ctx context.Context, streams []Stream, idle bool) []*check {
	checks := make([]*check, 0, len(streams))
	for len(streams) > 0 && ctx.Err() == nil {
		part := streams[:min(len(streams), checkBatchSize)]
		streams = streams[len(part):]
		checks = append(checks, d.checkBatch(ctx, part, idle)...)
	}
	return checks
}

func (d *domain) checkBatch(ctx context.Context, streams []Stream, idle bool) []*check {
	ctx, cancel := context.WithTimeout(ctx, d.r.call)
	defer cancel()
	pipe := d.target.Client().Pipeline()
	infos := make([]*redis.XInfoConsumersCmd, len(streams))
	probes := make([]*redis.XPendingExtCmd, len(streams))
	for i, s := range streams {
		infos[i] = pipe.XInfoConsumers(ctx, s.Name, s.Group)
		if idle {
			probes[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: s.Name, Group: s.Group, Idle: d.minIdle, Start: "-", End: "+", Count: 1})
		}
	}
	// Exec returns the first command's error; each command is checked below.
	_, _ = pipe.Exec(ctx)
	checks := make([]*check, 0, len(streams))
	for i, s := range streams {
		l := &check{Stream: s}
		var errs []error
		consumers, err := infos[i].Result()
		errs = append(errs, err)
		for _, c := range consumers {
			if c.Name != s.Consumer {
				l.consumers = append(l.consumers, c)
			}
		}
		if idle {
			pending, err := probes[i].Result()
			errs = append(errs, err)
			l.idle = len(pending) > 0
			l.answered = err == nil || isGone(err)
		}
		if err := errors.Join(errs...); err != nil && parentAlive(ctx) {
			d.failed(s, err)
		}
		checks = append(checks, l)
	}
	return checks
}

// parentAlive says whether an error is a failure, and not the end of the service (a cancellation).
func parentAlive(ctx context.Context) bool { return !errors.Is(ctx.Err(), context.Canceled) }

// absences returns the newest mark, and whether an instance that may have entries is gone. Such an
// instance had consumers in the last round over all streams, or was marked since. When Redis gives
// no answer, an instance may be gone.
func (d *domain) absences(ctx context.Context) (newest int64, gone bool) {
	if d.r.opts.Marks == nil {
		return 0, true
	}
	ctx, cancel := context.WithTimeout(ctx, d.r.call)
	defer cancel()
	marks, err := d.r.opts.Marks(ctx)
	if err != nil {
		return 0, true // so the round reads all streams
	}
	instances := map[string]bool{}
	maps.Copy(instances, d.last.instances)
	for instance, at := range marks {
		newest = max(newest, at)
		if at > d.last.newest-markRecent.Milliseconds() {
			instances[instance] = true
		}
	}
	delete(instances, d.r.opts.Instance)
	if first := d.last.streams == nil; first || len(instances) == 0 {
		return newest, first
	}
	alive, err := d.r.opts.Alive(ctx, slices.Collect(maps.Keys(instances))...)
	if err != nil {
		return 0, true
	}
	for _, up := range alive {
		gone = gone || !up
	}
	if !gone {
		clear(d.gone)
	}
	return newest, gone
}

// findDead finds the consumers of instances whose presence is gone. They have departed, and after
// PresenceTimeout they are dead. The entries of an instance that never had a presence wait for
// MinIdle. When presence can't be read, no instance counts as gone, and all absences start again.
// The instances that it finds are added to seen.
func (d *domain) findDead(ctx context.Context, checks []*check, seen map[string]bool) {
	instances := map[string]bool{}
	for _, l := range checks {
		for _, c := range l.consumers {
			if inst, ok := instanceOf(c.Name); ok && inst != d.r.opts.Instance {
				instances[inst] = true
			}
		}
	}
	maps.Copy(seen, instances)
	if len(instances) == 0 {
		return
	}
	names := make([]string, 0, len(instances))
	for inst := range instances {
		names = append(names, inst)
	}
	ctx, cancel := context.WithTimeout(ctx, d.r.call)
	defer cancel()
	alive, err := d.r.opts.Alive(ctx, names...)
	if err != nil {
		clear(d.gone)
		if parentAlive(ctx) {
			d.sampler.Warn(d.log, "presence of instances could not be read", logs.Err(err))
		}
		return
	}
	now := time.Now()
	dead := map[string]bool{} // false: departed
	for _, inst := range names {
		if up, known := alive[inst]; up || !known {
			delete(d.gone, inst)
			continue
		}
		if _, known := d.gone[inst]; !known {
			d.gone[inst] = now
		}
		dead[inst] = now.Sub(d.gone[inst]) >= d.r.opts.Config.PresenceTimeout
	}
	for _, l := range checks {
		for _, c := range l.consumers {
			inst, _ := instanceOf(c.Name)
			switch isDead, gone := dead[inst]; {
			case isDead:
				l.dead = append(l.dead, c.Name)
			case gone && c.Pending > 0:
				l.departed = append(l.departed, c.Name)
			}
		}
	}
}

// isGone reports whether err says that a stream or its group does not exist.
func isGone(err error) bool {
	return poll.IsNoGroup(err) || poll.IsNoKey(err)
}
