-- +goose Up

-- One row per prune: who deleted replayed and discarded dead letters, why and when. letters is the number deleted.
CREATE TABLE dead_letter_prunes (
    id              INTEGER     PRIMARY KEY AUTOINCREMENT,
    who             TEXT        NOT NULL,
    why             TEXT        NOT NULL,
    at              INTEGER     NOT NULL,
    unchanged_since INTEGER     NOT NULL,
    letters         INTEGER     NOT NULL
);

-- +goose Down
DROP TABLE dead_letter_prunes;
