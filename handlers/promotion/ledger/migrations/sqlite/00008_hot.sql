-- +goose Up

-- The version before may run on these tables. Its feeder is slower: it sorts the unsettled payouts of a promotion.
--
-- feed and feed_at are what the feeder looks for. A begin of a payout in the stream changes neither.
ALTER TABLE payouts ADD COLUMN feed TEXT GENERATED ALWAYS AS (
    CASE WHEN hint = 'retry' AND state = 'SENDING' THEN 'stream' ELSE hint END) VIRTUAL;
ALTER TABLE payouts ADD COLUMN feed_at INTEGER GENERATED ALWAYS AS (
    CASE WHEN hint = 'stream' OR hint = 'retry' AND state = 'SENDING' THEN accepted_at ELSE hint_due END) VIRTUAL;
CREATE INDEX payouts_feed ON payouts (type, promotion_id, feed, feed_at, id) WHERE settled_at IS NULL;
DROP INDEX payouts_unsettled;

-- +goose Down
CREATE INDEX payouts_unsettled ON payouts (type, promotion_id, hint, hint_due, id) WHERE settled_at IS NULL;
DROP INDEX payouts_feed;
ALTER TABLE payouts DROP COLUMN feed_at;
ALTER TABLE payouts DROP COLUMN feed;
