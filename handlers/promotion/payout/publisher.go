package payout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Metadata of a message from Accept to Publisher. It does not become part of the entry.
const (
	metaPromotionType = "millrace-promotion-type"
	metaPromotionID   = "millrace-promotion-id"
	metaTargetID      = "millrace-target-id"
)

// streamMessage returns the message of an accepted record. Its metadata has the record's headers and key,
// and the payout's key.
func streamMessage(rec rules.Record) *message.Message {
	msg := message.NewMessage(rec.Key.String(), rec.Payload)
	for k, v := range rec.Headers {
		msg.Metadata.Set(k, v)
	}
	msg.Metadata.Set(pipeline.MetaKey, string(rec.RecordKey))
	msg.Metadata.Set(metaPromotionType, string(rec.Type))
	msg.Metadata.Set(metaPromotionID, strconv.FormatInt(rec.Promotion, 10))
	msg.Metadata.Set(metaTargetID, strconv.FormatInt(rec.Target, 10))
	return msg
}

// messageKey returns the payout's key of a message of streamMessage.
func messageKey(msg *message.Message) (key rules.Key, err error) {
	key.Type = rules.Type(msg.Metadata.Get(metaPromotionType))
	var err1, err2 error
	key.Promotion, err1 = strconv.ParseInt(msg.Metadata.Get(metaPromotionID), 10, 64)
	key.Target, err2 = strconv.ParseInt(msg.Metadata.Get(metaTargetID), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return key, pipeline.Permanent(fmt.Errorf("promotion: message %s names no payout: %w", msg.UUID, err))
	}
	return key, nil
}

// Publisher returns the sink of accepted payouts: each goes to the Redis stream of its promotion. A
// payout that its stream does not take stays in the ledger, and the feeder enqueues it later. The stream
// may be full, refused by Redis, or another deployment's. One promotion then never delays another on its
// Kafka partition.
func (p *Processor) Publisher() pipeline.Sink { return publisher{p} }

type publisher struct{ *Processor }

// Describe implements pipeline.Sink.
func (p publisher) Describe() pipeline.Endpoint { return p.Streams.Source().Describe() }

// Publish implements pipeline.Sink for messages of Accept.
func (p publisher) Publish(ctx context.Context, msgs ...*message.Message) error {
	for _, msg := range msgs {
		key, err := messageKey(msg)
		if err != nil {
			return err
		}
		outcome, err := p.Streams.Enqueue(ctx, key.Promotion, streamEntry(msg))
		refused := errors.Is(err, streams.ErrRefused) || errors.Is(err, streams.ErrForeign) || errors.Is(err, streams.ErrVanishing)
		if err != nil && !refused {
			return fmt.Errorf("promotion: enqueue %s: %w", key, err)
		}
		failpoint.Hit(failpoint.AfterXADD)
		if refused || outcome == streams.Full {
			if err := p.Ledger().NotEnqueued(ctx, key); err != nil {
				return fmt.Errorf("promotion: leave %s to the feeder: %w", key, err)
			}
		}
	}
	return nil
}

// streamEntry returns the entry of a message: with the record's own headers and key.
func streamEntry(msg *message.Message) entry.Entry {
	headers := make(map[string]string, len(msg.Metadata))
	for k, v := range msg.Metadata {
		if !strings.HasPrefix(k, reservedPrefix) {
			headers[k] = v
		}
	}
	return entry.Entry{Key: msg.Metadata.Get(pipeline.MetaKey), UUID: msg.UUID, Message: msg.Payload, Headers: headers}
}
