-- +goose Up

-- The version before may run on these tables.

-- The id of this ledger, created once. Streams in Redis contain it, so that two ledgers can share one Redis.
CREATE TABLE ledger_identity (
    only_row boolean PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    id       text NOT NULL CHECK (id <> '')
);
INSERT INTO ledger_identity (id) VALUES (gen_random_uuid()::text) ON CONFLICT DO NOTHING;

-- +goose Down
DROP TABLE ledger_identity;
