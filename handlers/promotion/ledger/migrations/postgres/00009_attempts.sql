-- +goose Up

-- The version before may run on these tables. It writes its attempts to the table attempts.
-- No table is read or written, so the locks are short.
--
-- Attempts since this version, with the promotion in their unique key. A query of attempts reads both tables.
CREATE TABLE payout_attempts (
    promotion_id bigint NOT NULL,
    CONSTRAINT payout_attempts_pkey PRIMARY KEY (payout_id, epoch, late, promotion_id)
) INHERITS (attempts);

-- +goose Down
INSERT INTO attempts SELECT payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status
    FROM payout_attempts ON CONFLICT DO NOTHING;
DROP TABLE payout_attempts;
