-- +goose Up
CREATE TABLE notes (id bigint PRIMARY KEY);

-- +goose Down
DROP TABLE notes;
