-- +goose Up

-- The version before may run on these tables.

-- The user of the session. SQLite has none.
ALTER TABLE ledger_audit ADD COLUMN db_user TEXT NOT NULL DEFAULT '';

-- Paused promotions are read often, and are few.
CREATE INDEX promotions_paused ON promotions (type, promotion_id) WHERE state = 'PAUSED';

-- +goose Down
DROP INDEX promotions_paused;
ALTER TABLE ledger_audit DROP COLUMN db_user;
