package promotion

import (
	"context"
	"log/slog"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/streams"
)

// sweep searches for streams of a type that are not on the active set. Those of promotions that the ledger knows are put
// back. Any other stream was made by another program: it is counted and left unread, because nothing in it was announced.
func (f *feeder) sweep(ctx context.Context, kind ledger.Type, m *streams.Manager) error {
	unknown := 0
	err := m.Sweep(ctx, f.run.config.Feeder.Grace, func(ctx context.Context, id int64) error {
		p := ledger.Promotion{Type: kind, ID: id}
		of := []any{slog.String(logPromotionType, string(kind)), slog.Int64(logPromotionID, id)}
		known, err := f.run.ledger.Revive(ctx, p)
		if err == nil && !known && f.run.config.AcceptUnannounced {
			known, err = true, f.run.ledger.Started(ctx, p, 0)
		}
		switch {
		case err != nil:
			return err
		case known:
			f.run.metrics.orphans.WithLabelValues(string(kind)).Inc()
			f.log.WarnContext(ctx, "stream was not active, put back", of...)
		default:
			unknown++
			f.log.DebugContext(ctx, "stream belongs to no known promotion, not read", of...)
		}
		return nil
	})
	if err == nil {
		if unknown > f.unread[kind] {
			f.log.WarnContext(ctx, "streams belong to no known promotion, not read", slog.String(logPromotionType, string(kind)), slog.Int("streams", unknown))
		}
		f.unread[kind] = unknown
		f.run.metrics.unknown.WithLabelValues(string(kind)).Set(float64(unknown))
	}
	return err
}
