package promotion

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	// runningKey is a hash with what each instance that pays says about itself, by instance: the time of the server in
	// ms, a space, and JSON. It is in the Redis of the streams.
	runningKey = "millrace:promotion:instances"
	// runningInterval is the time between two writes, and runningStale the age at which an instance has ended. They
	// are those of a presence.
	runningInterval = redis.PresenceRenewal
	runningStale    = 3 * runningInterval
	// runningKept is the age at which what an instance that was killed has written is removed.
	runningKept    = time.Hour
	runningTimeout = 2 * time.Second
	// runningPromotions bounds what an instance writes.
	runningPromotions = 20
)

// runningService writes what this instance says about itself, and removes it at the end.
func (r *resources) runningService(server *redis.Server) *service {
	var loops *loop.Group
	instance := ""
	return &service{
		start: func(ctx context.Context) error {
			loops, instance = &loop.Group{}, r.instance
			return loops.Start(ctx, func(ctx context.Context) {
				began := time.Time{}
				loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
					clean := time.Since(began) >= runningKept
					if err := r.writeRunning(ctx, server, instance, clean); err != nil {
						r.log.DebugContext(ctx, "the state of this instance is not written, tried again", logs.Err(err))
					} else if clean {
						began = time.Now()
					}
					return runningInterval
				})
			})
		},
		stop: func(ctx context.Context) error {
			err := loops.Stop(ctx)
			if client := server.Client(); client != nil {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runningTimeout)
				defer cancel()
				_ = client.HDel(ctx, runningKey, instance).Err() // what stays behind goes stale
			}
			return err
		},
	}
}

func (r *resources) writeRunning(ctx context.Context, server *redis.Server, instance string, clean bool) error {
	client := server.Client()
	ctx, cancel := context.WithTimeout(ctx, runningTimeout)
	defer cancel()
	at, err := client.Time(ctx).Result()
	if err != nil {
		return err
	}
	text, _ := json.Marshal(campaign.Running{Client: r.clientState(), Recent: r.recent.Latest(runningPromotions)}) // can't fail
	if err := client.HSet(ctx, runningKey, instance, strconv.FormatInt(at.UnixMilli(), 10)+" "+string(text)).Err(); err != nil || !clean {
		return err
	}
	all, err := client.HGetAll(ctx, runningKey).Result()
	if err != nil {
		return err
	}
	for other, value := range all {
		if wrote, _ := runningOf(value); at.Sub(wrote) > runningKept {
			if err := client.HDel(ctx, runningKey, other).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// runningOf returns what an instance wrote, and when. The time is zero for what can't be read.
func runningOf(value string) (at time.Time, r campaign.Running) {
	heard, text, _ := strings.Cut(value, " ")
	millis, err := strconv.ParseInt(heard, 10, 64)
	if err != nil || json.Unmarshal([]byte(text), &r) != nil {
		return time.Time{}, campaign.Running{}
	}
	return time.UnixMilli(millis), r
}

// Running implements campaign.Resources.
func (c commandResources) Running(ctx context.Context) (map[string]campaign.Running, error) {
	if err := c.Redis(); err != nil {
		return nil, err
	}
	server := c.p.run.streamsRedis.Load()
	if server == nil || server.Client() == nil {
		return nil, fmt.Errorf("%w: the client of the streams' Redis was not started", pipeline.ErrUnavailable)
	}
	client := server.Client()
	ctx, cancel := context.WithTimeout(ctx, runningTimeout)
	defer cancel()
	at, err := client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	written, err := client.HGetAll(ctx, runningKey).Result()
	if err != nil {
		return nil, err
	}
	all := map[string]campaign.Running{}
	for instance, value := range written {
		if wrote, r := runningOf(value); at.Sub(wrote) <= runningStale {
			all[instance] = r
		}
	}
	return all, nil
}
