package redis

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

var (
	//go:embed lua/presence.lua
	presenceSource string
	//go:embed lua/mark.lua
	markSource string
)

// errDuplicate is returned by Start when another live process has the same instance name. The two
// would take each other's pending entries for their own: each needs its own instance_id.
var errDuplicate = errors.New("instance name is in use")

const presenceTTL = 15 * time.Second

// PresenceRenewal is the time between two renewals of an instance's presence.
const PresenceRenewal = 5 * time.Second

// presenceKey expires when the instance does not renew it. Its value is the token of the process, and after a
// space the version of the binary.
func presenceKey(instance string) string { return "millrace:instance:" + instance }

// instancesKey is a hash of the instances that have, or had, a presence.
const instancesKey = "millrace:instances"

// The mark of an instance is removed after markKept, and when there are markMost later ones.
const (
	markKept = 7 * 24 * time.Hour
	markMost = 10_000
)

// Alive returns whether instances have a presence now. False means that an instance had one. An
// instance that is not in the result never had a presence, so nothing follows from its absence.
//
// Alive marks instances that have a presence and no mark, because they run an older version. The
// error does not concern these marks: the next call writes a missing one.
func Alive(ctx context.Context, c goredis.UniversalClient, instances ...string) (map[string]bool, error) {
	alive := make(map[string]bool, len(instances))
	if len(instances) == 0 {
		return alive, nil
	}
	pipe := c.Pipeline() // one EXISTS per key: the keys are in different slots of a cluster
	cmds := make(map[string]*goredis.IntCmd, len(instances))
	for _, i := range instances {
		if cmds[i] == nil {
			cmds[i] = pipe.Exists(ctx, presenceKey(i))
		}
	}
	names := slices.Collect(maps.Keys(cmds))
	marks := pipe.HMGet(ctx, instancesKey, names...)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: presence of instances: %w", err)
	}
	for n, i := range names {
		there, marked := cmds[i].Val() > 0, n < len(marks.Val()) && marks.Val()[n] != nil
		if there || marked {
			alive[i] = there
		}
		if there && !marked {
			_ = markInstance(ctx, c, i, false)
		}
	}
	return alive, nil
}

// Marks returns when each instance renewed its presence last, by the server's clock, in ms. It also
// has instances whose presence is gone.
func Marks(ctx context.Context, c goredis.UniversalClient) (map[string]int64, error) {
	all, err := c.HGetAll(ctx, instancesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("redis: marks of instances: %w", err)
	}
	marks := make(map[string]int64, len(all))
	for instance, text := range all {
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("redis: mark of instance %q: %w", instance, err)
		}
		marks[instance] = at
	}
	return marks, nil
}

// presence holds an instance's name while the process lives.
type presence struct {
	c        goredis.UniversalClient
	instance string
	version  string
	token    string
	started  time.Time
	ttl      time.Duration
	renew    time.Duration
	log      *slog.Logger
	failed   chan error                // receives an error when another process has taken the name
	then     func(ctx context.Context) // called after each renewal that succeeds, within its time; may be nil
	outage   *logs.Outage
	loops    loop.Group
	drains   atomic.Pointer[orderedBy] // who has ordered that this process ends; nil: nobody

	mu      sync.Mutex
	renewed time.Time // before the last renewal that succeeded was sent
	gap     time.Time // when the last time without a presence ended; zero: there was none
	taken   bool      // another process has the name
	wrong   error     // of the last renewal that failed, with what to do if the server has refused it
}

// process identifies the process among those that have, or had, the name.
func (p *presence) process() string {
	process, _, _ := strings.Cut(p.token, " ")
	return process
}

// acquire acquires the name. The presence of a killed predecessor expires within one time to live.
// If it is renewed in that time, its process lives, and the error is errDuplicate.
func (p *presence) acquire(ctx context.Context) error {
	p.token, p.started = watermill.NewULID()+" "+p.version, time.Now().UTC().Truncate(time.Second)
	waitUntil := time.Now().Add(p.ttl + p.ttl/10)
	waiting := false
	for {
		ok, err := p.run(ctx, p.ttl) // not SET NX: after a lost reply it would find its own key
		if ok && err == nil {
			err = markInstance(ctx, p.c, p.instance, true)
		}
		if err != nil {
			return poll.WithRemedy(fmt.Errorf("presence of instance %q: %w", p.instance, err))
		}
		if ok {
			return p.loops.Start(ctx, p.keep)
		}
		if time.Now().After(waitUntil) {
			return fmt.Errorf("instance %q runs already: %w; give every process its own instance_id", p.instance, errDuplicate)
		}
		if !waiting {
			waiting = true
			p.log.InfoContext(ctx, "instance name is held, waiting for its holder to expire", slog.String(logs.Instance, p.instance), slog.Duration("at_most", p.ttl))
		}
		if !loop.Sleep(ctx, p.ttl/30) {
			return fmt.Errorf("instance %q: waiting for its name: %w", p.instance, ctx.Err())
		}
	}
}

