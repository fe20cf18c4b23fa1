-- +goose Up

-- The version before may run on these tables. Writers wait until the indexes are built.
--
-- The dead letters of payouts that are, or were, UNKNOWN.
CREATE INDEX outbox_unknown ON outbox (type, promotion_id, target_id) WHERE kind = 'dead' AND class = 'unknown';

-- The payouts in doubt, among them all AMBIGUOUS ones. An ordinary begin changes none of these columns, so it still
-- writes no index.
CREATE INDEX payouts_in_doubt ON payouts (type, promotion_id, id) WHERE maybe_charged AND settled_at IS NULL;

-- +goose Down
DROP INDEX payouts_in_doubt;
DROP INDEX outbox_unknown;
