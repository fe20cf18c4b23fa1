-- +goose Up

-- The version before may run on these tables.

-- The number of active promotions is limited. A promotion that has found no place waits, in the order of this column.
-- The service does not use inactive_since any more. The column stays, because the version before this one writes it.
ALTER TABLE promotion_streams ADD COLUMN waiting_since timestamptz;
CREATE INDEX promotion_streams_waiting ON promotion_streams (waiting_since, type, promotion_id) WHERE NOT active AND waiting_since IS NOT NULL;

-- Ends a transaction in which a row was not the version that had been read. The service runs it again with locks.
-- +goose StatementBegin
CREATE FUNCTION ledger_stale_row() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a payout was changed by another transaction since it was read'
        USING ERRCODE = 'MR001', HINT = 'No action is needed: the transaction is repeated with row locks.';
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ledger_stale_row();
DROP INDEX promotion_streams_waiting;
ALTER TABLE promotion_streams DROP COLUMN waiting_since;
