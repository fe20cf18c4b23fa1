package redis

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

var (
	//go:embed lua/presence.lua
	presenceSource string
	//go:embed lua/mark.lua
	markSource string
)

// ErrDuplicate is returned by Start when another live process uses the same instance name. Two of them
// would share consumers and take each other's pending entries for their own: give each its own instance_id.
var ErrDuplicate = errors.New("instance name is in use")

// The life of a presence: it is renewed three times before it would expire.
const (
	presenceTTL   = 15 * time.Second
	presenceRenew = 5 * time.Second
)

// PresenceRenewal is the time between two renewals of an instance's presence.
const PresenceRenewal = presenceRenew

// presenceKey is where the instance says that it is alive.
func presenceKey(instance string) string { return "millrace:instance:" + instance }

// instancesKey is a hash of the instances that have, or had, a presence.
const instancesKey = "millrace:instances"

// An instance is forgotten a week after it was seen last, and when ten thousand others were seen since.
const (
	markKept = 7 * 24 * time.Hour
	markMost = 10_000
)

// Alive says which of the instances have renewed their presence within its time to live: true. An instance that had a
// presence and has none now is false. An instance that is not in the answer never had a presence, so its absence says nothing.
//
// Alive marks the instances that have a presence and no mark: a version without marks runs them. The error is only about the
// question; a mark that could not be written is left to the next call.
func Alive(ctx context.Context, c goredis.UniversalClient, instances ...string) (map[string]bool, error) {
	alive := make(map[string]bool, len(instances))
	if len(instances) == 0 {
		return alive, nil
	}
	pipe := c.Pipeline() // one EXISTS a key: the keys are in different slots of a cluster
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

// presence holds an instance's name while the process lives.
type presence struct {
	c        goredis.UniversalClient
	instance string
	token    string
	ttl      time.Duration
	renew    time.Duration
	log      *slog.Logger
	failed   chan error // told once when another process has taken the name

	quit    chan struct{}
	renewer sync.WaitGroup

	mu      sync.Mutex
	renewed time.Time // before the last renewal that succeeded was sent
	gap     time.Time // when the last time without a presence ended; zero: there was none
	taken   bool      // another process has the name
}

// acquire takes the name. A predecessor that was killed still holds it for up to one time to live: that is waited
// for. Whoever renews it meanwhile is alive, and then the error is ErrDuplicate.
func (p *presence) acquire(ctx context.Context) error {
	p.token = watermill.NewULID()
	waitUntil := time.Now().Add(p.ttl + p.ttl/10)
	waiting := false
	for {
		ok, err := p.run(ctx, p.ttl) // not SET NX: re-sent after a lost reply, it would find ourselves
		if ok && err == nil {
			err = markInstance(ctx, p.c, p.instance, true)
		}
		if err != nil {
			return poll.WithRemedy(fmt.Errorf("presence of instance %q: %w", p.instance, err))
		}
		if ok {
			p.quit = make(chan struct{})
			p.renewer.Go(p.keep)
			return nil
		}
		if time.Now().After(waitUntil) {
			return fmt.Errorf("instance %q runs already: %w; give every process its own instance_id", p.instance, ErrDuplicate)
		}
		if !waiting {
			waiting = true
			p.log.InfoContext(ctx, "instance name is held, waiting for its holder to expire", slog.String(pipeline.LogInstance, p.instance), slog.Duration("at_most", p.ttl))
		}
		t := time.NewTimer(p.ttl / 30)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("instance %q: waiting for its name: %w", p.instance, ctx.Err())
		}
	}
}

// keep renews the presence until release.
func (p *presence) keep() {
	tick := time.NewTicker(p.renew)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.quit:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.renew)
		mine, err := p.run(ctx, p.ttl)
		if mine && err == nil {
			err = markInstance(ctx, p.c, p.instance, false)
		}
		cancel()
		switch {
		case err != nil:
			p.log.Warn("presence not renewed, trying again", slog.String(pipeline.LogInstance, p.instance), pipeline.Err(err))
		case !mine:
			p.failed <- fmt.Errorf("another process has taken the name of instance %q: %w", p.instance, ErrDuplicate)
			return
		}
	}
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

// overdue reports whether the presence may have expired by now, by either clock: the monotonic one may stand still while the
// machine sleeps. The mutex is held.
func (p *presence) overdue(now time.Time) bool {
	return max(now.Sub(p.renewed), now.Round(0).Sub(p.renewed.Round(0))) > p.ttl
}

// markInstance writes down that an instance has a presence; forget also removes old marks.
func markInstance(ctx context.Context, c goredis.Scripter, instance string, forget bool) error {
	return goredis.NewScript(markSource).Run(ctx, c, []string{instancesKey}, instance, forget, markKept.Milliseconds(), markMost).Err()
}

// fence returns the time since which the server must have confirmed that an entry is this instance's, before the entry
// may be begun. Without a presence other instances may take this one for dead, and claim an entry as soon as its idle time is
// their presence_timeout. While the presence is overdue, or another process has the name, it is a time to come: nothing may be begun.
func (p *presence) fence(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken || p.overdue(now) {
		return now.Add(time.Hour)
	}
	return p.gap
}

// release gives the name up.
func (p *presence) release(ctx context.Context) error {
	if p.quit == nil {
		return nil
	}
	close(p.quit)
	p.renewer.Wait()
	p.quit = nil
	if _, err := p.run(ctx, 0); err != nil {
		return fmt.Errorf("presence of instance %q: %w", p.instance, err)
	}
	return nil
}
