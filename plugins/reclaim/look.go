package reclaim

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// lookTogether is how many streams are looked at in one pipeline.
const lookTogether = 100

// look is what a round found out about a stream before it touches it.
type look struct {
	Stream
	consumers []redis.XInfoConsumer // of the group, without this instance's own
	departed  []string              // hold entries, and their instances have no presence since less than DeadAfter
	dead      []string              // their instances are dead
	idle      bool                  // something has been pending for min_idle
	answered  bool                  // idle was asked for, and is known
}

// look asks, in pipelines, who reads the streams and, for a round for idle entries, whether any has
// been pending for min_idle. What can't be asked is reported and left for the next round.
func (d *domain) look(ctx context.Context, streams []Stream, idle bool) []*look {
	looks := make([]*look, 0, len(streams))
	for len(streams) > 0 && ctx.Err() == nil {
		part := streams[:min(len(streams), lookTogether)]
		streams = streams[len(part):]
		looks = append(looks, d.lookAt(ctx, part, idle)...)
	}
	return looks
}

func (d *domain) lookAt(ctx context.Context, streams []Stream, idle bool) []*look {
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
	// The error of the whole is the first error of its commands, and those are looked at one by one.
	_, _ = pipe.Exec(ctx)
	looks := make([]*look, 0, len(streams))
	for i, s := range streams {
		l := &look{Stream: s}
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
		looks = append(looks, l)
	}
	return looks
}

// parentAlive tells a failure from the end of the service: only the latter is a cancellation.
func parentAlive(ctx context.Context) bool { return !errors.Is(ctx.Err(), context.Canceled) }

// judge finds out which consumers belong to instances whose presence is gone: they have departed, and after DeadAfter they are
// dead. An instance that never had a presence is not judged: its entries wait for MinIdle. When the presence can't be asked, no
// instance is gone, and all absences begin again. The instances it finds are put into seen.
func (d *domain) judge(ctx context.Context, looks []*look, seen map[string]bool) {
	instances := map[string]bool{}
	for _, l := range looks {
		for _, c := range l.consumers {
			if inst, ok := instanceOf(c.Name); ok && inst != d.r.o.Instance {
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
	alive, err := d.r.o.Alive(ctx, names...)
	if err != nil {
		clear(d.gone)
		if parentAlive(ctx) {
			d.log.WarnContext(ctx, "presence of instances could not be asked", pipeline.Err(err))
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
		dead[inst] = now.Sub(d.gone[inst]) >= d.r.o.Config.DeadAfter
	}
	for _, l := range looks {
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
	return err != nil && (strings.Contains(err.Error(), "NOGROUP") || strings.Contains(err.Error(), "no such key"))
}
