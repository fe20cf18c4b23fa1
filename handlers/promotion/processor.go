package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/killpoint"
	"github.com/millrace-io/millrace/plugins/redispoll"
	"github.com/millrace-io/millrace/plugins/streams"
)

// processor handles every record and entry of one type: fresh, from the stream, and retried. What
// sets types apart is the strategy; what is true about a payout is the ledger's to say.
type processor struct {
	strategy
	run     *engine // what exists while the plugin runs
	manager *streams.Manager
	log     *slog.Logger

	answered answered
}

// settleTimeout bounds writing down what a call has shown, retries included. What can't be written
// in that time is found when the lease ends: the same request is sent again with the same key.
const settleTimeout = 5 * time.Second

var settleBackoff = pipeline.Backoff{First: 50 * time.Millisecond, Max: time.Second} //nolint:gochecknoglobals // a constant, but Go has none of this type

var errNotYet = errors.New("not to be paid yet")

// accept handles a record of the publish topic: it is in the ledger, and on its way, before it is acked.
func (p *processor) accept(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	rec, err := p.read(msg, p.acceptRoute())
	if err != nil {
		return nil, err
	}
	killpoint.Reach(killpoint.BeforeInsert)
	accepted, err := p.run.ledger.Accept(ctx, rec, !p.run.config.Stream.Enabled)
	if err != nil {
		return nil, fmt.Errorf("promotion: accept %s: %w", rec.Key, invalidIsPermanent(err))
	}
	killpoint.Reach(killpoint.AfterInsert)
	if accepted.Fresh && accepted.State == ledger.Cancelled {
		p.bornCancelled(ctx, rec.Key)
	}
	p.debug(ctx, "accept", rec.Key, slog.String("next", accepted.Next.String()))
	switch accepted.Next {
	case ledger.Enqueue:
		return []*message.Message{toStream(rec)}, nil
	case ledger.Pay:
		return nil, p.pay(ctx, rec)
	default: // settled, paused, or a conflict that is in the outbox
		return nil, nil
	}
}

// bornCancelled counts a record of a cancelled promotion, and logs the first of each promotion.
func (p *processor) bornCancelled(ctx context.Context, key ledger.Key) {
	p.run.metrics.born.WithLabelValues(p.kind).Inc()
	if !p.run.bornCancelled.first(key.Of()) {
		return
	}
	p.log.WarnContext(ctx, "records come in for a cancelled promotion, their payouts are cancelled at once",
		slog.String(pipeline.LogComponent, "processor"), slog.String(logPromotionType, p.kind), slog.Int64(logPromotionID, key.Promotion))
}

type recordKey struct{}

// toStream returns the message that streamSink makes an entry of. The record travels in its context.
func toStream(rec ledger.Record) *message.Message {
	msg := message.NewMessage(rec.Key.String(), rec.Payload)
	msg.SetContext(context.WithValue(context.Background(), recordKey{}, rec))
	return msg
}

// streamSink is where an accepted payout goes: the stream of its promotion. A full stream is no
// failure, and a stream that Redis refuses, or that belongs to another deployment, is none of the other streams: the row waits in the ledger for the feeder,
// so that one campaign never delays another on its partition.
type streamSink struct{ *processor }

// Describe implements pipeline.Sink.
func (s streamSink) Describe() pipeline.Endpoint { return s.manager.Source().Describe() }

// Publish implements pipeline.Sink, for messages of toStream alone.
func (s streamSink) Publish(ctx context.Context, msgs ...*message.Message) error {
	for _, msg := range msgs {
		rec, ok := msg.Context().Value(recordKey{}).(ledger.Record)
		if !ok {
			return pipeline.Permanent(fmt.Errorf("promotion: message %s carries no record", msg.UUID))
		}
		entry := redispoll.Entry{Key: string(rec.RecordKey), UUID: msg.UUID, Message: rec.Payload, Headers: rec.Headers}
		outcome, err := s.manager.Enqueue(ctx, rec.Promotion, entry)
		refused := errors.Is(err, streams.ErrRefused) || errors.Is(err, streams.ErrForeign) || errors.Is(err, streams.ErrVanishing)
		if err != nil && !refused {
			return fmt.Errorf("promotion: enqueue %s: %w", rec.Key, err)
		}
		killpoint.Reach(killpoint.AfterXADD)
		if refused || outcome == streams.Full {
			if err := s.run.ledger.NotEnqueued(ctx, rec.Key); err != nil {
				return fmt.Errorf("promotion: leave %s to the feeder: %w", rec.Key, err)
			}
		}
	}
	return nil
}

