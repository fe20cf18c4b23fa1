-- +goose Up

-- One row per prune: person, reason and time. The last column is their number.
CREATE TABLE dead_letter_prunes (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    who             text        NOT NULL,
    why             text        NOT NULL,
    at              timestamptz NOT NULL,
    unchanged_since timestamptz NOT NULL,
    letters         bigint      NOT NULL
);

-- +goose Down
DROP TABLE dead_letter_prunes;
