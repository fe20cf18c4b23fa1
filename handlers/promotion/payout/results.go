package payout

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/streams"
)

// ResultsStream is the Redis stream with an event per settled payout, in watermill-redisstream's
// format.
const ResultsStream = "campaign-promotion-results"

const (
	resultsPoll  = 200 * time.Millisecond // pause between two reads of an empty outbox
	resultsBatch = 200
	resultsTrim  = 5 * time.Second // pause between two rounds of trimming
)

// Results publishes an event per settled payout to ResultsStream, at least once. It removes events
// that the settings no longer keep.
type Results struct {
	Ledger         func() *ledger.Ledger
	To             pipeline.Sink
	Redis          *redis.Server
	Retention      time.Duration
	RequiredGroups []string
	Metrics        *Metrics
	Log            *slog.Logger

	loops loop.Group
}

// Start starts the loops. It is called once.
func (r *Results) Start(ctx context.Context) error {
	if err := r.loops.Start(ctx, r.relayLoop, r.trimLoop); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

// Stop ends the loops. Another instance, or the next start, publishes the events that are left.
func (r *Results) Stop(ctx context.Context) error {
	return r.loops.Stop(ctx)
}

// relayLoop publishes the events of the ledger's outbox.
func (r *Results) relayLoop(ctx context.Context) {
	failing := false
	loop.Repeat(ctx, resultsPoll, func(ctx context.Context) time.Duration {
		n, err := r.Ledger().Relay(ctx, ledger.OutboxOutcome, resultsBatch, r.publish)
		if err != nil && ctx.Err() == nil && !failing {
			r.Log.WarnContext(ctx, "result events not published, tried again", logs.Err(err))
		}
		if failing = err != nil; n == resultsBatch && !failing {
			return 0
		}
		return resultsPoll
	})
}

// trimLoop removes events from the stream that the settings no longer keep. Each instance does it.
func (r *Results) trimLoop(ctx context.Context) {
	retain := streams.Retainer{Stream: ResultsStream, Retention: r.Retention, RequiredGroups: r.RequiredGroups}
	failing := false
	loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		removed, left, err := retain.Trim(ctx, r.Redis.Client())
		if err != nil && ctx.Err() == nil && !failing {
			r.Log.WarnContext(ctx, "results stream not trimmed, tried again", logs.Err(err))
		}
		if failing = err != nil; !failing {
			r.Metrics.results.Set(float64(left))
			r.Metrics.resultsTrimmed.Add(float64(removed))
		}
		return min(resultsTrim, r.Retention)
	})
}

func (r *Results) publish(ctx context.Context, batch []ledger.OutboxMessage) error {
	msgs := make([]*message.Message, len(batch))
	for i, m := range batch {
		msgs[i] = message.NewMessage(strconv.FormatInt(m.ID, 10), m.Payload)
		msgs[i].Metadata.Set(pipeline.MetaKey, m.Key.String())
	}
	return r.To.Publish(ctx, msgs...)
}
