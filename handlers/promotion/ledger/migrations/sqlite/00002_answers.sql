-- +goose Up

-- The version before may run on these tables.

-- Actions of operators on payouts and promotions. target_id 0: an action on the promotion.
CREATE TABLE ledger_audit (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    at                 INTEGER NOT NULL,
    who                TEXT    NOT NULL,
    why                TEXT    NOT NULL,
    action             TEXT    NOT NULL,
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    target_id          INTEGER NOT NULL,
    detail             TEXT    NOT NULL
);
CREATE INDEX ledger_audit_payout ON ledger_audit (type, promotion_id, target_id, id);

-- Replayed dead letters. Each generation of a dead letter has one effect.
CREATE TABLE ledger_replays (
    letter             TEXT    NOT NULL,
    generation         INTEGER NOT NULL,
    payout_id          INTEGER NOT NULL,
    at                 INTEGER NOT NULL,
    PRIMARY KEY (letter, generation)
);

-- +goose Down
DROP TABLE ledger_replays;
DROP TABLE ledger_audit;
