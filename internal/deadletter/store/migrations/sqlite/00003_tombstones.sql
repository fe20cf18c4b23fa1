-- +goose Up

-- The message had no payload at all, which is not the same as an empty one: on a compacted topic it deletes its key.
ALTER TABLE dead_letters ADD COLUMN tombstone INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN tombstone;
