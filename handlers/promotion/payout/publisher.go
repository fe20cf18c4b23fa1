package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// streamMessage returns the message of an accepted record. Its UUID is the payout's key.
func streamMessage(rec payouts.Record) *message.Message {
	msg := message.NewMessage(rec.Key.String(), rec.Payload)
	maps.Copy(msg.Metadata, rec.Headers)
	msg.Metadata.Set(pipeline.MetaKey, string(rec.RecordKey))
	return msg
}

// Publisher returns the sink of accepted payouts: each goes to the Redis stream of its promotion.
// The stream may be full, slow, refused by Redis, or another deployment's. Its payouts then stay in
// the ledger for the feeder, and delay no other promotion on their Kafka partition.
func (p *Processor) Publisher() pipeline.Sink { return publisher{p} }

type publisher struct{ *Processor }

var (
	errNotEnqueued = errors.New("promotion: the enqueue did not return")
	errLater       = errors.New("promotion: the stream takes no entries")
)

// Describe implements pipeline.Sink.
func (p publisher) Describe() pipeline.Endpoint { return p.Streams.Source().Describe() }

// enqueueTimeout bounds the enqueueing of a batch. Its records are acked together, so that one slow
// stream delays those of the others by at most this time. It is then left out for some seconds
// (streams.Manager.Full).
const enqueueTimeout = time.Second

// leaveTimeout bounds the statement that leaves payouts to the feeder. It is not shortened by the
// time that the streams took.
const leaveTimeout = 5 * time.Second

// Publish implements pipeline.Sink for messages of Accept. Each stream gets its entries with one
// call, all streams at the same time. The error is a pipeline.PublishError.
func (p publisher) Publish(ctx context.Context, msgs ...*message.Message) error {
	keys, errs := make([]payouts.Key, len(msgs)), make([]error, len(msgs))
	byPromotion := map[payouts.Promotion][]int{} // indexes of msgs
	for i, msg := range msgs {
		if keys[i], errs[i] = payoutKey(msg.UUID); errs[i] != nil {
			errs[i] = pipeline.Permanent(fmt.Errorf("promotion: the message's UUID: %w", errs[i]))
			continue
		}
		of := keys[i].OfPromotion()
		byPromotion[of] = append(byPromotion[of], i)
	}
	within, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	add := func(promotion payouts.Promotion, batch []int) {
		for _, i := range batch {
			errs[i] = errNotEnqueued // unless the call returns
		}
		added, err := p.enqueue(within, promotion, msgs, batch)
		for n, i := range batch {
			if errs[i] = nil; n >= added {
				errs[i] = err
			}
		}
	}
	var calls sync.WaitGroup
	panics := make(chan any, len(byPromotion))
	for promotion, batch := range byPromotion {
		if len(byPromotion) == 1 {
			add(promotion, batch)
			break
		}
		calls.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					panics <- v
				}
			}()
			add(promotion, batch)
		})
	}
	calls.Wait()
	if len(panics) > 0 {
		panic(<-panics) // the chain recovers it
	}
	failpoint.Hit(failpoint.AfterXADD)
	p.leave(ctx, keys, errs)
	return pipeline.PublishError(errs)
}

// enqueue adds those of msgs to one stream that batch names. It returns the length of the prefix
// that was added. The error is errLater if the feeder has to enqueue the others.
func (p publisher) enqueue(ctx context.Context, promotion payouts.Promotion, msgs []*message.Message, batch []int) (added int, err error) {
	entries := make([]entry.Entry, len(batch))
	for n, i := range batch {
		entries[n] = streamEntry(msgs[i])
	}
	added, out, err := p.Streams.EnqueueBatch(ctx, promotion.StreamID(), entries)
	switch {
	case errors.Is(err, streams.ErrRefused), errors.Is(err, streams.ErrForeign), errors.Is(err, streams.ErrVanishing):
		return added, errLater
	case err != nil && ctx.Err() != nil: // an entry that was added after all is a duplicate
		return added, errLater
	case err != nil:
		return added, fmt.Errorf("promotion: %w", err)
	case out == streams.Full:
		return added, errLater
	}
	return added, nil
}

// leave leaves the payouts with errLater to the feeder, with one statement for the batch.
func (p publisher) leave(ctx context.Context, keys []payouts.Key, errs []error) {
	var later []int
	var left []payouts.Key
	for i, err := range errs {
		if errors.Is(err, errLater) {
			later, left = append(later, i), append(left, keys[i])
		}
	}
	if len(later) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	for n, err := range p.Ledger().NotEnqueued(ctx, left) {
		if errs[later[n]] = nil; err != nil {
			errs[later[n]] = fmt.Errorf("promotion: leave %s to the feeder: %w", left[n], err)
		}
	}
}

// streamEntry returns the entry of a message, with the record's own headers.
func streamEntry(msg *message.Message) entry.Entry {
	return entry.Entry{Key: msg.Metadata.Get(pipeline.MetaKey), UUID: msg.UUID, Message: msg.Payload, Headers: ownHeaders(msg.Metadata)}
}
