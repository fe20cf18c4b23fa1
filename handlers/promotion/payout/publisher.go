package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"

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

// Describe implements pipeline.Sink.
func (p publisher) Describe() pipeline.Endpoint { return p.Streams.Source().Describe() }

// Publish implements pipeline.Sink for messages of Accept.
func (p publisher) Publish(ctx context.Context, msgs ...*message.Message) error {
	for _, msg := range msgs {
		key, err := payoutKey(msg.UUID)
		if err != nil {
			return pipeline.Permanent(fmt.Errorf("promotion: the message's UUID: %w", err))
		}
		outcome, err := p.Streams.Enqueue(ctx, key.Promotion, streamEntry(msg))
		refused := errors.Is(err, streams.ErrRefused) || errors.Is(err, streams.ErrForeign) || errors.Is(err, streams.ErrVanishing)
		if err != nil && !refused {
			return fmt.Errorf("promotion: enqueue %s: %w", key, err)
		}
		failpoint.Hit(failpoint.AfterXADD)
		if refused || outcome == streams.Full {
			if err := p.Ledger().NotEnqueued(ctx, []rules.Key{key})[0]; err != nil {
				return fmt.Errorf("promotion: leave %s to the feeder: %w", key, err)
			}
		}
	}
	return nil
}

// streamEntry returns the entry of a message, with the record's own headers.
func streamEntry(msg *message.Message) entry.Entry {
	return entry.Entry{Key: msg.Metadata.Get(pipeline.MetaKey), UUID: msg.UUID, Message: msg.Payload, Headers: ownHeaders(msg.Metadata)}
}
