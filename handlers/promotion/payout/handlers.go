package payout

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
)

// ClassWrongStream is the class of a stream entry with a payload of another promotion.
const ClassWrongStream = "wrong_stream"

// AcceptRoute is the name of the route from the publish topic.
func (p *Processor) AcceptRoute() string { return p.route("accept") }

// StreamRoute is the name of the route from the streams.
func (p *Processor) StreamRoute() string { return p.route("stream") }

// RetryRoute is the name of the route from the retry topic.
func (p *Processor) RetryRoute() string { return p.route("retry") }

func (p *Processor) route(name string) string {
	return "promotion." + strings.ToLower(p.Type.Name) + "." + name
}

// PayFrom returns the handler of a route whose messages were accepted before: StreamRoute or
// RetryRoute.
func (p *Processor) PayFrom(route string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		rec, err := p.record(msg, route)
		ctx, entry := msg.Context(), pipeline.DeliveryFrom(msg.Context()).Kind == poll.Kind
		if err == nil {
			err = p.checkStream(pipeline.DeliveryFrom(ctx).Origin, rec.Key)
		}
		if err != nil {
			return nil, p.payUndecodable(msg, rec, err)
		}
		err = p.Pay(ctx, rec)
		// The feeder enqueues the payout again. With a retry record in addition, the payout would
		// be queued twice when its stream is drained, and each time once more.
		if entry && errors.Is(err, errNoSlot) && p.Ledger().NotEnqueued(ctx, []payouts.Key{rec.Key})[0] == nil {
			return nil, nil
		}
		return nil, err
	}
}

// payUndecodable ends an entry whose record can't be decoded, or is that of another promotion. As a dead letter it would come
// again without end, because the feeder enqueues each payout that is not settled. If it is the record of the payout that its
// UUID names, it therefore counts as a call that was not sent: after max_released of them the payout is FAILED, with one dead
// letter, and until then another version can decode it. What was perhaps charged is looked up, which needs the key alone. For
// any other message the cause is returned.
func (p *Processor) payUndecodable(msg *message.Message, rec payouts.Record, cause error) error {
	ctx := msg.Context()
	o := pipeline.DeliveryFrom(ctx).Origin
	key, err := payoutKey(msg.UUID)
	if err != nil || o.Kind != poll.Kind || string(key.Type) != p.Type.Name || p.checkStream(o, key) != nil {
		return cause
	}
	x, err := p.Ledger().Explain(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return cause
	case err != nil:
		return fmt.Errorf("promotion: explain %s: %w", key, err)
	case !bytes.Equal(x.Payload, msg.Payload):
		return cause
	}
	rec.Key, rec.SummaryID, rec.Request = key, x.SummaryID, x.Request
	if err := p.pay(ctx, rec, cause); err != nil { // the feeder enqueues it again
		p.debug(ctx, "undecodable", key, slog.String("again", err.Error()))
	}
	return nil
}

// checkStream refuses an entry in the stream of another promotion.
func (p *Processor) checkStream(o pipeline.Origin, key payouts.Key) error {
	if want := p.Streams.Kind().Stream(key.OfPromotion().StreamID()); o.Kind == poll.Kind && o.Source != want {
		err := fmt.Errorf("payout %s belongs into %s", key, want)
		return pipeline.WithClass(pipeline.Permanent(err), ClassWrongStream)
	}
	return nil
}

// record decodes a message into the record of the ledger.
func (p *Processor) record(msg *message.Message, route string) (payouts.Record, error) {
	o := pipeline.DeliveryFrom(msg.Context())
	rec := payouts.Record{
		Payload: msg.Payload, Headers: ownHeaders(msg.Metadata), RecordKey: []byte(o.Key), Origin: o.String(), Route: route,
	}
	delete(rec.Headers, pipeline.MetaTraceParent)
	pipeline.InjectTrace(msg.Context(), rec.Headers)
	err := decode(p.Type, &rec)
	if string(rec.Request) == string(msg.Payload) {
		rec.Request = nil
	}
	return rec, err
}

// decode decodes the payload of rec into its other fields.
func decode(t promotiontype.Type, rec *payouts.Record) error {
	pay, err := t.Decode(rec.Payload)
	rec.Key = payouts.Key{Type: payouts.Type(t.Name), Promotion: pay.Promotion, Target: pay.Target}
	rec.SummaryID, rec.Request = pay.Summary, pay.Request
	return err
}

// ownHeaders returns the headers that stay with a payout: those of its record.
func ownHeaders(all message.Metadata) message.Metadata {
	own := make(message.Metadata, len(all))
	for name, value := range all {
		if !strings.HasPrefix(name, reservedPrefix) {
			own[name] = value
		}
	}
	return own
}

// reservedPrefix begins the metadata keys that are not the record's own headers.
const reservedPrefix = "millrace-"
