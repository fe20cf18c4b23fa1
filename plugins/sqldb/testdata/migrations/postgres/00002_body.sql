-- +goose Up
ALTER TABLE notes ADD COLUMN body text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE notes DROP COLUMN body;
