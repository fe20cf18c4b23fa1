-- +goose Up

-- released counts the calls that spent no attempt while calls for other payouts were answered. key_first_used_at is when the
-- idempotency key may have reached the Money API first; NULL for payouts that an earlier version has begun, whose first_sent_at
-- counts instead. no_charge_seen: the API has said since the last send that it knows no charge.
ALTER TABLE payouts ADD COLUMN released INTEGER NOT NULL DEFAULT 0;
ALTER TABLE payouts ADD COLUMN key_first_used_at INTEGER;
ALTER TABLE payouts ADD COLUMN no_charge_seen INTEGER NOT NULL DEFAULT FALSE;

-- +goose Down
ALTER TABLE payouts DROP COLUMN released;
ALTER TABLE payouts DROP COLUMN key_first_used_at;
ALTER TABLE payouts DROP COLUMN no_charge_seen;
