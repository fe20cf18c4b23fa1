-- +goose Up

-- One row per prune: person, reason and time. The last column is their number.
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
