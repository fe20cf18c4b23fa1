-- +goose Up

-- The version before may run on these tables. Its feeder is slower: it sorts the unsettled payouts of a promotion.
-- The table is written once more, so it is locked for a time that depends on its size. docs/operating.md has figures,
-- and how to roll back.
--
-- feed and feed_at are what the feeder looks for. A begin of a payout in the stream changes neither, and no other
-- indexed column: it writes no index.
ALTER TABLE payouts
    ADD COLUMN feed text GENERATED ALWAYS AS (
        CASE WHEN hint = 'retry' AND state = 'SENDING' THEN 'stream' ELSE hint END) STORED,
    ADD COLUMN feed_at timestamptz GENERATED ALWAYS AS (
        CASE WHEN hint = 'stream' OR hint = 'retry' AND state = 'SENDING' THEN accepted_at ELSE hint_due END) STORED;
ALTER TABLE payouts SET (fillfactor = 45);
CREATE INDEX payouts_feed ON payouts (type, promotion_id, feed, feed_at, id) WHERE settled_at IS NULL;
DROP INDEX payouts_unsettled;

-- No unique key without the promotion, so that payouts can be partitioned by promotion. The version before updates by id.
ALTER TABLE payouts DROP CONSTRAINT payouts_id_key;
CREATE INDEX payouts_id ON payouts (id);

-- +goose Down
DROP INDEX payouts_id;
ALTER TABLE payouts ADD CONSTRAINT payouts_id_key UNIQUE (id);
CREATE INDEX payouts_unsettled ON payouts (type, promotion_id, hint, hint_due, id) WHERE settled_at IS NULL;
DROP INDEX payouts_feed;
ALTER TABLE payouts RESET (fillfactor);
ALTER TABLE payouts DROP COLUMN feed, DROP COLUMN feed_at;
