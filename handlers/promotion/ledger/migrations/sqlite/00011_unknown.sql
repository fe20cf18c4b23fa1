-- +goose Up

-- The version before may run on these tables. Writers of the outbox wait until the index is built.
--
-- The dead letters of payouts that are, or were, UNKNOWN.
CREATE INDEX outbox_unknown ON outbox (type, promotion_id, target_id) WHERE kind = 'dead' AND class = 'unknown';

-- +goose Down
DROP INDEX outbox_unknown;