// payOn returns the handler of a route whose messages were accepted before: stream entries and retry records.
func (p *processor) payOn(route string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		rec, err := p.read(msg, route)
		if err != nil {
			return nil, err
		}
		o := pipeline.OriginFrom(msg.Context())
		if err := p.onItsStream(o, rec.Key); err != nil {
			return nil, err
		}
		err = p.pay(msg.Context(), rec)
		// The row still says that its hint is in the stream. In addition to a retry record the feeder would add another entry
		// when the stream is drained, and each of them one more retry record.
		if o.EntryID != "" && errors.Is(err, errNoSlot) && p.run.ledger.NotEnqueued(msg.Context(), rec.Key) == nil {
			return nil, nil
		}
		return nil, err
	}
}

// onItsStream refuses an entry whose payload names another promotion than its stream does.
func (p *processor) onItsStream(o pipeline.Origin, key ledger.Key) error {
	if want := p.manager.Kind().Stream(key.Promotion); o.EntryID != "" && o.Name != want {
		return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("payout %s belongs into %s", key, want)), classWrongStream)
	}
	return nil
}

// pay begins the payout in the ledger, calls the Money API and writes down what came of it.
func (p *processor) pay(ctx context.Context, rec ledger.Record) error {
	a, err := p.attempt(ctx, rec)
	if err != nil {
		return err
	}
	begun, answer := a.begun, a.answer
	switch begun.Next {
	case ledger.Send, ledger.Ask:
	case ledger.Retry:
		return pipeline.RetryAfter(fmt.Errorf("promotion: %s: %w", rec.Key, errNotYet), begun.RetryIn)
	case ledger.Unannounced: // its dead letter is in the outbox
		p.run.metrics.unannounced.WithLabelValues(p.kind).Inc()
		return nil
	default: // settled, paused, or a conflict that is in the outbox
		return nil
	}
	settled, err := p.settle(ctx, rec, begun, answer, p.judge(rec.Key, begun, a.before, answer))
	if err != nil {
		return fmt.Errorf("promotion: settle %s as %s: %w", rec.Key, answer.Class, err)
	}
	p.run.progress.mark()
	p.run.metrics.attempted(p.kind, settled)
	p.debug(ctx, "settle", rec.Key, slog.String("answer", answer.Class.String()), slog.String("state", string(settled.State)), slog.Bool("stale", settled.Stale))
	if settled.Next == ledger.Retry {
		return pipeline.RetryAfter(fmt.Errorf("promotion: %s: %s: %s", rec.Key, answer.Class, answer.Text), settled.RetryIn)
	}
	return nil
}

// slotWait bounds the wait for a slot of the Money API. It leaves the begin a part of handlerTimeout. Without a slot a
// stream entry is acked, and the feeder enqueues its payout again. A Kafka record is delivered again.
const slotWait = 10 * time.Second

var errNoSlot = errors.New("no slot of the Money API was free")

// attempt is one begin, and the call that followed it.
type attempt struct {
	before time.Time // read before the begin
	begun  ledger.Begun
	answer money.Answer // only when the begin said Send or Ask
}

// attempt begins the payout and makes the call that the ledger asks for, if it does. It holds a slot of the Money API from
// before the begin until the call has ended: every payout that is begun can then be called within its lease. A ledger that
// does not answer keeps the slots of its begins; no other payout could be begun meanwhile.
func (p *processor) attempt(ctx context.Context, rec ledger.Record) (a attempt, err error) {
	waiting, cancel := context.WithTimeout(ctx, slotWait)
	release, err := p.run.api.Slot(waiting)
	cancel()
	if err != nil {
		return a, fmt.Errorf("promotion: %s: %w: %w", rec.Key, errNoSlot, err)
	}
	defer release()
	// Read before the begin, so that our idea of the lease ends before the ledger's. A worker that
	// was frozen in between wakes up with a deadline that has passed, and sends nothing.
	a.before = time.Now()
	killpoint.Reach(killpoint.BeforeSending)
	a.begun, err = p.run.ledger.Begin(ctx, rec)
	if err != nil {
		return a, fmt.Errorf("promotion: begin %s: %w", rec.Key, invalidIsPermanent(err))
	}
	p.debug(ctx, "begin", rec.Key, slog.String("next", a.begun.Next.String()), slog.Int64("epoch", a.begun.Epoch))
	if a.begun.Next != ledger.Send && a.begun.Next != ledger.Ask {
		return a, nil
	}
	killpoint.Reach(killpoint.AfterSending)
	a.answer = p.call(ctx, a.before.Add(a.begun.Lease), rec.Key, a.begun)
	killpoint.Reach(killpoint.AfterCall)
	return a, nil
}

