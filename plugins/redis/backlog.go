package redis

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// sharedClient is the key of the plugin's client in the context that Connect returns.
type sharedClient struct{ of *Plugin }

// Connect implements operate.Connecting.
func (s source) Connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	return s.p.connect(ctx)
}

// Connect implements operate.Connecting.
func (s domainSource) Connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	return s.d.p.connect(ctx)
}

// connect returns ctx with a client of the server: that of ctx if it has one, that of the service
// where that runs, or a new one, for which it waits as long as a command waits for its servers. The caller calls closeIt.
func (p *Plugin) connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	if ctx.Value(sharedClient{p}) != nil {
		return ctx, func() {}, nil
	}
	closeIt = func() {}
	c := p.Client()
	if c == nil {
		p.mu.Lock()
		log, wait := p.env.Logger, p.env.StartTimeout
		p.mu.Unlock()
		if c, err = NewClient(p.cfg.ClientConfig, log); err != nil {
			return nil, nil, err
		}
		closeIt = func() { _ = c.Close() } // it was only read
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if wait > 0 { // the command may run longer than it waits for a server
			waiting, cancel = context.WithTimeout(ctx, wait)
		}
		defer cancel()
		if err := waitFor(waiting, c, p.cfg.address(), log); err != nil {
			closeIt()
			return nil, nil, err
		}
	}
	return context.WithValue(ctx, sharedClient{p}, c), closeIt, nil
}

// connected returns the client of connect.
func (p *Plugin) connected(ctx context.Context) (c goredis.UniversalClient, closeIt func(), err error) {
	ctx, closeIt, err = p.connect(ctx)
	if err == nil {
		c, _ = ctx.Value(sharedClient{p}).(goredis.UniversalClient)
	}
	return c, closeIt, err
}

// Backlog implements operate.Measured. Entries that a reader has and did not acknowledge are in
// flight, and so are those of readers that ended, until another one claims them.
func (s source) Backlog(ctx context.Context) (operate.Backlog, error) {
	return s.p.backlog(ctx, s.at.Group, s.at.Name)
}

// Backlog implements operate.Measured: all shards together.
func (s domainSource) Backlog(ctx context.Context) (operate.Backlog, error) {
	c, err := s.d.Config()
	if err != nil {
		return operate.Backlog{}, err
	}
	streams := make([]string, c.Shards)
	for i := range streams {
		streams[i] = c.Stream(i)
	}
	return s.d.p.backlog(ctx, c.Group, streams...)
}

// latest is the latest time that can be written as JSON.
var latest = time.UnixMilli(253402300799999) //nolint:gochecknoglobals // a constant, but Go has none of this type

// backlog adds up what a group has not done in streams.
func (p *Plugin) backlog(ctx context.Context, group string, streams ...string) (operate.Backlog, error) {
	ctx, done, err := p.connect(ctx)
	if err != nil {
		return operate.Backlog{}, err
	}
	defer done()
	c, _ := ctx.Value(sharedClient{p}).(goredis.UniversalClient)
	total := operate.Backlog{Waiting: new(int64), InFlight: new(int64), NotDue: new(int64)}
	for _, stream := range streams {
		_, err := addBacklog(ctx, c, stream, group, &total)
		if err == nil && p.delays.retries(stream) {
			err = addNotDue(ctx, c, stream, &total)
		}
		if err != nil {
			return operate.Backlog{}, fmt.Errorf("redis: backlog of %s: %w", stream, answered(err))
		}
	}
	return total, nil
}

// answered marks an error as one of an unavailable server unless the server itself sent it, and then says what to do
// about a right that the user lacks and about a full server.
func answered(err error) error {
	if poll.IsReply(err) {
		return poll.WithRemedy(err)
	}
	return fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
}

//go:embed lua/waiting.lua
var waitingSource string

// mostCounted bounds what is counted where the server does not know how far a group has read.
const mostCounted = 10_000

// addBacklog adds one stream, and reports whether it exists. The server does not know how many entries wait after some
// were deleted from the middle, and the embedded one counts those that were delivered. They are counted then, and a
// number that stays unknown makes the total unknown.
func addBacklog(ctx context.Context, c goredis.UniversalClient, stream, group string, b *operate.Backlog) (exists bool, err error) {
	groups, err := c.XInfoGroups(ctx, stream).Result()
	if err != nil {
		if poll.IsNoKey(err) {
			return false, nil
		}
		return false, err
	}
	from, lag, more := "-", int64(-1), true // of a group that was not created yet: all entries
	counts, last := false, ""
	for _, g := range groups {
		if g.Name != group {
			continue
		}
		lag = g.Lag
		last = g.LastDeliveredID
		counts = lag < 0 || g.EntriesRead == 0 && g.LastDeliveredID != "0-0"
		from, more = entry.NextID(g.LastDeliveredID)
		*b.InFlight += g.Pending
		if g.Pending > 0 {
			pending, err := c.XPending(ctx, stream, group).Result()
			if err != nil {
				return true, err
			}
			b.Older(timeOf(pending.Lower), entry.Position(stream, pending.Lower))
		}
	}
	if !more {
		return true, nil
	}
	next, err := c.XRangeN(ctx, stream, from, "+", 1).Result()
	if err != nil {
		return true, err
	}
	switch {
	case len(next) == 0:
		return true, nil
	case from == "-":
		if lag, err = c.XLen(ctx, stream).Result(); err != nil {
			return true, err
		}
	case counts:
		if lag, err = goredis.NewScript(waitingSource).Run(ctx, c, []string{stream}, last, mostCounted).Int64(); err != nil {
			return true, err
		}
	}
	b.Older(timeOf(next[0].ID), entry.Position(stream, next[0].ID))
	if b.Waiting != nil && lag >= 0 {
		*b.Waiting += lag
	} else {
		b.Waiting = nil
	}
	return true, nil
}

// addNotDue adds the entries of a retry topic that are not in the stream yet.
func addNotDue(ctx context.Context, c goredis.UniversalClient, stream string, b *operate.Backlog) error {
	next, err := c.ZRangeWithScores(ctx, dueKey(stream), 0, 0).Result()
	if err != nil || len(next) == 0 {
		return err
	}
	n, err := c.ZCard(ctx, dueKey(stream)).Result()
	if err != nil {
		return err
	}
	*b.NotDue += n
	score := min(max(next[0].Score, 0), float64(latest.UnixMilli())) // another program may have written anything
	b.NextDue = earlier(b.NextDue, time.UnixMilli(int64(score)))
	return nil
}

// timeOf returns the time in the id of an entry, which Redis gave it. It is zero for an id that is
// ahead of the clock, because a producer has set it.
func timeOf(id string) time.Time {
	millis, _, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(millis, 10, 64)
	if at := time.UnixMilli(n); err == nil && !at.After(time.Now().Add(clockSteps)) {
		return at
	}
	return time.Time{}
}

// earlier returns the earlier of two times, of which the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

var (
	_ operate.Connecting = source{}
	_ operate.Connecting = domainSource{}
)
