package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// streamMessage returns the message of an accepted record. Its UUID is the payout's key.
func streamMessage(rec rules.Record) *message.Message {
	msg := message.NewMessage(rec.Key.String(), rec.Payload)
	maps.Copy(msg.Metadata, rec.Headers)
	msg.Metadata.Set(pipeline.MetaKey, string(rec.RecordKey))
	return msg
}

// Publisher returns the sink of accepted payouts: each goes to the Redis stream of its promotion.
// The stream may be full, refused by Redis, or another deployment's. Its payouts then stay in the
// ledger for the feeder, and delay no other promotion on their Kafka partition.
func (p *Processor) Publisher() pipeline.Sink { return publisher{p} }

type publisher struct{ *Processor }

var errNotEnqueued = errors.New("promotion: the enqueue did not return")

// Describe implements pipeline.Sink.
func (p publisher) Describe() pipeline.Endpoint { return p.Streams.Source().Describe() }

// Publish implements pipeline.Sink for messages of Accept. Each stream gets its entries with one
// call, all streams at the same time. The error is a *pipeline.PartialError.
func (p publisher) Publish(ctx context.Context, msgs ...*message.Message) error {
	keys, errs := make([]rules.Key, len(msgs)), make([]error, len(msgs))
	byPromotion := map[int64][]int{} // indexes of msgs
	for i, msg := range msgs {
		if keys[i], errs[i] = payoutKey(msg.UUID); errs[i] != nil {
			errs[i] = pipeline.Permanent(fmt.Errorf("promotion: the message's UUID: %w", errs[i]))
			continue
		}
		byPromotion[keys[i].Promotion] = append(byPromotion[keys[i].Promotion], i)
	}
	add := func(promotion int64, batch []int) {
		for _, i := range batch {
			errs[i] = errNotEnqueued // unless the call returns
		}
		added, refused, err := p.enqueue(ctx, promotion, msgs, batch)
		for n, i := range batch {
			if errs[i] = nil; n >= added {
				errs[i] = err
			}
		}
		if refused {
			p.leave(ctx, keys, batch[added:], errs)
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
	failed := map[int]error{}
	for i, err := range errs {
		if err != nil {
			failed[i] = err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &pipeline.PartialError{Failed: failed, Size: len(msgs)}
}

// enqueue adds those of msgs to one stream that batch names. It returns the length of the prefix
// that was added. With refused, the stream takes the others at a later time.
func (p publisher) enqueue(ctx context.Context, promotion int64, msgs []*message.Message, batch []int) (added int, refused bool, err error) {
	entries := make([]entry.Entry, len(batch))
	for n, i := range batch {
		entries[n] = streamEntry(msgs[i])
	}
	added, out, err := p.Streams.EnqueueBatch(ctx, promotion, entries)
	switch {
	case errors.Is(err, streams.ErrRefused), errors.Is(err, streams.ErrForeign), errors.Is(err, streams.ErrVanishing):
		return added, true, nil
	case err != nil:
		return added, false, fmt.Errorf("promotion: %w", err)
	}
	return added, out == streams.Full, nil
}

// leave leaves the payouts that batch names to the feeder. It writes errors to errs.
func (p publisher) leave(ctx context.Context, keys []rules.Key, batch []int, errs []error) {
	some := make([]rules.Key, len(batch))
	for n, i := range batch {
		some[n] = keys[i]
	}
	for n, err := range p.Ledger().NotEnqueued(ctx, some) {
		if err != nil {
			errs[batch[n]] = fmt.Errorf("promotion: leave %s to the feeder: %w", some[n], err)
		}
	}
}

// streamEntry returns the entry of a message, with the record's own headers.
func streamEntry(msg *message.Message) entry.Entry {
	return entry.Entry{Key: msg.Metadata.Get(pipeline.MetaKey), UUID: msg.UUID, Message: msg.Payload, Headers: ownHeaders(msg.Metadata)}
}
