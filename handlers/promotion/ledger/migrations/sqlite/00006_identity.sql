-- +goose Up

-- The ledger's own id, made once. Streams in Redis carry it, so that two ledgers on one Redis leave each other's streams alone.
CREATE TABLE ledger_identity (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    id       TEXT NOT NULL CHECK (id <> '')
);
INSERT INTO ledger_identity (id) VALUES (lower(hex(randomblob(16)))) ON CONFLICT DO NOTHING;

-- +goose Down
DROP TABLE ledger_identity;
