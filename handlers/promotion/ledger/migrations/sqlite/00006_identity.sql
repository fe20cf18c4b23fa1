-- +goose Up

-- The version before may run on these tables.

-- The id of this ledger, created once. Streams in Redis contain it, so that two ledgers can share one Redis.
CREATE TABLE ledger_identity (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    id       TEXT NOT NULL CHECK (id <> '')
);
INSERT INTO ledger_identity (id) VALUES (lower(hex(randomblob(16)))) ON CONFLICT DO NOTHING;

-- +goose Down
DROP TABLE ledger_identity;
