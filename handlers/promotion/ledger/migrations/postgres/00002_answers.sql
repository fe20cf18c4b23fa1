-- +goose Up

-- The version before may run on these tables.

-- Actions of operators on payouts and promotions. target_id 0: an action on the promotion.
CREATE TABLE ledger_audit (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL,
    who          text        NOT NULL,
    why          text        NOT NULL,
    action       text        NOT NULL,
    type         text        NOT NULL,
    promotion_id bigint      NOT NULL,
    target_id    bigint      NOT NULL,
    detail       text        NOT NULL
);
CREATE INDEX ledger_audit_payout ON ledger_audit (type, promotion_id, target_id, id);

-- Replayed dead letters. Each generation of a dead letter has one effect.
CREATE TABLE ledger_replays (
    letter     text        NOT NULL,
    generation integer     NOT NULL,
    payout_id  bigint      NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (letter, generation)
);

-- +goose Down
DROP TABLE ledger_replays;
DROP TABLE ledger_audit;
