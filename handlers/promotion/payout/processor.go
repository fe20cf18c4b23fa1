package payout

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/answered"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Processor accepts and pays the payouts of one promotion type. It is safe for concurrent use.
// Its functions are called only while routes are open.
type Processor struct {
	Type     promotiontype.Type
	Ledger   func() *ledger.Ledger
	MoneyAPI func() money.API
	// Begins limits how many payouts of the process are started. Each holds one until the end of
	// its call. There are more than call slots, so that payouts are started in batches while others
	// are called.
	Begins func() *slots.Slots
	// CallTimeout is the part of a lease that is left for the call. A payout that gets no slot
	// before is not called.
	CallTimeout time.Duration
	Streams     *streams.Manager
	PayAtOnce   func() bool // true: Accept pays a record and does not enqueue it
	Metrics     *Metrics
	Progress    *Progress
	Recent      *Recent
	Log         *slog.Logger
	// SettleTries is the maximum number of tries to store an answer. 0: until settleTimeout.
	SettleTries int

	answered  answered.Keys[payouts.Key]
	cancelled promotionSet // promotions with records that came after their cancellation
}

// invalidIsPermanent makes an error permanent that says that the ledger can never store a record.
func invalidIsPermanent(err error) error {
	if errors.Is(err, rules.ErrInvalid) {
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
	}
	return err
}

// Attribute keys of log lines, in addition to those of package pipeline.
const (
	logPromotionType = "promotion_type"
	logPromotionID   = "promotion_id"
	logTargetID      = "target_id"
)

func (p *Processor) debug(ctx context.Context, stage string, key payouts.Key, more ...slog.Attr) {
	if !p.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	p.Log.LogAttrs(ctx, slog.LevelDebug, "payout", append([]slog.Attr{
		slog.String(logs.Component, "processor"),
		slog.String(logs.Stage, stage),
		slog.String(logPromotionType, p.Type.Name),
		slog.Int64(logPromotionID, key.Promotion),
		slog.Int64(logTargetID, key.Target),
		slog.String(logs.Origin, pipeline.DeliveryFrom(ctx).String()),
	}, more...)...)
}