// keep renews the presence until release, or until another process has the name.
func (p *presence) keep(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	loop.Repeat(ctx, p.renew, func(context.Context) time.Duration {
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), p.renew)
		defer cancel()
		mine, err := p.run(ctx, p.ttl)
		if mine && err == nil {
			err = markInstance(ctx, p.c, p.instance, false)
		}
		switch {
		case err != nil:
			p.refused(err)
		case !mine:
			p.failed <- fmt.Errorf("another process has taken the name of instance %q: %w", p.instance, errDuplicate)
			end()
		default:
			if times, due := p.outage.Works(); due {
				p.log.Info("presence is renewed again", slog.String(logs.Instance, p.instance), slog.Int("times", times))
			}
			if p.then != nil {
				p.then(ctx)
			}
		}
		return p.renew - time.Since(start)
	})
}

// refused notes why a renewal has failed.
func (p *presence) refused(err error) {
	err = poll.WithRemedy(err)
	p.mu.Lock()
	p.wrong = err
	p.mu.Unlock()
	if times, due := p.outage.Failed(); due {
		p.log.Warn("presence not renewed, trying again", slog.String(logs.Instance, p.instance), logs.Err(err), slog.Int("times", times))
	}
}

// lost says why other instances take this one for dead although the server answers: it refuses the renewal, such as to
// a user without the right, or because it is full. It is nil while the presence lasts, and for any other error.
func (p *presence) lost(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wrong == nil || !p.overdue(now) || !errors.Is(p.wrong, pipeline.ErrUnavailable) {
		return nil
	}
	return fmt.Errorf("other instances take this one for dead, because its presence was not renewed since %s: %w", p.renewed.UTC().Format(time.RFC3339), p.wrong)
}

func (p *presence) run(ctx context.Context, ttl time.Duration) (mine bool, err error) {
	sent := time.Now()
	n, err := goredis.NewScript(presenceSource).Run(ctx, p.c, []string{presenceKey(p.instance)}, p.token, ttl.Milliseconds()).Int()
	if err == nil && ttl > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.taken = n == 0; p.taken {
			return false, nil
		}
		if !p.renewed.IsZero() && (n == presenceMade || p.overdue(sent)) {
			p.gap = time.Now()
		}
		p.renewed = sent
	}
	return n > 0, err
}

// presenceMade is the reply of presence.lua when there was no presence.
const presenceMade = 2

// overdue reports whether the presence may have expired, by either clock: the monotonic one may
// stop while the machine sleeps. The mutex is held.
func (p *presence) overdue(now time.Time) bool {
	return max(now.Sub(p.renewed), now.Round(0).Sub(p.renewed.Round(0))) > p.ttl
}

// markInstance records that an instance has a presence, and removes old marks if clean is set.
func markInstance(ctx context.Context, c goredis.Scripter, instance string, clean bool) error {
	return goredis.NewScript(markSource).Run(ctx, c, []string{instancesKey}, instance, clean, markKept.Milliseconds(), markMost).Err()
}

// fence returns the time since which the server must have confirmed that an entry is this
// instance's, before it may start. Without a presence, other instances may take this one for dead
// and claim its entries. While the presence is overdue, or another process has the name, the time
// is in the future.
func (p *presence) fence(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken || p.overdue(now) {
		return now.Add(time.Hour)
	}
	return p.gap
}

// release gives the name back at an orderly end, and says that it was one.
func (p *presence) release(ctx context.Context) error {
	err := p.loops.Stop(ctx)
	p.mu.Lock()
	taken := p.taken
	p.mu.Unlock()
	if !taken {
		if err := p.tellStopped(ctx); err != nil {
			p.log.DebugContext(ctx, "the end of this instance will look like a crash", logs.Err(err))
		}
	}
	if _, failed := p.run(ctx, 0); failed != nil {
		err = fmt.Errorf("presence of instance %q: %w", p.instance, failed)
	}
	return err
}
