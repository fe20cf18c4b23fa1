-- +goose Up

-- The version before may run on these tables.

-- released: calls that spent no attempt while calls for other payouts were answered.
-- key_first_used_at: the first time that the idempotency key may have reached the Money API. For
-- payouts that an earlier version has started it is NULL, and first_sent_at counts.
-- no_charge_seen: a lookup since the last send found no charge.
ALTER TABLE payouts
    ADD COLUMN released          integer     NOT NULL DEFAULT 0,
    ADD COLUMN key_first_used_at timestamptz,
    ADD COLUMN no_charge_seen    boolean     NOT NULL DEFAULT FALSE;

-- +goose Down
ALTER TABLE payouts
    DROP COLUMN released,
    DROP COLUMN key_first_used_at,
    DROP COLUMN no_charge_seen;
