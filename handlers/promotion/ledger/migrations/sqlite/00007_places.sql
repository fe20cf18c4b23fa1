-- +goose Up

-- The version before may run on these tables.

-- The number of active promotions is limited. A promotion that has found no place waits, in the order of this column.
-- The service does not use inactive_since any more. The column stays, because the version before this one writes it.
ALTER TABLE promotion_streams ADD COLUMN waiting_since INTEGER;
CREATE INDEX promotion_streams_waiting ON promotion_streams (waiting_since, type, promotion_id) WHERE NOT active AND waiting_since IS NOT NULL;

-- +goose Down
DROP INDEX promotion_streams_waiting;
ALTER TABLE promotion_streams DROP COLUMN waiting_since;
