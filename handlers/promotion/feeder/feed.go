package feeder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Feed feeds one promotion, if this instance holds or gets its lease. It reports whether more is to
// be enqueued. m has the streams of the promotion's type.
func (f *Feeder) Feed(ctx context.Context, m *streams.Manager, u ledger.UnfinishedPromotion) (more bool, err error) {
	leased, err := f.Ledger().LeaseFeeder(ctx, u.Promotion, max(3*f.Config.Interval, minLease))
	if err != nil || !leased {
		return false, err
	}
	// Read again under the lease: another feeder may have recorded it since the round started.
	if u.Incarnation, err = f.Ledger().Incarnation(ctx, u.Promotion); err != nil {
		return false, err
	}
	st, err := m.Inspect(ctx, u.StreamID())
	if err != nil {
		return false, err
	}
	if st.Foreign {
		// Its payouts wait. On the active set, the Manager reports the stream, and starts it when
		// it is free.
		_, err := f.Ledger().Admit(ctx, u.Promotion)
		return false, err
	}
	if err := f.recordLoss(ctx, u, st); err != nil {
		return false, err
	}
	if u.Incarnation == "" && st.Exists && st.Incarnation != "" {
		// The loss of a stream is detected only when the ledger has its incarnation.
		if err := f.Ledger().RecordIncarnationIfActive(ctx, u.Promotion, st.Incarnation); err != nil {
			return false, err
		}
	}
	limit, grace := f.Config.BatchSize, f.Config.GracePeriod
	for _, source := range []struct {
		reason string
		when   bool
		read   func() ([]ledger.FeedItem, error)
	}{
		// First: while a large promotion keeps its stream full, only the first source is read.
		{reasonOverdue, true, func() ([]ledger.FeedItem, error) { return f.Ledger().FeedOverdue(ctx, u.Promotion, grace, limit) }},
		{reasonNone, true, func() ([]ledger.FeedItem, error) { return f.Ledger().FeedUnqueued(ctx, u.Promotion, limit) }},
		{reasonLostTail, st.Drained, func() ([]ledger.FeedItem, error) { return f.Ledger().FeedLostEntries(ctx, u.Promotion, grace, limit) }},
	} {
		if !source.when {
			continue
		}
		items, err := source.read()
		if err != nil {
			return more, err
		}
		added, full, err := f.enqueue(ctx, m, u.Promotion, items)
		f.Metrics.fed.WithLabelValues(string(u.Type), source.reason).Add(float64(added))
		if errors.Is(err, errNoPlace) {
			return false, nil
		}
		if err != nil {
			return more, err
		}
		more = more || full || len(items) == limit
		if full {
			break
		}
	}
	return more, nil
}

// recordLoss detects a stream that was deleted or recreated, and records that its entries are lost.
func (f *Feeder) recordLoss(ctx context.Context, u ledger.UnfinishedPromotion, st streams.State) error {
	if u.Incarnation == "" || u.Incarnation == st.Incarnation {
		return nil
	}
	n, recorded, err := f.Ledger().RecordStreamLoss(ctx, u.Promotion, u.Incarnation, st.Incarnation)
	if err != nil {
		return fmt.Errorf("record the loss of the stream: %w", err)
	}
	if !recorded {
		return nil // it was cleaned up in the meantime, or another incarnation is recorded
	}
	f.Metrics.lost.WithLabelValues(string(u.Type)).Inc()
	f.log.WarnContext(ctx, "stream was lost, its payouts are enqueued again", slog.String(logPromotionType, string(u.Type)),
		slog.Int64(logPromotionID, u.ID), slog.Int64("payouts", n), slog.Bool("gone", !st.Exists))
	return nil
}

var (
	errStreamRecreated = errors.New("the stream was created again in the meantime")
	errNoPlace         = errors.New("no place on the active set")
)

// enqueue enqueues items, marks those that were added, and reports whether the stream is full.
// After a crash between the two, an entry is enqueued twice. The ledger then pays it once.
func (f *Feeder) enqueue(ctx context.Context, m *streams.Manager, p payouts.Promotion, items []ledger.FeedItem) (n int, full bool, err error) {
	if len(items) == 0 {
		return 0, false, nil
	}
	if ok, err := f.Ledger().Admit(ctx, p); err != nil {
		return 0, false, err
	} else if !ok {
		return 0, false, errNoPlace
	}
	if err := m.Ensure(ctx, p.StreamID()); err != nil {
		return 0, false, err
	}
	m.Refresh()
	st, err := m.Inspect(ctx, p.StreamID())
	if err != nil {
		return 0, false, err
	}
	same, err := f.Ledger().RecordIncarnation(ctx, p, st.Incarnation)
	if err != nil {
		return 0, false, err
	}
	if !same {
		return 0, false, errStreamRecreated
	}
	entries := make([]entry.Entry, len(items))
	for i, item := range items {
		entries[i] = entry.Entry{Key: string(item.RecordKey), UUID: item.Key.String(), Message: item.Payload, Headers: item.Headers}
	}
	n, outcome, err := m.EnqueueBatch(ctx, p.StreamID(), entries)
	failpoint.Hit(failpoint.FeederBatch)
	if _, markErr := f.Ledger().MarkEnqueued(ctx, p, st.Incarnation, items[:n]); markErr != nil {
		err = errors.Join(err, markErr)
	}
	return n, outcome == streams.Full, err
}
