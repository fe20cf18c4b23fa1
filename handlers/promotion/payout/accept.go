package payout

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Accept handles records of the publish topic, with one statement of the ledger. The messages that
// it returns are for Publisher.
func (p *Processor) Accept(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
	results := make([]pipeline.BatchResult, len(msgs))
	records := make([]payouts.Record, 0, len(msgs))
	at := make([]int, 0, len(msgs)) // the message of each record
	for i, msg := range msgs {
		rec, err := p.record(msg, p.AcceptRoute())
		if err != nil {
			results[i].Err = err
			continue
		}
		records, at = append(records, rec), append(at, i)
	}
	if len(records) == 0 {
		return results
	}
	failpoint.Hit(failpoint.BeforeInsert)
	all := p.Ledger().Accept(ctx, records, ledger.AcceptOptions{PayNow: p.PayAtOnce(), Full: p.full})
	failpoint.Hit(failpoint.AfterInsert)
	for n, accepted := range all {
		results[at[n]] = p.accepted(msgs[at[n]].Context(), records[n], accepted)
	}
	return results
}

// full reports whether the stream of a promotion was full a moment ago.
func (p *Processor) full(promotion payouts.Promotion) bool {
	return p.Streams.Full(promotion.StreamID())
}

// accepted returns what comes next for a record: its entry, its payment, or nothing. Nothing comes
// next when the payout is settled or paused, or when the record conflicts and is in the outbox.
func (p *Processor) accepted(ctx context.Context, rec payouts.Record, accepted ledger.AcceptResult) pipeline.BatchResult {
	if accepted.Err != nil {
		return pipeline.BatchResult{Err: fmt.Errorf("promotion: accept %s: %w", rec.Key, invalidIsPermanent(accepted.Err))}
	}
	if accepted.Fresh && accepted.State == rules.Cancelled {
		p.acceptedCancelled(ctx, rec.Key)
	}
	p.debug(ctx, "accept", rec.Key, slog.String("next", accepted.Next.String()))
	switch accepted.Next {
	case rules.Enqueue:
		return pipeline.BatchResult{Out: []*message.Message{streamMessage(rec)}}
	case rules.CallNow:
		return pipeline.BatchResult{Then: func(msg *message.Message) ([]*message.Message, error) {
			return nil, p.Pay(msg.Context(), rec)
		}}
	}
	return pipeline.BatchResult{}
}

// acceptedCancelled counts a record of a cancelled promotion, and logs the first per promotion.
func (p *Processor) acceptedCancelled(ctx context.Context, key payouts.Key) {
	p.Metrics.cancelled.WithLabelValues(p.Type.Name).Inc()
	if !p.cancelled.add(key.OfPromotion()) {
		return
	}
	p.Log.WarnContext(ctx, "a cancelled promotion still gets records, their payouts are cancelled at once",
		slog.String(logs.Component, "processor"), slog.String(logPromotionType, p.Type.Name),
		slog.Int64(logPromotionID, key.Promotion))
}
