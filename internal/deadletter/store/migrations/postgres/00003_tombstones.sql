-- +goose Up

-- The message had no payload at all, which is not the same as an empty one: on a compacted topic it deletes its key.
ALTER TABLE dead_letters ADD COLUMN tombstone boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN tombstone;
