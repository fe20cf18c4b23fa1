-- +goose Up

-- The ledger's own id, made once. Streams in Redis carry it, so that two ledgers on one Redis leave each other's streams alone.
CREATE TABLE ledger_identity (
    only_row boolean PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    id       text NOT NULL CHECK (id <> '')
);
INSERT INTO ledger_identity (id) VALUES (gen_random_uuid()::text) ON CONFLICT DO NOTHING;

-- +goose Down
DROP TABLE ledger_identity;
