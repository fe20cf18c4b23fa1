-- +goose Up

-- The version before may run on these tables. It adds to the rows of promotion_summaries.
-- No table is read or written, so the locks are short.
--
-- Settled payouts that are not yet in promotion_summaries. Each session adds to rows of its own slot, because a row is
-- locked until the commit that changed it is on disk. A query of promotion_summaries reads both tables.
CREATE TABLE promotion_summary_slots (
    slot integer NOT NULL,
    CONSTRAINT promotion_summary_slots_pkey PRIMARY KEY (type, promotion_id, summary_id, slot)
) INHERITS (promotion_summaries) WITH (fillfactor = 50);

-- +goose Down
INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
    SELECT type, promotion_id, summary_id, sum(paid), sum(failed), sum(unknown), sum(cancelled) FROM promotion_summary_slots GROUP BY 1, 2, 3
    ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
        unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled;
DROP TABLE promotion_summary_slots;
