package payout

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
)

// accept stores a record in the ledger, and returns what comes next: Enqueue, Pay, or nothing.
// Nothing comes next when the payout is settled or paused, or when the record conflicts and is in
// the outbox.
func (p *Processor) accept(ctx context.Context, rec rules.Record) (rules.Next, error) {
	failpoint.Hit(failpoint.BeforeInsert)
	accepted := p.Ledger().Accept(ctx, []rules.Record{rec}, ledger.AcceptOptions{PayNow: p.PayAtOnce()})[0]
	if accepted.Err != nil {
		return accepted.Next, fmt.Errorf("promotion: accept %s: %w", rec.Key, invalidIsPermanent(accepted.Err))
	}
	failpoint.Hit(failpoint.AfterInsert)
	if accepted.Fresh && accepted.State == rules.Cancelled {
		p.acceptedCancelled(ctx, rec.Key)
	}
	p.debug(ctx, "accept", rec.Key, slog.String("next", accepted.Next.String()))
	return accepted.Next, nil
}

// acceptedCancelled counts a record of a cancelled promotion, and logs the first per promotion.
func (p *Processor) acceptedCancelled(ctx context.Context, key rules.Key) {
	p.Metrics.cancelled.WithLabelValues(p.Type.Name).Inc()
	if !p.cancelled.add(key.OfPromotion()) {
		return
	}
	p.Log.WarnContext(ctx, "a cancelled promotion still gets records, their payouts are cancelled at once",
		slog.String(pipeline.LogComponent, "processor"), slog.String(logPromotionType, p.Type.Name),
		slog.Int64(logPromotionID, key.Promotion))
}
