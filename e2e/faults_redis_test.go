package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// fullFor is how long Redis is full: longer than the life of a presence (15 s) plus
// presence_timeout (10 s).
const fullFor = 40 * time.Second

// fullForLong keeps Redis full while acknowledged entries are on the stream. A second consumer
// group that reads nothing keeps them there. The entries that no instance has handled yet are paid
// while Redis is full. When the second group is gone, the acknowledged entries are removed while
// Redis is still full. No instance counts as dead at any time.
func (t *caseRun) fullForLong(ctx context.Context) (err error) {
	direct, stream := t.deployment.redis, t.streamName()
	before, err := t.takeovers(ctx)
	if err != nil {
		return err
	}
	slow := usualMoney
	slow.Latency = 200 * time.Millisecond // so that entries are in flight when Redis is full
	if err := errors.Join(t.business.SetFaults(slow), t.publish(ctx, t.c.Targets)); err != nil {
		return err
	}
	const second = "second"
	if err := until(ctx, 20*time.Second, "the stream has entries, and a second group", func() error {
		if n, err := direct.XLen(ctx, stream).Result(); err != nil || n < 20 {
			return fmt.Errorf("%d entries: %w", n, err)
		}
		return direct.XGroupCreate(ctx, stream, second, "0").Err()
	}); err != nil {
		return err
	}
	full := time.Now()
	if err := direct.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		return err
	}
	room := func() error { return direct.ConfigSet(context.WithoutCancel(ctx), "maxmemory", "0").Err() }
	defer func() { err = errors.Join(err, room()) }()
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, "all entries of the stream are acknowledged while Redis is full", func() error { return t.acknowledged(ctx) }); err != nil {
		return err
	}
	wait(ctx, fullFor-time.Since(full))
	if n, err := direct.XLen(ctx, stream).Result(); err != nil || n < 20 {
		return fmt.Errorf("the second group has read nothing, and %d entries are on the stream: %w", n, err)
	}
	if err := direct.XGroupDestroy(ctx, stream, second).Err(); err != nil {
		return err
	}
	if err := until(ctx, 20*time.Second, "acknowledged entries are removed while Redis is full", func() error {
		if n, err := direct.XLen(ctx, stream).Result(); err != nil || n > 0 {
			return fmt.Errorf("%d entries: %w", n, err)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := errors.Join(room(), t.settledShare(ctx, 100)); err != nil {
		return err
	}
	after, err := t.takeovers(ctx)
	if err == nil && after != before {
		err = &brokenError{"living instances keep their entries", fmt.Errorf("takeovers before %+v, after %+v", before, after)}
	}
	return err
}

// acknowledged reports entries of the stream that the campaign's own group has not read or not
// acknowledged.
func (t *caseRun) acknowledged(ctx context.Context) error {
	groups, err := t.deployment.redis.XInfoGroups(ctx, t.streamName()).Result()
	if err != nil {
		return err
	}
	last, err := t.deployment.redis.XRevRangeN(ctx, t.streamName(), "+", "-", 1).Result()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.Name == t.groupName() && g.Pending == 0 && len(last) == 1 && g.LastDeliveredID == last[0].ID {
			return nil
		}
	}
	return fmt.Errorf("groups %+v, last entry %+v", groups, last)
}

// takeovers counts over all instances what is done to instances that count as dead, and what that
// does to living ones.
type takeovers struct {
	claimed float64 // entries claimed from instances without a presence
	removed float64 // consumers removed from a group
	lost    float64 // entries that another instance claimed while they were in flight
}

func (s *faultDeployment) takeovers(ctx context.Context) (sum takeovers, err error) {
	for _, m := range s.members {
		series, err := m.series(ctx)
		if err != nil {
			return sum, err
		}
		found := 0
		for name, n := range series {
			switch metric, labels, _ := strings.Cut(name, "{"); {
			case metric == metricClaims && strings.Contains(labels, `reason="dead"`):
				sum.claimed += n
			case metric == metricReadersRemoved:
				sum.removed += n
			case metric == metricLost:
				sum.lost += n
				found++
			}
		}
		if found == 0 {
			return sum, fmt.Errorf("%s has no metric of lost entries", m.name)
		}
	}
	return sum, nil
}

// overAllWindows is a number of records that is more than the window (256) of each of the 8
// partitions.
const overAllWindows = 3_000

// refusedKey makes the key of the campaign's stream a string, before its first record or after its
// stream was removed. The campaign has more records than all windows take, and another campaign
// behind them is paid. When the key is free again, the first campaign is paid too.
func (t *caseRun) refusedKey(ctx context.Context) error {
	if t.rand.IntN(2) == 0 {
		if err := errors.Join(t.publish(ctx, t.c.Targets), t.settledShare(ctx, 100)); err != nil {
			return err
		}
	}
	if err := until(ctx, 20*time.Second, "the key of the stream is free", func() error {
		if set, err := t.deployment.redis.SetNX(ctx, t.streamName(), "x", 0).Result(); err != nil || !set {
			return fmt.Errorf("set %t: %w", set, err)
		}
		return nil
	}); err != nil {
		return err
	}
	before := t.counts(ctx).Paid
	other := t.faultDeployment.run(t.c)
	if err := errors.Join(t.publish(ctx, overAllWindows), other.publish(ctx, t.c.Targets/2), other.settledShare(ctx, 100)); err != nil {
		return err
	}
	if err := until(ctx, 30*time.Second, "all records of the campaign are accepted", func() error {
		if c := t.counts(ctx); c.Accepted < t.next || c.Paid != before {
			return fmt.Errorf("%+v", c)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := t.deployment.redis.Del(ctx, t.streamName()).Err(); err != nil {
		return err
	}
	return t.settledShare(ctx, 100)
}
