package feeder

import (
	"context"
	"errors"
	"log/slog"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// sweep scans for streams of a type that are not on the active set, and reactivates those of
// promotions that the ledger has. Another program made each other stream. Nothing in it was
// announced, so that it is counted and not read.
func (f *Feeder) sweep(ctx context.Context, t payouts.Type, m *streams.Manager) error {
	unknown := 0
	err := m.Sweep(ctx, f.Config.GracePeriod, func(ctx context.Context, id string) error {
		attrs := []any{slog.String(logPromotionType, string(t)), slog.String(logPromotionID, id)}
		known, err := f.reactivate(ctx, t, id)
		switch {
		case err != nil:
			return err
		case known:
			f.Metrics.orphans.WithLabelValues(string(t)).Inc()
			f.log.WarnContext(ctx, "orphan stream reactivated", attrs...)
		default:
			unknown++
			f.log.DebugContext(ctx, "stream of no promotion in the ledger, not read", attrs...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if unknown > f.unread[t] {
		f.log.WarnContext(ctx, "streams of no promotion in the ledger, not read", slog.String(logPromotionType, string(t)), slog.Int("streams", unknown))
	}
	f.unread[t] = unknown
	f.Metrics.unknown.WithLabelValues(string(t)).Set(float64(unknown))
	return nil
}

// reactivate reactivates a stream if the ledger has its promotion, or may take one that was not
// announced. No promotion has a stream whose id is not its number.
func (f *Feeder) reactivate(ctx context.Context, t payouts.Type, id string) (known bool, err error) {
	p, err := payouts.PromotionOfStream(t, id)
	if errors.Is(err, rules.ErrInvalid) {
		return false, nil
	}
	known, err = f.Ledger().ActivateKnown(ctx, p)
	if err == nil && !known && f.AcceptUnannounced {
		known, err = true, f.Ledger().Started(ctx, p, 0)
	}
	return known, err
}
