-- +goose Up

-- The version before may run on these tables.

-- The user of the session. A role without the right to insert into this column can't forge it.
ALTER TABLE ledger_audit ADD COLUMN db_user text NOT NULL DEFAULT '';
ALTER TABLE ledger_audit ALTER COLUMN db_user SET DEFAULT session_user;

-- Paused promotions are read often, and are few.
CREATE INDEX promotions_paused ON promotions (type, promotion_id) WHERE state = 'PAUSED';

-- +goose Down
DROP INDEX promotions_paused;
ALTER TABLE ledger_audit DROP COLUMN db_user;
