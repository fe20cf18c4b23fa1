-- +goose Up

-- Where the message was in its topic or stream, as the transport wrote it. The version before writes the parts
-- (source_partition, source_offset, entry_id) and leaves it empty; it shows only the source of a newer row.
ALTER TABLE dead_letters ADD COLUMN position text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN position;
