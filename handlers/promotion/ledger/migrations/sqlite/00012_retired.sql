-- +goose Up

-- The version before may run on these tables.
--
-- The incarnation of the stream that an idle stop has deleted last. Its absence is no loss.
ALTER TABLE promotion_streams ADD COLUMN retired TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE promotion_streams DROP COLUMN retired;