// call asks the Money API, within the lease and however the message's own context fares: an answer
// that nobody waits for would have to be asked for again.
func (p *processor) call(ctx context.Context, deadline time.Time, key ledger.Key, begun ledger.Begun) money.Answer {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	if begun.Next == ledger.Ask {
		return p.run.api.Lookup(ctx, key.String())
	}
	return p.run.api.Charge(ctx, money.Charge{Operation: p.operation, Key: key.String(), Body: begun.Request})
}

// settle writes down the answer, and tries again until settleTimeout. Repeating it is harmless: the epoch fences it.
func (p *processor) settle(ctx context.Context, rec ledger.Record, begun ledger.Begun, a money.Answer, counted bool) (ledger.Settled, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	result := ledger.Result{
		Key: rec.Key, Epoch: begun.Epoch, Outcome: outcomeOf(a, begun.Next == ledger.Ask), Counted: counted, TransactionKey: a.TransactionKey,
		RetryAfter: a.RetryAfter, Class: a.Class.String(), Answer: a.Text, Status: a.Status, Handler: rec.Handler,
	}
	for n := 1; ; n++ {
		settled, err := p.run.ledger.Settle(ctx, result)
		hopeless := errors.Is(err, ledger.ErrInvalid) || errors.Is(err, ledger.ErrClosed) || errors.Is(err, ledger.ErrNotFound)
		if err == nil || hopeless || n == p.run.settleTries {
			return settled, err
		}
		select {
		case <-time.After(settleBackoff.Delay(n)):
		case <-ctx.Done():
			return settled, err
		}
	}
}

// read makes the ledger's record of a message.
func (p *processor) read(msg *message.Message, route string) (ledger.Record, error) {
	pay, err := p.decode(msg.Payload)
	if err != nil {
		return ledger.Record{}, err
	}
	o := pipeline.OriginFrom(msg.Context())
	rec := ledger.Record{
		Key:       p.key(pay),
		SummaryID: pay.summary,
		Payload:   msg.Payload,
		Headers:   ownHeaders(msg),
		RecordKey: []byte(o.Key),
		Origin:    o.String(),
		Handler:   route,
	}
	if string(pay.request) != string(msg.Payload) {
		rec.Request = pay.request
	}
	return rec, nil
}

// ownHeaders returns what travels on with the payout: the record's own headers and the trace.
func ownHeaders(msg *message.Message) map[string]string {
	headers := make(map[string]string, len(msg.Metadata)+1)
	pipeline.InjectTrace(msg.Context(), headers)
	for k, v := range msg.Metadata {
		if k != pipeline.MetaTraceParent && !strings.HasPrefix(k, "millrace-") {
			headers[k] = v
		}
	}
	return headers
}

// invalidIsPermanent marks what the ledger can never store.
func invalidIsPermanent(err error) error {
	if errors.Is(err, ledger.ErrInvalid) {
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
	}
	return err
}

func (p *processor) debug(ctx context.Context, stage string, key ledger.Key, more ...slog.Attr) {
	if !p.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	p.log.LogAttrs(ctx, slog.LevelDebug, "payout", append([]slog.Attr{
		slog.String(pipeline.LogComponent, "processor"),
		slog.String(pipeline.LogStage, stage),
		slog.String(logPromotionType, p.kind),
		slog.Int64(logPromotionID, key.Promotion),
		slog.Int64(logTargetID, key.Target),
		slog.String(pipeline.LogStreamEntryID, pipeline.OriginFrom(ctx).EntryID),
	}, more...)...)
}

var _ pipeline.Sink = streamSink{}
