package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/streams"
)

// deadOutbox gives the ledger's dead letters to the plugin deadletter.
type deadOutbox struct{ run *engine }

// Relay implements deadletter.Outbox.
func (o deadOutbox) Relay(ctx context.Context, limit int, publish func(context.Context, []deadletter.Letter) error) (int, error) {
	return o.run.ledger.Relay(ctx, ledger.OutboxDead, limit, func(ctx context.Context, batch []ledger.Message) error {
		letters := make([]deadletter.Letter, len(batch))
		for i, m := range batch {
			s, known := strategyOf(string(m.Key.Type))
			if !known {
				return fmt.Errorf("dead letter %d is of type %s, which this version doesn't know", m.ID, m.Key.Type)
			}
			letters[i] = deadletter.Letter{
				Topic: s.deadTopic(), ID: letterID(m), Subject: m.Key.String(),
				// What was offered beside the stored record says nothing about the payout.
				Alone: offered(m.Class),
			}
			letters[i].DeadLetter = pipeline.DeadLetter{
				Payload: m.Payload, Metadata: m.Headers, Key: string(m.RecordKey), Class: m.Class, Error: m.Error, Handler: m.Handler,
				Origin: m.Origin, Attempts: m.Attempts, FirstFailedAt: m.FirstFailedAt, FailedAt: m.CreatedAt,
			}
		}
		err := publish(ctx, letters)
		var partial *deadletter.PublishError
		if errors.As(err, &partial) {
			return &ledger.PartialError{Failed: partial.Failed, Err: err}
		}
		return err
	})
}

// offered reports whether a dead letter of that class is about a message that is not the stored record of its payout.
func offered(class string) bool {
	return class == ledger.ClassConflict || class == ledger.ClassUnannounced
}

// resultsStream takes an event for every settled payout, in watermill-redisstream's own format.
const resultsStream = "campaign-promotion-results"

const (
	resultsPoll  = 200 * time.Millisecond // between two looks into an empty outbox
	resultsBatch = 200
	resultsTrim  = 5 * time.Second // between two looks for events that need no longer be kept
)

// resultRelay offers outcome events to the results stream, at least once, and removes those that need no longer be kept.
type resultRelay struct {
	run   *engine
	to    pipeline.Sink
	redis func() redis.UniversalClient
	log   *slog.Logger

	end  context.CancelFunc
	done sync.WaitGroup
}

func newResultRelay(run *engine, to pipeline.Sink, c func() redis.UniversalClient, log *slog.Logger) *resultRelay {
	return &resultRelay{run: run, to: to, redis: c, log: log.With(slog.String(pipeline.LogComponent, "results"))}
}

// Start begins to relay. It runs once.
func (r *resultRelay) Start(ctx context.Context) error {
	ctx, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.done.Go(func() { r.loop(ctx) })
	r.done.Go(func() { r.trimLoop(ctx) })
	return nil
}

// Stop ends the loop; what is left is offered after the next start, or by another instance.
func (r *resultRelay) Stop(ctx context.Context) error {
	if r.end == nil {
		return nil
	}
	r.end()
	return ended(ctx, &r.done)
}

func (r *resultRelay) loop(ctx context.Context) {
	timer := time.NewTimer(resultsPoll)
	defer timer.Stop()
	for failing := false; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		n, err := r.run.ledger.Relay(ctx, ledger.OutboxResult, resultsBatch, r.publish)
		if err != nil && ctx.Err() == nil && !failing {
			r.log.WarnContext(ctx, "result events not published, tried again", pipeline.Err(err))
		}
		failing = err != nil
		if n == resultsBatch && !failing {
			timer.Reset(0)
		} else {
			timer.Reset(resultsPoll)
		}
	}
}

// trimLoop keeps the stream as short as the settings allow. Every instance does it.
func (r *resultRelay) trimLoop(ctx context.Context) {
	c := r.run.config.Results
	retain := streams.Retainer{Stream: resultsStream, Retention: c.Retention, RequiredGroups: c.RequiredGroups}
	tick := time.NewTicker(min(resultsTrim, c.Retention))
	defer tick.Stop()
	for failing := false; ; {
		removed, left, err := retain.Trim(ctx, r.redis())
		if err != nil && ctx.Err() == nil && !failing {
			r.log.WarnContext(ctx, "results stream not trimmed, tried again", pipeline.Err(err))
		}
		if failing = err != nil; !failing {
			r.run.metrics.results.Set(float64(left))
			r.run.metrics.resultsTrimmed.Add(float64(removed))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *resultRelay) publish(ctx context.Context, batch []ledger.Message) error {
	msgs := make([]*message.Message, len(batch))
	for i, m := range batch {
		msgs[i] = message.NewMessage(strconv.FormatInt(m.ID, 10), m.Payload)
		msgs[i].Metadata.Set(pipeline.MetaKey, m.Key.String())
	}
	return r.to.Publish(ctx, msgs...)
}

var (
	_ deadletter.Outbox = deadOutbox{}
	_ pipeline.Service  = (*resultRelay)(nil)
	_ pipeline.Service  = (*feeder)(nil)
)
